"""The HTTP side of the API server: paths, media types, verbs, watches (`docs/specs/operator.md` 6.1, 6.2, 6.5)."""

import asyncio
import base64
import json
import logging
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pavane_local.api import admission, auth, discovery, errors, logs, tables
from pavane_local.api.cluster import Cluster, DeleteOptions, FieldValidation, PatchKind, Watch, WriteOptions
from pavane_local.api.errors import ApiError, section
from pavane_local.api.kinds import REVIEWS, Registry, Resource
from pavane_local.api.scale import scale_of, write_scale
from pavane_local.store import Object

BODY_BYTES = 3 * 1024 * 1024
"""As a real API server."""
BOOKMARK_SECONDS = 30
FIELD_VALIDATIONS: dict[str, FieldValidation] = {"Ignore": "Ignore", "Warn": "Warn", "Strict": "Strict"}
PATCH_KINDS: dict[str, PatchKind | Literal["apply"]] = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
POD_STREAMS = ("exec", "attach", "portforward", "proxy", "ephemeralcontainers")
LIMITS_PAGE = "docs/limitations.md tells what the local cluster serves; use a real cluster for the rest"
HEALTH = ("livez", "readyz", "healthz")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """What a path names; `namespace` is None for a list over all of them."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str


def target_of(registry: Registry, parts: tuple[str, ...]) -> Target | None:
    """Read a resource path, or return None if there is no such resource."""
    match parts:
        case ("api", version, *rest):
            group = ""
        case ("apis", group, version, *rest):
            pass
        case _:
            return None
    namespace = None
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = registry.find(group, version, rest[0]) if 0 < len(rest) < 4 else None
    if resource is None:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    refused = subresource in POD_STREAMS and resource.key == "pods"
    if subresource and subresource not in resource.subresources and not refused:
        return None
    if not resource.namespaced:
        namespace = ""
    return Target(resource, namespace, name, subresource)


class Api:
    """ASGI application of the API server."""

    def __init__(self, cluster: Cluster, tokens: auth.Tokens, pod_logs: logs.PodLogs) -> None:
        self._cluster = cluster
        self._tokens = tokens
        self._pod_logs = pod_logs
        self._watches: set[Watch] = set()

    def end_watches(self) -> None:
        """Let every watch finish, so that the server can stop."""
        for watch in self._watches:
            watch.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every refusal is a `Status` object."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ApiError as error:
            response = _json(error.status(), error.code)
            if error.code == 404 and not error.details and not request.url.path.startswith("/openapi"):
                response.headers["Warning"] = f'299 - "{LIMITS_PAGE}"'
        except Exception as error:
            log.exception("request failed: %s %s", request.method, request.url.path)
            response = _json(ApiError(500, "InternalError", f"Internal error occurred: {error!r}").status(), 500)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        parts = tuple(part for part in request.url.path.split("/") if part)
        if len(parts) == 1 and parts[0] in HEALTH:
            return Response("ok")
        identity = self._identify(request) if parts != ("version",) else None
        if request.method == "GET" and (found := discovery.document(self._cluster.registry, parts)):
            return _json(found)
        target = target_of(self._cluster.registry, parts)
        if target is None or identity is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if target.resource.plural in REVIEWS:
            return await self._review(request, target.resource, identity)
        if not auth.allowed(identity.username, identity.groups):
            what = f'"{target.resource.plural}" in API group "{target.resource.group}"'
            raise errors.forbidden(f'{target.resource.key} is forbidden: User "{identity.username}" cannot use {what}')
        return await self._verb(request, target)

    def _identify(self, request: Request) -> auth.Identity:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        identity = self._tokens.identify(token) if scheme.lower() == "bearer" else None
        if identity is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return identity

    async def _verb(self, request: Request, target: Target) -> Response:
        if target.subresource in POD_STREAMS:
            message = f"pods/{target.subresource} is not available in the local cluster: run the command yourself; "
            raise ApiError(
                501, "NotImplemented", message + "the pod's files lie in .pavane/pods/{namespace}/{pod}/{uid}"
            )
        match request.method, bool(target.name):
            case "GET", True:
                return self._get(request, target)
            case "GET", False:
                return self._watch(request, target) if _flag(request, "watch") else self._list(request, target)
            case "POST", _:
                return await self._post(request, target)
            case (("PUT" | "PATCH"), True):
                return await self._write(request, target)
            case "DELETE", True:
                return await self._delete(request, target)
            case "DELETE", False:
                return await self._delete_all(request, target)
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    # Reading

    def _shown(self, request: Request, resource: Resource, found: list[Object], metadata: Object) -> Object | None:
        """Return objects as a Table, or None if the client did not ask for one."""
        if "as=Table" not in request.headers.get("accept", ""):
            return None
        include = request.query_params.get("includeObject", "Metadata")
        return tables.table(resource, found, metadata, self._cluster.now(), include)

    def _get(self, request: Request, target: Target) -> Response:
        found = self._cluster.get(target.resource.key, target.namespace or "", target.name)
        if target.subresource == "log":
            return self._log(request, found)
        if target.subresource == "scale":
            return _json(scale_of(target.resource, found))
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        return _json(self._shown(request, target.resource, [found], version) or found)

    def _list(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        found = self._cluster.list(resource.key, target.namespace, **_selectors(query))
        version = str(self._cluster.store.resource_version)
        if query.get("continue"):
            version, *last = _read_continue(query["continue"])
            found = [each for each in found if _place(each) > last]
        metadata: Object = {"resourceVersion": version}
        limit = _number(query, "limit") or len(found)
        if rest := len(found[limit:]):
            found = found[:limit]
            token = base64.urlsafe_b64encode(json.dumps([version, *_place(found[-1])]).encode()).decode()
            metadata |= {"continue": token, "remainingItemCount": rest}
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
        return _json(self._shown(request, resource, found, metadata) or {**head, "items": found})

    def _watch(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        if _flag(request, "sendInitialEvents"):
            cause = errors.Cause("FieldValueForbidden", "Forbidden: not served; list and watch", "sendInitialEvents")
            raise errors.invalid("ListOptions", "meta.k8s.io", "", [cause])
        since = _number(query, "resourceVersion")
        seconds = _number(query, "timeoutSeconds") or math.inf
        try:
            watch = self._cluster.watch(resource.key, target.namespace, since=since or None, **_selectors(query))
        except ApiError as error:
            if error.code != 410:
                raise
            return Response(_line("ERROR", error.status()), media_type="application/json")
        return StreamingResponse(self._events(request, watch, resource, seconds), media_type="application/json")

    async def _events(self, request: Request, watch: Watch, resource: Resource, seconds: float) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        bookmarks = _flag(request, "allowWatchBookmarks")
        upcoming = None
        self._watches.add(watch)
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(watch))
                done, _ = await asyncio.wait((upcoming,), timeout=max(0.0, min(BOOKMARK_SECONDS, end - clock())))
                if done:
                    event = upcoming.result()
                    upcoming = None
                    body = self._cluster.shown(resource, event.object)
                    yield _line(event.type, self._shown(request, resource, [body], {}) or body)
                    continue
                if bookmarks:  # Nothing is pending, so this watcher has seen all there is.
                    head = {"kind": resource.kind, "apiVersion": resource.api_version}
                    version = str(self._cluster.store.resource_version)
                    yield _line("BOOKMARK", {**head, "metadata": {"resourceVersion": version}})
                if clock() >= end:
                    return
        except ApiError:  # The reader is too slow, or the server stops: the stream ends, and the client lists again.
            return
        finally:
            if upcoming:
                upcoming.cancel()
            self._watches.discard(watch)
            watch.close()

    def _log(self, request: Request, pod: Object) -> Response:
        query = request.query_params
        container = logs.container_of(pod, query)
        options = logs.options_of(query, self._cluster.now())
        try:
            stream = self._pod_logs.stream(pod, container, options, previous=_flag(request, "previous"))
        except LookupError as error:
            raise errors.bad_request(str(error.args[0])) from error
        return StreamingResponse(stream, media_type="text/plain")

    # Writing

    def _options(self, request: Request) -> WriteOptions:
        query = request.query_params
        agent = request.headers.get("user-agent", "").split("/")[0]
        validation = FIELD_VALIDATIONS.get(query.get("fieldValidation") or "Warn")
        if validation is None:
            raise errors.bad_request("fieldValidation must be Ignore, Warn or Strict")
        return WriteOptions(query.get("fieldManager") or agent or "unknown", _dry_run(query), validation)

    async def _post(self, request: Request, target: Target) -> Response:
        body = await _body(request)
        key, namespace = target.resource.key, target.namespace or ""
        if target.subresource == "token":
            return _json(self._tokens.issue(namespace, target.name, section(body, "spec")), 201)
        if target.subresource == "eviction":
            options = _delete_options({}, section(body, "deleteOptions"))
            await self._cluster.delete(key, namespace, target.name, options)
            return _json(_success(), 201)
        if target.name:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        _complete(body, target)
        write = self._options(request)
        return _json(await self._cluster.create(key, body, write), 201, write.warnings)

    async def _write(self, request: Request, target: Target) -> Response:
        kind: PatchKind | Literal["apply", ""] = ""
        if request.method == "PATCH":
            media = request.headers.get("content-type", "").split(";")[0]
            if media not in PATCH_KINDS:
                raise ApiError(415, "UnsupportedMediaType", f"patches are sent as one of {', '.join(PATCH_KINDS)}")
            kind = PATCH_KINDS[media]
        body: Any = await _body(request, whole=kind != "json")
        options = self._options(request)
        key, namespace, sub = target.resource.key, target.namespace or "", target.subresource
        if sub == "scale" and kind != "apply":
            return _json(await write_scale(self._cluster, target.resource, namespace, target.name, body, kind, options))
        if kind == "apply":
            if not request.query_params.get("fieldManager"):
                raise errors.bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
            _complete(body, target)
            force = _flag(request, "force")
            applied, created = await self._cluster.apply(key, body, options, force=force, subresource=sub)
            return _json(applied, 201 if created else 200, options.warnings)
        if kind:
            written = await self._cluster.patch(key, namespace, target.name, body, kind, options, subresource=sub)
        else:
            _complete(body, target)
            written = await self._cluster.update(key, body, options, subresource=sub)
        return _json(written, 200, options.warnings)

    async def _delete(self, request: Request, target: Target) -> Response:
        options = _delete_options(request.query_params, await _body(request, required=False))
        last = await self._cluster.delete(target.resource.key, target.namespace or "", target.name, options)
        if not admission.released(last):
            return _json(last)
        details = {"name": target.name, "kind": target.resource.plural, "uid": last["metadata"]["uid"]}
        return _json(_success() | {"details": details | ({"group": g} if (g := target.resource.group) else {})})

    async def _delete_all(self, request: Request, target: Target) -> Response:
        query, key = request.query_params, target.resource.key
        options = _delete_options(query, await _body(request, required=False))
        deleted = []
        for each in self._cluster.list(key, target.namespace, **_selectors(query)):
            namespace, name = _place(each)
            if self._cluster.find(key, namespace, name):
                deleted.append(await self._cluster.delete(key, namespace, name, options))
        return _json({"kind": f"{target.resource.kind}List", "apiVersion": "v1", "metadata": {}, "items": deleted})

    # Reviews

    async def _review(self, request: Request, resource: Resource, identity: auth.Identity) -> Response:
        if request.method != "POST":
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}}
        if resource.kind == "SelfSubjectAccessReview":  # The answer depends on the token alone, whatever was asked.
            allowed = auth.allowed(identity.username, identity.groups)
            return _json({**head, "spec": {}, "status": {"allowed": allowed}}, 201)
        if not auth.allowed(identity.username, identity.groups):
            raise errors.forbidden(f'{resource.key} is forbidden: User "{identity.username}" cannot create it')
        spec = section(await _body(request), "spec")
        if resource.kind == "SubjectAccessReview":
            allowed = auth.allowed(str(spec.get("user", "")), spec.get("groups") or ())
            return _json({**head, "spec": spec, "status": {"allowed": allowed}}, 201)
        found = self._tokens.identify(str(spec.get("token", "")), spec.get("audiences") or (auth.AUDIENCE,))
        status: Object = {"authenticated": False, "error": "invalid bearer token"}
        if found:
            status = {"authenticated": True, "user": found.user(), "audiences": list(found.audiences)}
        return _json({**head, "spec": spec, "status": status}, 201)


def _json(content: Any, code: int = 200, warnings: list[str] | None = None) -> Response:
    response = Response(json.dumps(content, separators=(",", ":")), code, media_type="application/json")
    for warning in warnings or ():
        response.headers.append("Warning", f"299 - {json.dumps(warning)}")
    return response


def _line(kind: str, body: Object) -> bytes:
    return json.dumps({"type": kind, "object": body}, separators=(",", ":")).encode() + b"\n"


def _success() -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _place(body: Object) -> list[str]:
    return [body["metadata"].get("namespace", ""), body["metadata"]["name"]]


def _read_continue(token: str) -> list[str]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token))
    except ValueError as error:
        raise errors.bad_request("continue key is not valid: list again without it") from error
    return [version, namespace, name]


def _selectors(query: Mapping[str, str]) -> dict[str, str]:
    return {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "") in ("true", "1")


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isdecimal():
        raise errors.bad_request(f"{name} must be a number, 0 or more, not {text!r}")
    return int(text)


def _dry_run(query: Mapping[str, str]) -> bool:
    if query.get("dryRun", "All") != "All":
        raise errors.bad_request("dryRun must be All")
    return "dryRun" in query


async def _body(request: Request, *, required: bool = True, whole: bool = True) -> Any:
    """Read a JSON or YAML body; an object if `whole`.

    Raises `ApiError`: 413 too large, 415 protobuf, 400 nothing readable.
    """
    if "protobuf" in request.headers.get("content-type", ""):
        raise ApiError(415, "UnsupportedMediaType", "protobuf is not served here: write the object down, use apply -f")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY_BYTES:
            raise ApiError(413, "RequestEntityTooLarge", f"the request is larger than {BODY_BYTES} bytes")
    if not content and not required:
        return {}
    try:
        found = json.loads(content) if content.lstrip()[:1] in (b"{", b"[") else yaml.safe_load(content)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(f"the body of the request cannot be read as JSON or YAML: {error}") from error
    if whole and not isinstance(found, dict):
        raise errors.bad_request("the body of the request must be an object")
    return found


def _complete(body: Object, target: Target) -> None:
    """Take name and namespace of the path over into a body that leaves them out.

    Raises `ApiError`: 400, the body names others.
    """
    metadata = body.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise errors.bad_request("metadata must be an object")
    for field, wanted in (("name", target.name), ("namespace", target.namespace)):
        if not wanted:
            continue
        if (metadata.get(field) or wanted) != wanted:
            raise errors.bad_request(f"the {field} of the object ({metadata[field]}) is not that of the URL ({wanted})")
        metadata[field] = wanted


def _delete_options(query: Mapping[str, str], body: Object) -> DeleteOptions:
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    if policy != "Background" or body.get("orphanDependents"):
        message = f"propagationPolicy {policy} is not served by the local cluster: dependents go in the background"
        raise ApiError(501, "NotImplemented", message)
    preconditions = section(body, "preconditions")
    grace = body.get("gracePeriodSeconds")
    if grace is None and "gracePeriodSeconds" in query:
        grace = _number(query, "gracePeriodSeconds")
    if not isinstance(grace, int | None):
        raise errors.bad_request("gracePeriodSeconds must be a number")
    dry = bool(body.get("dryRun")) or _dry_run(query)
    return DeleteOptions(preconditions.get("uid"), preconditions.get("resourceVersion"), grace, dry)

"""The HTTP side of the API server: paths, media types, verbs, watches (`docs/specs/operator.md` 6.1, 6.2, 6.5)."""

import asyncio
import base64
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import yaml
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pavane_local.api import admission, auth, discovery, errors, tables
from pavane_local.api.cluster import Cluster, DeleteOptions, WriteOptions
from pavane_local.api.errors import ApiError, section
from pavane_local.api.kinds import REVIEWS, Resource
from pavane_local.kubelet.logs import LogOptions
from pavane_local.store import Object, Watch

BODY_BYTES = 3 * 1024 * 1024  # as a real API server
YAML_BYTES = 1024 * 1024  # of which reading takes seconds
BOOKMARK_SECONDS = 30
PATCH_KINDS = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}
POD_STREAMS = ("exec", "attach", "portforward", "proxy", "ephemeralcontainers", "eviction")
NO_STREAMS = "pods/{} is not available in the local cluster: run the command in .pavane/pods/<namespace>/<pod>/<uid>"
LIMITS_PAGE = "docs/limitations.md lists what the local cluster supports; use a real cluster for the rest"
LOG_OPTIONS_REFUSED = ("sinceSeconds", "sinceTime", "limitBytes")

log = logging.getLogger(__name__)

_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

PodLogs = Callable[..., AsyncIterator[bytes]]
"""`(pod, container, options, previous=)`: the log of a container's run. Raises `LookupError`: there is no such run."""


class Target(NamedTuple):
    """What a path names; `namespace` is None for a list over all of them."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str


def target_of(registry: Mapping[str, Resource], parts: tuple[str, ...]) -> Target | None:
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
    resource = registry.get(f"{rest[0]}.{group}" if group else rest[0]) if 0 < len(rest) < 4 else None
    if resource is None or resource.version != version:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    if subresource not in ("", *resource.subresources, *(POD_STREAMS if resource.key == "pods" else ())):
        return None
    return Target(resource, namespace if resource.namespaced else "", name, subresource)


class Api:
    """ASGI application of the API server."""

    def __init__(self, cluster: Cluster, tokens: auth.Tokens, pod_logs: PodLogs) -> None:
        self._cluster = cluster
        self._tokens = tokens
        self._pod_logs = pod_logs

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
        if parts in (("livez",), ("readyz",), ("healthz",)):
            return Response("ok")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        identity = self._tokens.identify(token) if scheme.lower() == "bearer" else None
        if identity is None and parts != ("version",):
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if request.method == "GET" and (found := discovery.document(self._cluster.registry, parts)):
            return _json(found)
        target = target_of(self._cluster.registry, parts)
        if target is None or identity is None:
            raise errors.not_served()
        resource, may_all = target.resource, auth.allowed(identity.username, identity.groups)
        if resource.kind == "SelfSubjectAccessReview":  # The answer depends on the token alone, whatever was asked.
            return self._reviewed(resource, {}, may_all=may_all)
        verb = auth.verb(request.method, _flag(request, "watch"), named=bool(target.name))
        if not may_all and not self._granted(identity, verb, target):
            raise ApiError(403, "Forbidden", f'{resource.key} is forbidden: User "{identity.username}" may not use it')
        if target.subresource in POD_STREAMS:
            raise ApiError(501, "NotImplemented", NO_STREAMS.format(target.subresource))
        if request.method == "POST" and not target.name:
            return await self._post(request, target)
        if resource.plural in REVIEWS:
            raise errors.not_served(405)
        match request.method, bool(target.name):
            case "GET", True:
                return self._get(request, target)
            case "GET", False:
                return self._watch(request, target) if _flag(request, "watch") else self._list(request, target)
            case (("PUT" | "PATCH"), True):
                return await self._write(request, target)
            case "DELETE", True if not target.subresource:
                return await self._delete(request, target)
        raise errors.not_served(405)

    def _granted(self, identity: auth.Identity, verb: str, target: Target) -> bool:
        resource = "/".join(filter(None, (target.resource.plural, target.subresource)))
        return auth.granted(self._cluster, identity, target.namespace or "", verb, target.resource.group, resource)

    def _shown(self, request: Request, resource: Resource, found: list[Object], metadata: Object) -> Object | None:
        """Return objects as a Table, or None if the client did not ask for one."""
        wanted = "as=Table" in request.headers.get("accept", "")
        return tables.table(resource, found, metadata, self._cluster.now()) if wanted else None

    def _get(self, request: Request, target: Target) -> Response:
        found = self._cluster.get(target.resource.key, target.namespace or "", target.name)
        if target.subresource == "log":
            return self._log(request, found)
        if target.subresource == "scale":
            return _json(_scale_of(found))
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        return _json(self._shown(request, target.resource, [found], version) or found)

    def _list(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        found = self._cluster.chosen(resource, target.namespace, **_selectors(query))
        version = str(self._cluster.store.resource_version)
        if token := query.get("continue"):
            try:
                version, *last = json.loads(base64.urlsafe_b64decode(token))
            except ValueError as error:
                raise errors.bad_request("continue key is not valid: list again without it") from error
            found = [each for each in found if _place(each) > last]
        metadata: Object = {"resourceVersion": version}
        limit = _number(query, "limit") or len(found)
        rest, found = len(found[limit:]), [self._cluster.shown(resource, each) for each in found[:limit]]
        if rest:
            token = base64.urlsafe_b64encode(json.dumps([version, *_place(found[-1])]).encode()).decode()
            metadata |= {"continue": token, "remainingItemCount": rest}
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
        items = found if resource.custom else [admission.without(each, "apiVersion", "kind") for each in found]
        return _json(self._shown(request, resource, found, metadata) or {**head, "items": items})

    def _watch(self, request: Request, target: Target) -> Response:
        query, resource = request.query_params, target.resource
        if request.headers.get("upgrade"):  # Spark's client takes this as the answer of a proxy without WebSockets.
            return Response()
        if _flag(request, "sendInitialEvents"):
            raise ApiError(422, "Invalid", "sendInitialEvents is not served by the local cluster: list and watch")
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
        # The stream ends when the reader is too slow (410) or the server stops; the client lists again.
        with watch, contextlib.suppress(ApiError):
            while True:
                try:
                    async with asyncio.timeout(max(0.0, min(BOOKMARK_SECONDS, end - clock()))):
                        event = await anext(watch)
                except TimeoutError:
                    if _flag(request, "allowWatchBookmarks"):  # This watcher has seen all there is.
                        meta = {"resourceVersion": str(self._cluster.store.resource_version)}
                        head = {"kind": resource.kind, "apiVersion": resource.api_version}
                        yield _line("BOOKMARK", {**head, "metadata": meta})
                    if clock() >= end:
                        return
                else:
                    body = self._cluster.shown(resource, event.object)
                    yield _line(event.type, self._shown(request, resource, [body], {}) or body)

    def _log(self, request: Request, pod: Object) -> Response:
        query, names = request.query_params, [each["name"] for each in pod["spec"]["containers"]]
        if refused := [name for name in LOG_OPTIONS_REFUSED if name in query]:
            raise errors.bad_request(f"{refused[0]} is not available in the local cluster; use tailLines")
        name = query.get("container") or (names[0] if len(names) == 1 else "")
        if name not in names:
            wanted = f"container {name} is not valid" if name else "a container name must be specified"
            raise errors.bad_request(f"{wanted} for pod {pod['metadata']['name']}, choose one of: {names}")
        tail = _number(query, "tailLines") if "tailLines" in query else None
        options = LogOptions(_flag(request, "follow"), tail_lines=tail, timestamps=_flag(request, "timestamps"))
        try:
            stream = self._pod_logs(pod, name, options, previous=_flag(request, "previous"))
        except LookupError as error:
            raise errors.bad_request(str(error.args[0])) from error
        return StreamingResponse(stream, media_type="text/plain")

    async def _post(self, request: Request, target: Target) -> Response:
        body = await _body(request)
        if target.resource.plural in REVIEWS:
            return self._reviewed(target.resource, section(body, "spec"), may_all=True)
        _complete(body, target)
        return _json(await self._cluster.create(target.resource.key, body, _write_options(request)), 201)

    async def _write(self, request: Request, target: Target) -> Response:
        kind = "update"
        if request.method == "PATCH":
            kind = PATCH_KINDS.get(request.headers.get("content-type", "").split(";")[0], "")
        if not kind or (target.subresource == "scale" and kind not in ("update", "merge")):
            raise ApiError(415, "UnsupportedMediaType", f"patches are sent as one of {', '.join(PATCH_KINDS)}")
        body: Any = await _body(request, whole=kind != "json")
        options = _write_options(request)
        key, namespace, sub = target.resource.key, target.namespace or "", target.subresource
        if sub == "scale":
            known = (("metadata", "resourceVersion"), ("spec", "replicas"))
            scaled = {part: {key: section(body, part)[key]} for part, key in known if key in section(body, part)}
            return _json(_scale_of(await self._cluster.patch(key, namespace, target.name, scaled, "merge", options)))
        if kind in ("update", "apply"):
            _complete(body, target)
        created = False
        if kind == "update":
            written = await self._cluster.update(key, body, options, subresource=sub)
        elif kind == "apply":
            if not request.query_params.get("fieldManager"):
                raise errors.bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
            written, created = await self._cluster.apply(
                key, body, options, force=_flag(request, "force"), subresource=sub
            )
        else:
            written = await self._cluster.patch(key, namespace, target.name, body, kind, options, subresource=sub)
        return _json(written, 201 if created else 200)

    async def _delete(self, request: Request, target: Target) -> Response:
        options = _delete_options(request.query_params, await _body(request, required=False))
        last = await self._cluster.delete(target.resource.key, target.namespace or "", target.name, options)
        if not admission.released(last):
            return _json(last)
        details = {"name": target.name, "kind": target.resource.plural, "uid": last["metadata"]["uid"]}
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    def _reviewed(self, resource: Resource, spec: Object, *, may_all: bool) -> Response:
        status: Object = {"allowed": may_all}
        if resource.kind == "SubjectAccessReview":
            status = {"allowed": auth.allowed(str(spec.get("user", "")), spec.get("groups") or ())}
        elif resource.kind == "TokenReview":
            status = {"error": "invalid bearer token"}
            asked = [str(each) for each in spec.get("audiences") or ("",)]
            # One without an audience is good for every one: nobody but this cluster knows these tokens.
            found = {each: who for each in asked if (who := self._tokens.identify(str(spec.get("token", "")), each))}
            if found:
                user, audiences = next(iter(found.values()))._asdict(), [each for each in found if each]
                status = {"authenticated": True, "user": user, "audiences": audiences}
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        return _json({**head, "metadata": {}, "spec": spec, "status": status}, 201)


def _json(content: Any, code: int = 200) -> Response:
    return Response(json.dumps(content, separators=(",", ":")), code, media_type="application/json")


def _line(kind: str, body: Object) -> bytes:
    return json.dumps({"type": kind, "object": body}, separators=(",", ":")).encode() + b"\n"


def _scale_of(body: Object) -> Object:
    """Return the subresource `scale`: the number of replicas of whatever has one."""
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    head = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {key: body["metadata"][key] for key in kept}}
    told = {key: value for key, value in body.get("status", {}).items() if key in ("replicas", "selector")}
    return {**head, "spec": {"replicas": body["spec"].get("replicas", 0)}, "status": {"replicas": 0, **told}}


def _place(body: Object) -> list[str]:
    return [body["metadata"].get("namespace", ""), body["metadata"]["name"]]


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


def _write_options(request: Request) -> WriteOptions:
    query = request.query_params
    agent = request.headers.get("user-agent", "").split("/")[0]
    validation = query.get("fieldValidation") or "Ignore"
    if validation not in ("Ignore", "Strict"):
        raise errors.bad_request("the local cluster has only fieldValidation Ignore and Strict")
    manager, strict = query.get("fieldManager") or agent or "unknown", validation == "Strict"
    return WriteOptions(manager, _dry_run(query), strict, wait_for_room=False)


async def _body(request: Request, *, required: bool = True, whole: bool = True) -> Any:
    """Read a JSON or YAML body; an object if `whole`. Raises `ApiError` 413, 415 (protobuf) or 400 (unreadable)."""
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
        if content.lstrip()[:1] in (b"{", b"["):
            found = json.loads(content)
        elif len(content) > YAML_BYTES:
            text = f"YAML of more than {YAML_BYTES} bytes is not read here: send it as JSON"
            raise ApiError(413, "RequestEntityTooLarge", text)
        else:
            found = await asyncio.to_thread(_yaml, content)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(f"the body of the request cannot be read as JSON or YAML: {error}") from error
    if whole and not isinstance(found, dict):
        raise errors.bad_request("the body of the request must be an object")
    return found


def _yaml(content: bytes) -> Any:
    """Read YAML without aliases: a few bytes of them stand for gigabytes. Raises ``yaml.YAMLError``."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, Loader=_YamlLoader)):
        raise yaml.YAMLError("it has an alias (*name), which is not supported: write out the value")
    return yaml.load(content, Loader=_YamlLoader)  # noqa: S506 - both are safe ones


def _complete(body: Object, target: Target) -> None:
    """Take name and namespace of the path over into a body. Raises `ApiError` 400: the body names others."""
    metadata = body["metadata"] = section(body, "metadata")
    for field, wanted in (("name", target.name), ("namespace", target.namespace)):
        if wanted and (metadata.get(field) or wanted) != wanted:
            raise errors.bad_request(f"the {field} of the object ({metadata[field]}) is not that of the URL ({wanted})")
        if wanted:
            metadata[field] = wanted


def _delete_options(query: Mapping[str, str], body: Object) -> DeleteOptions:
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    if policy != "Background" or body.get("orphanDependents"):
        message = f"propagationPolicy {policy} is not served by the local cluster: dependents go in the background"
        raise ApiError(501, "NotImplemented", message)
    preconditions = section(body, "preconditions")
    grace = body.get("gracePeriodSeconds")
    if not isinstance(grace, int | None):
        raise errors.bad_request("gracePeriodSeconds must be a number")
    dry = bool(body.get("dryRun")) or _dry_run(query)
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    return DeleteOptions(uid, version, grace, dry, wait_for_room=False)

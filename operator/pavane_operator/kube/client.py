"""One typed asynchronous client for everything Pavane says to a Kubernetes API server.

Objects are plain dictionaries, resource types are values (`resources`), answers that are no object are exceptions
(`errors`). No refusal is retried here: after a 409 or 410 the caller has to read again, and only it knows what to do
then (docs/specs/operator.md 5.4).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args
from urllib.parse import urlencode

from .connect import Target
from .errors import AlreadyExists, KubeError, NotFound, Unavailable, from_status
from .resources import ACCESS_REVIEWS, OWN_ACCESS_REVIEWS, PODS, TOKEN_REVIEWS, Object, Resource
from .transport import Response, Transport

CALL_TIMEOUT_S = 10.0
ASK_AGAIN_S = 2.0
"""A question that changes nothing is asked once more if no answer came: the connection may carry nothing any more. The
idle ones of the same age are not used for it, by `REUSE_S` of `pavane.parts.silence`."""
"""Longest a call may take. The operator passes 5 s, so that none of a lost Lease's holder lands late (5.6)."""
CALLS_OPEN_MAX = 20
"""Calls open at once; watches and followed logs are exempt, they last."""
WATCH_TIMEOUT_S = 600
"""How long a server keeps one watch open; a belt beside WATCH_SILENCE_S."""
WATCH_SILENCE_S = 70.0
"""A watch that delivers nothing, not even a bookmark (about once a minute), is dead."""
LINE_BYTES_MAX = 4 * 1024 * 1024
"""Longest line of a watch: the server's object limit of 3 MiB, and the frame around it."""
LIST_CHUNK = 500
"""Objects per page of `list_all`, as kubectl."""

MANAGER = "pavane-operator"
STATUS_MANAGER = "pavane-operator-status"
FORCING_MANAGERS = frozenset({MANAGER, STATUS_MANAGER})
"""Only these take fields away from others; everybody else's conflict goes to the user (handbook, Kubernetes API 5)."""

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_NOT_PLAIN = re.compile("[\x7f-\uffff]")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
"""A server that does not know this shape, such as the embedded one, sends whole objects."""

ChangeType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
CHANGE_TYPES: tuple[ChangeType, ...] = get_args(ChangeType)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """One page of a list."""

    items: tuple[Object, ...]
    resource_version: str
    """Where a watch that shall miss nothing begins."""
    next_page: str | None
    """Cursor of the next page, or None when this was the last one."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. A `BOOKMARK` carries nothing but `metadata.resourceVersion`."""

    type: ChangeType
    object: Object


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a token belongs to."""

    user: str
    uid: str
    groups: tuple[str, ...]


class KubeClient:
    """Client of one API server; `async with await KubeClient.connect(target)`.

    Every method raises a `KubeError` subclass when the server does not do what was asked, `Unavailable` when no answer
    came within `timeout_s`. Namespaces are None for cluster-wide types, and for lists and watches over all of them.
    """

    def __init__(self, transport: Transport, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._open_calls = asyncio.Semaphore(CALLS_OPEN_MAX)
        self.calls: Counter[tuple[str, int]] = Counter()
        """Calls that have ended, by method and HTTP status, 0 = no answer; without watches and logs."""

    @classmethod
    async def connect(
        cls, target: Target | None = None, *, timeout_s: float = CALL_TIMEOUT_S, brief: bool = False
    ) -> Self:
        """A client for `target`. Raises ConnectError when no server can be derived from it; contacts nobody yet.

        `brief` is for a program that makes a few calls and ends: it starts quickly where the kubeconfig allows.
        """
        target = target or Target()
        transport: Transport | None = None
        if brief:
            from .light import light  # noqa: PLC0415 - each program imports the transport that it uses

            transport = light(target)
        if transport is None:
            from .library import LibraryTransport, load  # noqa: PLC0415

            transport = LibraryTransport(await load(target))
        return cls(transport, timeout_s=timeout_s)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._transport.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; open watches end with Unavailable."""
        await self._transport.close()

    # ---- reading -----------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """The object as it stands now."""
        return await self._ask("GET", resource.path(namespace, name))

    async def get_or_none(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None where the server knows none of that name."""
        try:
            return await self.get(resource, name, namespace)
        except NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int | None = None,
        page: str | None = None,
    ) -> ObjectList:
        """One page of the objects that match the selectors, sorted by the server.

        `labels` and `fields` are selectors as kubectl takes them. Raises Gone when the cursor `page` is too old.
        """
        query = _query(labelSelector=labels, fieldSelector=fields, limit=limit, **{"continue": page})
        answer = await self._call("GET", resource.path(namespace), query=query)
        metadata = answer.get("metadata") or {}
        items = tuple(
            {"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in answer.get("items") or ()
        )
        return ObjectList(
            items,
            str(metadata.get("resourceVersion", "")),
            metadata.get("continue") or None,
        )

    async def table(
        self, resource: Resource, namespace: str | None = None, *, name: str | None = None, labels: str = ""
    ) -> Object:
        """The objects (or the one of that name) as the server prints them: a `Table` of columns and rows."""
        return await self._call("GET", resource.path(namespace, name), query=_query(labelSelector=labels), accept=TABLE)

    async def list_all(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> ObjectList:
        """All pages as one list, read LIST_CHUNK objects at a time. Raises Gone when it took too long."""
        items: list[Object] = []
        page: str | None = None
        while True:
            part = await self.list(resource, namespace, labels=labels, fields=fields, limit=LIST_CHUNK, page=page)
            items.extend(part.items)
            page = part.next_page
            if page is None:
                return ObjectList(tuple(items), part.resource_version, None)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str = "",
        labels: str = "",
        fields: str = "",
        timeout_s: int = WATCH_TIMEOUT_S,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Change, None]:
        """Changes after `resource_version` (empty: the present objects as ADDED first) until the server ends the watch.

        `informer` goes on from there. With `metadata_only` objects lack all but their metadata. Raises Gone when the
        version is too old (list again), Unavailable when the connection broke or nothing came for WATCH_SILENCE_S.
        """
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            labelSelector=labels,
            fieldSelector=fields,
            timeoutSeconds=timeout_s,
        )
        accept = METADATA if metadata_only else "application/json"
        async with self._stream(resource.path(namespace), query, silence_s=WATCH_SILENCE_S, accept=accept) as pieces:
            async for line in _lines(pieces):
                match _decode(line):
                    case {"type": "ERROR", "object": dict(status)}:
                        code = status.get("code")
                        raise from_status(code if isinstance(code, int) else 500, status, {})
                    case {"type": str(kind), "object": {"metadata": dict()} as body} if kind in CHANGE_TYPES:
                        yield Change(kind, body)
                    case _:
                        raise Unavailable("the watch delivered something that is no event")

    async def pod_logs(
        self,
        name: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        """Pieces of the log of a pod's container, as they come; with `follow` until the container ends."""
        query = _query(
            container=container,
            follow="true" if follow else None,
            previous="true" if previous else None,
            tailLines=tail_lines,
            timestamps="true" if timestamps else None,
        )
        silence_s = None if follow else self._timeout_s
        async with self._stream(PODS.path(namespace, name, "log"), query, silence_s=silence_s) as pieces:
            async for piece in pieces:
                yield piece

    # ---- writing -----------------------------------------------------------------------------------------------

    async def create(
        self, resource: Resource, body: Object, namespace: str | None = None, *, manager: str = MANAGER
    ) -> Object:
        """POST a new object. Raises AlreadyExists when one of that name stands there."""
        return await self._call(
            "POST", resource.path(namespace), query=_query(fieldManager=manager), body=_typed(resource, body)
        )

    async def create_if_absent(
        self, resource: Resource, body: Object, namespace: str | None = None, *, manager: str = MANAGER
    ) -> Object:
        """POST; if an object of that name exists already, what stands there counts and is returned."""
        try:
            return await self.create(resource, body, namespace, manager=manager)
        except AlreadyExists:
            return await self.get(resource, body["metadata"]["name"], namespace)

    async def replace(
        self, resource: Resource, body: Object, namespace: str | None = None, *, manager: str = MANAGER
    ) -> Object:
        """PUT the whole object. A `metadata.resourceVersion` in it is a precondition (Conflict)."""
        path = resource.path(namespace, body["metadata"]["name"])
        return await self._call("PUT", path, query=_query(fieldManager=manager), body=_typed(resource, body))

    async def apply(
        self,
        resource: Resource,
        body: Object,
        namespace: str | None = None,
        *,
        manager: str = MANAGER,
        subresource: str | None = None,
        strict: bool = False,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply of the manager's *complete* intent; creates the object where it is missing.

        A resourceVersion or uid in the body is a precondition (Conflict). The operator's own managers force; for all
        others, unless `force`, a field of another manager raises Conflict with one cause per field. `strict` refuses
        unknown fields. With `dry_run` nothing is stored: the answer is what would be.
        """
        query = _query(
            dryRun="All" if dry_run else None,
            fieldManager=manager,
            force="true" if force or manager in FORCING_MANAGERS else None,
            fieldValidation="Strict" if strict else None,
        )
        path = resource.path(namespace, body["metadata"]["name"], subresource)
        return await self._call("PATCH", path, query=query, body=_yaml(_typed(resource, body)), content_type=APPLY)

    async def apply_status(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Apply `status` of the object as STATUS_MANAGER, which owns all of it. Raises NotFound, Conflict, Invalid."""
        return await self.apply(resource, body, namespace, manager=STATUS_MANAGER, subresource="status")

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | Sequence[Mapping[str, Any]],
        namespace: str | None = None,
        *,
        manager: str = MANAGER,
        dry_run: bool = False,
    ) -> Object:
        """JSON merge patch (a dictionary) or JSON patch (a list of operations); `dry_run` as for `apply`."""
        content_type = MERGE if isinstance(body, dict) else JSON_PATCH
        path = resource.path(namespace, name)
        query = _query(dryRun="All" if dry_run else None, fieldManager=manager)
        return await self._call("PATCH", path, query=query, body=body, content_type=content_type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Ask for the deletion of the very object that was read: with `uid` and `resource_version` Conflict is raised
        when it is not that one any more. An object that is not there counts as deleted.
        """
        preconditions = _query(uid=uid, resourceVersion=resource_version)
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if preconditions:
            body["preconditions"] = preconditions
        try:
            await self._call("DELETE", resource.path(namespace, name), body=body)
        except NotFound:
            return

    # ---- reviews -----------------------------------------------------------------------------------------------

    async def token_review(self, token: str, audiences: Sequence[str] = ()) -> Identity | None:
        """Whose token this is, or None where the server does not accept it for one of `audiences`."""
        spec: Object = {"token": token, "audiences": list(audiences)} if audiences else {"token": token}
        answer = await self._ask(
            "POST", TOKEN_REVIEWS.path(), body=_typed(TOKEN_REVIEWS, {"metadata": {}, "spec": spec})
        )
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            return None
        if audiences and not set(audiences) & set(status.get("audiences") or ()):
            return None  # a server that does not know audiences leaves them out: then the token is not for us
        user = status.get("user") or {}
        return Identity(str(user.get("username", "")), str(user.get("uid", "")), tuple(user.get("groups") or ()))

    async def access_review(
        self,
        identity: Identity,
        verb: str,
        resource: Resource,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> bool:
        """Whether `identity` may do `verb` (get, list, watch, create, update, patch, delete) to the resource."""
        who = {"user": identity.user, "uid": identity.uid, "groups": list(identity.groups)}
        return await self._review(ACCESS_REVIEWS, who, verb, resource, namespace, name, subresource)

    async def own_access_review(
        self, verb: str, resource: Resource, *, namespace: str | None = None, subresource: str | None = None
    ) -> bool:
        """Whether we ourselves may do `verb` to resources of this type, in the namespace or in all of them."""
        return await self._review(OWN_ACCESS_REVIEWS, {}, verb, resource, namespace, None, subresource)

    async def _review(
        self,
        review: Resource,
        who: Object,
        verb: str,
        resource: Resource,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
    ) -> bool:
        attributes = _query(
            verb=verb,
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            subresource=subresource,
            namespace=namespace,
            name=name,
        )
        body = {"metadata": {}, "spec": {**who, "resourceAttributes": attributes}}
        answer = await self._ask("POST", review.path(), body=_typed(review, body))
        return bool((answer.get("status") or {}).get("allowed"))

    # ---- transport ---------------------------------------------------------------------------------------------

    async def raw(self, method: str, path: str, *, query: Mapping[str, Any] | None = None) -> Object:
        """A call without a resource type, e.g. `/version`."""
        return await self._call(method, path, query=query)

    async def _ask(self, method: str, path: str, **more: Any) -> Object:
        """Carry out a call that changes nothing, a second time if it is not answered soon."""
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                return await self._call(method, path, **more)
        except TimeoutError:
            return await self._call(method, path, **more)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        async with self._open_calls:
            try:
                async with (
                    asyncio.timeout(self._timeout_s),
                    self._request(method, path, query, None, body, content_type, accept) as response,
                ):
                    payload = b"".join([piece async for piece in response.pieces()])
            except OSError as error:
                self.calls[method, 0] += 1
                raise self._unreachable(error) from error
        self.calls[method, response.status] += 1
        document = _decode(payload)
        if response.status >= 400:
            raise from_status(response.status, document, response.headers)
        if not isinstance(document, dict):
            raise Unavailable(f"{self.server} answered {method} {path} with something that is no object")
        return document

    @asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, Any], *, silence_s: float | None, accept: str = "application/json"
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of a GET that lasts; connection errors and silence become Unavailable."""
        try:
            async with self._request("GET", path, query, silence_s, accept=accept) as response:
                if response.status >= 400:
                    payload = b"".join([piece async for piece in response.pieces()])
                    raise from_status(response.status, _decode(payload), response.headers)
                yield response.pieces()
        except OSError as error:
            raise self._unreachable(error) from error

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        silence_s: float | None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> AbstractAsyncContextManager[Response]:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "pavane"}
        return self._transport.open(method, path + (f"?{urlencode(query)}" if query else ""), headers, body, silence_s)

    def _unreachable(self, error: Exception) -> KubeError:
        words = str(error) or type(error).__name__
        return Unavailable(f"no answer from the API server {self.server}: {words}")


def _typed(resource: Resource, body: Object) -> Object:
    return {**body, "apiVersion": resource.api_version, "kind": resource.kind}


def _yaml(body: Object) -> bytes:
    """JSON that is YAML too, as which the server reads what is applied: that knows no surrogate pairs, as json.dumps
    writes an emoji, and no control characters. Half a pair, which no UTF-8 holds, becomes U+FFFD, as in other calls."""
    return _NOT_PLAIN.sub(_escaped, json.dumps(body, ensure_ascii=False)).encode()


def _escaped(character: re.Match[str]) -> str:
    number = ord(character[0])
    return f"\\u{0xFFFD if 0xD800 <= number <= 0xDFFF else number:04x}"


def _query(**parameters: object) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if value is not None and value != ""}


def _decode(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines of any length up to LINE_BYTES_MAX."""
    pending = bytearray()
    async for piece in pieces:
        pending += piece
        *lines, rest = pending.split(b"\n")
        pending = bytearray(rest)
        if len(pending) > LINE_BYTES_MAX:
            raise Unavailable("the watch delivered a line longer than any object")
        for line in lines:
            if line:
                yield bytes(line)

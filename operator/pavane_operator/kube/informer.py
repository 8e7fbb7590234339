"""How Pavane follows resources: list, watch from there, watch on where a watch ended, list again after a 410.

`follow` yields each list and what changed since, `changes` turns lists into changes, `watched` begins at a position
that the caller knows. All go on for ever. They raise what the server refuses, and Unavailable or TooManyRequests once
nothing was heard for `patience_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from .client import Change, KubeClient, ObjectList
from .errors import Gone, KubeError, TooManyRequests, Unavailable
from .resources import Object, Resource

AGAIN_S = 1.0
"""Least time between two questions: a server or a proxy that ends watches at once is not flooded."""
AGAIN_MAX_S = 30.0
"""Longest pause; it doubles while nothing is heard."""


async def watched(
    client: KubeClient,
    resource: Resource,
    namespace: str | None = None,
    *,
    since: str = "",
    labels: str = "",
    fields: str = "",
    patience_s: float = 0.0,
) -> AsyncGenerator[Change, None]:
    """Yield what happened after the version `since` (empty: the present objects as ADDED first), and bookmarks.

    Raises Gone when the position is too old.
    """
    watch = _watched(client, resource, namespace, since, labels, fields, _Pauses(patience_s))
    async with aclosing(watch) as events:
        async for change in events:
            yield change


async def follow(
    client: KubeClient,
    resource: Resource,
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    patience_s: float = 0.0,
) -> AsyncGenerator[ObjectList | Change, None]:
    """Yield the present objects as a list, then each change.

    Another list follows when the position became too old; what is not in it is gone.
    """
    pauses = _Pauses(patience_s)
    while True:
        try:
            found = await client.list_all(resource, namespace, labels=labels, fields=fields)
        except (Gone, Unavailable, TooManyRequests) as error:
            await pauses.before_next(error)
            continue
        pauses.answered()
        yield found
        position = found.resource_version
        with suppress(Gone):
            watch = _watched(client, resource, namespace, position, labels, fields, pauses)
            async with aclosing(watch) as events:
                async for change in events:
                    if change.type != "BOOKMARK":
                        yield change
        await pauses.before_next()


async def changes(
    client: KubeClient,
    resource: Resource,
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    patience_s: float = 0.0,
) -> AsyncGenerator[Change, None]:
    """Yield the present objects as ADDED, then each change; what went between two lists is DELETED, as last known."""
    known: dict[str, Object] = {}
    watch = follow(client, resource, namespace, labels=labels, fields=fields, patience_s=patience_s)
    async with aclosing(watch) as found:
        async for each in found:
            for change in _differences(known, each) if isinstance(each, ObjectList) else (each,):
                uid = change.object["metadata"]["uid"]
                if change.type == "DELETED":
                    known.pop(uid, None)
                else:
                    known[uid] = change.object
                yield change


class _Pauses:
    """When the server is asked again, and when it counts as lost."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._now = asyncio.get_running_loop().time
        self._asked_s = self._now()
        self._pause_s = AGAIN_S
        self._lost_since_s: float | None = None

    def answered(self) -> None:
        """The server is there."""
        self._lost_since_s = None

    def heard(self) -> None:
        """A watch delivered something."""
        self.answered()
        self._pause_s = AGAIN_S

    async def before_next(self, error: KubeError | None = None) -> None:
        """Wait until the server may be asked again; raise `error` once patience is at its end."""
        now_s = self._now()
        wait_s = self._pause_s - (now_s - self._asked_s)
        if isinstance(error, Unavailable | TooManyRequests):
            # A watch that lasted for so long and then broke was silent, not lost.
            if self._lost_since_s is None or now_s - self._asked_s >= self._patience_s:
                self._lost_since_s = now_s
            if now_s - self._lost_since_s >= self._patience_s:
                raise error
            wait_s = max(self._pause_s, error.retry_after_s or 0.0)
        self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)
        await asyncio.sleep(max(wait_s, 0.0))
        self._asked_s = self._now()


async def _watched(
    client: KubeClient,
    resource: Resource,
    namespace: str | None,
    since: str,
    labels: str,
    fields: str,
    pauses: _Pauses,
) -> AsyncGenerator[Change, None]:
    position = since
    while True:
        fault: KubeError | None = None
        try:
            watch = client.watch(resource, namespace, resource_version=position, labels=labels, fields=fields)
            async with aclosing(watch) as events:
                async for change in events:
                    pauses.heard()
                    position = change.object["metadata"].get("resourceVersion") or position
                    yield change
        except (Unavailable, TooManyRequests) as error:
            fault = error
        await pauses.before_next(fault)


def _differences(known: dict[str, Object], found: ObjectList) -> list[Change]:
    present = {body["metadata"]["uid"]: body for body in found.items}
    gone = [Change("DELETED", body) for uid, body in known.items() if uid not in present]
    new = [Change("ADDED", body) for uid, body in present.items() if uid not in known]
    return gone + new + [Change("MODIFIED", body) for uid, body in present.items() if known.get(uid, body) != body]

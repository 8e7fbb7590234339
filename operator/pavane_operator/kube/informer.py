"""How Pavane follows resources: list, watch from there, watch on where a watch ended, list again after a 410."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from .client import Change, KubeClient, ObjectList
from .errors import Gone, KubeError, TooManyRequests, Unavailable
from .resources import Object, Resource

AGAIN_S = 1.0
"""Least time between two questions: a server or a proxy that ends watches at once is not flooded."""
AGAIN_MAX_S = 3.0
"""Longest pause; it doubles while nothing is heard. When all went silent, a watch goes on within ten seconds."""


class Informer:
    """Follows the resources of a type, in one namespace or in all (None), that match the selectors.

    One of its generators is used, once. It goes on for ever: it raises what the server refuses, and Unavailable or
    TooManyRequests once nothing was heard for `patience_s`.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        patience_s: float = 0.0,
        metadata_only: bool = False,
    ) -> None:
        self._client = client
        self._place = resource, namespace
        self._selectors = labels, fields
        self._metadata_only = metadata_only  # of changes, not of lists
        self._pauses = _Pauses(patience_s)

    async def watched(self, since: str = "") -> AsyncGenerator[Change, None]:
        """Yield what happened after that version (empty: the present objects as ADDED first), and bookmarks.

        Raises Gone when the position is too old.
        """
        labels, fields = self._selectors
        while True:
            fault: KubeError | None = None
            try:
                watch = self._client.watch(
                    *self._place,
                    resource_version=since,
                    labels=labels,
                    fields=fields,
                    metadata_only=self._metadata_only,
                )
                async with aclosing(watch) as events:
                    async for change in events:
                        self._pauses.heard()
                        since = change.object["metadata"].get("resourceVersion") or since
                        yield change
            except (Unavailable, TooManyRequests) as error:
                fault = error
            await self._pauses.before_next(fault)

    async def lists_and_changes(self) -> AsyncGenerator[ObjectList | Change, None]:
        """Yield the present objects as a list, then each change.

        Another list follows when the position became too old; what is not in it is gone.
        """
        labels, fields = self._selectors
        while True:
            try:
                found = await self._client.list_all(*self._place, labels=labels, fields=fields)
            except (Gone, Unavailable, TooManyRequests) as error:
                await self._pauses.before_next(error)
                continue
            self._pauses.answered()
            yield found
            with suppress(Gone):
                async with aclosing(self.watched(found.resource_version)) as events:
                    async for change in events:
                        if change.type != "BOOKMARK":
                            yield change
            await self._pauses.before_next()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield the present objects as ADDED, then each change; what went between two lists is DELETED, as known."""
        known: dict[str, Object] = {}
        async with aclosing(self.lists_and_changes()) as found:
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


def _differences(known: dict[str, Object], found: ObjectList) -> list[Change]:
    present = {body["metadata"]["uid"]: body for body in found.items}
    gone = [Change("DELETED", body) for uid, body in known.items() if uid not in present]
    new = [Change("ADDED", body) for uid, body in present.items() if uid not in known]
    return gone + new + [Change("MODIFIED", body) for uid, body in present.items() if known.get(uid, body) != body]

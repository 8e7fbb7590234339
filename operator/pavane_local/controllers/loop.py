"""What the controllers share: watches that survive a gap, keys worked off one after the other, events."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from pavane_local.api.cluster import Cluster
from pavane_local.api.errors import ApiError
from pavane_local.store import EventType, Object

RETRY_SECONDS = 0.2  # after a refusal: most are a conflict with a writer that is done by then; doubled each time
RETRY_SECONDS_MAX = 30.0  # what is refused again and again waits for the user

Name = tuple[str, str]  # namespace ("" for cluster-wide kinds), name

_log = logging.getLogger(__name__)


def name_of(found: Object) -> Name:
    """The namespace and name of an object."""
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def owner_of(found: Object) -> dict[str, Any]:
    """The owner reference to a controller."""
    owner = {"apiVersion": found["apiVersion"], "kind": found["kind"], "controller": True, "blockOwnerDeletion": True}
    return {**owner, "name": found["metadata"]["name"], "uid": found["metadata"]["uid"]}


def is_ready(pod: Object) -> bool:
    """Whether a pod's condition Ready is True."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextlib.contextmanager
def expected(*codes: int) -> Iterator[None]:
    """Pass over refusals with these HTTP status codes."""
    try:
        yield
    except ApiError as error:
        if error.code not in codes:
            raise


async def changes(cluster: Cluster, resource: str) -> AsyncIterator[tuple[EventType, Object]]:
    """All objects as ADDED, then every change, for ever; after a gap in the watch what is gone shows as DELETED."""
    known: dict[str, Object] = {}  # by uid
    while True:
        present = {each["metadata"]["uid"] for each in cluster.list(resource)} if known else set()
        for uid in known.keys() - present:
            yield "DELETED", known.pop(uid)
        with cluster.watch(resource) as watch, expected(410):
            async for kind, found in watch:
                known[found["metadata"]["uid"]] = found
                if kind == "DELETED":
                    del known[found["metadata"]["uid"]]
                yield kind, found


class Controller:
    """Calls `reconcile` for each object that an event maps to: one at a time, merged, again after a refusal.

    `sources` maps a watched resource to the objects that one of its events concerns.
    """

    def __init__(
        self,
        cluster: Cluster,
        reconcile: Callable[[str, str], Awaitable[None]],
        sources: Mapping[str, Callable[[Object], Iterable[Name]]],
    ) -> None:
        self._cluster = cluster
        self._reconcile = reconcile
        self._sources = sources
        self._waiting: OrderedDict[Name, None] = OrderedDict()
        self._delays: dict[Name, float] = {}
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource, concerns in self._sources.items():
                group.create_task(self._follow(resource, concerns))
            group.create_task(self._work())

    def add(self, name: Name) -> None:
        """Let an object be reconciled soon."""
        self._waiting[name] = None
        self._arrived.set()

    async def _follow(self, resource: str, concerns: Callable[[Object], Iterable[Name]]) -> None:
        async for _, found in changes(self._cluster, resource):
            for name in concerns(found):
                self.add(name)

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                name, _ = self._waiting.popitem(last=False)
                try:
                    await self._reconcile(*name)
                except ApiError as error:
                    delay = self._delays.get(name, RETRY_SECONDS)
                    self._delays[name] = min(2 * delay, RETRY_SECONDS_MAX)
                    _log.info("%s/%s again in %s s: %s", *name, delay, error)
                    asyncio.get_running_loop().call_later(delay, self.add, name)
                else:
                    self._delays.pop(name, None)

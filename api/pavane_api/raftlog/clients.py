"""One Raft client per RaftCluster, kept while it is used.

A client follows a promotion by itself, since the members that it knows name the new ones; only when it has lost all of
them are the endpoints read again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from pavane.raft.client import RaftClient
from pavane_api.problems import Unavailable
from pavane_api.resources import RAFT_CLUSTERS
from pavane_operator import kube
from pavane_operator.kinds.raft.access import NotServing, raft_client

CLIENTS_MAX = 64  # a client is a few sockets; the one not used for longest is closed first


@dataclass(slots=True)
class _Slot:
    client: RaftClient
    resources: AsyncExitStack
    uid: str
    users: int = 0
    dropped: bool = False


class RaftClients:
    """Clients by namespace and name, at most CLIENTS_MAX."""

    def __init__(self, client: kube.KubeClient) -> None:
        self._kube = client
        self._slots: OrderedDict[tuple[str, str], _Slot] = OrderedDict()
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def of(self, namespace: str, name: str) -> AsyncIterator[RaftClient]:
        """Lend the client of a RaftCluster.

        Raises ``kube.NotFound``, and ``Unavailable`` while the resource has no endpoint yet.
        """
        document = await self._kube.get(RAFT_CLUSTERS, name, namespace)
        slot = await self._slot(document, namespace, name)
        slot.users += 1
        try:
            yield slot.client
        finally:
            slot.users -= 1
            if slot.dropped and slot.users == 0:
                await slot.resources.aclose()

    async def forget(self, namespace: str, name: str) -> None:
        """Make the next use read endpoints and secret afresh, for a client that reaches nobody any more."""
        slot = self._slots.pop((namespace, name), None)
        if slot is not None:
            await self._drop(slot)

    async def close(self) -> None:
        """Close all clients."""
        while self._slots:
            _, slot = self._slots.popitem()
            slot.dropped = True
            await slot.resources.aclose()

    async def _slot(self, document: kube.Object, namespace: str, name: str) -> _Slot:
        async with self._opening:
            key, uid = (namespace, name), document["metadata"]["uid"]
            slot = self._slots.get(key)
            if slot is not None and slot.uid != uid:
                # A resource of the same name was deleted and made again: another cluster with another secret.
                await self._drop(self._slots.pop(key))
                slot = None
            if slot is None:
                slot = await self._open(document)
                self._slots[key] = slot
                while len(self._slots) > CLIENTS_MAX:
                    _, oldest = self._slots.popitem(last=False)
                    await self._drop(oldest)
            self._slots.move_to_end(key)
            return slot

    async def _open(self, document: kube.Object) -> _Slot:
        try:
            made = await raft_client(self._kube, document)
        except (NotServing, ValueError) as error:
            raise Unavailable(f"{error}.") from error
        resources = AsyncExitStack()
        client = await resources.enter_async_context(made)
        return _Slot(client, resources, document["metadata"]["uid"])

    async def _drop(self, slot: _Slot) -> None:
        slot.dropped = True
        if slot.users == 0:
            await slot.resources.aclose()

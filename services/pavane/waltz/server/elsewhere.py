"""Whom a server asks that may not write: the owners of partitions, and the admin ports of storage nodes (14.2)."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeVar

from pavane.runtime.names import look_up, resolve
from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.aio.cluster import ClusterConfig
from pavane.waltz.client.link import Link, parse_address
from pavane.waltz.errors import WaltzError
from pavane.waltz.state.metadata import Metadata, MetadataError, Paths
from pavane.waltz.wire import blobs
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_PEER
from pavane.wire import ProtocolError

ANSWER_S = 2.0  # of an owner, or of a storage node with its connection; then another one is asked
ANSWERED_MAX = 1000  # addresses of servers that are remembered
NOBODY = 0  # client id: the cluster's begin with 1
# ValueError is that of an address: others write them, and what they write must not end this server.
NO_ANSWER = (WaltzError, MetadataError, ProtocolError, OSError, TimeoutError, ValueError)

T = TypeVar("T")


class _Peer(Link):
    side = LOG_PEER


class Elsewhere:
    """Connections that are made when they are needed and kept until they end. Answers are ``None`` where none comes."""

    def __init__(self, config: ClusterConfig, metadata: Metadata, tls: ssl.SSLContext | None) -> None:
        self._config = config
        self._metadata = metadata
        self._tls = tls
        self._owners: dict[str, Link] = {}
        self._nodes: dict[str, StorageAdmin] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._answered: dict[str, str] = {}
        """Where who has an address answered last, kept when nobody has it: a pod's next process may end at once."""
        self._numbers = count(1)

    async def hwm(self, address: str, partition: int) -> int | None:
        """Ask the server at ``address`` for the HWM of a partition."""

        async def ask() -> int | None:
            link = await self._server(address)
            reqid = ReqId(NOBODY, 0, partition, next(self._numbers))
            answer = await link.ask(m.HighWaterMarkRequest(reqid), ANSWER_S)
            return answer.txid if isinstance(answer, m.HighWaterMarkResponse) else None

        return await _tried(ask)

    async def ended(self, address: str) -> bool:
        """Wait until a connection to the server at ``address`` has ended, and return whether nobody listens there."""
        over = asyncio.Event()
        peer = self._answered.get(address, "")
        try:
            async with asyncio.timeout(ANSWER_S):
                link = await self._server(address)
                peer = link.peer
                self._remember(address, peer)
                link.on_lost.append(over.set)
        except NO_ANSWER:
            if not await self._is_at(address, peer):
                return False  # nobody was ever seen alive there: it may be no address for this server
        else:
            if not link.closed:
                await over.wait()
        host, _, port = peer.rpartition(":")
        try:
            async with asyncio.timeout(ANSWER_S):
                (await asyncio.open_connection(host, int(port)))[1].close()
        except ConnectionRefusedError:
            return True
        except NO_ANSWER:
            pass
        return False

    def forget(self, address: str) -> None:
        """No server is at ``address`` any more."""
        self._locks.pop(address, None)
        if (link := self._owners.pop(address, None)) is not None:
            link.hang_up("no server is there any more")

    async def records(self, node: str, partition: int, txid: int, limit: int) -> tuple[int, Sequence[s.Record]] | None:
        """Read from a storage node which session has stamped it, then records."""

        async def read() -> tuple[int, Sequence[s.Record]]:
            admin = await self._admin(node)
            info = await admin.ask(s.AdminSessionInfoRequest(admin.head(partition)))
            request = s.RecordListRequest(admin.head(partition), txid, min(limit, s.RECORDS_MAX))
            return info.session, (await admin.ask(request)).records

        return await _tried(read)

    async def close(self) -> None:
        """End all connections."""
        for admin in self._nodes.values():
            admin.hang_up("done")
        for link in self._owners.values():
            await link.close()

    @staticmethod
    async def _is_at(address: str, peer: str) -> bool:
        """Whether the name still leads to the peer that answered under it: the pod may have been made anew."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return peer.rpartition(":")[0] in await look_up(resolve, parse_address(address)[0])
        except NO_ANSWER:
            return False

    def _remember(self, address: str, peer: str) -> None:
        self._answered.pop(address, None)
        self._answered[address] = peer
        if len(self._answered) > ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]

    async def _server(self, address: str) -> Link:
        async with self._locks.setdefault(address, asyncio.Lock()):
            link = self._owners.get(address)
            if link is None or link.closed:
                link = self._owners[address] = await _Peer.connect(parse_address(address), self._tls, 1)
            return link

    async def _admin(self, node: str) -> StorageAdmin:
        async with self._locks.setdefault(node, asyncio.Lock()):
            admin = self._nodes.get(node)
            if admin is None or admin.closed:
                found = await self._metadata.get(Paths(self._config.root).connections)
                ports = blobs.NODE_NUMBERS.decode(found.data).nodes if found is not None else ()
                port = next((one.number for one in ports if one.address == node), 0)
                address = f"{node.rpartition(':')[0]}:{port}"
                key, partitions = self._config.key, self._config.partitions
                admin = self._nodes[node] = await StorageAdmin.connect(address, key, partitions, self._tls)
            return admin


async def _tried(work: Callable[[], Awaitable[T | None]]) -> T | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await work()
    except NO_ANSWER:
        return None

"""A whole log in one process: storage on real files, servers on sockets, metadata in memory; and a bare client."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from pavane.runtime.certificates import Certificates
from pavane.wal import DiskFolder
from pavane.waltz.aio.archive import Archive
from pavane.waltz.aio.cluster import ClusterConfig, make_tree
from pavane.waltz.aio.storage import StorageServer
from pavane.waltz.aio.stream import Stream
from pavane.waltz.core.quotas import Quota
from pavane.waltz.core.retention import KEEP_ALL, Policy
from pavane.waltz.core.rights import Rights
from pavane.waltz.server import WaltzServer
from pavane.waltz.state.metadata import Metadata
from pavane.waltz.storage import Directory
from pavane.waltz.storage.scrub import SCRUB_PAUSE_S
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_CLIENT
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.waltz.memory import MemoryMetadata

KEY = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
ANSWER_S = 30.0
ARCHIVE_S = 0.05  # after which what is committed is to be archived
SESSION_S = 30.0  # no test waits for a session's end, and a busy machine shall lose none


class RawClient(Stream):
    """Speaks the protocol as a test tells it to."""

    def __init__(self, versions: Sequence[int], client: int) -> None:
        super().__init__(LOG_CLIENT, connecting=True, versions=tuple(versions))
        self.client = client
        self.greeting = asyncio.get_running_loop().create_future()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.seq = 0

    @classmethod
    async def connect(
        cls, port: int, versions: Sequence[int] = (0, 1, 2, 3, 4, 5), client: int = 1, tls: ssl.SSLContext | None = None
    ) -> "RawClient":
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": ""}
        _, self = await loop.create_connection(lambda: cls(versions, client), "127.0.0.1", port, **options)
        async with asyncio.timeout(ANSWER_S):
            await self.greeting
        return self

    def opened(self) -> None:
        self.greeting.set_result(None)

    def heard(self, message: Any) -> None:
        self.inbox.put_nowait(message)

    def ended(self, reason: str) -> None:
        self.inbox.put_nowait(None)

    def reqid(self, partition: int = 0, generation: int = 1) -> ReqId:
        self.seq += 1
        return ReqId(self.client, generation, partition, self.seq)

    async def next(self, kind: type[Any] | None = None) -> Any:
        """Return the next message, ``None`` when the connection has ended; others than ``kind`` are skipped."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                message = await self.inbox.get()
                if kind is None or message is None or isinstance(message, kind):
                    return message

    async def mount(self, hwm: int = -1, partition: int = 0, generation: int = 1) -> ReqId:
        """Mount once the partition is there."""
        while True:
            reqid = self.reqid(partition, generation)
            self.send(m.MountRequest(reqid, hwm, 0))
            answer = await self.next(m.MountResponse)
            if answer.state == m.MountState.READY:
                return reqid
            assert answer.state == m.MountState.NOT_READY
            await asyncio.sleep(0.02)

    def append(
        self, data: bytes, hwm: int = -1, write: Sequence[int] = (), read: Sequence[int] = (), **more: Any
    ) -> ReqId:
        reqid = self.reqid(more.get("partition", 0), more.get("generation", 1))
        locks = (tuple(write), tuple(read), tuple(more.get("append", ())))
        if self.channel.version == 5:
            self.send(m.AppendIdempotent(reqid, hwm, *locks, 7, 0, -1, m.FLAG_ACK, data))
        else:
            self.send(m.AppendRequest(reqid, hwm, *locks, 7, data))
        return reqid


class Log:
    """Three storage nodes and any number of servers."""

    def __init__(
        self,
        folder: Path,
        partitions: int,
        nodes: int,
        certificates: Certificates | None = None,
        metadata: Metadata | None = None,
        root: str = "/ledger",
        policy: Policy = KEEP_ALL,
        scrub_pause_s: float = SCRUB_PAUSE_S,
        clients: Certificates | None = None,
        rights: Rights | None = None,
        archive: Callable[[], Archive] | None = None,
        quotas: Sequence[Quota] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host  # by which clients know the servers
        self.archive = archive
        self.scrub_pause_s = scrub_pause_s
        self.certificates = certificates
        self.rights = rights
        self.quotas = quotas
        self.clients = clients
        self.policy = policy
        self.folder = folder
        self.ports = free_ports(nodes)
        storage = tuple(f"127.0.0.1:{port}" for port in self.ports)
        self.config = ClusterConfig("ledger", root, KEY, partitions, storage, SESSION_S)
        self.metadata = metadata or MemoryMetadata()
        self.nodes: dict[int, StorageServer] = {}
        self.servers: list[WaltzServer] = []

    async def start_node(self, index: int) -> None:
        directory = Directory(DiskFolder(self.folder / f"node{index}"), KEY, self.config.partitions)
        directory.assign(range(self.config.partitions))
        node = StorageServer(
            directory, KEY, cluster=self.config.name, disk_reserve_bytes=0, scrub_pause_s=self.scrub_pause_s
        )
        tls = self.certificates.mutual_port if self.certificates is not None else None
        await node.start("127.0.0.1", self.ports[index], tls)
        await node.tools.start("127.0.0.1", 0, tls)
        self.nodes[index] = node

    def admin(self, index: int) -> str:
        """Where the tools of a storage node listen."""
        return f"127.0.0.1:{self.nodes[index].tools.port}"

    async def stop_node(self, index: int) -> None:
        await self.nodes.pop(index).stop()

    async def start_server(self, generation: int = 0) -> WaltzServer:
        tls = self.certificates
        server = WaltzServer(
            self.config,
            self.metadata,
            advertise=f"{self.host}:0",
            generation=generation,
            client_tls=self.clients.mutual_port if self.clients else tls.open_port if tls is not None else None,
            storage_tls=tls.dialling if tls is not None else None,
            policy=self.policy,
            rights=self.rights,
            archive=self.archive,
            archive_delay_s=ARCHIVE_S,
            quotas=self.quotas,
        )
        await server.start("127.0.0.1", 0)
        server.allow_writes()
        self.servers.append(server)
        return server

    async def until_all_vote(self) -> None:
        """Wait until every storage node has a vote in the session of every partition."""

        def vote() -> bool:
            sessions = [one.session for server in self.servers for one in server.running.owned.values()]
            return all(one is not None and all(each.voting for each in one._replicas.values()) for one in sessions)

        await eventually(vote, ANSWER_S)

    async def settled(self) -> dict[int, WaltzServer]:
        """Wait until every server knows all servers and every partition can be written; return the owners."""

        def owners() -> dict[int, WaltzServer]:
            found = {
                number: server
                for server in self.servers
                for number, partition in server.running.owned.items()
                if partition.healthy
            }
            known = [view for server in self.servers if (view := server.running.view) is not None and view.consistent]
            complete = len(known) == len(self.servers) and all(len(view.servers) == len(known) for view in known)
            share = self.config.partitions // len(self.servers)
            shared = all(list(found.values()).count(server) >= share for server in self.servers)
            return found if complete and shared and len(found) == self.config.partitions else {}

        owned: dict[int, WaltzServer] = await eventually(owners, ANSWER_S)
        return owned


@asynccontextmanager
async def running_log(
    folder: Path,
    *,
    partitions: int = 1,
    nodes: int = 3,
    servers: int = 1,
    certificates: Certificates | None = None,
    metadata: Metadata | None = None,
    root: str = "/ledger",
    policy: Policy = KEEP_ALL,
    scrub_pause_s: float = SCRUB_PAUSE_S,
    clients: Certificates | None = None,
    rights: Rights | None = None,
    archive: Callable[[], Archive] | None = None,
    quotas: Sequence[Quota] = (),
    host: str = "127.0.0.1",
) -> AsyncIterator[Log]:
    """Run a log until the test is over."""
    served = clients, rights, archive, quotas, host
    log = Log(folder, partitions, nodes, certificates, metadata, root, policy, scrub_pause_s, *served)
    await make_tree(log.metadata, log.config)
    try:
        for index in range(nodes):
            await log.start_node(index)
        for _ in range(servers):
            await log.start_server()
        yield log
    finally:
        for server in log.servers:
            await server.stop()
        for index in list(log.nodes):
            await log.stop_node(index)

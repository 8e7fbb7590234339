"""Waltz servers in memory that do what a test says: a log without storage, and faults on request."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from pavane.waltz.core.retention import Change, Keeping
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import AssignedPartition
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_SERVER, Channel
from pavane.wire import ProtocolError, Stage


@dataclass
class Log:
    """One partition: who owns it, what was committed, and who wrote last under a lock."""

    owner: int = 0
    generation: int = 1
    first: int = 0
    records: list[m.FeedItem] = field(default_factory=list)
    locks: dict[int, int] = field(default_factory=dict)
    keeping: Keeping = field(default_factory=Keeping)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def hwm(self) -> int:
        return len(self.records) - 1

    def commit(self, append: m.AppendIdempotent) -> int:
        self.records.append(m.FeedItem(append.reqid, append.header, append.data))
        self.locks.update(dict.fromkeys(append.write, self.hwm))
        self.changed.set()
        self.changed = asyncio.Event()
        return self.hwm


class Cluster:
    """Servers that share partitions. ``on_append(server, append)`` may take an append over: then it returns True."""

    def __init__(self, partitions: int = 2, servers: int = 2, host: str = "127.0.0.1") -> None:
        self.logs = [Log(owner=p % servers) for p in range(partitions)]
        self.servers = [Server(self, number) for number in range(servers)]
        self.hosts = [host] * servers  # as the view names them
        self.clients = 0
        self.version = 1
        self.on_append: Callable[[Server, m.AppendIdempotent], bool] = lambda server, append: False
        self.state = m.MountState.READY

    @property
    def addresses(self) -> list[str]:
        return [f"{host}:{server.port}" for host, server in zip(self.hosts, self.servers, strict=True)]

    def move(self, partition: int, owner: int) -> None:
        self.logs[partition].owner = owner
        self.logs[partition].generation += 1
        self.version += 1

    def view(self, request: m.ViewRequest) -> m.View:
        if request.flags & m.FLAG_CLIENT_ID:
            self.clients += 1
        servers = tuple(
            m.ViewServer(
                server.number,
                self.hosts[server.number],
                server.port,
                Stage.READ_WRITE,
                tuple(
                    AssignedPartition(p, log.generation)
                    for p, log in enumerate(self.logs)
                    if log.owner == server.number
                ),
            )
            for server in self.servers
            if server.alive
        )
        client = self.clients if request.flags & m.FLAG_CLIENT_ID else -1
        return m.View(request.reqid, "ledger", self.version, len(self.logs), client, servers)


class Connection(asyncio.Protocol):
    def __init__(self, server: "Server") -> None:
        self.server = server
        self.channel = Channel(LOG_SERVER)
        self.feeds: dict[int, asyncio.Task[None]] = {}
        self.credit: dict[ReqId, int] = {}
        self.credited = asyncio.Event()
        self.mounts: list[m.MountRequest] = []
        self.muted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)
        transport.write(self.channel.hello())

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        for task in self.feeds.values():
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self.channel.receive(data)
        try:
            while (message := self.channel.message()) is not None:
                self.take(message)
        except ProtocolError:
            self.transport.abort()

    def send(self, message: Any) -> None:
        if not (self.server.silent or self.muted or self.transport.is_closing()):
            self.transport.write(self.channel.encode(message))

    def reject(self, message: Any, kind: int, code: RejectCode, detail: int = -1) -> None:
        self.send(m.Reject(message.reqid, kind, code, detail, -1, code.name.lower()))

    def change(self, message: m.ConsumerRequest | m.TrimRequest, log: Log) -> None:
        if isinstance(message, m.ConsumerRequest):
            if message.action is not m.ConsumerAction.LIST:
                log.keeping.ask(Change(message, lambda _: None))
            if log.keeping.prepare(0.0, log.hwm):
                log.keeping.written()
            states = log.keeping.states(0.0, log.hwm, message.name)
            self.send(m.ConsumerResponse(message.reqid, log.first, log.hwm, states))
        elif fault := log.keeping.fault_of(message):
            self.reject(message, 47, fault[0], fault[2])
        else:
            former, first = log.first, max(log.first, message.before)
            log.first = former if message.flags & m.FLAG_DRY_RUN else first
            self.send(m.TrimResponse(message.reqid, former, first, log.hwm))

    def take(self, message: Any) -> None:
        if self.server.silent or self.muted:
            return
        cluster, log = self.server.cluster, self.server.cluster.logs[message.reqid.partition]
        here = log.owner == self.server.number
        match message:
            case m.ViewRequest():
                self.send(cluster.view(message))
            case m.FeedCredit():
                self.credit[message.reqid] = self.credit.get(message.reqid, 0) + message.add_items
                self.credited.set()
            case m.HighWaterMarkRequest():
                if here:
                    self.send(m.HighWaterMarkResponse(message.reqid, log.hwm))
                else:
                    self.reject(message, 11, RejectCode.PARTITION_NOT_HERE)
            case m.ConsumerRequest() | m.TrimRequest():
                self.change(message, log)
            case m.MountRequest():
                self.mounts.append(message)
                self.send(m.MountResponse(message.reqid, cluster.state if here else m.MountState.NOT_READY))
            case m.FeedBatchRequest():
                if not here:
                    self.reject(message, 32, RejectCode.PARTITION_NOT_HERE)
                elif message.hwm > log.hwm:
                    self.reject(message, 32, RejectCode.CLIENT_AHEAD, log.hwm)
                elif message.hwm + 1 < log.first:
                    self.reject(message, 32, RejectCode.TRIMMED, log.first)
                else:
                    if old := self.feeds.pop(message.reqid.partition, None):
                        old.cancel()
                    self.feeds[message.reqid.partition] = asyncio.create_task(self.feed(log, message))
            case m.AppendIdempotent():
                self.server.appends.append(message)
                if not cluster.on_append(self.server, message):
                    self.append(log, message, here)
            case _:
                raise AssertionError(message)

    def append(self, log: Log, message: m.AppendIdempotent, here: bool) -> None:
        if not here:
            self.reject(message, 37, RejectCode.PARTITION_NOT_HERE)
        elif message.reqid.generation != log.generation:
            self.reject(message, 37, RejectCode.WRONG_GENERATION)
        elif message.hwm > log.hwm:
            self.reject(message, 37, RejectCode.CLIENT_AHEAD, log.hwm)
        else:
            last = max((log.locks.get(lock, -1) for lock in (*message.write, *message.read)), default=-1)
            if last > message.hwm:
                self.send(m.LockFailure(message.reqid, last))
            else:
                self.send(m.AppendAck(message.reqid, log.commit(message), 0))

    async def feed(self, log: Log, request: m.FeedBatchRequest) -> None:
        txid = request.hwm + 1
        self.credit[request.reqid] = request.credit_items
        while True:
            while txid > log.hwm or self.credit[request.reqid] <= 0:
                self.credited.clear()
                waits = [asyncio.create_task(self.credited.wait()), asyncio.create_task(log.changed.wait())]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
            items = tuple(log.records[txid : txid + min(100, self.credit[request.reqid])])
            longest = -2 if request.flags & m.FLAG_NO_PAYLOAD else request.inline_bytes_max
            items = tuple(
                item if longest == -1 or len(item.data or b"") <= longest else item._replace(data=None)
                for item in items
            )
            self.credit[request.reqid] -= len(items)
            self.send(m.FeedBatch(request.reqid, txid, log.hwm, self.credit[request.reqid], 1 << 20, 0, items))
            txid += len(items)


class Server:
    """One server; ``silent`` is a stopped process, ``kill`` a killed one."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.port = 0
        self.alive = False
        self.silent = False
        self.connections: set[Connection] = set()
        self.appends: list[m.AppendIdempotent] = []
        self.server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, ssl=tls)
        self.port = self.server.sockets[0].getsockname()[1]
        self.alive = True

    def cut(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    def mute(self) -> None:
        """Nothing comes through on the present connections any more, and neither end is told."""
        for connection in self.connections:
            connection.muted = True

    async def kill(self) -> None:
        self.alive = False
        if self.server is not None:
            self.server.close()
            self.cut()
            await self.server.wait_closed()
            self.server = None


@contextlib.asynccontextmanager
async def running(
    partitions: int = 2, servers: int = 2, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Cluster]:
    cluster = Cluster(partitions, servers, host)
    for server in cluster.servers:
        await server.start(tls)
    try:
        yield cluster
    finally:
        for server in cluster.servers:
            await server.kill()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=5)

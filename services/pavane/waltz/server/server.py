"""A server as a process has it: client port, links to storage, its place in the metadata store."""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pavane.runtime.adapter import CoreAdapter
from pavane.runtime.certificates import refused_by
from pavane.runtime.metrics import Metric
from pavane.waltz.aio import cluster
from pavane.waltz.aio.archive import Archive
from pavane.waltz.aio.cluster import ClusterConfig
from pavane.waltz.aio.links import StorageLink
from pavane.waltz.aio.listener import Listener
from pavane.waltz.aio.stream import Stream
from pavane.waltz.core import outputs as o
from pavane.waltz.core.cluster import ClusterView
from pavane.waltz.core.partition import Partition
from pavane.waltz.core.quotas import Quota
from pavane.waltz.core.retention import KEEP_ALL, Policy
from pavane.waltz.core.rights import Rights
from pavane.waltz.core.server import ServerCore, storage_nodes
from pavane.waltz.server.archiving import DELAY_S, Archiver, archive_metrics, state_of
from pavane.waltz.server.elsewhere import Elsewhere
from pavane.waltz.state.metadata import BadVersion, Lease, Metadata, MetadataError, NodeExists, Paths
from pavane.waltz.tracing import Tracing
from pavane.waltz.wire import blobs
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import NULL_LOCKS, ChecksumError
from pavane.waltz.wire.frame import LOG_PEER, LOG_SERVER
from pavane.wire import ProtocolError, RemoteProtocolError

RETRY_S = 0.2
METADATA_S = 5.0  # for one call; the store session tries again
EXCESS_S = 2.0  # until a connection beyond its client's quota is closed, in which it may ask and be told why

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class WaltzServer:
    """Serves clients on ``host:port``, which others reach as ``advertise``; writes once ``allow_writes`` was called.

    ``generation`` is that of the pod, 0 outside of rollouts. ``policy`` says what is kept of each partition, ``rights``
    what clients may do. ``archive`` opens where what is committed is copied to, ``archive_delay_s`` at the latest after
    it was; ``policy`` has to say so as well.
    ``client_tls`` is for the client port, ``storage_tls`` for the links to storage nodes. ``failure`` is done when the
    server cannot go on.
    """

    def __init__(
        self,
        config: ClusterConfig,
        metadata: Metadata,
        *,
        advertise: str,
        generation: int = 0,
        client_tls: ssl.SSLContext | None = None,
        storage_tls: ssl.SSLContext | None = None,
        policy: Policy = KEEP_ALL,
        rights: Rights | None = None,
        archive: Callable[[], Archive] | None = None,
        archive_delay_s: float = DELAY_S,
        quotas: Sequence[Quota] = (),
    ) -> None:
        self.config = config
        self._archive, self._archive_delay_s = archive, archive_delay_s
        self._archiver: Archiver | None = None
        self._make_core = partial(ServerCore, policy=policy, rights=rights, quotas=quotas)
        self.metadata = metadata
        self._works: dict[type, tuple[Callable[[Any], Coroutine[Any, Any, None]], str]] = {
            o.ReadMeta: (self._read_meta, "waltz metadata"),
            o.WriteMeta: (self._write_meta, "waltz metadata"),
            o.WriteAssignment: (self._write_assignment, "waltz assignment"),
            o.Prefer: (self._prefer, "waltz preferred partitions"),
            o.NextClientId: (self._next_client_id, "waltz client id"),
            o.AskOwner: (self._ask_owner, "waltz owner"),
            o.ReadStorage: (self._read_storage, "waltz read"),
            o.ReadArchive: (self._read_archive, "waltz archive read"),
        }
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.core: ServerCore | None = None
        self._advertise = advertise
        self._generation = generation
        self._client_tls, self._storage_tls = client_tls, storage_tls
        self._listener = Listener(lambda: _Client(self))
        self._clients: dict[int, _Client] = {}
        self._paused: set[_Client] = set()
        self._numbers = 0
        self._loop = asyncio.get_running_loop()
        self._heard: list[tuple[_Client, list[Any]]] = []
        self._links: dict[str, StorageLink] = {}
        self._adapter: CoreAdapter[o.Output] | None = None
        self._writes = asyncio.Event()
        self._paths = Paths(config.root)
        self._tracing = Tracing(config.name)
        self._elsewhere = Elsewhere(config, metadata, storage_tls)
        self._preferred: set[int] = set()
        self._preferring = asyncio.Lock()
        self._registered = ""
        """Where this server's descriptor is, while it has a lease."""
        self._lease: Lease | None = None
        self._unregistered = asyncio.Event()
        """Somebody has removed it, who takes this server for ended."""
        self._watched: set[int] = set()

    @property
    def port(self) -> int:
        """The client port."""
        return self._listener.port

    @property
    def adapter(self) -> "CoreAdapter[o.Output]":
        """The core's adapter, between start and stop."""
        assert self._adapter is not None  # noqa: S101 -- callers run between start and stop
        return self._adapter

    @property
    def running(self) -> ServerCore:
        """The core, between start and stop."""
        assert self.core is not None  # noqa: S101 -- callers run between start and stop
        return self.core

    async def start(self, host: str, port: int) -> None:
        """Take a server id, listen and follow the cluster. Raises ``OSError`` and ``MetadataError``."""
        number = await cluster.next_id(self.metadata, self._paths.server_ids)
        epoch = time.time() - self._loop.time()
        self.core = self._make_core(number, self.config.name, self.config.partitions, epoch=epoch)
        self._adapter = CoreAdapter(self.core, self._execute, self._fail)
        await self._listener.start(host, port, self._client_tls)
        self._adapter.begin(self._follow(), name="waltz view")
        self._adapter.begin(self._hold_lease(), name="waltz lease")
        if self._archive is not None:
            call, key, delay_s = self._adapter.call, self.config.key, self._archive_delay_s
            owned = self.core.owned
            self._archiver = Archiver(self._archive, key, call, owned, self._keys, delay_s=delay_s)
            self._adapter.begin(self._archiver.run(), name="waltz archive")

    async def stop(self) -> None:
        """Give everything up in order: partitions, lease, connections."""
        if self._adapter is None:
            return
        self._writes.clear()
        self._adapter.call(lambda now: self.running.set_writable(now, writable=False))
        await self._adapter.close()
        await self._elsewhere.close()
        await self._listener.stop()

    def allow_writes(self) -> None:
        """Register as a server that may own partitions."""
        self._writes.set()

    def storage_fault(self) -> dict[str, str]:
        """Return the storage nodes that cannot be reached, and why."""
        return {address: link.fault for address, link in self._links.items() if link.fault}

    def partitions_json(self) -> dict[str, Any]:
        """Return the partitions of this server and who owns the others, for people and the operator."""
        view = self.running.view
        return {
            "server": self.running.server_id,
            "partitions": [
                {
                    "partition": one.number,
                    "generation": one.generation,
                    "session": one.session.id if one.session is not None else -1,
                    "hwm": one.hwm,
                    "writable": one.healthy,
                    "blocker": one.blocker,
                    "first": one.first,
                    "untrimmed": one.untrimmed,
                    "consumers": [each._asdict() for each in one.consumers()],
                    "damaged": one.damaged,
                    "archive": state_of(one, self._loop.time()),
                    "joining": one.joining,
                }
                for one in self.running.owned.values()
            ],
            "servers": {} if view is None else {d.server_id: f"{d.host}:{d.port}" for d in view.servers.values()},
            "storage": self.storage_fault(),
        }

    def metrics(self) -> list[Metric]:
        """Return the server's metrics."""
        if self.core is None:
            return []
        found = [
            Metric("pavane_waltz_clients", {}, sum(not one.is_server for one in self._clients.values())),
            Metric("pavane_waltz_partitions", {}, len(self.core.owned)),
        ]
        lacking = {f"no right to {right}": count for right, count in self.core.forbidden.items()}
        lacking |= {f"too many {what}": count for what, count in self.core.quotas.refused.items()}
        for why, count in {**refused_by(self._client_tls), **lacking}.items():
            found.append(Metric("pavane_waltz_refused_total", {"reason": why}, count))
        for number, one in sorted(self.core.owned.items()):
            labels = {"partition": str(number)}
            found += [
                Metric("pavane_waltz_writable", labels, one.healthy),
                Metric("pavane_waltz_high_water_mark", labels, -1 if one.hwm is None else one.hwm),
                Metric("pavane_waltz_first_transaction", labels, one.first),
                Metric("pavane_waltz_untrimmed_copies", labels, len(one.untrimmed)),
                *_consumer_metrics(labels, one),
                *archive_metrics(labels, one, self._loop.time()),
                Metric("pavane_waltz_damaged_copies", labels, len(one.damaged)),
                Metric("pavane_waltz_generation", labels, one.generation),
                Metric("pavane_waltz_appended_total", labels, one.appended),
                Metric("pavane_waltz_conflicts_total", labels, one.conflicts),
                Metric("pavane_waltz_feeds", labels, len(one.feeds)),
            ]
        return found

    def _call(self, what: Callable[[float], None]) -> None:
        self.adapter.call(what)
        if self._paused:
            self._wake_readers()

    # -- outputs ------------------------------------------------------------------------------------------------

    def _execute(self, output: o.Output) -> None:
        match output:
            case o.Reply():
                if self._tracing.on and isinstance(output.message, (m.LockFailure, m.Reject)):
                    self._trace_refusal(output.message)
                if (client := self._clients.get(output.connection)) is not None:
                    client.send(output.message)
            case o.Reach():
                self._reach(output.node, max(self.config.partitions, self.running.partitions))
            case o.Send():
                if (link := self._links.get(output.node)) is not None:
                    link.send(output.message)
            case o.Appended():
                self._tracing.committed(output.partition, output.records)
            case o.Recovered():
                self._tracing.recovered(*output)
            case o.Drain():
                if (client := self._clients.get(output.connection)) is not None:
                    client.drain()
            case o.Resume():
                self._wake_readers()
            case o.Hangup():
                if (client := self._clients.get(output.connection)) is not None:
                    client.hang_up(output.reason)
            case _:
                work, name = self._works[type(output)]
                self.adapter.begin(work(output), name=name)

    def _trace_refusal(self, message: m.LockFailure | m.Reject) -> None:
        locked = "a lock was written by another transaction"
        self._tracing.refused(message.reqid, locked if isinstance(message, m.LockFailure) else message.message)

    def _fail(self, error: Exception) -> None:
        _logger.error("the server failed", exc_info=error)
        if not self.failure.done():
            self.failure.set_result(error)

    # -- metadata -----------------------------------------------------------------------------------------------

    async def _read_meta(self, asked: o.ReadMeta) -> None:
        while True:
            try:
                async with asyncio.timeout(METADATA_S):
                    node = await self.metadata.get(self._paths.partition(asked.partition))
            except (MetadataError, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            break
        meta = None if node is None else blobs.PARTITION_METADATA.decode(node.data)
        version = -1 if node is None else node.version
        self.adapter.call(lambda now: self.running.metadata(now, asked.partition, asked.attempt, meta, version))

    async def _write_meta(self, asked: o.WriteMeta) -> None:
        """Write once. Where the outcome is unknown, the session reads again and sees whether it was its own."""
        path, data = self._paths.partition(asked.partition), blobs.PARTITION_METADATA.encode(asked.meta)
        done, version = True, 0
        try:
            async with asyncio.timeout(METADATA_S):
                if asked.version < 0:
                    await self.metadata.create(path, data)
                else:
                    version = await self.metadata.set(path, data, asked.version)
        except (BadVersion, NodeExists):
            done = False
        except (MetadataError, TimeoutError) as error:
            _logger.warning("partition %d: the metadata store does not answer: %s", asked.partition, error)
            await asyncio.sleep(RETRY_S)
            done = False
        self.adapter.call(
            lambda now: self.running.written(now, asked.partition, asked.attempt, done=done, version=version)
        )

    async def _write_assignment(self, asked: o.WriteAssignment) -> None:
        data = blobs.PARTITION_ASSIGNMENT.encode(asked.assignment)
        await _tried(self.metadata.set(self._paths.servers, data, asked.version))

    async def _prefer(self, asked: o.Prefer) -> None:
        named, done = set(asked.request.partitions), False
        async with self._preferring:
            add = isinstance(asked.request, m.AddPreferredRequest)
            before, self._preferred = self._preferred, self._preferred | named if add else self._preferred - named
            if where := self._registered:
                done = bool(await _tried(cluster.prefer(self.metadata, self.config, where, self._descriptor())))
            if not done:
                self._preferred = before
        self.adapter.call(lambda _: asked.answer(done))

    def _descriptor(self) -> blobs.ServerDescriptor:
        host, _, port = self._advertise.rpartition(":")
        preferred = tuple(sorted(self._preferred))
        return blobs.ServerDescriptor(self.running.server_id, host, int(port) or self.port, preferred)

    async def _next_client_id(self, asked: o.NextClientId) -> None:
        number = await _tried(cluster.next_id(self.metadata, self._paths.client_ids)) or -1
        self.adapter.call(lambda _: asked.answer(number))

    async def _ask_owner(self, asked: o.AskOwner) -> None:
        hwm = await self._elsewhere.hwm(asked.address, asked.partition)
        self.adapter.call(lambda now: asked.answer(now, hwm))

    async def _read_storage(self, asked: o.ReadStorage) -> None:
        found = await self._elsewhere.records(asked.node, asked.partition, asked.txid, asked.limit)
        session, records = found or (-1, None)
        self.adapter.call(lambda now: asked.answer(now, session, records))

    async def _read_archive(self, asked: o.ReadArchive) -> None:
        records = await self._archiver.read(asked) if self._archiver is not None else None
        self.adapter.call(lambda _: asked.answer(records))

    def _keys(self) -> int:
        return self.running.view.first_partitions if self.running.view is not None else 0

    async def _follow(self) -> None:
        """Tell the core of every change of the cluster."""
        looked_at = (self._paths.servers, self._paths.assignment, self._paths.rollout)
        while True:
            try:
                async for _ in self.metadata.changes(self.config.root, looked_at):
                    registered = self._registered
                    view = await cluster.read_view(self.metadata, self.config.root)
                    if view is not None:
                        self._set_view(view)
                        if registered == self._registered != "" and self.running.server_id not in view.servers:
                            # The session that reads may be behind the one that has registered us.
                            gone = await self.metadata.get(registered, lease=self._lease) is None
                            if gone and registered == self._registered:
                                self._unregistered.set()
            except (MetadataError, RemoteProtocolError) as error:
                _logger.warning("the cluster cannot be watched: %s", error)
            await asyncio.sleep(RETRY_S)

    def _set_view(self, view: ClusterView) -> None:
        partitions = max(self.config.partitions, view.partitions)
        for link in self._links.values():
            link.grow(partitions)
        for address in storage_nodes(view):
            self._reach(address, partitions)
        self._call(lambda now: self.running.set_view(now, view))
        for number in view.numbers.keys() & view.servers.keys() - self._watched - {self.running.server_id}:
            self._watched.add(number)
            self.adapter.begin(self._watch(number, view.servers[number]), name=f"waltz server {number}")

    async def _watch(self, number: int, server: blobs.ServerDescriptor) -> None:
        """Unregister a server whose process has ended: so its partitions move before its lease ends.

        Should it live after all, the metadata and the storage nodes fence it as any former owner.
        """
        while (view := self.running.view) is not None and number in view.servers:
            if await self._elsewhere.ended(f"{server.host}:{server.port}") and self._registered:
                _logger.warning("server %d at %s:%d has ended", number, server.host, server.port)
                await _tried(cluster.unregister(self.metadata, self.config.root, lambda one: one.server_id == number))
            await asyncio.sleep(RETRY_S)
        self._watched.discard(number)
        if view is not None and all(
            (one.host, one.port) != (server.host, server.port) for one in view.servers.values()
        ):
            self._elsewhere.forget(f"{server.host}:{server.port}")

    def _reach(self, address: str, partitions: int) -> None:
        """Keep a connection to a storage node until nobody wants it any more."""
        if address in self._links:
            return
        link = self._links[address] = StorageLink(
            address,
            self.config.key,
            partitions,
            tls=self._storage_tls,
            up=lambda node: self._call(lambda now: self.running.storage_up(now, node)),
            down=lambda node: self._call(lambda now: self.running.storage_down(now, node)),
            heard=self._storage_heard,
            wanted=self.running.wants,
        )

        async def run() -> None:
            await link.run()
            del self._links[address]

        self.adapter.begin(run(), name=f"storage node {address}")

    def _storage_heard(self, node: str, messages: list[Any]) -> None:
        def take(now: float) -> None:
            for message in messages:
                self.running.storage_response(now, node, message)

        self._call(take)

    async def _hold_lease(self) -> None:
        while True:
            await self._writes.wait()
            try:
                async with self.metadata.lease(self.config.session_timeout_s) as lease:
                    self._unregistered.clear()
                    self._lease = lease
                    self._registered = await cluster.register(
                        self.metadata, self.config.root, lease, self._descriptor(), self._generation
                    )
                    self._set_writable(True)
                    over = [asyncio.ensure_future(one) for one in (lease.ended(), self._unregistered.wait())]
                    try:
                        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for one in over:
                            one.cancel()
                        self._registered = ""
                        # From this moment another server may be the owner, also if this task is cancelled.
                        self._set_writable(False)
                _logger.warning("the place in the metadata store is lost; partitions are given up")
            except (MetadataError, TimeoutError) as error:
                _logger.warning("no lease in the metadata store: %s", error)
            await asyncio.sleep(RETRY_S)

    def _set_writable(self, writable: bool) -> None:
        self._call(lambda now: self.running.set_writable(now, writable=writable))

    # -- clients ------------------------------------------------------------------------------------------------

    def client_joined(self, client: "_Client") -> None:
        """Count a connection, whose identity is known; one too many has EXCESS_S to ask something and hear why."""
        client.excess = self.running.quotas.connect(client.identity)
        if client.excess:
            self._loop.call_later(EXCESS_S, client.hang_up, client.excess)

    def client_opened(self, client: "_Client") -> int:
        """Give a connection its number."""
        self._numbers += 1
        self._clients[self._numbers] = client
        self.running.connected(self._numbers, client.channel.version or 0, client.identity, client.excess)
        return self._numbers

    def client_ended(self, client: "_Client") -> None:
        """Forget a connection."""
        self.running.quotas.disconnect(client.identity)
        self._take_heard()  # what it said before it went
        if self._clients.pop(client.number, None) is not None:
            self._paused.discard(client)
            self._call(lambda now: self.running.disconnected(now, client.number))

    def client_heard(self, client: "_Client", messages: list[Any]) -> None:
        """Take requests; those of one turn of the loop are given to the core together."""
        self._heard.append((client, messages))
        if client.turn.alone:
            self._take_heard()
        elif len(self._heard) == 1:
            self._loop.call_soon(self._take_heard)

    def _take_heard(self) -> None:
        heard, self._heard = self._heard, []
        if not heard:
            return

        def take(now: float) -> None:
            for client, messages in heard:
                for message in messages:
                    if isinstance(message, ChecksumError):
                        if message.reqid is not None:
                            self.running.bad_checksum(client.number, message.reqid, message.kind)
                    else:
                        self._take(now, client, message)

        self.adapter.call(take)
        for client, _ in heard:
            if not self.running.may_read(client.number):
                client.pause_reading(True)
                self._paused.add(client)

    def _take(self, now: float, client: "_Client", message: Any) -> None:
        if self._tracing.on and isinstance(message, (m.AppendIdempotent, m.AppendRequest)):
            self._tracing.arrived(message.reqid)
        try:
            self.running.message(now, client.number, message)
        except Exception:
            # Its sender goes, everybody else stays: a message that ended the server would end the next owner too.
            _logger.exception("%s of %s failed", type(message).__name__, client.peer)
            client.hang_up("the message could not be processed")

    def client_writable(self, client: "_Client", writable: bool) -> None:
        """A connection takes more, or does not."""
        self.adapter.call(lambda now: self.running.set_connection_writable(now, client.number, writable=writable))

    def _wake_readers(self) -> None:
        """Read again from connections whose partitions have room."""
        for client in [client for client in self._paused if self.running.may_read(client.number)]:
            self._paused.discard(client)
            client.pause_reading(False)


async def _tried(work: Awaitable[T]) -> T | None:
    """Return the answer of the metadata store; ``None`` if it gives none."""
    with suppress(MetadataError, TimeoutError):
        async with asyncio.timeout(METADATA_S):
            return await work
    return None


def _consumer_metrics(labels: Mapping[str, str], one: Partition) -> Iterator[Metric]:
    """Yield how far consumers are, and for how long retention waits for them."""
    for each in one.consumers():
        named = {**labels, "consumer": each.name}
        yield Metric("pavane_waltz_consumer_position", named, each.position)
        yield Metric("pavane_waltz_consumer_lag", named, max(0, (one.hwm or 0) + 1 - each.position))
        yield Metric("pavane_waltz_consumer_lag_seconds", named, each.lag_ms / 1000)
        yield Metric("pavane_waltz_consumer_held_seconds", named, max(0, each.held_ms) / 1000)


class _Client(Stream):
    """A client's connection."""

    strangers = True

    def __init__(self, server: WaltzServer) -> None:
        super().__init__(LOG_SERVER, connecting=False)
        self.number = 0
        self.excess = ""
        self._server = server
        self._messages: list[Any] = []

    @property
    def is_server(self) -> bool:
        """Whether another server of the log asks, or watches this one."""
        return self.channel.peer is not None and self.channel.peer.text == LOG_PEER.text

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.client_joined(self)

    def opened(self) -> None:
        self.number = self._server.client_opened(self)

    def heard(self, message: Any) -> None:
        self._messages.append(message)

    def turned(self) -> None:
        if self._messages and not self.closed:
            messages, self._messages = self._messages, []
            self._server.client_heard(self, messages)

    def failed(self, error: ProtocolError) -> bool:
        if isinstance(error, ChecksumError) and self.channel.version is not None and self.channel.version >= 5:
            self._messages.append(error)
            return True
        return isinstance(error, RemoteProtocolError) and error.reason == NULL_LOCKS

    def ended(self, reason: str) -> None:
        self._server.client_ended(self)

    def writable(self, writable: bool) -> None:
        if self.number:
            self._server.client_writable(self, writable)

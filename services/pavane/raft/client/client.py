"""``RaftClient``: the asyncio face of the client library (docs/specs/raft.md 11.1)."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Self, TypeVar

from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import rpc_attributes
from opentelemetry.trace import SpanKind

from pavane.raft.client.calls import (
    BatchT,
    BroadcastUrlCall,
    Call,
    ChangeMembersCall,
    ClockCall,
    ConfigurationCall,
    DispatchCall,
    EntriesCall,
    Entry,
    LogInfoCall,
    StatusCall,
    StreamCall,
    TransferCall,
    UpdateCall,
)
from pavane.raft.client.causes import Causes
from pavane.raft.client.connections import Connections
from pavane.raft.client.forward import forward_only
from pavane.raft.client.inflight import InflightLimit
from pavane.raft.client.key_calls import Changes, CommandCall, KeepAliveCall, Outcome, ReadCall, WatchCall
from pavane.raft.client.keys import Keys
from pavane.raft.client.procedure import Finished, Procedure
from pavane.raft.client.race import first_answer
from pavane.raft.client.request_ids import Clock, RequestIds
from pavane.raft.client.snapshot_call import Snapshot, SnapshotCall
from pavane.raft.client.subscription import Item, follow
from pavane.raft.client.tree import TreeKeys
from pavane.raft.client.urls import endpoint_of, is_literal, split_url
from pavane.raft.curve import CurveKeys
from pavane.raft.errors import Closed, Expired, RaftError, ReqidTaken, TooLarge, UnderWay, Unreachable
from pavane.raft.machines.commands import Command, ReadOp, encode_command
from pavane.raft.machines.history import Watch
from pavane.raft.wire.entry import PeerList
from pavane.raft.wire.frames import ENTRY_DATA_BYTES, REQID_BYTES, Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PREFIX
from pavane.raft.wire.replies import RequestConfigReply, RequestLogInfoReply
from pavane.runtime import names
from pavane.runtime.timers import CoreTimer
from pavane.telemetry import derived, link

TIMEOUT_S_MAX = 7 * 3600.0  # beyond it the cluster would call the request id expired (11.2)
STALE_HEDGE_S = 0.3  # before the next peer is asked as well: one that is stopped takes connections and says nothing
STALE_READ_S = 1.5  # for each peer that is asked; one that waits for a revision says so after a second
READ_TIMEOUT_S = 30.0  # for requests that change nothing, and between two messages of a stream
KIND_BYTES_MIN = 2  # a type of one byte is the protocol's own, today or tomorrow (1.2 D3)
CLOCK_S = 0.5  # for the leader to tell its time when it has refused an id; an original one says nothing
NEW_IDS = 3  # tries with an id of our own while nothing was sent under it: another leader may have another clock

REQID_ATTRIBUTE = "pavane.raft.reqid"
INDEX_ATTRIBUTE = "pavane.raft.index"
_REVISION: Callable[[Outcome], int] = attrgetter("revision")

Result = TypeVar("Result")
Resolve = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client (docs/specs/raft.md 16).

    ``timeout_ms``: silence after which a server counts as gone. ``grace_ms``: wait before the search then, the time of
    an election. ``hedge``: whether the others are asked who leads as soon as the leader has been silent for
    ``hedge_after_ms``; without it the client keeps to the protocol's own procedure. ``source``: address to connect
    from, empty for the system's choice. ``subscribe_silence_ms``: silence after which a subscriber seeks the leader.
    """

    timeout_ms: int = 500
    grace_ms: int = 300
    hedge: bool = True
    hedge_after_ms: int = 75
    subscribe_silence_ms: int = 1000
    source: str = ""


class RaftClient:
    """Talks to the leader of a cluster, wherever it is; use it as an asynchronous context manager.

    ``peers`` are urls ``tcp://host:port`` to begin with: members, or a Service in front of them. A host name stands for
    all its addresses and is looked up by ``resolve`` (in a thread, so it may block) whenever a connection is sought.
    ``secret`` is the ident of the cluster; one with CURVE (14.2) answers nobody without ``curve``. ``tracer`` makes the
    spans of updates; by default the global one, if it is set up before the client is opened.

    Every method raises a ``RaftError``: ``Unreachable`` when the time is over, ``Refused`` and others as told by the
    server. What is under way when the client is closed ends with ``Closed``. It is opened once, on one event loop; open
    or closed, entering it again raises ``Closed``.
    """

    def __init__(
        self,
        peers: Sequence[str],
        secret: bytes,
        *,
        config: ClientConfig | None = None,
        curve: CurveKeys | None = None,
        resolve: Resolve = names.resolve,
        tracer: trace.Tracer | None = None,
        clock: Clock = time.time,
    ) -> None:
        if not peers:
            raise ValueError("a client needs the url of at least one peer")
        for url in peers:
            split_url(url)
        self._peers = tuple(peers)
        self._config = config or ClientConfig()
        self._ident = secret
        self._curve = curve
        self._resolve = resolve
        self._traced = tracer is not None
        self._tracer = tracer or trace.get_tracer("pavane.raft.client")
        timeout_s, grace_s = self._config.timeout_ms / 1000, self._config.grace_ms / 1000
        rng = random.SystemRandom()  # what is made before a fork must not draw alike in every child
        hedge_after_s = self._config.hedge_after_ms / 1000 if self._config.hedge else None
        self._procedure = Procedure(peers, secret, timeout_s, grace_s, rng, hedge_after_s)
        self._clock = clock
        self._unsent: set[bytes] = set()  # request ids of ours that nothing was sent under
        self._results: dict[bytes, asyncio.Future[Any]] = {}
        self._streams: dict[bytes, asyncio.Event] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._window = InflightLimit()
        self._causes = Causes(encrypts=curve is not None)
        self._settling = False
        self._settle_planned = False
        self._open: bool | None = None  # ``None`` before the first and only time

    async def __aenter__(self) -> Self:
        if self._open is not None:
            # What was under way would answer to another caller, and the loop may be another one.
            raise Closed("this client was opened before; make a new RaftClient")
        self._loop = asyncio.get_running_loop()
        self._ids = RequestIds(self._clock)
        self._timer = CoreTimer(self._loop, self._on_timer)
        # Looked at once: it takes longer than any other step of an update.
        self._traced = self._traced or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        self._open = True
        source, told = self._config.source or None, (self._on_message, self._on_connection, self._settle)
        self._links = Connections(self._loop, source, *told, self._causes, self._curve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        if not self._ids.process.is_this:
            return  # sockets and loop are those of the process that opened it, and still in use there
        self._timer.cancel()
        lookups = tuple(self._lookups.values())
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)
        for result in self._results.values():
            if not result.done():
                result.set_exception(Closed("the client was closed before the answer came; the outcome is unknown"))
        for news in self._streams.values():
            news.set()
        self._links.close()

    def new_reqid(self) -> bytes:
        """Return a fresh request id, for a caller that keeps it to repeat an update after a failure of its own."""
        self._check_open()
        return self._ids.reqid()

    async def under_new_reqid(self, write: Callable[[bytes], Awaitable[Result]]) -> Result:
        """Return what ``write(reqid)`` returns, which gives its id to one update or command and keeps it no longer.

        Where the cluster refuses the id, which nothing was sent under before, ``write`` is called again with another.
        """
        for _ in range(NEW_IDS - 1):
            reqid = self.new_reqid()
            self._unsent.add(reqid)
            try:
                return await write(reqid)
            except (Expired, ReqidTaken) as error:
                if error.sent_before:
                    raise
            finally:
                self._unsent.discard(reqid)
        return await write(self.new_reqid())

    async def update(self, data: bytes, *, reqid: bytes | None = None, timeout_s: float = 30.0) -> int:
        """Append ``data`` (1 byte … 10 MiB) exactly once and return its index.

        ``reqid`` repeats an earlier call whose outcome is unknown (``Unreachable``); by default a fresh one is made.
        While CLIENT_INFLIGHT updates are under way further ones wait, within their ``timeout_s``. Raises ``Expired``,
        ``TooLarge``, ``Unreachable``, ``UnderWay``; ``ValueError`` for empty data and for a malformed id.
        """
        if len(data) > ENTRY_DATA_BYTES:
            raise TooLarge(len(data), ENTRY_DATA_BYTES)
        if not data:
            raise ValueError("an update needs at least one byte of data")
        return await self._write(
            "raft/RequestUpdate", len(data), int, lambda id_, left_s: UpdateCall(id_, data, left_s), reqid, timeout_s
        )

    @property
    def kv(self) -> Keys:
        """The keys of a cluster whose state machine is KeyValue or Tree."""
        return Keys(_KeySession(self))

    @property
    def tree(self) -> TreeKeys:
        """The nodes of a cluster whose state machine is Tree."""
        return TreeKeys(_KeySession(self))

    @property
    def stale_kv(self) -> Keys:
        """The keys as any peer has them: perhaps old, but also there without a leader. Writes are those of ``kv``."""
        return Keys(_KeySession(self, revision=0))

    @property
    def stale_tree(self) -> TreeKeys:
        """The nodes as any peer has them, as ``stale_kv``."""
        return TreeKeys(_KeySession(self, revision=0))

    async def entries(self, after: int = 0, count: int | None = None) -> AsyncGenerator[Entry, None]:
        """Yield the entries behind index ``after``, ``count`` of them or all that are applied when the leader is asked.

        It ends by ``aclose``, or when nothing refers to it any more, as after ``break`` out of a loop over it. Raises
        ``Compacted`` if the log no longer reaches back so far (then ``snapshot`` stands for what is gone),
        ``Unreachable`` after READ_TIMEOUT_S without a message.
        """
        if after < 0 or (count is not None and count < 0):
            raise ValueError("after and count cannot be negative")
        if count == 0:
            return
        async with aclosing(self._batches(EntriesCall(self._call_id(), after, count, READ_TIMEOUT_S))) as batches:
            async for batch in batches:
                for entry in batch.entries:
                    yield entry

    async def snapshot(self) -> Snapshot | None:
        """Return the snapshot in front of the log, ``None`` if the log begins at 1; read on behind its index.

        Raises ``Refused`` for one of more than 1 GiB, ``Unreachable`` after READ_TIMEOUT_S without a message.
        """
        call = SnapshotCall(self._call_id(), READ_TIMEOUT_S)
        async with aclosing(self._batches(call)) as pieces:
            async for _ in pieces:
                pass
        return call.found

    def subscribe(self, after: int = 0) -> AsyncGenerator[Item, None]:
        """Yield the entries behind index ``after``, for ever, as they are applied; ``Fresh`` whenever all have come.

        Across failovers no entry is missed or repeated. Where the log no longer goes back so far a ``Snapshot`` comes
        first, which stands for all entries up to its index. It is left as ``entries``. Raises ``Unsupported`` if the
        peers publish nothing (``--pub``), ``Refused`` for a snapshot of more than 1 GiB, ``WentBack`` if the cluster
        lacks what was read, for it goes on from an older copy of its data, and
        ``Unreachable`` if there is no leader for READ_TIMEOUT_S; go on behind the last index then.
        """
        return follow(self, after, self._ident, self._curve, self._config.subscribe_silence_ms / 1000)

    async def broadcast_url(self) -> str | None:
        """Return the url of the leader's PUB socket, ``None`` if it has none."""
        # Any peer tells its own, also one that led until a moment ago: this finds out who leads.
        await self.log_info()
        return await self._run(BroadcastUrlCall(self._call_id(), READ_TIMEOUT_S))

    async def _batches(self, call: StreamCall[BatchT]) -> AsyncGenerator[BatchT, None]:
        """Yield what comes in and acknowledge it when the reader asks for more."""
        result = self._start(call)
        news = self._streams[call.id] = asyncio.Event()
        try:
            while True:
                while call.batches:
                    batch = call.batches.popleft()
                    yield batch
                    frames = call.acknowledgement(batch, self._ident)
                    if frames is not None and not result.done():
                        self._procedure.say(call, frames, self._loop.time())
                        self._settle()
                if result.done():
                    await result
                    return
                news.clear()
                await news.wait()
        finally:
            self._end_stream(call, result)

    async def configuration(self, *, timeout_s: float = READ_TIMEOUT_S) -> RequestConfigReply:
        """Return the leader's id and the members; in a transition the union of old and new."""
        return await self._run(ConfigurationCall(self._call_id(), timeout_s))

    def peer_urls(self) -> Sequence[str]:
        """Return the urls of the members or, while these are not known, of the peers that the client began with."""
        return self._procedure.peer_urls()

    async def log_info(self, peer: str | None = None) -> RequestLogInfoReply:
        """Return the indices of a peer's log; ``peer`` is its id or url, by default the leader's."""
        url = None if peer is None else await self._url(peer)
        return await self._run(LogInfoCall(self._call_id(), READ_TIMEOUT_S, url))

    async def change_members(
        self, peers: Sequence[tuple[str, str]], *, reqid: bytes | None = None, timeout_s: float = 60.0
    ) -> int:
        """Make ``peers`` (id, url) the members and return the index of the joint configuration.

        Waits while another change is under way. Raises ``Refused`` with the server's explanation, ``Expired``,
        ``Unreachable``; as with ``update`` the same ``reqid`` may be used again.
        """
        members: PeerList = tuple((peer, url) for peer, url in peers)
        if reqid is None:
            return await self.under_new_reqid(lambda id_: self.change_members(peers, reqid=id_, timeout_s=timeout_s))
        call = ChangeMembersCall(reqid, members, min(timeout_s, TIMEOUT_S_MAX))
        call.repeats = self._check_reqid(reqid)
        try:
            return await self._run(call)
        except (Expired, ReqidTaken) as error:
            await self._learn(error)
            raise

    async def clock_ahead_s(self) -> float:
        """Return how far the leader's clock is ahead of this one's; ``Unreachable`` if it does not tell (originals)."""
        return await self._run(ClockCall(self._call_id(), CLOCK_S)) / 1000 - self._clock()

    async def transfer(self, to: str | None = None) -> str:
        """Hand leadership to the member with the id ``to``, by default the best; return the new leader's id."""
        return await self._run(TransferCall(self._call_id(), to, READ_TIMEOUT_S))

    async def dispatch(
        self, kind: bytes, *frames: bytes, idempotent: bool, timeout_s: float = READ_TIMEOUT_S
    ) -> tuple[Frame, ...]:
        """Send the leader a request that only the application's own state machine knows; return what it answers.

        ``kind`` has two bytes or more and does not begin with ``pv.``. A request that is not ``idempotent`` is sent
        once: ``Unreachable`` then means that nobody knows whether it took effect. Raises ``ValueError`` for the type.
        """
        if len(kind) < KIND_BYTES_MIN or kind.startswith(PREFIX):
            raise ValueError(f"{kind!r} is no type of an application: two bytes or more, not beginning with {PREFIX!r}")
        return await self._run(DispatchCall(self._call_id(), kind, frames, timeout_s, idempotent=idempotent))

    async def status(self, peer: str, *, timeout_s: float = READ_TIMEOUT_S) -> dict[str, Value]:
        """Return what the peer with this url or id tells of itself (``pv.status``); only servers of ours answer."""
        return await self._run(StatusCall(self._call_id(), timeout_s, await self._url(peer)))

    async def _url(self, peer: str) -> str:
        """Return the url of a peer that is given by url or id; raises ``ValueError`` for an unknown id."""
        if "://" in peer:
            split_url(peer)
            return peer
        url = self._procedure.url_of(peer) or dict((await self.configuration()).peers).get(peer)
        if url is None:
            raise ValueError(f"{peer!r} is no member of the cluster; give its url")
        return url

    async def _write(
        self,
        span_name: str,
        size: int,
        index_of: Callable[[Result], int],
        make: Callable[[bytes, float], Call[Result]],
        reqid: bytes | None,
        timeout_s: float,
    ) -> Result:
        """Run a call that appends ``size`` bytes, within the window of those under way; its span says the index."""
        if not self._open:
            self._check_open()
        tries = NEW_IDS if reqid is None else 1
        repeats = reqid is not None and self._check_reqid(reqid)
        end_s = self._loop.time() + min(timeout_s, TIMEOUT_S_MAX)
        # One flat loop and no wrapper: each coroutine on the way to the answer costs as much as encoding the update.
        while True:
            tries -= 1
            id_ = self._ids.reqid() if reqid is None else reqid
            try:
                if not self._traced:  # a span that goes nowhere costs a third more
                    return await self._write_within(size, make, id_, end_s, repeats)
                with self._tracer.start_as_current_span(
                    span_name,
                    kind=SpanKind.CLIENT,
                    links=[link(derived("raft", "", id_))],
                    attributes={
                        rpc_attributes.RPC_SYSTEM_NAME: "raft",
                        rpc_attributes.RPC_METHOD: span_name.removeprefix("raft/"),
                        REQID_ATTRIBUTE: id_.hex(),
                    },
                ) as span:
                    result = await self._write_within(size, make, id_, end_s, repeats)
                    span.set_attribute(INDEX_ATTRIBUTE, index_of(result))
                return result
            except (Expired, ReqidTaken) as error:
                await self._learn(error)
                if error.sent_before or not tries:
                    raise

    async def _write_within(
        self, size: int, make: Callable[[bytes, float], Call[Result]], reqid: bytes, end_s: float, repeats: bool
    ) -> Result:
        timeout_s = end_s - self._loop.time()
        if not self._window.try_enter(size):
            self._check_open()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._window.enter(size)
            except TimeoutError:
                raise Unreachable(self._peers, timeout_s, reqid) from None
            timeout_s = end_s - self._loop.time()
        try:
            call = make(reqid, timeout_s)
            call.repeats = repeats
            result = self._start(call)
            try:
                return await result
            finally:
                self._forget(call)
        finally:
            self._window.leave(size)

    async def _learn(self, refused: Expired | ReqidTaken) -> None:
        """See to it that the next ids are not refused as this one was."""
        if isinstance(refused, ReqidTaken):
            self._ids.begin_anew()
        else:
            with suppress(RaftError):  # it is refused as well if nobody tells the time
                self._ids.follow(await self._run(ClockCall(self._call_id(), CLOCK_S)))

    def _check_reqid(self, reqid: bytes) -> bool:
        """Say whether something may have been sent under this id; raises ``ValueError``, ``UnderWay``."""
        if len(reqid) != REQID_BYTES:
            raise ValueError(f"a request id has {REQID_BYTES} bytes, not {len(reqid)}")
        self._check_free(reqid)
        unsent = reqid in self._unsent
        self._unsent.discard(reqid)
        return not unsent

    def _check_free(self, call_id: bytes) -> None:
        """Raise ``UnderWay`` if a call has this id, also one that is answered but whose caller has not gone on yet."""
        if call_id in self._results:
            raise UnderWay(call_id)

    def _call_id(self) -> bytes:
        self._check_open()
        return self._ids.call_id()

    async def _run(self, call: Call[Result]) -> Result:
        result = self._start(call)
        try:
            return await result
        finally:
            self._forget(call)

    def _check_open(self) -> None:
        if self._open is None:
            raise Closed("the client is not open; use it inside `async with RaftClient(…)`")
        if not self._ids.process.is_this:
            raise Closed("the client was opened before this process was forked; open one in each process")
        if not self._open:
            raise Closed("the client is closed; make a new one by `async with RaftClient(…)`")

    def _start(self, call: Call[Result]) -> "asyncio.Future[Result]":
        self._check_open()
        self._check_free(call.id)
        result: asyncio.Future[Result] = self._loop.create_future()
        self._results[call.id] = result
        self._procedure.submit(call, self._loop.time())
        if not self._settle_planned:
            self._settle_planned = True  # calls of one turn of the loop go out together
            self._loop.call_soon(self._settle_soon)
        return result

    def _forget(self, call: Call[Result]) -> None:
        self._procedure.cancel(call)
        self._results.pop(call.id, None)

    def _end_stream(self, call: StreamCall[Any], result: "asyncio.Future[None]") -> None:
        """End a stream also at the server, if the reader left before its end."""
        del self._streams[call.id]
        if not result.done():
            self._procedure.say(call, call.stop(self._ident), self._loop.time())
            self._settle()
        elif not result.cancelled():
            result.exception()  # the reader may have left without asking for it
        self._forget(call)

    def _on_message(self, endpoint: str, frames: list[bytes]) -> None:
        self._causes.heard(endpoint)
        self._procedure.receive(endpoint, frames, self._loop.time())

    def _on_connection(self, endpoint: str, up: bool) -> None:
        self._procedure.connection(endpoint, up, self._loop.time())

    def _on_timer(self) -> None:
        self._procedure.handle_timer(self._loop.time())
        self._settle()

    def _settle_soon(self) -> None:
        self._settle_planned = False
        if self._open:
            self._settle()

    def _settle(self) -> None:
        """Do what the procedure wants done, until it wants nothing more, and arm the timer."""
        if self._settling:
            return  # called from below: the loop here goes on
        self._settling = True
        try:
            while True:
                outputs = self._procedure.outputs()
                if outputs.server_clock_ms is not None:
                    self._ids.follow(outputs.server_clock_ms)
                if outputs.connect is not None:
                    self._links.keep(outputs.connect)
                self._links.redial(outputs.redial)
                for endpoint, frames in outputs.send:
                    self._links.send(endpoint, frames)
                for call in outputs.progressed:
                    self._streams[call.id].set()
                for finished in outputs.finished:
                    self._complete(finished)
                if not outputs.resolve:
                    break
                for url in dict.fromkeys(outputs.resolve):
                    self._look_up(url)
        finally:
            self._settling = False
        self._timer.arm(self._procedure.next_timer())

    def _complete(self, finished: Finished) -> None:
        result = self._results.get(finished.call.id)
        if result is not None and not result.done():
            if finished.error is not None:
                result.set_exception(self._causes.explain(finished.error))
            else:
                result.set_result(finished.value)
        if finished.call.id in self._streams:
            self._streams[finished.call.id].set()

    def _look_up(self, url: str) -> None:
        host, port = split_url(url)
        if is_literal(host):
            self._procedure.resolved(url, (endpoint_of(host, port),), self._loop.time())
        elif url not in self._lookups:
            self._lookups[url] = self._loop.create_task(self._resolve_name(url, host, port))

    async def _resolve_name(self, url: str, host: str, port: int) -> None:
        try:
            addresses = await names.look_up(self._resolve, host)
        except OSError:
            addresses = ()  # a pod that is not up has no name yet
        finally:
            del self._lookups[url]
        self._causes.resolved(url, found=bool(addresses))
        self._procedure.resolved(url, [endpoint_of(address, port) for address in addresses], self._loop.time())
        self._settle()


class _KeySession:
    """What ``Keys`` does through its client. Any peer that has applied ``revision`` may be read, if one is given."""

    def __init__(self, client: RaftClient, revision: int | None = None) -> None:
        self._client = client
        self._revision = revision

    def since(self, revision: int) -> "_KeySession":
        return self if self._revision is None else _KeySession(self._client, revision)

    async def command(self, command: Command, reqid: bytes | None, timeout_s: float) -> Outcome:
        data = encode_command(command)
        return await self._client._write(
            "raft/pv.kv", len(data), _REVISION, lambda id_, left_s: CommandCall(id_, data, left_s), reqid, timeout_s
        )

    async def read(self, ops: Sequence[ReadOp], timeout_s: float) -> Outcome:
        revision = self._revision
        if revision is None:
            return await self._client._run(ReadCall(self._client._call_id(), ops, timeout_s))
        procedure = self._client._procedure
        members = procedure.peer_urls()
        members = sorted(random.sample(members, len(members)), key=procedure.is_down)
        # Seeds come last: they may be a Service that knows peers when all members that we know are gone.
        urls = list(dict.fromkeys((*members, *self._client._peers)))
        calls = (ReadCall(self._client._call_id(), ops, STALE_READ_S, url, revision) for url in urls)
        return await first_answer((partial(self._client._run, call) for call in calls), STALE_HEDGE_S)

    async def keep_alive(self, lease: int, timeout_s: float) -> Outcome:
        return await self._client._run(KeepAliveCall(self._client._call_id(), [lease], timeout_s))

    def changes(self, watch: Watch) -> AsyncGenerator[Changes, None]:
        client = self._client
        batches = client._batches(WatchCall(client._call_id(), watch, READ_TIMEOUT_S))
        return forward_only(batches, watch.first, lambda: client._run(ReadCall(client._call_id(), (), READ_TIMEOUT_S)))

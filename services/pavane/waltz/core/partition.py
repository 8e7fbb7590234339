"""A partition at its owner: appends in order, checked against locks, and who waits (docs/specs/waltz.md 4, 14).

The stage is Opening until a store session is open for the first time, and stays ReadWrite while later sessions recover:
appends then wait. A partition that leaves is Closing until what is under way is decided.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pavane.waltz.core.connection import PARKED_MAX, Connection, Registration, kind_of
from pavane.waltz.core.feed import ENDS, Feeds, batch_fault
from pavane.waltz.core.outputs import Appended, Hangup
from pavane.waltz.core.rounds import earliest
from pavane.waltz.core.session import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from pavane.waltz.core.storing import PartitionStage, Shared, Storing
from pavane.waltz.errors import RejectCode
from pavane.waltz.state.locks import Conflicting, LockTable, Taken, Waiting
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.storage import Record

QUEUE_APPENDS_MAX = 1000  # that wait for a partition; then their connections are not read
QUEUE_BYTES_MAX = 32 * 1024 * 1024
BATCH_APPENDS_MIN = 100  # fewer wait while a batch is under way: they share messages and syncs as the next one
BATCH_BYTES_MIN = 256 * 1024
PARK_S = 10.0  # how long a request waits for a partition that is opening
CLOSE_S = 5.0  # how long a partition that leaves waits for what is under way
TRANSACTION_BYTES_MAX = 16 * 1024 * 1024
LOCKS_MAX = 65_536

AnyAppend = m.AppendRequest | m.AppendIdempotent


@dataclass(slots=True)
class _Pending:
    """An append that was sent to storage: its record, the slots that it holds, and who wants to know."""

    record: Record
    slots: tuple[int, ...]
    connection: Connection | None
    ack: bool


@dataclass(slots=True)
class _Marker:
    """Something to do when everything queued before it is resolved."""

    connection: Connection
    fire: Callable[[], None]


class Partition(Storing):
    """One partition that is assigned to this server with ``generation``."""

    def __init__(self, number: int, generation: int, nodes: Sequence[str], shared: Shared, floor: int) -> None:
        super().__init__(number, generation, nodes, shared, floor)
        self._rounds = shared.rounds
        self.clients: dict[int, Registration] = {}
        self._close_due: float | None = None
        self._queue: deque[tuple[Connection, AnyAppend] | _Marker] = deque()
        self.queued = self._queued_bytes = 0
        self._pending: deque[_Pending] = deque()
        self._sent = self._resolved = 0
        self._settling = False
        """A session is open, but what the last one left is not yet known."""
        self._markers: deque[tuple[int, _Marker]] = deque()
        self._parked: deque[tuple[float, Connection, Any]] = deque()
        self._blocked: list[Connection] = []
        self._locks = LockTable(-1)
        self.feeds = Feeds(self._out, self.read, self.unreadable)
        self.appended = self.conflicts = 0
        self._started_at = 0.0
        self.opened_in_s: float | None = None
        """How long it took from the assignment to the first store session: then nobody could write."""

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin the first store session."""
        self.now = self._started_at = now
        self._begin_session()

    def set_generation(self, now: float, generation: int) -> None:
        """Take a higher generation of our own; the next session claims it."""
        self.now = now
        self.generation = generation
        if self.session is not None:
            self._take(self.session.close("a new generation"))

    def leave(self, now: float) -> None:
        """Give the partition up: take nothing new, decide what is under way, then close."""
        self.now = now
        if self.stage in (PartitionStage.CLOSING, PartitionStage.CLOSED):
            return
        self.stage = PartitionStage.CLOSING
        self._close_due = now + CLOSE_S
        self._refuse_queue(RejectCode.UNAVAILABLE, "the partition moves to another server")
        self._maybe_closed()

    def close(self, now: float, reason: str) -> None:
        """Stop at once. What is under way stays undecided, so those who wait for it must ask elsewhere."""
        self.now = now
        if self.stage is PartitionStage.CLOSED:
            return
        self.stage = PartitionStage.CLOSED
        self.reason = reason
        self._locks = LockTable(-1, slots=1)  # nothing is checked any more, and nobody knows when we are freed
        self._rounds.end(self)
        self._due = self._close_due = self._look_due = None
        self._refuse_queue(RejectCode.WRONG_GENERATION, reason)
        undecided = {p.connection.id for p in self._pending if p.connection is not None and p.connection.ours}
        self._pending.clear()
        for feed in self.feeds.close():
            if feed.connection.ours and feed.connection.id not in undecided:
                self.reject(feed.connection, feed.reqid, 32, RejectCode.PARTITION_NOT_HERE, reason)
        while self._parked:
            _, connection, message = self._parked.popleft()
            connection.parked -= 1
            self._not_ready(connection, message, RejectCode.PARTITION_NOT_HERE, reason)
        for number in sorted(undecided):
            self._out.append(Hangup(number, f"partition {self.number} left before an append was decided"))
        if self.session is not None:
            self._take(self.session.close(reason))
            self.session = None

    def next_due(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return earliest(
            self._due,
            self._close_due,
            self._look_due,
            self.session.next_due() if self.session is not None else None,
            self._parked[0][0] if self._parked else None,
        )

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.now = now
        if self.session is not None:
            self._take(self.session.tick(now))
        if self._due is not None and self._due <= now:
            self._due = None
            self._begin_session()
        self._look()
        if self._close_due is not None and self._close_due <= now:
            self.close(now, "what was under way could not be decided")
        while self._parked and self._parked[0][0] <= now:
            _, connection, message = self._parked.popleft()
            connection.parked -= 1
            self._not_ready(connection, message, RejectCode.UNAVAILABLE, self.blocker)

    # -- the store session ----------------------------------------------------------------------------------------

    def _opened(self, hwm: int) -> None:
        self._failed_attempts = 0
        self._strikes.clear()
        self._settling = True
        before, self.reason = self.hwm, ""
        if before is None:
            self._locks = LockTable(hwm)
            self._publish(hwm)
        elif self.first > before + 1:
            self._begin_anew(hwm)
        elif hwm > before or self._pending:
            self._compare(before + 1, hwm, [])
        else:
            self._publish(hwm)

    def _begin_anew(self, hwm: int) -> None:
        """Another owner has been here, and what it wrote is trimmed: nobody can tell any more what became of ours.

        Whoever waits asks for what is in the log, and finds that it is too late. Every lock counts as written by now.
        """
        pending, self._pending = self._pending, deque()
        self._resolved += len(pending)
        for number in sorted({one.connection.id for one in pending if one.connection is not None}):
            self._out.append(Hangup(number, f"partition {self.number} was trimmed before an append was decided"))
        self._locks = LockTable(hwm)
        self._publish(hwm)

    def _compare(self, txid: int, hwm: int, found: list[Record]) -> None:
        """Read what the last session left, and see which appends are in it: by their ids, not by their places."""
        if txid > hwm:
            self._settle(hwm, found)
            return
        session = self.session

        def take(records: Sequence[Record] | None) -> None:
            if session is not self.session or session is None or session.ended:
                return
            if not records:
                self._take(session.close("records of the last session cannot be read"))
            else:
                self._compare(records[-1].txid + 1, hwm, [*found, *records])

        self.read(txid, hwm - txid + 1, take)

    def _settle(self, hwm: int, found: list[Record]) -> None:
        # Clients that are copies of one another make equal ids for different data.
        present = {(record.reqid, record.header, record.data): record.txid for record in found}
        pending, self._pending = self._pending, deque()
        known = 0
        for append in pending:
            self._resolved += 1
            record = append.record
            txid = present.get((record.reqid, record.header, record.data))
            if txid is None:
                self._locks.release(append.slots)
                if append.connection is not None and append.connection.ours:
                    text = f"the append is not on a majority of the storage nodes: {self.ended_by}"
                    self.reject(append.connection, append.record.reqid, 2, RejectCode.NOT_COMMITTED, text, hwm)
            else:
                known += 1
                self._locks.commit(append.slots, txid)
                self._acknowledge(append, txid)
        if known != len(found):  # somebody else wrote: of those the table knows nothing
            self._locks = LockTable(hwm)
        self._out.append(Appended(self.number, found))
        self.feeds.commit(found)
        self._publish(hwm)

    def _publish(self, hwm: int) -> None:
        self.hwm = hwm
        self._settling = False
        self.feeds.opened(hwm)
        if self.stage is PartitionStage.OPENING:
            self.stage = PartitionStage.READ_WRITE
            self.opened_in_s = self.now - self._started_at
        self._fire_markers()
        parked, self._parked = self._parked, deque()
        for _, connection, message in parked:
            connection.parked -= 1
            self.message(self.now, connection, message)
        self._append()
        self._maybe_closed()

    def _began(self) -> None:
        self.feeds.begin_with(self.keeping.readable(self.first))

    def archive_known(self, now: float) -> None:
        """What the archive has was listed, is more now, or may be read again: who waits for it goes on, or is told."""
        self.now = now
        self._began()
        self.feeds.pump()

    def _session_closed(self, reason: str) -> None:
        self._rounds.end(self)
        super()._session_closed(reason)

    def _committed(self, hwm: int) -> None:
        records = []
        while self._pending and self._pending[0].record.txid <= hwm:
            append = self._pending.popleft()
            self._resolved += 1
            records.append(append.record)
            self._locks.commit(append.slots, append.record.txid)
            self._acknowledge(append, append.record.txid)
        self.hwm = hwm
        self.appended += len(records)
        self._out.append(Appended(self.number, records))
        self.feeds.commit(records)
        self._fire_markers()
        if not self._pending:
            self._rounds.end(self)
        self._append()
        self._maybe_closed()

    def _acknowledge(self, append: _Pending, txid: int) -> None:
        if append.ack and append.connection is not None:
            self._reply(append.connection, m.AppendAck(append.record.reqid, txid, 0))

    def _maybe_closed(self) -> None:
        if self.stage is PartitionStage.CLOSING and not self._pending:
            self.close(self.now, "the partition moved to another server")

    # -- clients ------------------------------------------------------------------------------------------------

    def message(self, now: float, connection: Connection, message: Any) -> None:
        """Take a request that names this partition and is no append."""
        self.now = now
        match message:
            case m.MountRequest():
                self._mount(connection, message)
            case m.FeedRequest():
                self._feed(connection, message)
            case m.FeedBatchRequest():
                self._feed_batches(connection, message)
            case m.FeedCredit():
                self.feeds.add_credit(connection, message)
            case _ if not self._ready_or_parked(connection, message):
                pass
            case m.FlushRequest():
                self._mark(connection, lambda: self._reply(connection, m.FlushResponse(message.reqid, self._hwm)))
            case m.HighWaterMarkRequest():
                self._reply(connection, m.HighWaterMarkResponse(message.reqid, self._hwm))
            case m.TransactionDataRequest():
                self._data(connection, message)
            case m.TrimRequest():
                self._trim(connection, message, self._hwm)
            case m.ConsumerRequest():
                self._consumer(connection, message, self._hwm)

    def disconnected(self, connection: Connection) -> None:
        """A connection is gone; its appends stay."""
        registered = self.clients.get(connection.client) if connection.client is not None else None
        if registered is not None and registered.connection is connection and connection.client is not None:
            del self.clients[connection.client]
        self.feeds.drop(connection)
        for append in self._pending:
            if append.connection is connection:
                append.connection = None
        self._parked = deque(parked for parked in self._parked if parked[1] is not connection)

    @property
    def full(self) -> bool:
        """Whether connections that append are to wait."""
        return self.queued >= QUEUE_APPENDS_MAX or self._queued_bytes >= QUEUE_BYTES_MAX

    @property
    def large(self) -> bool:
        """Whether what waits is worth a batch of its own."""
        return self.queued >= BATCH_APPENDS_MIN or self._queued_bytes >= BATCH_BYTES_MIN

    @property
    def _hwm(self) -> int:
        assert self.hwm is not None  # noqa: S101 -- callers have checked the stage
        return self.hwm

    def park(self, due: float, connection: Connection, message: Any) -> None:
        """Keep a request until the partition is open, at most until ``due``."""
        connection.parked += 1
        self._parked.append((due, connection, message))

    def _ready_or_parked(self, connection: Connection, message: Any) -> bool:
        if self.stage is PartitionStage.READ_WRITE and self.hwm is not None:
            return True
        waits = self.stage is PartitionStage.OPENING and not (connection.ours and self.lacks_copies)
        if waits and connection.parked < PARKED_MAX:
            self.park(self.now + PARK_S, connection, message)
        else:
            self._not_ready(connection, message, RejectCode.UNAVAILABLE, self.blocker or "leaving")
        return False

    def _not_ready(self, connection: Connection, message: Any, code: RejectCode, text: str) -> None:
        if isinstance(message, m.MountRequest):
            self._reply(connection, m.MountResponse(message.reqid, m.MountState.NOT_READY))
        elif connection.ours:
            self.reject(connection, message.reqid, kind_of(message), code, text)

    def _mount(self, connection: Connection, request: m.MountRequest) -> None:
        client = connection.client
        assert client is not None  # noqa: S101 -- the server has noted it with the first message
        if connection.net_seq is None:
            connection.net_seq = request.net_seq
        present = self.clients.get(client)
        newer = present is None or (request.reqid.generation, connection.net_seq) > (
            present.generation,
            present.connection.net_seq or 0,
        )
        if newer:
            self.clients[client] = Registration(connection, request.reqid.generation, request.reqid)
        elif not self._valid(connection):
            if connection.ours:
                text = "a newer connection of this client has mounted the partition"
                self.reject(connection, request.reqid, 0, RejectCode.STALE_CONNECTION, text)
            return
        if self._ready_or_parked(connection, request):
            self._mark(connection, lambda: self.feeds.mount(connection, request))

    def _valid(self, connection: Connection) -> bool:
        present = self.clients.get(connection.client) if connection.client is not None else None
        return (
            present is not None
            and connection.net_seq is not None
            and (present.connection is connection or present.connection.net_seq == connection.net_seq)
        )

    def _feed(self, connection: Connection, request: m.FeedRequest) -> None:
        if not self._valid(connection):
            if connection.ours:
                self.reject(connection, request.reqid, 3, RejectCode.NOT_MOUNTED, "mount the partition first")
        elif not self._ready_or_parked(connection, request):
            pass
        elif request.hwm > self._hwm:
            if connection.ours:
                self.reject(connection, request.reqid, 3, RejectCode.CLIENT_AHEAD, ENDS.format(self._hwm), self._hwm)
            else:
                self._out.append(Hangup(connection.id, "the client is ahead of the log"))
        else:
            self.feeds.request(connection, request)

    def _feed_batches(self, connection: Connection, request: m.FeedBatchRequest) -> None:
        if fault := batch_fault(request):
            self.reject(connection, request.reqid, 32, RejectCode.BAD_REQUEST, fault)
        elif not self._ready_or_parked(connection, request):
            pass
        elif request.hwm > self._hwm:
            self.reject(connection, request.reqid, 32, RejectCode.CLIENT_AHEAD, ENDS.format(self._hwm), self._hwm)
        else:
            self.feeds.request_batches(connection, request)

    def _data(self, connection: Connection, request: m.TransactionDataRequest) -> None:
        txid = request.txid

        def take(records: Sequence[Record] | None) -> None:
            result: bytes | str = f"no storage node gives transaction {txid} now: {self.unreadable()}"
            if records:
                result = records[0].data
            self._reply(connection, m.TransactionDataResponse(request.reqid, txid, result))

        def fetched(records: Sequence[Record] | None) -> None:
            connection.parked -= 1
            take(records)

        if not self.feeds.first <= txid <= self._hwm:
            self._reply(connection, m.no_such_transaction(request.reqid, txid, self.feeds.first))
        elif found := self.feeds.tail.take(txid, 1):
            take(found)
        elif txid >= self.first:
            self.read(txid, 1, take)
        elif connection.parked < PARKED_MAX:
            connection.parked += 1
            self.read(txid, 1, fetched, connection)
        else:
            self._reply(connection, m.TransactionDataResponse(request.reqid, txid, "too many requests wait"))

    # -- appends ------------------------------------------------------------------------------------------------

    def _mark(self, connection: Connection, fire: Callable[[], None]) -> None:
        self._queue.append(_Marker(connection, fire))
        self._append()

    def enqueue(self, now: float, connection: Connection, request: AnyAppend) -> None:
        """Take an append, which ``append_queued`` sends."""
        self.now = now
        fault = self._fault(connection, request)
        if fault is not None:
            if connection.ours:
                self.reject(connection, request.reqid, kind_of(request), *fault)
            return
        self._queue.append((connection, request))
        self.queued += 1
        self._queued_bytes += len(request.data)
        if self.full:
            connection.waiting.add(self.number)
            self._blocked.append(connection)

    def _fault(self, connection: Connection, request: AnyAppend) -> tuple[RejectCode, str, int] | None:
        if self.stage not in (PartitionStage.READ_WRITE, PartitionStage.OPENING):
            return RejectCode.UNAVAILABLE, "the partition moves to another server", -1
        if not self._valid(connection):
            return RejectCode.NOT_MOUNTED, "mount the partition first", -1
        if request.reqid.generation != self.generation:
            return RejectCode.WRONG_GENERATION, f"the partition has generation {self.generation}", -1
        if len(request.data) > TRANSACTION_BYTES_MAX:
            text = f"{len(request.data)} bytes are more than a transaction holds ({TRANSACTION_BYTES_MAX})"
            return RejectCode.TOO_LARGE, text, TRANSACTION_BYTES_MAX
        if (locks := len(request.write) + len(request.read) + len(request.append)) > LOCKS_MAX:
            return RejectCode.TOO_LARGE, f"{locks} locks are more than an append takes ({LOCKS_MAX})", LOCKS_MAX
        if isinstance(request, m.AppendIdempotent) and request.flags & ~m.FLAG_ACK:
            return RejectCode.BAD_REQUEST, "this release has no other flag than ACK", -1
        if connection.ours and self.hwm is not None and request.hwm > self.hwm:
            return RejectCode.CLIENT_AHEAD, ENDS.format(self.hwm), self.hwm
        return None

    def append_queued(self) -> None:
        """Send what has come; called once for all that came together, so that it is one batch."""
        self.now = max(self.now, self._rounds.now)
        self._append()

    def _append(self) -> None:
        """Send what is queued to storage, as far as locks and the session let it."""
        records: list[Record] = []
        size = 0
        may_write = bool(self._queue) and self._writable and self._worthwhile
        while self._queue:
            first = self._queue[0]
            if isinstance(first, _Marker):
                self._queue.popleft()
                self._markers.append((self._sent, first))
                continue
            if not may_write:
                break
            connection, request = first
            if len(records) >= BATCH_RECORDS_MAX or (records and size + len(request.data) > BATCH_BYTES_MAX):
                self._send(records)
                records, size = [], 0
                may_write = self._writable and self._worthwhile
                continue
            verdict = self._locks.begin(request.hwm, request.write, request.read, request.append)
            if isinstance(verdict, Waiting):
                break
            self._queue.popleft()
            self.queued -= 1
            self._queued_bytes -= len(request.data)
            if isinstance(verdict, Conflicting):
                self.conflicts += 1
                self._reply(connection, m.LockFailure(request.reqid, verdict.txid))
            else:
                record = self._accept(connection, request, verdict)
                records.append(record)
                size += len(record.data)
        if records:
            self._send(records)
        self._fire_markers()
        if self._blocked and not self.full:
            for connection in self._blocked:
                connection.waiting.discard(self.number)
            self._blocked.clear()

    @property
    def _writable(self) -> bool:
        ready = self.stage is PartitionStage.READ_WRITE and not self._settling
        return ready and self.session is not None and self.session.room

    @property
    def _worthwhile(self) -> bool:
        """Whether what waits is to be sent now: else it goes when the batch under way is decided, with what comes."""
        return self.large or (not self._pending and self._rounds.is_open(self))

    def _accept(self, connection: Connection, request: AnyAppend, taken: Taken) -> Record:
        txid = self._pending[-1].record.txid + 1 if self._pending else self._hwm + 1
        record = Record.of(txid, request.reqid, request.header, request.data)
        ack = isinstance(request, m.AppendIdempotent) and bool(request.flags & m.FLAG_ACK)
        self._pending.append(_Pending(record, taken.slots, connection, ack))
        self._sent += 1
        return record

    def _send(self, records: list[Record]) -> None:
        assert self.session is not None  # noqa: S101 -- _append has looked
        self._rounds.begin(self, len(records))
        self._take(self.session.append(self.now, records))

    def _fire_markers(self) -> None:
        while self._markers and self._markers[0][0] <= self._resolved and self.hwm is not None:
            if self.stage is PartitionStage.CLOSED:
                return
            _, marker = self._markers.popleft()
            if not marker.connection.gone:
                marker.fire()

    def _refuse_queue(self, code: RejectCode, text: str) -> None:
        while self._queue:
            entry = self._queue.popleft()
            if not isinstance(entry, _Marker) and entry[0].ours:
                self.reject(entry[0], entry[1].reqid, kind_of(entry[1]), code, text)
        self._markers.clear()
        self.queued = self._queued_bytes = 0
        for connection in self._blocked:
            connection.waiting.discard(self.number)
        self._blocked.clear()

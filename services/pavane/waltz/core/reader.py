"""A partition at a server that may not write: read from the storage nodes, as far as its owner says (14.2).

What the owner calls its HWM is committed for good. The metadata that are read after it name the storage nodes that take
part in its session or a later one: what these hold up to that HWM is the log. Nothing is written, and no question
carries a session id, so nobody is fenced.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pavane.waltz.core.connection import PARKED_MAX, Connection, kind_of
from pavane.waltz.core.feed import ENDS, Feeds, batch_fault
from pavane.waltz.core.outputs import AskOwner, Output, ReadMeta, ReadStorage, Reply
from pavane.waltz.core.rounds import earliest
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import UNRESOLVED, PartitionMetadata
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record

POLL_S = 0.2  # between two questions to the owner while a feed goes on or a request waits
WAIT_S = 10.0  # how long a request waits for an owner that does not answer


@dataclass(slots=True, eq=False)
class _Read:
    """Records that were asked of a storage node, and which nodes are asked next."""

    session: int
    txid: int
    limit: int
    nodes: list[str]
    answer: Callable[[Sequence[Record] | None], None]


class Reader:
    """Partition ``number``. ``owner`` returns the address of its owner, empty if there is none."""

    def __init__(self, number: int, out: list[Output], owner: Callable[[], str]) -> None:
        self.hwm: int | None = None
        """What is known to be committed."""
        self._number = number
        self._out = out
        self._owner = owner
        self.feeds = Feeds(out, self._read)
        self._attempt = 0
        self._asking = False
        self._told = -1
        self._session = -1
        self._nodes: list[str] = []
        self._reads: list[_Read] = []
        self._parked: deque[tuple[float, Connection, Any]] = deque()
        self._due: float | None = None
        self._now = 0.0

    # -- inputs -------------------------------------------------------------------------------------------------

    def message(self, now: float, connection: Connection, message: Any) -> None:
        """Take a request."""
        self._now = now
        match message:
            case m.MountRequest():  # who mounts wants to append, or to read what the owner reads as well
                self._reply(connection, m.MountResponse(message.reqid, m.MountState.NOT_READY))
            case m.AppendRequest() | m.AppendIdempotent() | m.FlushRequest() | m.TrimRequest() | m.ConsumerRequest():
                # Never answered below V5: it would declare appends failed that the owner may still commit.
                self._reject(connection, message, RejectCode.READ_ONLY, "this server may not write yet")
            case m.FeedRequest():
                self._reject(connection, message, RejectCode.NOT_MOUNTED, "mount the partition at its owner")
            case m.FeedCredit():
                self.feeds.add_credit(connection, message)
            case m.FeedBatchRequest() if fault := batch_fault(message):
                self._reject(connection, message, RejectCode.BAD_REQUEST, fault)
            case m.TransactionDataRequest() | m.FeedBatchRequest() if self._covers(message):
                self._serve(connection, message)
            case _ if connection.parked < PARKED_MAX:
                connection.parked += 1
                self._parked.append((now + WAIT_S, connection, message))
                self._refresh()
            case _:
                self._reject(connection, message, RejectCode.UNAVAILABLE, "too many requests wait")

    def _owner_hwm(self, attempt: int, now: float, hwm: int | None) -> None:
        self._now = now
        if attempt == self._attempt and self._asking:
            if hwm is None:
                self._refreshed()
            else:
                self._told = hwm
                # Not before the owner has answered: its session must be the one of the metadata, or an earlier one.
                self._out.append(ReadMeta(self._number, -attempt))

    def metadata(self, now: float, attempt: int, meta: PartitionMetadata | None) -> None:
        """Take the answer to ``ReadMeta``."""
        self._now = now
        if attempt != -self._attempt or not self._asking:
            return
        nodes = declared(meta)
        if nodes or self._told < 0:
            self.hwm = max(self._told, -1 if self.hwm is None else self.hwm)
            self._nodes = nodes
            self._session = meta.session if meta is not None else -1
            self.feeds.begin_with(max(self.feeds.first, meta.start if meta is not None else 0))
        self._refreshed()

    def _records(self, read: _Read, now: float, session: int, records: Sequence[Record] | None) -> None:
        """A disk that was set back holds what an earlier ``session`` has left, which may not be the log."""
        self._now = now
        if read not in self._reads:
            return
        self._reads.remove(read)
        if records and session >= read.session and records[0].txid == read.txid:
            read.answer(records[: read.limit])
        else:
            self._ask_next(read)

    def disconnected(self, connection: Connection) -> None:
        """A connection is gone."""
        self.feeds.drop(connection)
        self._parked = deque(parked for parked in self._parked if parked[1] is not connection)

    def close(self) -> None:
        """The server may write from now on: it serves what it owns, as every owner does."""
        text = "the server has become an owner of partitions; this one may be elsewhere"
        for feed in self.feeds.close():
            self._out.append(Reply(feed.connection.id, _refusal(feed.reqid, 32, RejectCode.PARTITION_NOT_HERE, text)))
        while self._parked:
            _, connection, message = self._parked.popleft()
            connection.parked -= 1
            self._reject(connection, message, RejectCode.PARTITION_NOT_HERE, text)
        self._asking = False
        reads, self._reads = self._reads, []
        for read in reads:
            read.answer(None)

    def next_due(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return earliest(self._due, self._parked[0][0] if self._parked else None)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        while self._parked and self._parked[0][0] <= now:
            _, connection, message = self._parked.popleft()
            connection.parked -= 1
            self._reject(connection, message, RejectCode.UNAVAILABLE, "the owner of the partition does not answer")
        if self._due is not None and self._due <= now:
            self._due = None
            self._refresh()

    # -- what is committed, and where it is ---------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self._asking:
            self._attempt += 1
            self._asking = True
            if owner := self._owner():
                self._out.append(AskOwner(self._number, owner, partial(self._owner_hwm, self._attempt)))
            else:
                self._refreshed()

    def _refreshed(self) -> None:
        self._asking = False
        self._due = None
        if self.hwm is not None:
            parked, self._parked = self._parked, deque()
            for _, connection, message in parked:
                connection.parked -= 1
                self._serve(connection, message)
            self.feeds.opened(self.hwm)
        if self._parked or len(self.feeds):
            self._due = self._now + POLL_S

    # -- reads --------------------------------------------------------------------------------------------------

    def _covers(self, request: m.TransactionDataRequest | m.FeedBatchRequest) -> bool:
        seen = request.txid if isinstance(request, m.TransactionDataRequest) else request.hwm
        return self.hwm is not None and seen <= self.hwm

    def _serve(self, connection: Connection, message: Any) -> None:
        assert self.hwm is not None  # noqa: S101 -- callers have looked
        match message:
            case m.HighWaterMarkRequest():
                self._reply(connection, m.HighWaterMarkResponse(message.reqid, self.hwm))
            case m.TransactionDataRequest():
                self._data(connection, message)
            case m.FeedBatchRequest() if message.hwm > self.hwm:
                self._reject(connection, message, RejectCode.CLIENT_AHEAD, ENDS.format(self.hwm), self.hwm)
            case m.FeedBatchRequest():
                if self.feeds.hwm < self.hwm:
                    self.feeds.opened(self.hwm)
                self.feeds.request_batches(connection, message)
                if self._due is None:
                    self._due = self._now + POLL_S

    def _data(self, connection: Connection, request: m.TransactionDataRequest) -> None:
        txid = request.txid

        def take(records: Sequence[Record] | None) -> None:
            connection.parked -= 1
            found = records[0].data if records else "the storage nodes cannot be read"
            if not records and self._due is None:
                self._due = self._now + POLL_S  # the log may begin behind it by now
            self._reply(connection, m.TransactionDataResponse(request.reqid, txid, found))

        assert self.hwm is not None  # noqa: S101 -- callers have looked
        if not self.feeds.first <= txid <= self.hwm:
            self._reply(connection, m.no_such_transaction(request.reqid, txid, self.feeds.first))
        elif connection.parked >= PARKED_MAX:
            self._reply(connection, m.TransactionDataResponse(request.reqid, txid, "too many requests wait"))
        else:
            connection.parked += 1
            self._read(txid, 1, take)

    def _read(self, txid: int, limit: int, answer: Callable[[Sequence[Record] | None], None]) -> None:
        self._ask_next(_Read(self._session, txid, limit, list(self._nodes), answer))

    def _ask_next(self, read: _Read) -> None:
        if not read.nodes:
            read.answer(None)
            return
        self._reads.append(read)
        answer = partial(self._records, read)
        self._out.append(ReadStorage(self._number, read.nodes.pop(0), read.txid, read.limit, answer))

    # -- answers ------------------------------------------------------------------------------------------------

    def _reply(self, connection: Connection, message: Any) -> None:
        self._out.append(Reply(connection.id, message))

    def _reject(self, connection: Connection, message: Any, code: RejectCode, text: str, detail: int = -1) -> None:
        if connection.ours:
            self._reply(connection, _refusal(message.reqid, kind_of(message), code, text, detail))


def declared(meta: PartitionMetadata | None) -> list[str]:
    """Return the storage nodes that take part in the present session, as far as it has opened."""
    if meta is None:
        return []
    now = (meta.session, UNRESOLVED)
    return [state.address for state in meta.replicas if (state.session, state.closing_hwm) == now]


def _refusal(reqid: ReqId, kind: int, code: RejectCode, text: str, detail: int = -1) -> m.Reject:
    return m.Reject(reqid, kind, code, detail, -1, text)

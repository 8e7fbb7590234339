"""Feeds of one partition: committed transactions on their way to clients, each as far as its credit goes (4.2, 6.3)."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from pavane.waltz.core.connection import FEEDS_MAX, Connection
from pavane.waltz.core.outputs import Drain, Hangup, Output, Reply
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId, Shared
from pavane.waltz.wire.frame import FeedBurst
from pavane.waltz.wire.storage import Record

TAILS_BYTES_MAX = 64 * 1024 * 1024  # of the newest transactions, which readers at the end want, of all partitions here
RECORD_BYTES = 340  # what a record takes beside its data
FEED_ITEMS_MIN = 100  # credit of a feed below V5, as the original gives it
READ_RECORDS = 1000  # asked of a storage node at a time
MOUNT_KIND, FEED_KIND, BATCHES_KIND = 0, 3, 32  # by which a refusal names MOUNT, FEED_REQUEST, FEED_BATCH_REQUEST
FRAME_BYTES_DEFAULT = 1024 * 1024
FRAME_BYTES_MIN, FRAME_BYTES_MAX = 4096, 16 * 1024 * 1024
BURST_BYTES = 1024 * 1024  # to one connection, which has to take them before more follows: else all its credit waits
ITEM_BYTES = 28  # what an item costs beside its data
CREDIT_MAX = (1 << 31) - 1
CREDIT_ITEMS_MAX = 1_000_000
ENDS = "the last transaction is {}"  # to who asks for what is behind it


class Tail:
    """The newest committed records, in at most ``bytes_max``; more only until ``settle``."""

    def __init__(self, hwm: int, bytes_max: int) -> None:
        self.first = hwm + 1
        self._bytes_max = bytes_max
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._taken: tuple[int, int, list[Record]] = 0, 0, []
        """What was asked for last, for all that follow the log ask for the same; and the answer."""

    def add(self, record: Record) -> None:
        """Keep a record that follows the last one, and forget old ones; it stays until ``settle``, however large."""
        self._taken = 0, 0, []
        self._records.append(record)
        self._bytes += len(record.data) + RECORD_BYTES
        self.settle(1)

    def limit(self, bytes_max: int) -> None:
        """Keep no more than this from now on."""
        self._bytes_max = bytes_max
        self.settle()

    def settle(self, keep: int = 0) -> None:
        """Forget what is too much, but for the last ``keep`` records."""
        while self._bytes > self._bytes_max and len(self._records) > keep:
            self._bytes -= len(self._records.popleft().data) + RECORD_BYTES
            self.first += 1
            self._taken = 0, 0, []

    def take(self, txid: int, limit: int) -> list[Record]:
        """Return up to ``limit`` records from ``txid`` on; none if it is older than what is kept."""
        limit = min(limit, self.first + len(self._records) - txid)
        if self._taken[:2] != (txid, limit):
            self._taken = txid, limit, self._take(txid - self.first, limit)
        return self._taken[2]

    def _take(self, at: int, limit: int) -> list[Record]:
        size = len(self._records)
        if not 0 <= at < size:
            return []
        if at * 2 < size:
            return list(islice(self._records, at, at + limit))
        newest = list(islice(reversed(self._records), size - at))
        newest.reverse()
        return newest[:limit]


NO_BURST: tuple[Sequence[Record], FeedBurst] = [], FeedBurst()
NOTHING_CUT: tuple[Sequence[Record], int, int, Shared[m.FeedItem], int, int] = [], 0, 0, Shared(), 0, 0


@dataclass(slots=True)
class Feed:
    """One feed. Exactly one of ``mount`` and the credits says how far it goes."""

    connection: Connection
    reqid: ReqId
    next: int
    last: int | None = None
    """Of a mount: where it ends, with READY."""
    credit: int = 0
    batched: bool = False
    credit_bytes: int = 0
    frame_bytes: int = FRAME_BYTES_DEFAULT
    inline: int = -1
    reading: bool = False


class Feeds:
    """All feeds of one partition. ``read`` fetches what the tail no longer has, and calls back with it, or ``None``.

    ``why`` says then what is wrong.
    """

    def __init__(
        self,
        out: list[Output],
        read: Callable[[int, int, Callable[[Sequence[Record] | None], None]], None],
        why: Callable[[], str] = str,
    ) -> None:
        self._out = out
        self._why = why
        self._read = read
        self._feeds: list[Feed] = []
        self.hwm = -1
        self.first = 0
        """What is below is not served, whoever may still have it."""
        self._tail_bytes_max = TAILS_BYTES_MAX
        self.tail = Tail(-1, TAILS_BYTES_MAX)
        self.bytes = 0
        """Data that was ever committed here."""
        self._cut = NOTHING_CUT
        """The last whole batch: of which records, inline and in which frame at most; its items, their data and size."""
        self._burst: tuple[Sequence[Record], FeedBurst] = NO_BURST
        """The last of a feed below V5, and of which records it is."""

    def __len__(self) -> int:
        return len(self._feeds)

    def opened(self, hwm: int) -> None:
        """The log is known up to ``hwm``; keep what is still right."""
        if hwm != self.hwm:
            self.hwm = hwm
            self.tail = Tail(hwm, self._tail_bytes_max)
        self.pump()

    def share(self, partitions: int) -> None:
        """So many partitions keep their newest transactions in memory: each gets as much of it."""
        self._tail_bytes_max = TAILS_BYTES_MAX // partitions
        self.tail.limit(self._tail_bytes_max)
        self._unshare()

    def begin_with(self, first: int) -> None:
        """What can be read begins with ``first``: later, or from an archive earlier. Who is not as far is told."""
        self.first = first
        for feed in self._feeds[:]:
            if feed.next < first:
                self._feeds.remove(feed)
                kind = MOUNT_KIND if feed.last is not None else BATCHES_KIND if feed.batched else FEED_KIND
                self._refuse(feed.connection, feed.reqid, kind)

    def _refuse(self, connection: Connection, reqid: ReqId, kind: int) -> None:
        """Below V5 a mount is answered by the one state that is not tried again, and a feed ends its connection."""
        text = m.begins(reqid.partition, self.first)
        if connection.ours:
            refusal = m.Reject(reqid, kind, RejectCode.TRIMMED, self.first, -1, text)
            self._out.append(Reply(connection.id, refusal))
        elif kind == MOUNT_KIND:
            self._out.append(Reply(connection.id, m.MountResponse(reqid, m.MountState.CLIENT_AHEAD)))
        else:
            self._out.append(Hangup(connection.id, text))

    def mount(self, connection: Connection, request: m.MountRequest) -> None:
        """Send what the client lacks, then that it is mounted."""
        seen = max(request.hwm, -1)
        lacking = self.hwm - seen
        if lacking < 0:
            self._out.append(Reply(connection.id, m.MountResponse(request.reqid, m.MountState.CLIENT_AHEAD)))
        elif seen + 1 < self.first:
            self._refuse(connection, request.reqid, MOUNT_KIND)
        elif lacking == 0 or request.reqid.partition in connection.blind:
            self._out.append(Reply(connection.id, m.MountResponse(request.reqid, m.MountState.READY)))
        else:
            feed = Feed(connection, request.reqid, seen + 1, self.hwm, lacking, connection.ours, CREDIT_MAX)
            self._begin(feed)

    def request(self, connection: Connection, request: m.FeedRequest) -> None:
        """Begin a feed as the original knows it; the caller has checked that the client is not ahead."""
        if connection.ours:
            self.end(connection)
        elif sum(feed.connection is connection for feed in self._feeds) >= FEEDS_MAX:
            self._out.append(Hangup(connection.id, f"more than {FEEDS_MAX} feeds of one partition"))
            return
        seen = max(request.hwm, -1)
        if seen + 1 < self.first:
            self._refuse(connection, request.reqid, FEED_KIND)
            return
        credit = max(self.hwm - seen, FEED_ITEMS_MIN)
        self._begin(Feed(connection, request.reqid, seen + 1, credit=credit))

    def request_batches(self, connection: Connection, request: m.FeedBatchRequest) -> None:
        """Begin a batched feed in place of the connection's present one."""
        self.end(connection)
        if request.hwm + 1 < self.first:
            self._refuse(connection, request.reqid, BATCHES_KIND)
            return
        self._begin(
            Feed(
                connection,
                request.reqid,
                request.hwm + 1,
                credit=request.credit_items,
                batched=True,
                credit_bytes=request.credit_bytes,
                frame_bytes=request.frame_bytes_max or FRAME_BYTES_DEFAULT,
                inline=-2 if request.flags & m.FLAG_NO_PAYLOAD else request.inline_bytes_max,
            )
        )

    def add_credit(self, connection: Connection, request: m.FeedCredit) -> None:
        """Let a batched feed go on; one that was replaced stays silent."""
        for feed in self._feeds:
            if feed.connection is connection and feed.batched and feed.reqid == request.reqid and feed.last is None:
                feed.credit = min(CREDIT_MAX, feed.credit + max(0, request.add_items))
                feed.credit_bytes = min(CREDIT_MAX, feed.credit_bytes + max(0, request.add_bytes))
                self._go_on(feed)

    def commit(self, records: Iterable[Record]) -> None:
        """Take newly committed records and send them to who is waiting."""
        for record in records:
            self.tail.add(record)
            self.hwm = record.txid
            self.bytes += len(record.data)
        self.pump()
        self.tail.settle()  # not before those at the end were sent it

    def pump(self) -> None:
        """Let every feed go on."""
        for feed in list(self._feeds):
            self._go_on(feed)
        self._unshare()

    def writable(self, connection: Connection) -> None:
        """A connection takes more."""
        for feed in list(self._feeds):
            if feed.connection is connection:
                self._go_on(feed)

    def end(self, connection: Connection) -> None:
        """Forget the connection's feeds, but not the mount that is under way."""
        self._feeds = [feed for feed in self._feeds if feed.connection is not connection or feed.last is not None]

    def drop(self, connection: Connection) -> None:
        """The connection is gone, or is to hear nothing more."""
        self._feeds = [feed for feed in self._feeds if feed.connection is not connection]

    def close(self) -> list[Feed]:
        """End all feeds and return them; forget what was kept for them."""
        ended, self._feeds = self._feeds, []
        self.tail = Tail(self.hwm, 0)
        self._unshare()
        return ended

    def _unshare(self) -> None:
        """Let go of what was shared, with its records: the next feeds send others, and until then it fills memory."""
        self._cut, self._burst = NOTHING_CUT, NO_BURST

    def _begin(self, feed: Feed) -> None:
        self._feeds.append(feed)
        self._go_on(feed)

    def _go_on(self, feed: Feed) -> None:
        while (
            feed.next <= self.hwm
            and feed.credit > 0
            and (not feed.batched or feed.credit_bytes > 0)
            and feed.connection.writable
            and not feed.reading
        ):
            if feed.next < self.tail.first:
                feed.reading = True
                limit = min(READ_RECORDS, feed.credit, self.hwm - feed.next + 1)
                self._read(feed.next, limit, lambda found, feed=feed: self._got(feed, found))  # type: ignore[misc]
                return
            self._send(feed, self.tail.take(feed.next, min(feed.credit, m.BATCH_ITEMS_MAX)))

    def _got(self, feed: Feed, records: Sequence[Record] | None) -> None:
        """Send what was read.

        If nothing could be, a client of ours hears that its feed is over, and asks for another one as long as it has
        patience; for others, and in a mount, the next commit or session tries again.
        """
        feed.reading = False
        if not records and feed in self._feeds and feed.batched and feed.last is None:
            self._feeds.remove(feed)
            text = f"no storage node gives transaction {feed.next} now: {self._why()}"[:1000]
            refusal = m.Reject(feed.reqid, BATCHES_KIND, RejectCode.UNAVAILABLE, -1, -1, text)
            self._out.append(Reply(feed.connection.id, refusal))
            return
        if records and feed in self._feeds and records[0].txid == feed.next:
            while records and feed.credit > 0 and (not feed.batched or feed.credit_bytes > 0):
                sent = self._send(feed, records)
                records = records[sent:]
            self._unshare()  # nobody else has these records
            self._go_on(feed)

    def _send(self, feed: Feed, records: Sequence[Record]) -> int:
        sent = self._send_batch(feed, records) if feed.batched else self._send_items(feed, records)
        if feed.last is not None and feed.next > feed.last:
            self._feeds.remove(feed)
            feed.credit = 0
            self._out.append(Reply(feed.connection.id, m.MountResponse(feed.reqid, m.MountState.READY)))
        return sent

    def _fed(self, connection: Connection, size: int) -> None:
        connection.fed += size
        if connection.fed >= BURST_BYTES:
            connection.fed, connection.writable = 0, False
            self._out.append(Drain(connection.id))

    def _send_items(self, feed: Feed, records: Sequence[Record]) -> int:
        if len(records) > feed.credit:
            records = records[: feed.credit]
        if self._burst[0] is not records:
            self._burst = records, FeedBurst(records)
        self._out.append(Reply(feed.connection.id, self._burst[1]))
        feed.next += len(records)
        feed.credit -= len(records)
        self._fed(feed.connection, len(records) * ITEM_BYTES)
        if feed.credit == 0 and feed.last is None:
            self._feeds.remove(feed)
            self._out.append(Reply(feed.connection.id, m.FeedSuspended(feed.reqid)))
        return len(records)

    def _send_batch(self, feed: Feed, records: Sequence[Record]) -> int:
        of, inline, frame_bytes, items, credit_bytes, size = self._cut
        same = of is records and (inline, frame_bytes) == (feed.inline, feed.frame_bytes)
        if not same or credit_bytes > feed.credit_bytes or len(items) > feed.credit:
            items, credit_bytes, size = _cut(feed, records)
            if len(items) == len(records):  # else this feed's credit or frame has cut it
                self._cut = records, feed.inline, feed.frame_bytes, items, credit_bytes, size
        first = feed.next
        feed.next += len(items)
        feed.credit -= len(items)
        feed.credit_bytes = max(0, feed.credit_bytes - credit_bytes)
        mounting = feed.last is not None
        flags = m.FLAG_CAUGHT_UP if feed.next > self.hwm else 0
        if not mounting and (feed.credit == 0 or feed.credit_bytes == 0):
            flags |= m.FLAG_SUSPENDED
        left = (0, 0) if mounting else (feed.credit, feed.credit_bytes)
        batch = m.FeedBatch(feed.reqid, first, self.hwm, *left, flags, items)
        self._out.append(Reply(feed.connection.id, batch))
        self._fed(feed.connection, size)
        return len(items)


def _cut(feed: Feed, records: Sequence[Record]) -> tuple[Shared[m.FeedItem], int, int]:
    """Return the items of the next batch, the bytes of their data, and their size in a frame."""
    items: list[m.FeedItem] = []
    size = credit_bytes = 0
    for record in records[: min(feed.credit, m.BATCH_ITEMS_MAX)]:
        inline = feed.inline == -1 or len(record.data) <= feed.inline
        cost = len(record.data) if inline else 0
        if items and (size + cost + ITEM_BYTES > feed.frame_bytes or credit_bytes + cost > feed.credit_bytes):
            break
        size += cost + ITEM_BYTES
        credit_bytes += cost
        items.append(m.FeedItem(record.reqid, record.header, record.data if inline else None))
    return Shared(items), credit_bytes, size


def batch_fault(request: m.FeedBatchRequest) -> str:
    """Return what is wrong with a request for batches; empty if nothing is."""
    frame = request.frame_bytes_max
    if not 1 <= request.credit_items <= CREDIT_ITEMS_MAX:
        return f"credit of {request.credit_items} items: it must be 1 to {CREDIT_ITEMS_MAX}"
    if request.credit_bytes < 1:
        return f"credit of {request.credit_bytes} bytes: it must be at least 1"
    if frame and not FRAME_BYTES_MIN <= frame <= FRAME_BYTES_MAX:
        return f"frames of {frame} bytes: they must have {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}, 0 for the default"
    if request.inline_bytes_max < -1 or request.flags & ~m.FLAG_NO_PAYLOAD or request.hwm < -1:
        return "an unknown flag, or a number that is too small"
    return ""

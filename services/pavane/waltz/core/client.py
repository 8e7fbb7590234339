"""What a client knows of one partition that it appends to: the mount, and appends under way (docs/specs/waltz.md 9).

An append that was sent when a link ended is *in doubt*: it is neither failed nor sent again before the next mount.
That mount is answered only after every earlier append of this client is resolved, so the log then tells for certain.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from pavane.waltz.errors import Conflict, OutcomeUnknown, RejectCode, Rejected, Unavailable
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.02, 0.2  # between a refusal that may pass and the next try: more each time
WAIT_SECONDS_MAX = 60.0  # that a server may ask a client to wait; its callers give up before
TICK_SECONDS = 0.05  # between two looks at what is under way
SILENCE_SECONDS = 1.0  # without the answer that is due, after which the view is asked for: the owner may be another
DEAD_SECONDS = 5.0  # without it, after which the connection is given up
SCAN_TRANSACTIONS_MAX = 100_000  # read to find an append in doubt; beyond, its outcome is unknown
_APPEND_TYPES = (2, 37)
_LATE = (
    "no server could take the append in time; nothing was written. "
    "See whether the cluster's partitions are writable, then try again"
)
_UNREADABLE = {RejectCode.TRIMMED, RejectCode.NOT_PERMITTED}
"""What became of an append cannot be looked up: it is not kept any more, or not this client's to read."""
PASSING = frozenset(
    {
        RejectCode.PARTITION_NOT_HERE,
        RejectCode.NOT_MOUNTED,
        RejectCode.STALE_CONNECTION,
        RejectCode.WRONG_GENERATION,
        RejectCode.READ_ONLY,
        RejectCode.UNAVAILABLE,
    }
)
"""Refusals that pass: the owner, or what it may do, is about to be another."""


class Mount(Enum):
    """How far the mount has come."""

    DETACHED = auto()
    ASKING = auto()  # for the HWM to mount at
    MOUNTING = auto()
    READING = auto()  # mounted at a server that may not write yet
    MEASURING = auto()  # for the HWM up to which to look for appends in doubt
    RESOLVING = auto()  # looking for them
    MOUNTED = auto()


@dataclass(slots=True)
class Pending:
    """An append that is not answered yet. ``token`` is the adapter's; ``deadline`` is when its caller gives up."""

    token: Any
    header: int
    data: bytes
    write: tuple[int, ...]
    read: tuple[int, ...]
    seen: int | None
    deadline: float
    order: int = 0
    reqid: ReqId | None = None
    base: int = -1  # its record, if there is one, is behind this txid
    sent_at: float = 0.0


class Send(NamedTuple):
    """Send ``message`` over the link that is attached."""

    message: Any


class Done(NamedTuple):
    """An append has ended with its txid or an error; ``reqid`` is that of its last sending."""

    token: Any
    result: int | Exception
    reqid: ReqId | None


class Refresh(NamedTuple):
    """Ask for the view: the owner or its generation may have changed."""


class Drop(NamedTuple):
    """Close the link: it is dead, or another connection of this client took its place."""


Output = Send | Done | Refresh | Drop


@dataclass(slots=True)
class Appender:
    """One partition as one client appends to it. ``now`` is the loop's time, in seconds."""

    partition: int
    client_id: int
    mount: Mount = Mount.DETACHED
    hwm: int = -1
    """The highest txid that this client has heard of."""
    told: str = ""
    """Why the last try failed."""
    _generation: int = 0
    _net_seq: int = 0
    _seq: int = 0
    _order: int = 0
    _session: ReqId | None = None
    _asked: ReqId | None = None
    _asked_at: float = 0.0
    _retry_at: float | None = None
    _delay: float = RETRY_SECONDS
    """How long the next refusal is waited out."""
    _look_at: float | None = None
    """When ``handle_timer`` is due: soon, while anything is under way."""
    _target: int = -1
    _waiting: deque[Pending] = field(default_factory=deque)
    _flying: dict[ReqId, Pending] = field(default_factory=dict)
    _doubtful: dict[ReqId, Pending] = field(default_factory=dict)
    _unsorted: bool = False
    """Whether ``_waiting`` holds appends that came back."""
    _out: list[Output] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Appends that are not answered."""
        return len(self._waiting) + len(self._flying) + len(self._doubtful)

    def outputs(self) -> list[Output]:
        """Hand over what is to be done, in order."""
        out, self._out = self._out, []
        return out

    def append(self, pending: Pending, now: float) -> None:
        """Send an append, or keep it until the partition is mounted."""
        self._order += 1
        pending.order = self._order
        self._waiting.append(pending)
        if self._look_at is None:
            self._look_at = now + TICK_SECONDS
        if self.mount is Mount.MOUNTED:
            self._send_waiting(now)

    def attached(self, generation: int, net_seq: int, now: float) -> None:
        """A link to the owner is up."""
        self._retry_at = None
        self._generation = generation
        self._net_seq = net_seq
        self._ask_hwm(Mount.ASKING, now)

    def detached(self) -> None:
        """The link is gone: what was sent is in doubt."""
        self.mount = Mount.DETACHED
        self._retry_at = None
        self._doubtful.update(self._flying)
        self._flying.clear()

    def received(self, message: Any, now: float) -> None:
        """Take an answer. What does not belong to the present mount or to an append under way is ignored."""
        match message:
            case m.AppendAck():
                self._committed(self._flying, message.reqid, message.txid)
            case m.LockFailure(reqid=reqid, txid=txid):
                if pending := self._flying.pop(reqid, None):
                    self._out.append(Done(pending.token, Conflict(self.partition, txid), reqid))
            case m.HighWaterMarkResponse(reqid=reqid, txid=txid) if reqid == self._asked:
                self._measured(txid, now)
            case m.MountResponse(reqid=reqid, state=state) if reqid == self._session:
                self._mount_answered(state, now)
            case m.FeedBatch(reqid=reqid, first_txid=first, items=items):
                self._fed(reqid, first, items, now)
            case m.Reject(reqid=reqid, request_type=kind):
                self._rejected(message, kind in _APPEND_TYPES, now)
            case _:
                pass

    def next_timer(self) -> float | None:
        """Return when ``handle_timer`` is due; once it is, it comes also if everything was answered meanwhile."""
        if self._look_at is None or self._retry_at is None:
            return self._look_at
        return min(self._look_at, self._retry_at)

    def handle_timer(self, now: float) -> None:
        """Retry what waits, give up what is too late, ask for the view when the owner is silent."""
        self._expire(now)
        self._look_at = now + TICK_SECONDS if self.pending else None
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            if self.mount is Mount.MOUNTED:
                self._send_waiting(now)
            elif self.mount is not Mount.DETACHED:
                self._ask_hwm(Mount.ASKING, now)
        oldest = next(iter(self._flying.values())).sent_at if self._flying else now
        if self.mount not in {Mount.MOUNTED, Mount.DETACHED}:
            oldest = min(oldest, self._asked_at)
        if self.pending and now - oldest > SILENCE_SECONDS:
            self._out.append(Drop() if now - oldest > DEAD_SECONDS else Refresh())

    def close(self) -> None:
        """End: what was sent has an unknown outcome, the rest was not written."""
        self._give_up(self._flying)
        self._give_up(self._doubtful)
        for pending in self._waiting:
            self._out.append(Done(pending.token, Unavailable("the client was closed before the append was sent"), None))
        self._waiting.clear()

    def _next_reqid(self) -> ReqId:
        # int32 on the wire: after 2^32 appends of one client numbers come again.
        self._seq = (self._seq + 1 + (1 << 31)) % (1 << 32) - (1 << 31)
        return ReqId(self.client_id, self._generation, self.partition, self._seq)

    def _ask_hwm(self, mount: Mount, now: float) -> None:
        self.mount = mount
        self._asked = self._next_reqid()
        self._asked_at = now
        self._out.append(Send(m.HighWaterMarkRequest(self._asked)))

    def _measured(self, hwm: int, now: float) -> None:
        self._asked = None
        self._asked_at = now
        if self.mount is Mount.ASKING:
            self.hwm = hwm
            self.mount = Mount.MOUNTING
            self._session = self._next_reqid()
            self._out.append(Send(m.MountRequest(self._session, hwm, self._net_seq)))
        elif self.mount is Mount.MEASURING:
            self._resolve_up_to(hwm, now)

    def _mount_answered(self, state: m.MountState, now: float) -> None:
        if state is m.MountState.READY and self.mount in {Mount.MOUNTING, Mount.READING}:
            if self._doubtful:
                self._ask_hwm(Mount.MEASURING, now)
            else:
                self._mounted(now)
        elif state is m.MountState.READY_READ_ONLY:
            self.mount = Mount.READING
            self._asked_at = now
        elif self.mount is Mount.MOUNTING:
            self._wait(now)
            self._out.append(Refresh())

    def _resolve_up_to(self, hwm: int, now: float) -> None:
        base = min(pending.base for pending in self._doubtful.values())
        self._target = hwm
        if hwm - base > SCAN_TRANSACTIONS_MAX:
            self._give_up(self._doubtful)
        if not self._doubtful or hwm <= base:
            self._resolved(now)
            return
        self.mount = Mount.RESOLVING
        self._session = self._next_reqid()
        longest = max(len(pending.data) for pending in self._doubtful.values())
        # Exactly as many items as there are to look at: then this feed sleeps.
        self._out.append(Send(m.FeedBatchRequest(self._session, base, hwm - base, (1 << 31) - 1, 0, longest, 0)))

    def _fed(self, reqid: ReqId, first: int, items: Iterable[m.FeedItem], now: float) -> None:
        if self.mount is not Mount.RESOLVING or reqid != self._session:
            return
        txid = first - 1
        for txid, item in enumerate(items, first):
            pending = self._doubtful.get(item.reqid)
            # Whoever goes on with a copy of this client's memory makes equal ids for other data.
            if pending is not None and (pending.header, pending.data) == (item.header, item.data):
                self._committed(self._doubtful, item.reqid, txid)
        self._asked_at = now
        if txid >= self._target:
            self._resolved(now)

    def _resolved(self, now: float) -> None:
        """What is still in doubt was not committed and never will be: send it again."""
        self._waiting.extend(self._doubtful.values())
        self._unsorted = True
        self._doubtful.clear()
        self._mounted(now)

    def _mounted(self, now: float) -> None:
        self.mount = Mount.MOUNTED
        self._send_waiting(now)

    def _send_waiting(self, now: float) -> None:
        if self._retry_at is not None:
            return
        if self._unsorted:  # what was refused comes back in the order of the refusals
            self._waiting = deque(sorted(self._waiting, key=lambda pending: pending.order))
            self._unsorted = False
        while self._waiting:
            pending = self._waiting.popleft()
            pending.reqid = reqid = self._next_reqid()
            pending.base = self.hwm
            pending.sent_at = now
            self._flying[reqid] = pending
            seen = self.hwm if pending.seen is None else pending.seen
            self._out.append(
                Send(
                    m.AppendIdempotent(
                        reqid, seen, pending.write, pending.read, (), pending.header, 0, -1, m.FLAG_ACK, pending.data
                    )
                )
            )

    def _committed(self, entries: dict[ReqId, Pending], reqid: ReqId, txid: int) -> None:
        if pending := entries.pop(reqid, None):
            self._delay = RETRY_SECONDS
            self.hwm = max(self.hwm, txid)
            self._out.append(Done(pending.token, txid, reqid))

    def _rejected(self, reject: m.Reject, is_append: bool, now: float) -> None:
        if is_append:
            pending = self._flying.pop(reject.reqid, None)
            if pending is None:
                return
            if reject.code not in PASSING and reject.code is not RejectCode.NOT_COMMITTED:
                self._refused(pending, reject)
                return
            self._waiting.append(pending)
            self._unsorted = True
        elif reject.reqid not in {self._asked, self._session}:
            return
        elif self.mount in {Mount.RESOLVING, Mount.MEASURING} and reject.code in _UNREADABLE:
            self._give_up(self._doubtful)
            self._mounted(now)
            return
        self.told = reject.message or reject.code.name
        if reject.code is RejectCode.STALE_CONNECTION:
            self._out.append(Drop())
            return
        if reject.code is not RejectCode.NOT_COMMITTED:
            if self.mount is Mount.MOUNTED and reject.code is not RejectCode.UNAVAILABLE:
                self.mount = Mount.ASKING
                self._asked_at = now
            self._out.append(Refresh())
        self._wait(now, min(reject.detail / 1000, WAIT_SECONDS_MAX) if reject.code is RejectCode.UNAVAILABLE else 0.0)

    def _wait(self, now: float, least: float = 0.0) -> None:
        """Try again, later each time until an append is committed."""
        if self._retry_at is None:
            self._retry_at = now + max(self._delay, least)
            self._delay = min(2 * self._delay, RETRY_SECONDS_MAX)

    def _refused(self, pending: Pending, reject: m.Reject) -> None:
        if reject.code is RejectCode.OUT_OF_WINDOW:
            self._unknown(pending)
        else:
            self._out.append(Done(pending.token, Rejected(reject.code, reject.detail, reject.message), reject.reqid))

    def _give_up(self, entries: dict[ReqId, Pending]) -> None:
        while entries:
            self._unknown(entries.pop(next(iter(entries))))

    def _unknown(self, pending: Pending) -> None:
        assert pending.reqid is not None  # noqa: S101 - it was sent
        self._out.append(Done(pending.token, OutcomeUnknown(self.partition, pending.reqid), pending.reqid))

    def _expire(self, now: float) -> None:
        for entries in (self._flying, self._doubtful):
            for reqid in [reqid for reqid, pending in entries.items() if pending.deadline <= now]:
                self._unknown(entries.pop(reqid))
        late = [pending for pending in self._waiting if pending.deadline <= now]
        if late:
            self._waiting = deque(pending for pending in self._waiting if pending.deadline > now)
            told = f". The last try: {self.told}" if self.told else ""
            text = f"partition {self.partition}: {_LATE}{told}"
            self._out += [Done(pending.token, Unavailable(text), pending.reqid) for pending in late]

"""A partition and its store sessions, one after the other, each with its own recovery (docs/specs/waltz.md 13.1).

What clients change in its metadata, trims by hand and consumers, is answered when it is durable.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from pavane.waltz.core.connection import Connection, kind_of
from pavane.waltz.core.feed import ENDS
from pavane.waltz.core.joining import PAUSE_S
from pavane.waltz.core.outputs import Began, Closed, Committed, Opened, Output, ReadArchive, Recovered, Reply
from pavane.waltz.core.retention import CONSUMER_NAME, LOOK_S, Change, Fault, Keeping, Policy
from pavane.waltz.core.rounds import Rounds
from pavane.waltz.core.session import StoreSession
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record

BACKOFF_S, BACKOFF_S_MAX = 0.1, 2.0  # between two store sessions; the failed ones are counted
STRIKES_MAX = 3  # attempts that a storage node may end before it is left out of one


class PartitionStage(IntEnum):
    """Of a partition at a server."""

    CLOSED = 0
    OPENING = 1
    READ_WRITE = 2
    CLOSING = 3


class Shared(NamedTuple):
    """What the partitions of a server have in common; ``up`` are the storage nodes that can be reached.

    ``epoch`` is the time when ``now`` was 0, in seconds since 1970.
    """

    up: set[str]
    out: list[Output]
    rounds: Rounds
    policy: Policy
    epoch: float


class Storing(ABC):
    """What a partition has to do with storage and metadata; what it has to do with clients is ``Partition``."""

    def __init__(self, number: int, generation: int, nodes: Sequence[str], shared: Shared, floor: int) -> None:
        self.number = number
        self.generation = generation
        self.stage = PartitionStage.OPENING
        self.hwm: int | None = None
        self.nodes = tuple(nodes)
        self.first = 0
        """The first transaction that is kept."""
        self.keeping = Keeping(shared.policy, shared.epoch)
        self.reason = "opening"
        self.ended_by = ""
        """Why the last store session has ended."""
        self.now = 0.0
        self._up = shared.up
        self._out = shared.out
        self._floor = floor
        self.session: StoreSession | None = None
        self._attempts = 0
        self._session_began = 0.0
        self._failed_attempts = 0
        self._strikes: dict[str, int] = {}
        self._joined: set[str] = set()
        self._switching = False
        self._switch_from = 0.0
        self._due: float | None = None
        self._look_due: float | None = None

    @abstractmethod
    def close(self, now: float, reason: str) -> None:
        """Stop at once."""

    @abstractmethod
    def _opened(self, hwm: int) -> None: ...

    @abstractmethod
    def _began(self) -> None:
        """The log may begin with another transaction than before."""

    @abstractmethod
    def _committed(self, hwm: int) -> None: ...

    @property
    def healthy(self) -> bool:
        """Whether the store session is usable."""
        return self.session is not None and self.session.open and not self.session.ended

    @property
    def blocker(self) -> str:
        """Why the partition cannot be written, for people; empty if it can."""
        if self.healthy:
            return ""
        return (self.session.blocker if self.session is not None else "") or self.reason

    @property
    def untrimmed(self) -> dict[str, str]:
        """Which storage nodes could not drop what they should when they were last asked, and why."""
        return dict(self.keeping.told.refused)

    def tell(self, now: float, what: Callable[[StoreSession], list[Output]], attempt: int | None = None) -> None:
        """Tell the present store session something; with an ``attempt`` only if it is that one."""
        self.now = now
        if self.session is not None and attempt in (None, self.session.attempt):
            self._take(what(self.session))

    def set_nodes(self, now: float, nodes: Sequence[str]) -> None:
        """Other replicas are to count: an open session fills them first."""
        self.now = now
        if tuple(nodes) != self.nodes:
            self.nodes = tuple(nodes)
            if self.session is not None and self.session.open:
                self._take(self.session.want(now, nodes))
            elif self.session is not None:
                self._take(self.session.close("the replicas have changed"))

    @property
    def joining(self) -> dict[str, int]:
        """Which storage nodes are to count and do not yet, and up to which transaction they are filled."""
        return self.session.joining if self.session is not None else {}

    @property
    def damaged(self) -> dict[str, str]:
        """Which storage nodes do not use their copies, or are rebuilding them, and why."""
        return dict(self.session.damaged) if self.session is not None else {}

    @property
    def lacks_copies(self) -> bool:
        """Whether so many copies are damaged that no session can open: then it makes no sense to wait for one."""
        return len(self.nodes) - len(self.damaged) <= len(self.nodes) // 2

    def unreadable(self) -> str:
        """Why storage gives no record just now, for people."""
        found = [f"storage node {node}: {fault}" for node, fault in sorted(self.damaged.items())]
        archive = self.keeping.archive
        if archive is not None and (fault := archive.unread or archive.fault):
            found.append(f"archive: {fault}")
        return "; ".join(found) or self.blocker or "they do not answer, or their copies are damaged"

    def read(
        self,
        txid: int,
        limit: int,
        answer: Callable[[Sequence[Record] | None], None],
        connection: Connection | None = None,
    ) -> None:
        """Read committed records from storage; also while no session is open, where copies are whole.

        What is below the start comes from the archive.
        """
        if txid < self.first and self.keeping.archive is not None:
            self._out.append(ReadArchive(self.number, txid, min(limit, self.first - txid), answer, connection))
        elif self.session is None or self.session.ended:
            answer(None)
        else:
            self._take(self.session.read(self.now, txid, limit, answer))

    def _begin_with(self, first: int) -> None:
        self.first = max(self.first, first)
        self._look_again()
        self._began()

    def _look_again(self) -> None:
        if self._look_due is None and (self.first or self.keeping.policy.limited or self.keeping.consumers):
            self._look_due = self.now + LOOK_S

    def _look(self) -> None:
        """Ask the storage nodes how much they have, and trim what is too much, from time to time."""
        if self._look_due is not None and self._look_due <= self.now:
            self._look_due = self.now + LOOK_S
            if self.session is not None and self.healthy:
                self.keeping.sample(self.now, self.session.hwm)
                self._take(self.session.look(self.now))

    def _begin_session(self) -> None:
        self._attempts += 1
        self._session_began = self.now
        shunned = [node for node, strikes in self._strikes.items() if strikes >= STRIKES_MAX]
        for node in shunned:
            self._strikes[node] = 0
        self.session = StoreSession(
            self.number,
            self.generation,
            self.nodes,
            self._up,
            attempt=self._attempts,
            floor=self._floor if self.hwm is None else self.hwm,
            shunned=shunned,
            keeping=self.keeping,
            joined=self._joined,
            switching=self._switching,
            switch_from=self._switch_from,
        )
        self._take(self.session.start(self.now))

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Opened():
                    seconds = self.now - self._session_began
                    self._out.append(Recovered(self.number, output.session, output.hwm, seconds))
                    self._begin_with(self.keeping.first)
                    self._opened(output.hwm)
                case Began():
                    self._begin_with(output.start)
                case Committed():
                    self._committed(output.hwm)
                case Closed(fenced=True):
                    self.close(self.now, output.reason)
                case Closed():
                    self._session_closed(output.reason)
                case _:
                    self._out.append(output)

    def _session_closed(self, reason: str) -> None:
        if self.stage is PartitionStage.CLOSED or self.session is None:
            return
        session, self.session = self.session, None
        self.reason = self.ended_by = session.blocker or reason
        self._joined = session.joined
        if self._switching and session.changing:  # it was to let others count, and did not
            self._switch_from = self.now + PAUSE_S
        self._switching = session.open and session.switching
        if session.open:
            self._due = self.now
        else:
            for node in session.failures:
                self._strikes[node] = self._strikes.get(node, 0) + 1
            self._due = self.now + min(BACKOFF_S * 2**self._failed_attempts, BACKOFF_S_MAX)
            self._failed_attempts = min(self._failed_attempts + 1, 10)

    # -- trims by hand and consumers (13.5, 13.7) -------------------------------------------------------------------

    def consumers(self) -> tuple[m.ConsumerState, ...]:
        """Return all consumers, for people."""
        return self.keeping.states(self.now, -1 if self.hwm is None else self.hwm)

    def reject(
        self, connection: Connection, reqid: ReqId, number: int, code: RejectCode, text: str, detail: int = -1
    ) -> None:
        """Refuse a request of a client that understands refusals."""
        self._reply(connection, m.Reject(reqid, number, code, detail, self.generation, text[:1000]))

    def _reply(self, connection: Connection, message: Any) -> None:
        self._out.append(Reply(connection.id, message))

    def _trim(self, connection: Connection, request: m.TrimRequest, hwm: int) -> None:
        if request.flags & ~(m.FLAG_DRY_RUN | m.FLAG_FORCE) or request.before < 0:
            text = "an unknown flag, or a number that is too small"
            self.reject(connection, request.reqid, 47, RejectCode.BAD_REQUEST, text)
        elif request.before > hwm + 1:
            self.reject(connection, request.reqid, 47, RejectCode.CLIENT_AHEAD, ENDS.format(hwm), hwm)
        elif (before := self.keeping.reach(request, hwm)) <= self.first:
            self._reply(connection, m.TrimResponse(request.reqid, self.first, self.first, hwm))
        elif request.flags & m.FLAG_DRY_RUN:
            answer = m.TrimResponse(request.reqid, self.first, before, hwm)
            self._answer(connection, request, self.keeping.fault_of(request), lambda: answer)
        else:
            former = self.first
            self._change(connection, request, lambda: m.TrimResponse(request.reqid, former, self.keeping.first, hwm))

    def _consumer(self, connection: Connection, request: m.ConsumerRequest, hwm: int) -> None:
        def answer() -> m.ConsumerResponse:
            found = self.keeping.states(self.now, hwm, request.name)
            return m.ConsumerResponse(request.reqid, self.first, hwm, found)

        listing = request.action is m.ConsumerAction.LIST
        if not (CONSUMER_NAME.fullmatch(request.name) or (listing and not request.name)) or request.position < 0:
            text = "a position is not below 0, and a name has at most 127 letters, digits, dots, hyphens and underlines"
            self.reject(connection, request.reqid, 49, RejectCode.BAD_REQUEST, text)
        elif listing and self.healthy:
            self._reply(connection, answer())
        else:
            self._change(connection, request, answer)

    def _change(
        self, connection: Connection, request: m.TrimRequest | m.ConsumerRequest, answer: Callable[[], Any]
    ) -> None:
        """Have the metadata changed, and ``answer`` when they are."""
        if self.session is None or not self.healthy:
            self.reject(connection, request.reqid, kind_of(request), RejectCode.UNAVAILABLE, self.blocker)
            return

        def judged(fault: Fault | None) -> None:
            self._answer(connection, request, fault, answer)

        self._take(self.session.change(self.now, Change(request, judged, self.keeping.ms(self.now))))

    def _answer(self, connection: Connection, request: Any, fault: Fault | None, answer: Callable[[], Any]) -> None:
        self._look_again()
        if fault is None:
            self._reply(connection, answer())
        else:
            self.reject(connection, request.reqid, kind_of(request), *fault)

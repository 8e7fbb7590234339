"""What a store session does to one copy of its partition: copying records, and rebuilding what is damaged (13.8)."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import count
from typing import Any

from pavane.waltz.core.outputs import Output, Send
from pavane.waltz.core.replica import Asked, Replica, Step, Work, holders
from pavane.waltz.core.retention import Keeping
from pavane.waltz.state.recovery import Member
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.blobs import UNRESOLVED
from pavane.waltz.wire.storage import CopyState, RepairStep

REQUEST_TIMEOUT_S = 5.0
COPY_RECORDS = 1000
BRAKE = (
    3.0  # pauses of a rebuild, in times of what a voter took to answer it: it has three quarters of its time for others
)
PAUSE_S_MAX = 1.0  # also while a voter is very slow: its rebuild ends some day

Taken = Callable[[tuple[s.Record, ...] | None], None]


class Copying(ABC):
    """Asks nodes about ``partition``, of which those in ``up`` can be reached.

    It does so as ``Work``: generators that yield one question after the other, or ``None`` to wait for a change.
    """

    def __init__(self, partition: int, nodes: Sequence[str], up: Iterable[str], keeping: Keeping) -> None:
        self.partition = partition
        self.id = -1
        self.ended = False
        self._up = set(up)
        self._seq = count()
        self._asked: dict[int, Asked] = {}
        self._ready: deque[tuple[Replica, Any]] = deque()
        """Whose work goes on, and with which answer."""
        self._outputs: list[Output] = []
        self._now = 0.0
        self.keeping = keeping
        self.hwm = -1
        self.open = False
        self.damaged: dict[str, str] = {}
        """Nodes that do not use their copy, or whose copy is not yet verified, and why."""
        self._members: dict[str, Member] = {}
        self._pause_due: float | None = None
        self._quorum = len(nodes) // 2 + 1
        self._replicas = {node: Replica(node) for node in nodes}

    def _ask(self, node: str, answer: Callable[[Any], None], kind: Callable[..., Any], *arguments: Any) -> None:
        if node not in self._up:
            answer(None)
            return
        head = s.Head(self.id, next(self._seq), self.partition)
        self._asked[head.seq] = Asked(node, self._now + REQUEST_TIMEOUT_S, answer)
        self._outputs.append(Send(node, kind(head, *arguments)))

    def _read_from(self, sources: list[str], txid: int, limit: int, answer: Taken) -> None:
        """Read from the first of ``sources`` that has ``txid``; ``None`` if none gives it."""
        if not sources or limit <= 0 or self.ended:
            answer(None)
            return

        def take(response: Any) -> None:
            if isinstance(response, s.RecordListResponse) and response.records:
                answer(response.records[:limit])
            else:
                self._read_from(sources[1:], txid, limit, answer)

        self._ask(sources[0], take, s.RecordListRequest, txid, min(limit, s.RECORDS_MAX))

    def _flush(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _poke(self) -> None:
        """Something that replicas may wait for has changed."""
        for replica in self._replicas.values():
            if replica.waiting:
                replica.waiting = False
                self._ready.append((replica, None))

    @abstractmethod
    def _fail(self, replica: Replica, reason: str) -> None:
        """Do without a replica."""

    def _pause(self, began: float) -> Work:
        """Let a voter do other work between two questions of a rebuild, the last of which was asked at ``began``."""
        due = self._now + min(PAUSE_S_MAX, BRAKE * (self._now - began))
        while self._now < due:
            self._pause_due = due if self._pause_due is None else min(due, self._pause_due)
            yield None

    @abstractmethod
    def _resolve(self) -> None:
        """Something has changed that may decide what is in the log, or why that cannot be decided."""

    def _own(self, replica: Replica, kind: Callable[..., Any], *arguments: Any) -> Generator[Step, Any, Any]:
        """Ask the replica's own node; if it refuses, the replica is lost to this session."""
        answer = yield (replica.node, kind, *arguments)
        if answer is None or isinstance(answer, s.Failure):
            self._fail(replica, "no answer" if answer is None else str(answer.message))
            yield None
        return answer

    def _info(self, replica: Replica) -> Generator[Step, Any, Any]:
        """Ask for the replica's durable session; one that is damaged is rebuilt first, once the session is open."""
        answer = yield (replica.node, s.LastSessionInfoRequest, False)
        if isinstance(answer, s.LastSessionInfoResponse):
            self.damaged.pop(replica.node, None)
            return answer
        copy = yield (replica.node, s.Repair, RepairStep.LOOK)
        if not isinstance(copy, s.Repaired) or copy.state == CopyState.SOUND:
            self._fail(replica, "no answer" if answer is None else str(answer.message))
            yield None
        self.damaged[replica.node] = copy.fault
        member = self._members.get(replica.node)
        replica.partial = copy.state == CopyState.DAMAGED and member == Member(copy.session, UNRESOLVED)
        self._resolve()
        while not self.open:  # until then nobody knows whether a majority can do without it
            yield None
        voters = self._voters()
        proven: bool | None = len(voters) >= self._quorum
        if proven and copy.state == CopyState.DAMAGED:
            proven = yield from self._equal(voters)
        if not proven:
            self._fail(replica, copy.fault)
            yield None
        replica.rebuilding, replica.partial = True, False
        return (yield from self._own(replica, s.Repair, RepairStep.BEGIN))

    def _verify(self, replica: Replica) -> Work:
        """Compare a rebuilt copy with those of a majority; only then it counts."""
        yield from self._catch_up(replica, self.hwm)
        voters = self._voters()
        equal = None
        if len(voters) >= self._quorum:
            equal = yield from self._equal([replica.node, *voters])
        if equal is False:
            yield from self._own(replica, s.Repair, RepairStep.ANEW)
        if not equal:
            self._fail(replica, "what was copied could not be verified")
            yield None
        yield from self._own(replica, s.Repair, RepairStep.DONE)
        replica.rebuilding = False
        self.damaged.pop(replica.node, None)

    def _voters(self) -> list[str]:
        return [node for node, replica in self._replicas.items() if replica.voting]

    def _equal(self, nodes: Sequence[str]) -> Generator[Step, Any, bool | None]:
        """Let nodes read, and check, what is committed by now: whether all have the same, ``None`` if one cannot."""
        rebuilt = [replica.hwm for node in nodes if (replica := self._replicas[node]).rebuilding]
        txid, last = self.keeping.first, min([self.hwm, *rebuilt])  # what is committed meanwhile it copies as others do
        while txid <= last:
            count, heads = min(s.RECORDS_MAX, last - txid + 1), None
            for node in nodes:
                began = self._now
                answer = yield (node, s.RecordHeaderListRequest, txid, count)
                yield from self._pause(began)
                if txid < self.keeping.first:  # dropped since it was asked for
                    count = self.keeping.first - txid
                    break
                if not isinstance(answer, s.RecordHeaderListResponse) or not answer.records:
                    return None
                count = min(count, len(answer.records))
                if heads is not None and heads[:count] != answer.records[:count]:
                    return False
                heads = answer.records
            txid += count
        return True

    def _catch_up(self, replica: Replica, target: int) -> Work:
        while replica.hwm < target:
            sources = holders(self._replicas.values(), self._up, replica.hwm + 1)
            if not sources or not (yield from self._copy(replica, sources[0], target)):
                yield None

    def _drop(self, replica: Replica) -> Work:
        """Let the replica give up what is below the start, and begin there if it holds less; if not, it may keep it."""
        answer = yield (replica.node, s.Retain, *self.keeping.retained)
        if isinstance(answer, s.Retained):
            replica.hwm = max(replica.hwm, answer.last)
        elif answer is None or replica.hwm + 1 < self.keeping.first:
            self._fail(replica, "no answer" if answer is None else str(answer.message))
            yield None

    def _copy(self, replica: Replica, source: str, target: int) -> Generator[Step, Any, bool]:
        """Copy one message of records from ``source``; false if there were none."""
        if replica.hwm + 1 < self.keeping.first:
            yield from self._drop(replica)
            return True
        wanted = min(COPY_RECORDS, target - replica.hwm)
        began = self._now
        answer = yield (source, s.RecordListRequest, replica.hwm + 1, wanted)
        if replica.rebuilding:
            yield from self._pause(began)
        if replica.hwm + 1 < self.keeping.first:  # dropped since they were asked for
            return True
        if not isinstance(answer, s.RecordListResponse) or not answer.records:
            self._fail(self._replicas[source], "records cannot be read")
            return False
        yield from self._own(replica, s.Append, answer.records[:wanted], False)
        replica.hwm += len(answer.records[:wanted])
        return True

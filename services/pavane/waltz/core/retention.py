"""With which transaction a partition begins, by its storage nodes and consumers (docs/specs/waltz.md 13.5, 13.7)."""

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pavane.waltz.errors import RejectCode
from pavane.waltz.state.archived import Archived
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.blobs import Consumer, PartitionMetadata

LOOK_S = 10.0  # between two questions to storage nodes: a partition grows beyond its size by what comes in that time
CONSUMERS_MAX = 64  # of a partition: each commit writes all of them to the metadata store, 15 KiB at most
CONSUMER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")  # it stands in paths and labels
WHO_CHARACTERS_MAX = 64  # of what a consumer says of itself; the rest is cut off
CHANGES_MAX = 1000  # that wait for the metadata store
SAMPLES_MAX = 512  # of when the log was how long: every 10 s for an hour, then ever fewer
STUCK_S = 3600.0  # that retention waits for a consumer that does not move, after which it is reported as stuck

Fault = tuple[RejectCode, str, int]
"""Why something is refused: the code, words and the number that belongs to it."""


class Policy(NamedTuple):
    """How much of a partition is kept, in bytes on each node and by age in milliseconds; -1: without that limit.

    ``respect``: nothing is dropped that a consumer still needs, whatever the limits say. ``archives``: nothing that is
    not archived, but with ``drops`` while the archive takes nothing.
    """

    bytes_max: int = -1
    age_ms_max: int = -1
    respect: bool = True
    archives: bool = False
    drops: bool = False

    @property
    def limited(self) -> bool:
        """Whether anything is ever dropped by it."""
        return self.bytes_max >= 0 or self.age_ms_max >= 0


KEEP_ALL = Policy()


def agreed(wanted: Iterable[int], replicas: int) -> int:
    """Return what a majority of all ``replicas`` would keep: one clock that is wrong decides nothing."""
    told = sorted(wanted, reverse=True)
    quorum = replicas // 2 + 1
    return told[quorum - 1] if len(told) >= quorum else 0


@dataclass(slots=True)
class Told:
    """What the nodes have answered to the last question."""

    waiting: set[str] = field(default_factory=set)
    kept: dict[str, s.Retained] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why a node could not drop what it should."""

    def take(self, node: str, answer: Any) -> bool:
        """Note the answer of a node, and return whether it has dropped anything since the last; ``None``: none came."""
        self.waiting.discard(node)
        before = self.kept[node].first if node in self.kept else 0
        if isinstance(answer, s.Retained):
            self.kept[node] = answer
            self.refused.pop(node, None)
            return bool(answer.first > before)
        self.kept.pop(node, None)
        self.refused[node] = "no answer" if answer is None else str(answer.message)
        return False


class Change(NamedTuple):
    """A trim by hand or another position of a consumer. ``answer`` gets why not, or ``None`` once it is durable."""

    request: m.TrimRequest | m.ConsumerRequest
    answer: Callable[[Fault | None], None]
    at_ms: int = 0


class Keeping:
    """What is kept of one partition, at its owner: one transaction after the other in the partition's metadata.

    ``first`` and ``consumers`` are what the metadata say. Changes wait while a write is under way, and are judged by
    what it has left: so no trim passes a consumer that came before it, nor does one start below a trim. ``epoch`` is
    the time when ``now`` was 0, in seconds since 1970.
    """

    def __init__(self, policy: Policy = KEEP_ALL, epoch: float = 0.0) -> None:
        self.policy = policy
        self.archive = Archived() if policy.archives else None
        self._epoch = epoch
        self.first = 0
        self.consumers: dict[str, Consumer] = {}
        self.told = Told()
        self._wanted = self._ordered = 0
        """With what retention wants the log to begin; and what was trimmed by hand, or is gone at some node."""
        self._agreed = False
        """Whether a majority has said in this session what retention wants: till then who was held stays so."""
        self._waiting: deque[Change] = deque()
        self._under_way: list[Change] = []
        self._next: tuple[int, dict[str, Consumer]] = 0, {}
        self._samples: list[tuple[float, int]] = []

    # -- the metadata -------------------------------------------------------------------------------------------

    def begin(self, meta: PartitionMetadata) -> None:
        """Take what the metadata say as a store session begins."""
        self.told = Told()
        self.first = self._ordered = self._wanted = max(0, meta.start)
        self._agreed = False
        self.consumers = {one.name: one for one in meta.consumers}

    def again(self, meta: PartitionMetadata) -> None:
        """A write of this session may have been done or not: the metadata say; what waits for it is tried again."""
        self.first = max(self.first, meta.start)
        self.consumers = {one.name: one for one in meta.consumers}
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()

    @property
    def retained(self) -> tuple[int, int, int]:
        """What storage nodes are told to keep."""
        return self.first, self.policy.bytes_max, self.policy.age_ms_max

    def ask(self, change: Change) -> None:
        """Let something change with the next write."""
        if len(self._waiting) < CHANGES_MAX:
            self._waiting.append(change)
        else:
            change.answer((RejectCode.UNAVAILABLE, "too many changes wait for the metadata store", -1))

    def prepare(self, now: float, hwm: int) -> bool:
        """Judge what waits, and return whether the metadata have to be written for it."""
        consumers, refused = dict(self.consumers), []
        while self._waiting:
            change = self._waiting.popleft()
            if (fault := self._judged(change, consumers, hwm)) is None:
                self._under_way.append(change)
            else:
                refused.append((change, fault))
        for one in consumers.values():
            waits = self.policy.respect and (one.position < self._wanted if self._agreed else bool(one.held))
            if waits != bool(one.held):
                consumers[one.name] = one._replace(held=self.ms(now) if waits else 0)
        wanted = min([self._wanted, *self._needed(consumers)])
        self._next = max(self.first, self._ordered, wanted), consumers
        for change, fault in refused:
            change.answer(fault)
        return bool(self._under_way) or self._next != (self.first, self.consumers)

    def next(self, generation: int, session: int, states: Any) -> PartitionMetadata:
        """Return the metadata to write, with these replicas."""
        start, consumers = self._next
        return PartitionMetadata(generation, session, states, start, tuple(consumers.values()))

    def written(self) -> None:
        """The metadata are durable."""
        start, self.consumers = self._next
        done, self._under_way = self._under_way, []
        self.first = max(self.first, start)
        for change in done:
            change.answer(None)

    def end(self, reason: str) -> None:
        """Nothing is written any more."""
        changes = [*self._under_way, *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        for change in changes:
            change.answer((RejectCode.UNAVAILABLE, reason, -1))

    def _judged(self, change: Change, consumers: dict[str, Consumer], hwm: int) -> Fault | None:
        request = change.request
        if isinstance(request, m.TrimRequest):
            fault = self.fault_of(request, consumers.values())
            if fault is None:
                self._ordered = max(self._ordered, self.reach(request, hwm))
            return fault
        name, position, action = request.name, request.position, request.action
        known = consumers.get(name)
        if action is m.ConsumerAction.REMOVE:
            consumers.pop(name, None)
            return None
        if position > hwm + 1:
            return RejectCode.CLIENT_AHEAD, f"the partition ends with transaction {hwm}", hwm
        who = request.who[:WHO_CHARACTERS_MAX]
        if action is m.ConsumerAction.COMMIT:
            if known is None or known.since != request.since:
                return no_consumer(request.reqid.partition, name, known is not None)
            held = known.held if position <= known.position else 0
            position = max(known.position, position)
            consumers[name] = known._replace(position=position, committed=change.at_ms, who=who, held=held)
            return None
        if known is not None and action is m.ConsumerAction.START:
            return None
        if position < self.first:
            return RejectCode.TRIMMED, m.begins(request.reqid.partition, self.first), self.first
        if position < self._ordered:
            return RejectCode.UNAVAILABLE, "the partition is being trimmed beyond this position", -1
        if known is None and len(consumers) >= CONSUMERS_MAX:
            text = f"the partition has {CONSUMERS_MAX} consumers, which is the most: remove one that is not needed"
            return RejectCode.TOO_LARGE, text, CONSUMERS_MAX
        since = change.at_ms if known is None else max(change.at_ms, known.since + 1)
        consumers[name] = Consumer(name, position, since, change.at_ms, who)
        return None

    def fault_of(self, request: m.TrimRequest, consumers: Iterable[Consumer] | None = None) -> Fault | None:
        """Return why a trim by hand may not be: a consumer needs what would go, and nobody said that it does not."""
        needing = [
            one
            for one in (self.consumers.values() if consumers is None else consumers)
            if one.position < request.before and not request.flags & m.FLAG_FORCE
        ]
        if not needing:
            return None
        named = ", ".join(f"{one.name} (from {one.position})" for one in needing)
        text = f"nothing was trimmed: consumers still need what is before transaction {request.before}: {named}"
        return RejectCode.CONSUMER_NEEDS, text, min(one.position for one in needing)

    # -- retention ----------------------------------------------------------------------------------------------

    def look(self, replicas: int, hwm: int) -> None:
        """Take what the storage nodes have answered: what any has dropped was agreed, whatever old metadata say."""
        kept = self.told.kept.values()
        self._agreed = self._agreed or len(kept) > replicas // 2
        self._wanted = max(self._wanted, min(agreed([one.wanted for one in kept], replicas), hwm + 1))
        self._ordered = max(self._ordered, min(max((one.first for one in kept), default=0), hwm + 1))

    def _needed(self, consumers: dict[str, Consumer]) -> list[int]:
        needed = [one.position for one in consumers.values()] if self.policy.respect else []
        if self.archive is not None and not (self.policy.drops and self.archive.fault):
            needed.append(self.archive.end)
        return needed

    def reach(self, request: m.TrimRequest, hwm: int) -> int:
        """Return up to where a trim by hand may go: with an archive only as far as that is, unless it is forced."""
        before = min(request.before, hwm + 1)
        if self.archive is None or request.flags & m.FLAG_FORCE:
            return before
        return min(before, max(self.first, self.archive.end))

    def readable(self, first: int) -> int:
        """Return the first transaction that can be read where storage nodes begin with ``first``."""
        return first if self.archive is None else self.archive.begins(first)

    # -- for people ---------------------------------------------------------------------------------------------

    def sample(self, now: float, hwm: int) -> None:
        """Note how long the log is now."""
        self._samples.append((now, hwm))
        if len(self._samples) > SAMPLES_MAX:
            del self._samples[1 : SAMPLES_MAX // 2 : 2]

    def ms(self, now: float) -> int:
        """Return the time, in milliseconds since 1970."""
        return int(1000 * (self._epoch + now))

    def states(self, now: float, hwm: int, name: str = "") -> tuple[m.ConsumerState, ...]:
        """Return a consumer, or all of them, in order."""
        now_ms = self.ms(now)
        return tuple(
            m.ConsumerState(
                one.name,
                one.position,
                one.since,
                one.who,
                0 if one.position > hwm else int(1000 * (now - self._appended_at(one.position, now))),
                max(0, now_ms - one.committed),
                max(0, now_ms - one.held) if one.held else -1,
            )
            for key, one in sorted(self.consumers.items())
            if name in ("", key)
        )

    def _appended_at(self, txid: int, now: float) -> float:
        """Return when this owner first saw ``txid`` in the log, or did not see it for the last time."""
        before = [at for at, hwm in self._samples if hwm < txid]
        return before[-1] if before else self._samples[0][0] if self._samples else now


def no_consumer(partition: int, name: str, other: bool) -> Fault:
    """Return what a consumer is told that is not there, or is another one by now."""
    was = "was given another position since" if other else "is not there: it was never started, or was removed"
    text = f"consumer {name} of partition {partition} {was}. Say where it has to begin with start(), it does not know"
    return RejectCode.NO_CONSUMER, text, -1

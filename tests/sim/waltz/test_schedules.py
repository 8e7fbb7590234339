"""Two owners, three storage nodes and every order in which messages may arrive, at random (docs/specs/waltz.md 13).

There is no clock and no lease: an old owner hears nothing of the new one until somebody refuses it, as after a pause of
its process. Storage nodes start again while connections stay, as behind a proxy.
"""

import random
from collections import deque
from typing import Any

from pavane.waltz.core import outputs as o
from pavane.waltz.core.session import StoreSession
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from tests.sim.kit.seeds import BrokenError, holds, played, replayable
from tests.sim.waltz.story import Story, session_of
from tests.sim.waltz.world import NODES, PARTITION

STEPS = 400
SETTLE_STEPS = 1000
APPENDS_MAX = 3  # under way: few, so that owners come and go between them
PER_TEST = 100


class Owner:
    """An owner with ``generation``: one session after the other."""

    def __init__(self, schedule: "Schedule", generation: int) -> None:
        self.generation = generation
        self._schedule = schedule
        self._attempts = 0
        self._appended: dict[int, s.Record] = {}
        self.fenced = False
        self.begin()

    def begin(self) -> None:
        self._attempts += 1
        self.session: StoreSession = session_of(self.generation, self._attempts)
        self.asked: dict[str, deque[o.Send]] = {node: deque() for node in NODES}
        self.answers: dict[str, deque[Any]] = {node: deque() for node in NODES}
        self.metadata: deque[o.ReadMeta | o.WriteMeta] = deque()
        self._appended.clear()
        self.take(self.session.start(0.0))

    def take(self, outputs: list[o.Output]) -> None:
        for output in outputs:
            match output:
                case o.Send():
                    self.asked[output.node].append(output)
                case o.ReadMeta() | o.WriteMeta():
                    self.metadata.append(output)
                case o.Opened():
                    self._schedule.opened(output.hwm)
                case o.Committed():
                    for txid in [txid for txid in self._appended if txid <= output.hwm]:
                        self._schedule.committed(self._appended.pop(txid))
                case o.Closed(fenced=True):
                    self.fenced = True

    def append(self) -> None:
        session = self.session
        if session.room and len(self._appended) < APPENDS_MAX:
            txid = max(self._appended, default=session.hwm) + 1
            number = self._schedule.next_number()
            record = s.Record.of(txid, ReqId(self.generation, self.generation, PARTITION, number), 0, b"data")
            self._appended[txid] = record
            self.take(session.append(0.0, [record]))

    def ask(self, node: str) -> None:
        self.answers[node].append(self._schedule.story.answer(self.asked[node].popleft()))

    def answer(self, node: str) -> None:
        self.take(self.session.response(0.0, node, self.answers[node].popleft()))

    def meet_metadata(self) -> None:
        story = self._schedule.story
        match self.metadata.popleft():
            case o.ReadMeta():
                self.take(self.session.metadata(0.0, story.meta, story.version))
            case write:
                self.take(story.write(self.session, write))


class Schedule:
    """One order of events, from one seed."""

    def __init__(self, seed: int, *, fences: bool) -> None:
        self._rng = random.Random(seed)
        self._log: dict[int, ReqId] = {}
        self._numbers = 0
        self.steps = 0
        self.story = Story(fences=fences)
        first = session_of(1)
        self.story.go_on(first, first.start(0.0))
        self.owners = [Owner(self, 1)]

    @property
    def length(self) -> int:
        return len(self._log)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def opened(self, hwm: int) -> None:
        end = max(self._log, default=-1)
        holds(hwm >= end, "lost", f"transaction {end} was committed, a session opens at {hwm}")

    def committed(self, record: s.Record) -> None:
        known = self._log.setdefault(record.txid, record.reqid)
        holds(known == record.reqid, "order", f"transaction {record.txid} is {record.reqid}, and was {known}")

    def run(self) -> None:
        for self.steps in range(STEPS):
            self._step()
        newest = self.owners[-1]
        newest.begin()
        for _ in range(SETTLE_STEPS):
            self._step(only=newest)
        holds(newest.session.open, "open", f"the log does not open: {newest.session.blocker}")
        for txid, reqid in self._log.items():
            held = [self.story.files(node).read(txid, 1) for node in NODES]
            copies = sum(bool(found) and found[0].reqid == reqid for found in held)
            holds(copies >= 2, "lost", f"transaction {txid} is on {copies} nodes")

    def _step(self, only: Owner | None = None) -> None:
        rng = self._rng
        if only is None and rng.random() < 0.01:
            self.owners.append(Owner(self, len(self.owners) + 1))
        if only is None and rng.random() < 0.03:
            self.story.restart(rng.choice(NODES))
        owner = only or rng.choice(self.owners[-2:])
        node = rng.choice(NODES)
        if owner.session.ended:
            if not owner.fenced and rng.random() < 0.1:
                owner.begin()
        elif owner.metadata and rng.random() < 0.3:
            owner.meet_metadata()
        elif owner.asked[node] and rng.random() < 0.5:
            owner.ask(node)
        elif owner.answers[node]:
            owner.answer(node)
        elif only is None:
            owner.append()


def play(seed: int, *, fences: bool = True) -> int:
    schedule = Schedule(seed, fences=fences)
    with replayable(seed, lambda: float(schedule.steps)):
        schedule.run()
    return schedule.length


@played(PER_TEST)
def test_no_order_of_messages_loses_a_transaction(seeds: range) -> None:
    assert sum(play(seed) for seed in seeds) > 5 * len(seeds)


def test_without_the_durable_fence_some_order_does() -> None:
    assert any(is_broken(seed) for seed in range(500))


def is_broken(seed: int) -> bool:
    try:
        play(seed, fences=False)
    except BrokenError:
        return True
    return False

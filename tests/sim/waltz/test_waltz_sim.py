"""Nothing acknowledged is ever lost, doubled or moved, whatever ends, is cut off or loses its disk."""

from array import array
from dataclasses import replace

import pytest

from pavane.waltz.core import storing
from pavane.waltz.core.outputs import Output
from pavane.waltz.core.partition import Partition
from pavane.waltz.core.retention import Change, Fault, Keeping, Policy
from pavane.waltz.core.session import StoreSession
from pavane.waltz.state import recovery
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import Consumer
from tests.sim.kit.seeds import BrokenError, played, replayable
from tests.sim.waltz.beside import Beside, Peruser
from tests.sim.waltz.faults import Faults
from tests.sim.waltz.product import SEGMENT_BYTES_TRIMMED, Product, Unmarked
from tests.sim.waltz.trimming import Asker, Consumers, Trimmer
from tests.sim.waltz.world import World

RUN_S = 12.0
PER_TEST = 25
PLANTED_SEEDS_MAX = 500  # within which a planted fault is found


TRIMMED = Product(segment_bytes=SEGMENT_BYTES_TRIMMED)
CONSUMED = Product(segment_bytes=SEGMENT_BYTES_TRIMMED, policy=Policy(bytes_max=2 * SEGMENT_BYTES_TRIMMED))


def play(seed: int, product: Product | None = None) -> tuple[World, Peruser]:
    return play_trimmed(seed, product, trims=False)[:2]


def play_trimmed(
    seed: int, product: Product | None = TRIMMED, *, trims: bool = True, asker: type[Asker] = Trimmer
) -> tuple[World, Peruser, int]:
    world = World(seed, product)
    trimmer = asker(world) if trims else None
    with replayable(seed, lambda: world.now):
        beside = world.servers[3] = Beside(world, 3)
        beside.start()
        peruser = Peruser(world, beside)
        faults = Faults(world, RUN_S)
        world.scheduler.run(RUN_S)
        faults.settle()
        if trimmer is not None:
            trimmer.done = True
        world.check()
        if trimmer is not None:
            trimmer.check()
    return world, peruser, trimmer.dropped if trimmer is not None else 0


@played(PER_TEST, 3)
def test_nothing_acknowledged_is_lost_doubled_or_moved(seeds: range) -> None:
    """Nor does a server that may not write serve anything but the log."""
    plays = [play(seed) for seed in seeds]
    assert sum(len(world.log) for world, _ in plays) > 20 * len(seeds)
    assert sum(peruser.read for _, peruser in plays) > 20 * len(seeds)


@played(PER_TEST, 3)
def test_what_is_not_trimmed_is_not_lost_doubled_or_moved_either(seeds: range) -> None:
    """Nothing is dropped before that is agreed for good, whoever begins where, is copied anew or lags behind."""
    plays = [play_trimmed(seed) for seed in seeds]
    assert sum(len(world.log) for world, _, _ in plays) > 20 * len(seeds)
    assert sum(peruser.read for _, peruser, _ in plays) > 5 * len(seeds)
    assert sum(dropped > 0 for _, _, dropped in plays) > len(seeds) / 2


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage nodes are asked what they can do without while a simulation lasts."""
    monkeypatch.setattr(storing, "LOOK_S", 0.4)


@played(PER_TEST, 3)
def test_no_trim_passes_a_consumer_and_none_is_ahead_of_what_it_applied(seeds: range, soon: None) -> None:
    """By hand, by size, by the next owner, after a write whose answer was lost. The next test shows that it looks."""
    plays = [play_trimmed(seed, CONSUMED, asker=Consumers) for seed in seeds]
    assert sum(len(world.log) for world, _, _ in plays) > 20 * len(seeds)


@pytest.mark.parametrize("fault", ["ahead", "by hand", "by size"])
def test_a_fault_of_consumers_is_found(monkeypatch: pytest.MonkeyPatch, soon: None, fault: str) -> None:
    judged = Keeping._judged

    def ahead(self: Keeping, change: Change, consumers: dict[str, Consumer], hwm: int) -> Fault | None:
        request = change.request
        if isinstance(request, m.ConsumerRequest) and request.action is m.ConsumerAction.COMMIT:
            change = change._replace(request=replace(request, position=min(request.position + 1, hwm + 1)))
        return judged(self, change, consumers, hwm)

    match fault:
        case "ahead":
            monkeypatch.setattr(Keeping, "_judged", ahead)
        case "by hand":
            monkeypatch.setattr(Keeping, "fault_of", lambda *_: None)
        case "by size":
            monkeypatch.setattr(Keeping, "_needed", lambda *_: [])
    assert any(is_broken(seed, CONSUMED, trims=True, asker=Consumers) for seed in range(PLANTED_SEEDS_MAX))


@pytest.mark.long
def test_without_the_mark_something_is_lost() -> None:
    assert any(is_broken(seed, Product(directory=Unmarked)) for seed in range(500))


@pytest.mark.long
def test_where_disks_that_were_set_back_count_as_others_something_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_lost", lambda *_: 0)
    assert any(is_broken(seed) for seed in range(500))


@pytest.mark.long
def test_a_node_that_drops_before_the_start_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trim(self: StoreSession, now: float, change: Change) -> list[Output]:
        self._now = now
        assert isinstance(change.request, m.TrimRequest)
        self.keeping.first = max(self.keeping.first, min(change.request.before, self.hwm + 1))
        self._begin_with_start()
        self.keeping.ask(change)
        self._declare()
        return self._flush()

    monkeypatch.setattr(StoreSession, "change", trim)
    assert any(is_broken(seed, trims=True) for seed in range(PLANTED_SEEDS_MAX))


@pytest.mark.long
def test_a_lock_that_is_forgotten_with_its_transaction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    began = Partition._began

    def forgetful(self: Partition) -> None:
        began(self)
        self._locks._last = array("q", [txid if txid >= self.first else -1 for txid in self._locks._last])

    monkeypatch.setattr(Partition, "_began", forgetful)
    assert any(is_broken(seed, trims=True) for seed in range(PLANTED_SEEDS_MAX))


def is_broken(seed: int, product: Product | None = None, *, trims: bool = False, asker: type[Asker] = Trimmer) -> bool:
    try:
        if trims:
            play_trimmed(seed, product or TRIMMED, asker=asker)
        else:
            play(seed, product)
    except BrokenError:
        return True
    return False

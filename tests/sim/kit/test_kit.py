"""What simulations rely on: order, replay, cuts, streams without gaps, and disks that forget."""

import random
from collections.abc import Sequence

import pytest

from pavane.wal import Appender, Batch, Log
from tests.services.memory_disk import MemoryDisk
from tests.sim.kit.disk import DiskThread, SimWriter
from tests.sim.kit.network import Frames, Network, Weather
from tests.sim.kit.scheduler import Alarm, Scheduler
from tests.sim.kit.seeds import BrokenError, holds, replayable
from tests.sim.kit.streams import End, connect

STORE = bytes(16)
CRASHES = range(60)  # so many draws show each outcome of a crash


def refuse(error: Exception) -> None:
    raise error


def test_events_happen_in_the_order_of_their_time_then_of_their_planning() -> None:
    scheduler, happened = Scheduler(1), list[str]()
    for at, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        scheduler.schedule(at, lambda name=name: happened.append(name))  # type: ignore[misc]
    assert scheduler.until(lambda: "c" in happened, 5.0) == pytest.approx(2.0)
    assert happened == ["a", "b", "c"]
    assert scheduler.until(lambda: False, 5.0) is None
    assert scheduler.time == 7.0


def test_an_alarm_fires_once_at_the_earliest_time() -> None:
    scheduler, fired = Scheduler(1), list[float]()
    alarm = Alarm(scheduler, lambda: fired.append(scheduler.time))
    for due in (3.0, 1.0, 2.0, None):
        alarm.arm(due)
    scheduler.run(5.0)
    assert fired == [1.0]
    alarm.arm(6.0)
    alarm.cancel()
    scheduler.run(5.0)
    assert fired == [1.0]


def test_a_failure_names_seed_and_time_and_stays_what_it_was() -> None:
    with pytest.raises(BrokenError, match=r"PAVANE_SEED=7 at 1.500 s: S1: two leaders"), replayable(7, lambda: 1.5):
        holds(False, "S1", "two leaders")
    with pytest.raises(AssertionError, match="KeyError") as raised, replayable(7, lambda: 0.0):
        raise KeyError
    assert not isinstance(raised.value, BrokenError)


def conversation(seed: int, weather: Weather) -> tuple[list[bytes], list[bytes], int]:
    scheduler = Scheduler(seed)
    asked: list[bytes] = []
    answered: list[bytes] = []

    def receive(_: str, route: bytes, frames: Frames) -> None:
        asked.append(bytes(frames[0]))
        network.answer(route, frames)

    network = Network(scheduler, receive, weather)
    connection = network.open("a", "b", lambda frames: answered.append(bytes(frames[0])))
    for number in range(50):
        network.ask(connection, [b"%02d" % number])
    scheduler.run(5.0)
    datagrams: list[int] = []
    for number in range(50):
        network.carry("a", "b", lambda number=number: datagrams.append(number))  # type: ignore[misc]
    network.cut(["a"], ["b"])
    network.carry("a", "b", lambda: datagrams.append(99))
    network.ask(connection, [b"cut"])
    scheduler.run(5.0)
    return asked, answered, len(datagrams)


def test_routed_messages_keep_their_order_and_may_be_lost() -> None:
    asked, answered, datagrams = conversation(1, Weather())
    assert asked == answered == [b"%02d" % number for number in range(50)]
    assert datagrams == 0  # the cut came before they arrived
    lossy, back, _ = conversation(1, Weather(loss=0.3))
    assert lossy == sorted(lossy)
    assert len(back) < len(lossy) < 50
    assert conversation(1, Weather(loss=0.3, late=0.2)) == conversation(1, Weather(loss=0.3, late=0.2))


class Kept:
    """Reads one end."""

    def __init__(self) -> None:
        self.data = b""
        self.over = False

    def received(self, data: bytes) -> None:
        assert not self.over
        self.data += data

    def ended(self) -> None:
        self.over = True


def test_a_stream_has_no_gaps_and_ends_for_both() -> None:
    sent = bytes(range(200))
    torn = 0
    for seed in CRASHES:
        scheduler = Scheduler(seed)
        network = Network(scheduler, lambda *_: None, Weather(loss=0.01, late=0.3))
        near_side, far_side = Kept(), Kept()

        def accept(end: End, far_side: Kept = far_side) -> None:
            end.reader = far_side

        near = connect(network, "a", "b", accept)
        assert near is not None
        near.reader = near_side
        for at in range(0, len(sent), 4):
            near.send(sent[at : at + 4])
        scheduler.run(5.0)
        assert sent.startswith(far_side.data)
        assert near_side.over == far_side.over == (far_side.data != sent)
        torn += bool(len(far_side.data) % 4)
        network.cut(["a"], ["b"])
        assert connect(network, "a", "b", accept) is None
    assert torn


def test_a_power_cut_keeps_what_was_told_and_loses_or_tears_the_rest() -> None:
    extents = set()
    for seed in CRASHES:
        scheduler, disk = Scheduler(seed), MemoryDisk()
        folder = disk.folder("log")
        log = Log.create(folder, STORE, lambda: ())
        thread, told = DiskThread(scheduler, disk), list[int]()

        def done(batches: Sequence[Batch], told: list[int] = told) -> None:
            told.extend(batch.last_sequence for batch in batches)

        writer = SimWriter(thread, Appender(folder), done, refuse)
        for _ in range(8):
            log.append(1, [b"payload"])
            batch = log.take()
            assert batch is not None
            writer.submit(batch)
            scheduler.run(scheduler.rng.uniform(0.0, 0.004))
        thread.power_cut()
        scheduler.run(1.0)
        kept: list[int] = []
        log.close()
        if not folder.names():  # not even the first file was durable
            assert told == []
            continue
        log, found = Log.open(folder, STORE, lambda record, kept=kept: kept.append(record.sequence), tuple, tuple)  # type: ignore[misc]
        log.close()
        assert set(told) <= set(kept)
        extents.add((len(kept) > len(told), bool(found.torn_bytes)))
    assert len(extents) >= 3


def test_a_job_that_fails_says_so() -> None:
    scheduler, disk = Scheduler(1), MemoryDisk()
    failures: list[OSError] = []
    file = disk.folder().create("a")
    disk.failing_syncs = True
    DiskThread(scheduler, disk).run(file.sync, lambda: refuse(AssertionError()), failures.append)
    scheduler.run(1.0)
    assert [error.errno for error in failures] == [5]
    disk.crash(random.Random(1))

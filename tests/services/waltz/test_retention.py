"""What is kept by size and by age, whatever clocks say; and that a log that is written for ever does not grow."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pavane.waltz.client import Waltz
from pavane.waltz.core import storing
from pavane.waltz.core.retention import Policy, agreed
from pavane.waltz.state.store import Kept
from pavane.waltz.storage import Directory
from pavane.waltz.storage.clock import Clock
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from tests.services.eventually import eventually
from tests.services.memory_disk import MemoryDisk
from tests.services.waltz.running import ANSWER_S, KEY, running_log

YEAR, HOUR, DAY = 365 * 86_400.0, 3600.0, 86_400.0
DAY_MS = 86_400_000
BYTES_MAX = 40_000


@dataclass
class Machine:
    """A storage node's disk and its time, which somebody may set."""

    now: float = 1_000_000_000.0
    ahead: float = 0.0

    def __post_init__(self) -> None:
        self.disk = MemoryDisk()
        self.start()

    def start(self) -> None:
        clock = Clock(lambda: self.now + self.ahead, lambda: self.now)
        self.directory = Directory(self.disk.folder(), KEY, 1, clock=clock)
        self.directory.assign([0])

    def retain(self, start: int = 0, size: int = -1, age: int = DAY_MS) -> Kept:
        files = self.directory.partition(0)
        assert files is not None
        return files.retain(start, size, age)

    def append(self, hours: int) -> None:
        """One transaction an hour."""
        files = self.directory.partition(0)
        assert files is not None
        for _ in range(hours):
            self.now += HOUR
            files.append([Record.of(files.max_txid + 1, ReqId(1, 1, 0, 1), 0, bytes(100))])
            files.sync()


def test_what_is_older_than_its_age_is_not_wanted_and_what_is_younger_always_is() -> None:
    machine = Machine()
    machine.retain()
    machine.append(100)
    wanted = machine.retain().wanted
    assert 100 - 24 - 8 < wanted <= 100 - 24, "a segment is an eighth of a day"
    assert [machine.retain(wanted).first for _ in range(3)][-1] == wanted, "so many segments at a time"
    machine.now += 2 * DAY
    assert 100 - 8 < machine.retain(wanted).wanted < 100, "what is written to stays, however old it is"


def test_more_than_its_size_is_not_wanted() -> None:
    machine = Machine()
    machine.retain(size=4000, age=-1)
    machine.append(100)
    kept = machine.retain(size=4000, age=-1)
    assert kept.size > 4000
    for _ in range(5):  # so many segments at a time
        kept = machine.retain(kept.wanted, 4000, -1)
    assert 2500 < kept.size <= 4000
    assert kept.wanted == kept.first


def test_time_that_is_set_a_year_ahead_for_a_minute_neither_trims_all_nor_stops_it() -> None:
    machine = Machine()
    machine.retain()
    machine.append(100)
    before = machine.retain().wanted
    machine.ahead = YEAR
    machine.append(4)
    assert machine.retain().wanted <= before + 8
    machine.ahead = 0.0
    machine.append(60)
    assert machine.retain().wanted > before + 40


def test_nodes_that_all_begin_with_time_a_year_ahead_for_a_minute_trim_nothing() -> None:
    """A machine, or all of them, that starts before a time server has set its clock."""
    machine = Machine()
    machine.retain()
    machine.append(100)
    before = machine.retain().wanted
    machine.ahead = YEAR
    machine.start()
    assert machine.retain().wanted <= before
    machine.now += 60
    assert machine.retain().wanted <= before
    machine.ahead = 0.0
    machine.now += DAY
    assert before + 20 < machine.retain().wanted <= 100


def test_a_node_that_began_with_time_a_year_ahead_is_outvoted_and_comes_right() -> None:
    sound, wrong = Machine(), Machine()
    for machine in (sound, wrong):
        machine.retain()
        machine.append(100)
    wrong.ahead = YEAR
    wrong.start()
    wrong.retain()
    wrong.append(4)
    believed = sound.retain().wanted
    assert wrong.retain().wanted > believed + 20
    assert agreed([sound.retain().wanted, wrong.retain().wanted, sound.retain().wanted], 3) == believed
    assert agreed([wrong.retain().wanted], 3) == 0, "one of three is no majority"
    wrong.ahead = 0.0
    wrong.start()
    wrong.retain()
    wrong.append(60)
    assert 100 < wrong.retain().wanted <= 164 - 24


async def test_a_log_with_a_size_does_not_grow_and_all_copies_end_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "LOOK_S", 0.05)
    async with running_log(tmp_path, policy=Policy(bytes_max=BYTES_MAX)) as log:
        await log.settled()
        await log.until_all_vote()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            for number in range(60):
                await client.append(0, b"%d" % number + bytes(2000))
            files = [node.directory.partition(0) for node in log.nodes.values()]

            def small() -> bool:
                return all(one is not None and one.first > 0 and one.size <= BYTES_MAX for one in files)

            await eventually(small, ANSWER_S)
            first = await client.first(0)
            assert first > 30
            assert all(one is not None and one.first <= first for one in files)
            assert [tx.data[:2] async for tx in client.read(0, first, 60)] == [b"%d" % n for n in range(first, 60)]
        [metric] = [one for one in log.servers[0].metrics() if one.name == "pavane_waltz_first_transaction"]
        assert metric.value == first

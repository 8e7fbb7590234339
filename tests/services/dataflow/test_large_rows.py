"""A step takes as many bytes as it can hold, whether a view is built, is far behind, or is at one large tick."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from pavane.dataflow import source
from pavane.dataflow.duckstate import Files
from pavane.dataflow.runner import ViewRunner
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.source import LogSource
from pavane.dataflow.ticks import Ticks
from tests.services.dataflow.hooked import Hooked
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION
from tests.services.dataflow.test_kept_state import PARSED, CountingLog, files_in, new_log, row, wrong

ROW_BYTES = 12_000
ROWS_OF_A_STEP = 5
COUNT = 23
HOUR_MS = 3_600_000


class Watched(Hooked):
    """Notes how many rows of the tables each step takes."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.most = 0

    def around(self, step: Callable[[], pa.Table], inputs: Mapping[str, pa.Table]) -> pa.Table:
        read = [table.num_rows for name, table in inputs.items() if name in {each.name for each in PARSED.tables}]
        self.most = max([self.most, *read])
        return step()


async def live(log: CountingLog, files: Files, epoch: int, bursts: list[int], *, at_once: bool = False) -> int:
    """Keep the views while so many rows come at each tick, or at the end all ticks; return the rows of a step."""
    clock = count(step=HOUR_MS).__next__  # so that a chain also says that nothing changed
    ticks, home = Ticks(log, TICKS_PARTITION, [DATA], lambda: 0), Home(log, HOME)
    sinks = {v.name: ChainSink(home, TICKS_PARTITION, v, clock, lambda: f"{epoch}") for v in PARSED.views}
    engine = Watched(files)
    try:
        views = ViewRunner([PARSED], ticks, LogSource(log), sinks, engine.open)
        await views.open()
        await views.step()
        await ticks.fence((1, epoch))
        await views.allow((1, epoch))
        for burst in bursts:
            for _ in range(burst):
                number = len(log.partitions[DATA])
                await log.append(DATA, row(number).ljust(ROW_BYTES))
            await ticks.mint()
            if not at_once:
                await views.step()
        await views.step()
    finally:
        engine.close()
    return engine.most


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_BYTES_MAX", ROWS_OF_A_STEP * (ROW_BYTES + source.TRANSACTION_BYTES))


@pytest.mark.parametrize(
    ("bursts", "at_once"),
    [
        pytest.param([COUNT], False, id="one tick"),
        pytest.param([1] * COUNT, True, id="many ticks"),
        pytest.param([2, 9, 1, 1, 8, 1, 1], True, id="ticks of any size"),
    ],
)
async def test_a_step_takes_what_fits(bursts: list[int], at_once: bool) -> None:
    log = new_log()
    assert await live(log, Files(), 1, bursts, at_once=at_once) == ROWS_OF_A_STEP
    assert wrong(log) == []
    assert await live(log, Files(), 2, [1]) == ROWS_OF_A_STEP, "who builds the views anew"
    assert wrong(log) == []


async def test_a_restart_takes_what_came_since_in_pieces(tmp_path: Path) -> None:
    log = new_log()
    await live(log, files_in(tmp_path), 1, [COUNT])
    await live(log, Files(), 2, [COUNT])  # which keeps nothing
    log.reads.clear()
    assert await live(log, files_in(tmp_path), 3, [1]) == ROWS_OF_A_STEP
    assert min(log.reads) == COUNT
    assert wrong(log) == []


async def test_a_row_that_is_larger_than_a_step_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_BYTES_MAX", ROW_BYTES // 2)
    log = new_log()
    assert await live(log, Files(), 1, [4, 1]) == 1
    assert wrong(log) == []

"""A flow that reads the tables itself while it begins: the driver reads what comes later, and notes the bad rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pyarrow as pa

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Binding, Flow, Mode, Script, SqlView, State, Table
from pavane.dataflow.runner import ViewRunner
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.source import Decoding, LogSource
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION
from tests.services.dataflow.test_kept_state import SMALL, CountingLog, new_log, row, wrong

LATER_MS = 10_000
"""So much later is each look at the clock: also that nothing changed is written."""
BAD = b'{"k": 1, "x": "many", "__diff": 1}'


class Building(PlainEngine):
    """As executors do: its flows read the log, and the driver is told where the bad rows are."""

    def __init__(self, log: CountingLog) -> None:
        super().__init__()
        self.log = log

    def open(self, script: Script) -> State:
        return _State(super().open(script), script, self.log)


class _State:
    due = False

    def __init__(self, state: State, script: Script, log: CountingLog) -> None:
        self._state = state
        self._script = script
        self._log = log

    def flow(self, view: SqlView) -> Flow:
        return Builds(self._state.flow(view), self._script, view, self._log)

    def checkpoint(self, at: Mapping[str, Binding]) -> None:
        raise AssertionError(at)

    def close(self) -> None:
        self._state.close()


class Builds:
    raw = True
    at: Binding | None = None

    def __init__(self, flow: Flow, script: Script, view: SqlView, log: CountingLog) -> None:
        self._flow = flow
        self._tables = [table for table in script.tables if table.name in view.tables]
        self._log = log
        self.builds = True
        self.bad: dict[Table, list[tuple[int, int]]] = {}

    def build(self, start: Binding, inputs: Mapping[str, pa.Table]) -> pa.Table:
        known = dict(inputs)
        for table in self._tables:
            decoding, records = Decoding(), self._log.partitions[DATA][: start.next[DATA]]
            kept = Table(table.name, table.columns, table.partitions, table.format, Mode.PERMISSIVE, table.diff)
            known[table.name] = decoding.decoded(kept, DATA, records, [start.tick] * len(records))
            self.bad[table] = [(bad.partition, bad.txid) for bad in decoding.bad]
        return self._flow.step(known, start.tick + 1)

    def step(self, inputs: Mapping[str, pa.Table], upper: int, *, more: bool = False) -> pa.Table:
        return self._flow.step(inputs, upper, more=more)

    @property
    def due_ms(self) -> int | None:
        return self._flow.due_ms

    def contents(self, tick: int) -> pa.Table:
        return self._flow.contents(tick)

    def forget(self) -> None:
        self._flow.forget()


async def views_of(log: CountingLog, script: Script) -> tuple[ViewRunner, LogSource]:
    """The views of a log, built."""
    ticks, home, source = Ticks(log, TICKS_PARTITION, [DATA], lambda: 0), Home(log, HOME), LogSource(log)
    sinks = {
        v.name: ChainSink(home, TICKS_PARTITION, v, count(0, LATER_MS).__next__, lambda: "one") for v in script.views
    }
    await ticks.fence((1, 1))
    await ticks.mint()
    views = ViewRunner([script], ticks, source, sinks, Building(log).open)
    await views.open()
    await views.allow((1, 1))
    await views.step()
    for _ in range(3):
        await log.append(DATA, row(len(log.partitions[DATA])))
        await ticks.mint()
        await views.step()
    return views, source


async def test_the_driver_reads_what_comes_after_a_flow_was_built() -> None:
    log = new_log()
    for number in range(9):
        await log.append(DATA, row(number))
    await views_of(log, SMALL)
    assert min(log.reads) == 9
    assert wrong(log, SMALL) == []


async def test_bad_rows_that_others_read_are_noted_once() -> None:
    log = new_log()
    for data in (row(0), BAD, row(3)):
        await log.append(DATA, data)
    _, source = await views_of(
        log,
        parse("""
CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n FROM t GROUP BY k;
CREATE MATERIALIZED VIEW once AS SELECT DISTINCT k FROM t;"""),
    )
    assert [(bad.partition, bad.txid) for bad in source.bad] == [(DATA, 1)]
    assert source.bad_count == 1


async def test_a_bad_row_ends_the_views_of_a_table_that_asks_for_it() -> None:
    log = new_log()
    for data in (row(0), BAD):
        await log.append(DATA, data)
    views, _ = await views_of(
        log,
        parse("""
CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', diff 'true', mode 'FAILFAST');
CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n FROM t GROUP BY k;"""),
    )
    assert "transaction 1 cannot be decoded" in views.views[0].failure

"""State that is kept in a file: a restart reads what is behind it, and nothing that is wrong with it changes a tick."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import closing as closed
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event, Thread

import duckdb
import pytest

from pavane.dataflow import duckflow, duckstate, source
from pavane.dataflow.chain import Chain
from pavane.dataflow.duckstate import Files
from pavane.dataflow.entries import Minted, decode
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Binding, EngineError, Script
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.runner import ViewRunner
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.source import LogSource
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION, FaultyLog, Record

TABLE = "CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', diff 'true');"
SCRIPT = f"""{TABLE}
CREATE TABLE a (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n, sum(x) AS s FROM t GROUP BY k;
CREATE MATERIALIZED VIEW big AS SELECT k, s FROM sums WHERE s > 20;
CREATE MATERIALIZED VIEW once AS SELECT DISTINCT k FROM t;
CREATE MATERIALIZED VIEW total AS SELECT sum(s) AS s FROM sums;
CREATE MATERIALIZED VIEW added AS SELECT k, count(x) AS n FROM a GROUP BY k HAVING count(x) > 2;
"""
REST = """
CREATE TABLE l (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', key 'k');
CREATE MATERIALIZED VIEW most AS SELECT k, max(x) AS x, min(x) AS y FROM t GROUP BY k;
CREATE MATERIALIZED VIEW kinds AS SELECT k, count(DISTINCT x) AS n, avg(CAST(x AS DOUBLE)) AS m FROM t GROUP BY k;
CREATE MATERIALIZED VIEW beside AS SELECT t.k, t.x, l.x AS y FROM t LEFT JOIN l ON t.x = l.k;
CREATE MATERIALIZED VIEW first AS SELECT k, x FROM most ORDER BY x DESC LIMIT 2;
CREATE MATERIALIZED VIEW ranked AS
  SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x DESC) AS r, (SELECT max(y) FROM most) AS y
  FROM t QUALIFY r < 3;
"""
PARSED = parse(SCRIPT + REST)
SMALL = parse(f"""{TABLE}
CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n, sum(x) AS s FROM t GROUP BY k;
CREATE MATERIALIZED VIEW big AS SELECT k, s FROM sums WHERE s > 20;
""")
ONE = parse(f"{TABLE}CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n, sum(x) AS s FROM t GROUP BY k;")
FAR = 2**40
WAIT_S = 60.0


@dataclass(slots=True)
class CountingLog(FaultyLog):
    reads: list[int] = field(default_factory=list)
    """Transactions of the tables that were read."""

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Record]:
        for record in self.partitions[partition][start:stop]:
            if partition == DATA:
                self.reads.append(record.id)
            yield record


def new_log() -> CountingLog:
    return CountingLog(Random(0), kind=True)


def row(number: int) -> bytes:
    """Some rows are taken back."""
    random = Random(number // 3 if number % 3 == 2 else number)
    return json.dumps(
        {"k": random.randrange(5), "x": random.randrange(9), "__diff": -1 if number % 3 == 2 else 1}
    ).encode()


async def life(log: CountingLog, files: Files, epoch: int, rows: int, script: Script = PARSED) -> None:
    """Keep the views in a process of its own while so many rows come."""
    ticks, home = Ticks(log, TICKS_PARTITION, [DATA], lambda: 0), Home(log, HOME)
    sinks = {v.name: ChainSink(home, TICKS_PARTITION, v, lambda: 0, lambda: f"{epoch}") for v in script.views}
    engine = PlainEngine(files)
    try:
        views = ViewRunner([script], ticks, LogSource(log), sinks, engine.open)
        await views.open()
        await views.step()
        await ticks.fence((1, epoch))
        await views.allow((1, epoch))
        for _ in range(rows):
            await log.append(DATA, row(len(log.partitions[DATA])))
            await ticks.mint()
            await views.step()
    finally:
        engine.close()


def expected(rows: list[dict[str, int]]) -> dict[str, Counter[Row]]:
    there, added, last = Counter[tuple[int, int]](), Counter[int](), dict[int, int]()
    for each in rows:
        last[each["k"]] = each["x"]
        there[each["k"], each["x"]] += each["__diff"]
        added[each["k"]] += 1
    there = Counter({pair: count for pair, count in there.items() if count > 0})
    sums: dict[int, tuple[int, int]] = {}
    values: dict[int, list[int]] = {}
    for (k, x), count in there.items():
        n, s = sums.get(k, (0, 0))
        sums[k] = n + count, s + x * count
        values.setdefault(k, []).append(x)
    most = Counter((k, max(xs), min(xs)) for k, xs in values.items())
    return {
        "sums": Counter((k, n, s) for k, (n, s) in sums.items()),
        "big": Counter((k, s) for k, (_, s) in sums.items() if s > 20),
        "once": Counter((k,) for k in sums),
        "total": Counter([(sum(s for _, s in sums.values()) if sums else None,)]),
        "added": Counter((k, n) for k, n in added.items() if n > 2),
        "most": most,
        "kinds": Counter((k, len(xs), sums[k][1] / sums[k][0]) for k, xs in values.items()),
        "beside": Counter({(k, x, last.get(x)): count for (k, x), count in there.items()}),
        "first": Counter(sorted(((k, x) for k, x, _ in most), key=lambda row: (-row[1], row[0]))[:2]),
        "ranked": Counter(
            (k, x, r, max(y for _, _, y in most))
            for k in values
            for r, x in enumerate(sorted((x for x in values[k] for _ in range(there[k, x])), reverse=True)[:2], 1)
        ),
    }


def wrong(log: FaultyLog, script: Script = PARSED) -> list[tuple[str, int]]:
    """The views and ticks that are wrong or missing."""
    minted = [decode(each.header, each.data) for each in log.partitions[TICKS_PARTITION]]
    ticks = {each.tick: each.next[DATA] for each in minted if isinstance(each, Minted)}
    chains = {view.name: Chain(view.name) for view in script.views}
    updates: dict[str, list[tuple[Row, int, int]]] = {name: [] for name in chains}
    for record in log.partitions[HOME]:
        entry = decode(record.header, record.data)
        assert entry is not None
        table = chains[entry.chain].take(entry)
        updates[entry.chain] += updates_of(table) if table is not None else ()
    rows = [json.loads(each.data) for each in log.partitions[DATA]]
    found = []
    for name, chain in chains.items():
        assert chain.created is not None
        for tick in range(chain.created.as_of, max(ticks) + 1):
            held = Counter[Row]()
            for each, time, diff in updates[name]:
                held[each] += diff * (time <= tick)
            same = Counter({r: n for r, n in held.items() if n}) == expected(rows[: ticks[tick]])[name]
            if not same or (tick >= chain.upper and chain.upper < max(ticks) - 1):
                found.append((name, tick))
    return found


def files_in(folder: Path) -> Files:
    return Files(folder, every_s=0.0)


async def test_a_restart_reads_what_is_behind_the_state_alone(tmp_path: Path) -> None:
    log = new_log()
    await life(log, files_in(tmp_path), 1, 6)
    await life(log, Files(tmp_path, every_s=FAR), 2, 4)  # one checkpoint, where it begins
    log.reads.clear()
    await life(log, files_in(tmp_path), 3, 3)
    assert min(log.reads) == 6
    log.reads.clear()
    await life(log, files_in(tmp_path), 4, 0)
    assert log.reads == []
    assert wrong(log) == []


async def test_a_life_that_kept_nothing_lately_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_BYTES_MAX", 4 * 1100)
    log = new_log()
    await life(log, files_in(tmp_path), 1, 5)
    await life(log, Files(None), 2, 9)
    await life(log, files_in(tmp_path), 3, 3)
    assert wrong(log) == []


async def test_a_state_that_is_ahead_of_the_chains_is_not_used(tmp_path: Path) -> None:
    log = new_log()
    await life(log, files_in(tmp_path), 1, 5, SMALL)
    chains, locks = deepcopy(log.partitions[HOME]), dict(log.locks)
    await life(log, files_in(tmp_path), 2, 3, SMALL)
    log.partitions[HOME], log.locks = chains, locks  # as if its last batches had not come
    log.reads.clear()
    await life(log, files_in(tmp_path), 3, 3, SMALL)
    assert min(log.reads) == 0
    assert wrong(log, SMALL) == []


async def test_a_state_of_another_log_is_not_used(tmp_path: Path) -> None:
    await life(new_log(), files_in(tmp_path), 1, 6, SMALL)
    log = new_log()
    for _ in range(2):
        await log.append(DATA, row(1))
    await life(log, files_in(tmp_path / "other"), 1, 9, SMALL)
    log.reads.clear()
    await life(log, files_in(tmp_path), 2, 3, SMALL)
    assert min(log.reads) == 0
    assert wrong(log, SMALL) == []


def file_of(folder: Path) -> Path:
    (found,) = folder.glob("*.duckdb")
    return found


def flipped(offset: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x10
        path.write_bytes(data)

    return damage


def cut(part: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * part))


def of_another_plan(path: Path) -> None:
    """One with a view of the same name."""
    path.unlink()
    script = parse(
        f"{TABLE}CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n, sum(x + 1) AS s FROM t GROUP BY k;"
    )
    checkpoint_of(script, path.parent)


def of_another_duckdb(path: Path) -> None:
    path.unlink()
    before, duckdb.__version__ = duckdb.__version__, "1.9.9"
    try:
        checkpoint_of(PARSED, path.parent)
    finally:
        duckdb.__version__ = before


def checkpoint_of(script: Script, folder: Path) -> None:
    engine = PlainEngine(files_in(folder))
    state = engine.open(script)
    state.flow(script.views[0]).step({"t": table_of([((1, 2), 1, 1)], arrow_schema(script.tables[0].columns))}, 2)
    state.checkpoint({script.views[0].name: Binding(1, {DATA: 1}, 0)})
    engine.close()


def foreign(path: Path) -> None:
    path.unlink()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE x AS SELECT 1 AS y")


def text(path: Path) -> None:
    path.write_text("x" * 40_000)


BAD: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": cut(0.0),
    "a bit of its header": flipped(20),
    "a bit of its version": flipped(12),
    "a bit of a block": flipped(12_288 + 700),
    "cut within the header": lambda path: os.truncate(path, 700),
    "cut behind the header": lambda path: os.truncate(path, 12_288),
    "cut in the middle": cut(0.5),
    "cut at the end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "another plan": of_another_plan,
    "another DuckDB": of_another_duckdb,
    "foreign": foreign,
    "text": text,
    "the last start died": lambda path: path.with_name(f"{path.name}.busy").touch(),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[CountingLog, Path]:
    log, folder = new_log(), tmp_path_factory.mktemp("kept")
    asyncio.run(life(log, files_in(folder), 1, 6, SMALL))
    return log, folder


@pytest.mark.parametrize("name", BAD)
async def test_a_file_that_is_not_as_it_was_is_built_anew(
    name: str, kept: tuple[CountingLog, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, folder = deepcopy(kept[0]), tmp_path / "state"
    shutil.copytree(kept[1], folder)
    BAD[name](file_of(folder))
    log.reads.clear()
    with caplog.at_level(logging.INFO, duckstate.__name__):
        await life(log, files_in(folder), 2, 1, SMALL)
    assert min(log.reads) == 0, "it was trusted"
    assert len([each for each in caplog.records if each.name == duckstate.__name__]) == 1, caplog.text
    assert wrong(log, SMALL) == []
    caplog.clear()
    log.reads.clear()
    with caplog.at_level(logging.INFO, duckstate.__name__):
        await life(log, files_in(folder), 3, 1, SMALL)
    assert caplog.text == ""
    assert wrong(log, SMALL) == []


KILLED = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from pavane.dataflow import duckflow, duckstate
from tests.services.dataflow.test_kept_state import SMALL, files_in, life, new_log
for case in sys.argv[1:]:  # what is imported is imported once
    if (child := os.fork()) == 0:
        break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, case
else:
    sys.exit(0)
folder, left, how = case.split(":")
left = int(left)
def die(): os.kill(os.getpid(), signal.SIGKILL)
class Flow(duckflow.DuckFlow):
    def commit(self, digest, at):
        global left
        left -= 1
        if left == 0 and how == "before":
            die()
        super().commit(digest, at)
        if left == 0:
            die() if how == "after" else threading.Timer(int(how) / 10_000, die).start()
duckstate.DuckFlow = Flow
asyncio.run(life(new_log(), files_in(Path(folder)), 1, 10_000, SMALL))
"""


async def test_a_process_is_killed_while_it_writes_a_checkpoint(tmp_path: Path) -> None:
    cases = {tmp_path / str(left): f"{left}:{how}" for left, how in ((1, "before"), (3, "after"), (6, "10"))}
    command = [sys.executable, "-c", KILLED, *(f"{folder}:{case}" for folder, case in cases.items())]
    await asyncio.to_thread(subprocess.run, command, check=True, cwd=Path(__file__).parents[3])
    for folder in cases:
        log = new_log()
        await life(log, Files(None), 1, 8, SMALL)  # what the log and the chains were then
        await life(log, files_in(folder), 2, 2, SMALL)
        await life(log, files_in(folder), 3, 2, SMALL)
        assert wrong(log, SMALL) == []


async def test_a_checkpoint_that_fails_is_said_once_and_the_views_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, files = new_log(), files_in(tmp_path)
    await life(log, files, 1, 3, SMALL)

    def full(*_: object) -> None:
        raise duckdb.FatalException("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(duckflow.DuckFlow, "commit", full)
        with pytest.raises(EngineError, match="no space left"):
            await life(log, files, 2, 3, SMALL)
        log.reads.clear()
        await life(log, files, 3, 3, SMALL)  # opened anew in the same process, and in memory
        assert min(log.reads) == 0
    assert [each.name for each in caplog.records if each.levelno >= logging.WARNING] == [duckstate.__name__]
    log.reads.clear()
    await life(log, files_in(tmp_path), 4, 3, SMALL)
    assert min(log.reads) == 3
    assert wrong(log, SMALL) == []


async def test_a_folder_that_cannot_be_used_is_said_once_and_the_views_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and from one checkpoint to the next."""
    place, log = tmp_path / "state", new_log()
    place.write_text("in the place of the folder")
    files = files_in(place)
    with pytest.raises(EngineError, match="cannot be made, and is in memory"):
        await life(log, files, 1, 3, ONE)
    await life(log, files, 2, 3, ONE)

    place.unlink()
    commit = duckflow.DuckFlow.commit

    def gone(self: duckflow.DuckFlow, digest: str, at: Binding) -> None:
        commit(self, digest, at)
        if place.is_dir():
            shutil.rmtree(place)
            place.write_text("in the place of the folder")

    files = files_in(place)
    with monkeypatch.context() as patched:
        patched.setattr(duckflow.DuckFlow, "commit", gone)
        with pytest.raises(EngineError, match="was not written, and is in memory"):
            await life(log, files, 3, 3, ONE)
    await life(log, files, 4, 3, ONE)
    assert [each.name for each in caplog.records if each.levelno >= logging.WARNING] == [duckstate.__name__] * 2
    assert wrong(log, ONE) == []


def test_who_closes_waits_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that is cancelled closes its engine while a thread of it still writes."""
    began, go, commit = Event(), Event(), duckflow.DuckFlow.commit

    def slow(self: duckflow.DuckFlow, digest: str, at: Binding) -> None:
        began.set()
        assert go.wait(WAIT_S)
        commit(self, digest, at)

    files, at = files_in(tmp_path), Binding(1, {DATA: 1}, 0)
    engine = PlainEngine(files)
    state = engine.open(SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(duckflow.DuckFlow, "commit", slow)
        writing = Thread(target=state.checkpoint, args=({"sums": at, "big": at},))
        closing = Thread(target=engine.close)
        writing.start()
        assert began.wait(WAIT_S)
        closing.start()
        closing.join(0.1)  # it would close now, if it did not wait
        go.set()
        writing.join(WAIT_S)
        closing.join(WAIT_S)
    assert not files.failed
    with closed(PlainEngine(files)) as again:
        assert again.open(SMALL).flow(SMALL.views[0]).at == at


def test_a_script_that_is_open_already_is_in_memory(tmp_path: Path) -> None:
    """Of two dataflows of a foreign controller, or of one that was dropped and comes again."""
    rows = {"t": table_of([((1, 2), 1, 1)], arrow_schema(SMALL.tables[0].columns))}
    files, at = files_in(tmp_path), Binding(1, {DATA: 1}, 0)
    with closed(PlainEngine(files)) as engine:
        states = [engine.open(SMALL) for _ in range(2)]
        for state in states:
            assert list(updates_of(state.flow(SMALL.views[0]).step(rows, 2))) == [((1, 1, 2), 1, 1)]
        assert [state.due for state in states] == [True, False]
        states[0].checkpoint({"sums": at, "big": at})
    with closed(PlainEngine(files)) as engine:
        assert engine.open(SMALL).flow(SMALL.views[0]).at == at


def test_many_steps_are_a_reason_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leaves memory behind until then."""
    monkeypatch.setattr(duckstate, "STEPS_MAX", 3)
    schema = arrow_schema(SMALL.tables[0].columns)
    with closed(PlainEngine(Files(tmp_path, clock=lambda: 0.0))) as engine:
        state = engine.open(SMALL)
        flow, due = state.flow(SMALL.views[0]), []
        for tick in range(1, 8):
            flow.step({"t": table_of([((tick, 2), tick, 1)], schema)}, tick + 1)
            due.append(state.due)
            if state.due:
                state.checkpoint({"sums": Binding(tick, {DATA: tick}, 0)})
        flow.step({"t": table_of([], schema)}, 9)
        assert due == [True, False, False, True, False, False, True]

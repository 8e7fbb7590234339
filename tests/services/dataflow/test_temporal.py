"""Views with `now()`: rows come and leave at their time, on ticks that nothing but time makes."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest

from pavane.dataflow.chain import Chain
from pavane.dataflow.duckstate import Files
from pavane.dataflow.entries import Minted, decode
from pavane.dataflow.explaining import explained
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import CLOCK, SqlError
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.timing import Moments
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.oracle import TIMED, clock, wrong_ticks
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION
from tests.services.dataflow.test_kept_state import CountingLog, new_log

WAIT_S = 60.0
PAGE = Path(__file__).parents[3] / "docs" / "compute.md"
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
TABLE = "CREATE TABLE t (id BIGINT, at TIMESTAMP) USING waltz OPTIONS (partitions '0', diff 'true');"
SECOND = parse(f"""{TABLE}
CREATE MATERIALIZED VIEW recent AS SELECT id FROM t WHERE at > now() - INTERVAL '1' SECOND;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM recent;
""")


def at(ms: int) -> datetime:
    return START + timedelta(milliseconds=ms)


def steps_of(
    where: str, *steps: tuple[list[tuple[Row, int, int]], list[tuple[int, int]]]
) -> list[list[tuple[Row, int, int]]]:
    """What a view over `t` says in each step, of rows and of ticks with their time in ms."""
    made = parse(f"{TABLE}CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE {where}")
    schema, found = arrow_schema(made.tables[0].columns), []
    with closing(PlainEngine().open(made)) as state:
        flow = state.flow(made.views[0])
        for rows, walls in steps:
            ticks = clock([(tick, START_MS + ms) for tick, ms in walls])
            found.append(sorted(updates_of(flow.step({"t": table_of(rows, schema), CLOCK: ticks}, walls[-1][0] + 1))))
    return found


LAST_SECOND = "at > now() - INTERVAL '1' SECOND"
BETWEEN = "at BETWEEN now() - INTERVAL '1' SECOND AND now()"


def test_rows_come_and_leave_at_their_time_in_a_step_of_several_ticks() -> None:
    rows = [((1, at(0)), 1, 1), ((2, at(1000)), 1, 1), ((3, None), 1, 1)]
    ticks = [(2, 999), (3, 1000), (4, 1001), (5, 2000), (6, 2001)]
    assert steps_of(LAST_SECOND, (rows, [(1, 0)]), ([], ticks)) == [
        [((1,), 1, 1), ((2,), 1, 1)],
        [((1,), 3, -1), ((2,), 5, -1)],
    ]
    assert steps_of(BETWEEN, (rows, [(1, 0)]), ([], ticks)) == [
        [((1,), 1, 1)],
        [((1,), 4, -1), ((2,), 3, 1), ((2,), 6, -1)],
    ]


def test_the_example_of_the_page_does_what_it_says() -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (made,) = [parse(text) for text in blocks if "now()" in text]
    rows = [(("home", at(0), at(10_000)), 1, 1), (("home", at(1000), at(2000)), 1, 1)]
    walls = [(1, START_MS + 1000), (2, START_MS + 39_999), (3, START_MS + 40_000), (4, START_MS + 3_601_000)]
    found = {}
    with closing(PlainEngine().open(made)) as state:
        for view in made.views:
            inputs = {"visits": table_of(rows, arrow_schema(made.tables[0].columns)), CLOCK: clock(walls)}
            found[view.name] = sorted(updates_of(state.flow(view).step(inputs, 5)), key=lambda each: each[1:])
    one, other = at(0), at(1000)
    assert found["last_hour"] == [(("home", 2), 1, 1), (("home", 2), 4, -1)]
    assert found["here_now"] == [
        (("home", one), 1, 1), (("home", other), 1, 1), (("home", other), 2, -1), (("home", one), 3, -1)
    ]  # fmt: skip


def test_a_row_that_is_over_or_taken_back_before_its_time_never_shows() -> None:
    came = [((1, at(-1000)), 1, 1), ((2, at(5000)), 1, 1), ((2, at(5000)), 3, -1), ((3, at(2000)), 2, 1)]
    assert steps_of(BETWEEN, (came[:2], [(1, 1)]), (came[2:], [(2, 500), (3, 600), (4, 9000)])) == [[], []]


def test_a_clock_that_goes_back_stands_still() -> None:
    assert steps_of(LAST_SECOND, ([((1, at(0)), 1, 1)], [(1, 0)]), ([((2, at(0)), 3, 1)], [(2, 1000), (3, 10)])) == [
        [((1,), 1, 1)],
        [((1,), 2, -1)],
    ]


def test_a_time_that_is_as_far_as_can_be_is_one() -> None:
    far = datetime(9999, 12, 31, tzinfo=UTC)
    rows = [((1, far), 1, 1), ((2, datetime(1, 1, 1, tzinfo=UTC)), 1, 1)]
    assert steps_of("at + INTERVAL '3660000' DAY > now()", (rows, [(1, 0)])) == [[((1,), 1, 1), ((2,), 1, 1)]]
    assert steps_of("at < now()", (rows, [(1, 0)])) == [[((2,), 1, 1)]]


@pytest.mark.parametrize(
    ("where", "column", "words"),
    [
        (
            "at > now() OR id = 1",
            12,
            "now() stands in WHERE alone, in a comparison that must be true. Write WHERE at >",
        ),
        ("NOT at > now()", 16, "now() stands in WHERE alone"),
        ("at NOT BETWEEN now() AND now()", None, "now() stands in WHERE alone"),
        ("at = now()", 12, "now() stands in WHERE alone"),
        ("now() > now()", 15, "now() stands in WHERE alone"),
        ("at > now() - INTERVAL '1' MONTH", None, "a MONTH is not always as long. Write INTERVAL '30' DAY."),
        ("at > now() - INTERVAL '1:30' HOUR TO MINUTE", None, "is no interval here. Write INTERVAL '90' MINUTE"),
        ("at > now() - INTERVAL '1.5' HOUR", None, "is no interval here"),
        ("at > now() - INTERVAL '3660001' DAY", None, "is too long"),
        ("at > now() - INTERVAL 1e400 SECOND", None, "is too long"),
        ("at > now()" + " - INTERVAL '3660000' DAY" * 40, 12, "longer than 3660000 days together"),
        ("at - INTERVAL '3660000' DAY > now() + INTERVAL '1' DAY", None, "longer than 3660000 days together"),
        ("at - now() < INTERVAL '1' HOUR", 12, "now() stands in WHERE alone"),
        ("id > now()", 7, "id is BIGINT, and is compared with now(). Compare a TIMESTAMP or a DATE."),
        ("at > now(3)", 12, "NOW(3) is not supported"),
        ("id IN (SELECT id FROM t GROUP BY id HAVING max(at) > now())", None, "now() stands in WHERE alone"),
    ],
)
def test_what_follows_no_span_of_time_is_refused_with_its_place(where: str, column: int | None, words: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(f"{TABLE}\nCREATE MATERIALIZED VIEW v AS SELECT id FROM t\nWHERE {where}")
    assert words in str(caught.value)
    assert column is None or (caught.value.line, caught.value.column) == (3, column)


def test_a_view_without_now_has_the_plan_that_it_had() -> None:
    (view, _) = SECOND.views
    assert b"timed" in view.plan
    assert CLOCK in view.tables
    plain = parse(f"{TABLE}CREATE MATERIALIZED VIEW v AS SELECT id FROM t").views[0]
    assert b"timed" not in plain.plan
    assert Plan.decode(plain.plan).encode() == plain.plan
    assert Plan.decode(view.plan).encode() == view.plan


def test_only_columns_that_are_named_behind_where_are_kept() -> None:
    plan = Plan.decode(SECOND.views[0].plan)
    assert [each.type for each in plan.inner[0].columns] == ["BIGINT"]


def test_explain_says_what_is_kept() -> None:
    assert any("rows while their time lasts" in line for line in explained(SECOND.views[0]))


# --- faults are found -------------------------------------------------------------------------------------------------


def inclusive(self: Moments, moment: str) -> str:
    """A moment has come when time is behind it."""
    return TICK(self, f"{moment} + 1")


def at_the_end(self: Moments, moment: str) -> str:
    """All that a step's ticks bring is of the last of them."""
    last = Moments(self.before, ((max(self.ticks)[0], self.last),) if self.ticks else ())
    return TICK(last, moment)


TICK = Moments.tick


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(Moments, "tick", inclusive), (Moments, "tick", at_the_end)],
)
def test_a_fault_is_found(owner: object, name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fault)
    engine = PlainEngine()
    assert any(wrong_ticks(TIMED[2], seed, engine, 12) for seed in range(20))


# --- ticks, restarts --------------------------------------------------------------------------------------------------


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = START_MS
        self.turns = 0

    def now_ms(self) -> int:
        return self.ms

    def clocks(self) -> Clocks:
        return Clocks(self.now_ms, self._steady_s, lambda: uuid4().hex)

    def _steady_s(self) -> float:
        self.turns += 1
        return monotonic()

    async def passed(self, turns: int) -> None:
        """Wait until a keeper has looked so many times."""
        wanted = self.turns + turns
        await until(lambda: self.turns >= wanted)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


def minted(log: CountingLog) -> list[Minted]:
    entries = (decode(each.header, each.data) for each in log.partitions[TICKS_PARTITION])
    return [entry for entry in entries if isinstance(entry, Minted)]


def shown(log: CountingLog) -> tuple[int, int, dict[int, Counter[Row]]]:
    """The tick at which the view `recent` begins, the last one, and what it is at each."""
    chain, updates = Chain("recent"), list[tuple[Row, int, int]]()
    for record in log.partitions[HOME]:
        entry = decode(record.header, record.data)
        if entry is not None and entry.chain == "recent":
            table = chain.take(entry)
            updates += updates_of(table) if table is not None else ()
    if chain.created is None:
        return 0, 0, {}
    found = {}
    for tick in range(chain.created.as_of, chain.upper):
        held = Counter[Row]()
        for row, time, diff in updates:
            held[row] += diff * (time <= tick)
        found[tick] = Counter({row: count for row, count in held.items() if count})
    return chain.created.as_of, chain.upper - 1, found


def wrong(log: CountingLog) -> list[int]:
    """The ticks at which the view is not what rows and wall time say."""
    rows = [json.loads(each.data) for each in log.partitions[DATA]]
    _, _, found = shown(log)
    bad = []
    for tick in minted(log):
        there = Counter(
            (each["id"],)
            for each in rows[: tick.next[DATA]]
            if datetime.fromisoformat(each["at"])
            > datetime.fromtimestamp(tick.wall_ms / 1000, UTC) - timedelta(seconds=1)
        )
        if tick.tick in found and found[tick.tick] != there:
            bad.append(tick.tick)
    return bad


def rows_now(log: CountingLog) -> Counter[Row]:
    _, last, found = shown(log)
    return found.get(last, Counter())


async def add(log: CountingLog, id_: int, ms: int) -> None:
    await log.append(DATA, json.dumps({"id": id_, "at": at(ms).isoformat(), "__diff": 1}).encode())


@asynccontextmanager
async def kept(log: CountingLog, time: Time, files: Files | None = None, generation: int = 1) -> AsyncIterator[Keeper]:
    """A keeper of both views, in a process of its own."""
    place = Place(TICKS_PARTITION, HOME)
    keeper = Keeper(log, [SECOND], place, lambda: PlainEngine(files or Files()), 0.01, time.clocks(), generation)
    keeper.allowed.set()
    task = asyncio.create_task(keeper.run(lambda _: None, lambda text: None))
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_row_leaves_at_its_time_without_input_and_then_nothing_is_minted() -> None:
    log, time = new_log(), Time()
    async with kept(log, time):
        await add(log, 1, 0)
        await add(log, 2, 500)
        await until(lambda: rows_now(log) == {(1,): 1, (2,): 1})
        before = len(minted(log))
        time.ms += 999
        await time.passed(5)
        assert len(minted(log)) == before
        time.ms += 1
        await until(lambda: rows_now(log) == {(2,): 1})
        await time.passed(5)
        assert len(minted(log)) == before + 1
        time.ms += 10_000
        await until(lambda: rows_now(log) == {})
        time.ms += 10_000
        await time.passed(5)
        assert len(minted(log)) == before + 2
    assert wrong(log) == []


async def test_a_clock_that_goes_back_takes_no_tick_back() -> None:
    log, time = new_log(), Time()
    async with kept(log, time):
        await add(log, 1, 0)
        await until(lambda: rows_now(log) == {(1,): 1})
        time.ms += 1000
        await until(lambda: rows_now(log) == {})
        time.ms -= 3_600_000
        await add(log, 2, 0)
        await add(log, 3, 1)
        await until(lambda: rows_now(log) == {(3,): 1})
        time.ms += 3_600_000 + 5000
        await until(lambda: rows_now(log) == {})
    walls = [each.wall_ms for each in minted(log)]
    assert walls == sorted(walls)
    assert wrong(log) == []


async def test_rows_leave_behind_a_restart_with_its_state(tmp_path: Path) -> None:
    log, time, files = new_log(), Time(), Files(tmp_path, every_s=0.0)
    async with kept(log, time, files):
        await add(log, 1, 0)
        await add(log, 2, 5000)
        await until(lambda: rows_now(log) == {(1,): 1, (2,): 1})
        await time.passed(3)
    log.reads.clear()
    async with kept(log, time, Files(tmp_path, every_s=0.0)):
        await time.passed(3)
        time.ms += 1000
        await until(lambda: rows_now(log) == {(2,): 1})
        await time.passed(3)
    assert log.reads == []  # the state was used
    time.ms += 10_000  # while nobody looks
    async with kept(log, time, Files(tmp_path, every_s=0.0)):
        await until(lambda: rows_now(log) == {})
    assert log.reads == []
    assert wrong(log) == []


async def test_rows_leave_behind_a_rollout_and_a_start_without_state() -> None:
    log, time = new_log(), Time()
    async with kept(log, time):
        await add(log, 1, 0)
        await add(log, 2, 5000)
        await until(lambda: rows_now(log) == {(1,): 1, (2,): 1})
        time.ms += 1000
        async with kept(log, time, generation=2):
            await until(lambda: rows_now(log) == {(2,): 1})
            await until(lambda: minted(log)[-1].rank.writer == 2)
            time.ms += 5000
            await until(lambda: rows_now(log) == {})
    assert wrong(log) == []

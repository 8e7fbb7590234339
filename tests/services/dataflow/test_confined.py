"""What a user's SQL does to its own process, and to nobody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pavane.dataflow.confined import Confined
from pavane.dataflow.evaluating import Limits, QueryError, QueryTooLarge, QueryTooSlow
from pavane.dataflow.ports import DIFF
from pavane.dataflow.querying import Query

MIB = 1 << 20
WAIT_S = 60.0
ROWS = {"v": pa.table({"id": pa.array([1, 2, 3], pa.int64()), DIFF: pa.array([1, 1, 2], pa.int64())})}
NO_ROOM = "needs more than the 128 MiB of memory"
HOW_MANY = Query("SELECT count(*) AS n, sum(id) AS s FROM v")
WITHOUT_END = "SELECT count(*) AS n FROM " + ", ".join(f"v v{number}" for number in range(20))


LIMITS = Limits(rows=100, bytes=MIB, seconds=WAIT_S, memory_bytes=128 * MIB)


@pytest.fixture
async def confined() -> AsyncIterator[Confined]:
    async with asyncio.timeout(WAIT_S), Confined(LIMITS, processes=2) as made:
        yield made


async def counted(confined: Confined) -> None:
    """Ask, again where a slow machine does not answer in time."""
    while True:
        with suppress(QueryTooSlow):
            assert (await confined.answer(HOW_MANY, ROWS)).to_pylist() == [{"n": 4, "s": 9}]
            return


async def test_a_query_that_takes_all_memory_ends_alone(confined: Confined) -> None:
    """DuckDB's own limit counts none of these: one query took 2.8 to 5 GB."""
    for sql in (
        "SELECT length(repeat('x', 2000000000)) AS n",
        "SELECT sum(i) AS n FROM (SELECT explode(sequence(1, 1000000000)) AS i)",
        "WITH RECURSIVE r AS (SELECT repeat('x', 999) s UNION ALL SELECT s || s FROM r) SELECT length(s) AS n FROM r",
    ):
        with pytest.raises(QueryTooLarge, match=NO_ROOM):
            await confined.answer(Query(sql), ROWS)
        await counted(confined)


@pytest.mark.parametrize(
    "sql",
    [
        WITHOUT_END,
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) AS n FROM r",
        "SELECT length(lpad('x', 2000000000, 'ab')) AS n",  # it cannot be interrupted
    ],
    ids=["cross join", "recursion", "lpad"],
)
async def test_a_query_that_takes_all_time_ends_alone(sql: str) -> None:
    async with asyncio.timeout(WAIT_S), Confined(replace(LIMITS, seconds=2.0), processes=2) as confined:
        beside = False
        while not beside:  # a slow machine may answer others after that time
            attack = asyncio.create_task(confined.answer(Query(sql), ROWS))
            await counted(confined)
            beside = not attack.done()
            with pytest.raises(QueryTooSlow, match="longer than 2 s"):
                await attack
        await counted(confined)


async def test_who_stops_waiting_ends_the_query() -> None:
    async with asyncio.timeout(WAIT_S), Confined() as confined:
        await counted(confined)
        asked = asyncio.create_task(confined.answer(Query(WITHOUT_END), ROWS))
        later = asyncio.create_task(counted(confined))  # the one process is taken, and would be for ever
        done, _ = await asyncio.wait({asked, later}, timeout=0.2)
        assert not done
        asked.cancel()
        await later


async def test_a_process_that_died_at_rest_costs_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    async with asyncio.timeout(WAIT_S), Confined() as confined:
        await counted(confined)
        started[0].kill()  # as the system does when memory is short
        await started[0].wait()
        await counted(confined)
        assert len(started) == 2


async def test_what_a_process_answers(confined: Confined) -> None:
    with pytest.raises(QueryError, match=r"line 2, column 3: .*tootal"):
        await confined.answer(Query("SELECT id,\n  tootal FROM v"), ROWS)
    with pytest.raises(QueryTooLarge, match="more than 100 rows"):
        await confined.answer(Query("SELECT v.id FROM v, v b, v c, v d"), ROWS)
    with pytest.raises(QueryTooLarge, match="more than 1048576 bytes"):
        await confined.answer(Query("SELECT repeat('x', 2000000) AS s FROM v"), ROWS)
    found = await confined.answer(Query("SELECT id FROM v WHERE id > 9"), ROWS)
    assert (found.num_rows, found.column_names) == (0, ["id"])
    many = {"v": pa.table({"id": pa.array([7], pa.int64()), DIFF: pa.array([1 << 21], pa.int64())})}
    assert (await confined.answer(HOW_MANY, many)).to_pylist() == [{"n": 1 << 21, "s": 7 << 21}]

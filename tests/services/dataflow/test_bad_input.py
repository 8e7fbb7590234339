"""Rows that cannot be: they are counted and listed, views of them say so, and another script does not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, time_ns
from uuid import uuid4

from pavane.dataflow.badrows import BadRows
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from tests.services.dataflow.test_views_of_a_log import until
from tests.services.waltz.running import running_log

ORDERS, OTHERS, TICKS, VIEWS = 0, 1, 2, 3
SCRIPT = """
CREATE TABLE orders (id BIGINT, cents BIGINT, price DECIMAL(6,2))
  USING waltz OPTIONS (partitions '0', diff 'true');
CREATE MATERIALIZED VIEW listed AS SELECT id, cents FROM orders;
"""
OTHER = """
CREATE TABLE others (x BIGINT) USING waltz OPTIONS (partitions '1');
CREATE MATERIALIZED VIEW total AS SELECT sum(x) AS s FROM others;
"""
CLOCKS = Clocks(lambda: time_ns() // 1_000_000, monotonic, lambda: uuid4().hex)
BAD = {
    b"no JSON": "Expecting value",
    b'{"id": 2, "cents": 9223372036854775808, "__diff": 1}': "column 'cents'",  # too large
    b'{"id": 3, "price": "12345.67", "__diff": 1}': "column 'price'",  # too large
    b'{"id": 4, "cents": 4}': "__diff",  # nobody knows whether it comes or goes
}


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[tuple[Waltz, Keeper]]:
    """A log, and the views of both scripts in this process."""
    async with running_log(folder, partitions=4) as running:
        await running.settled()
        async with Waltz([f"127.0.0.1:{running.servers[0].port}"]) as log:
            keeper = Keeper(log, [parse(SCRIPT), parse(OTHER)], Place(TICKS, VIEWS), PlainEngine, 0.02, CLOCKS, 1)
            keeper.allowed.set()
            keeping = asyncio.create_task(keeper.run(lambda _: None, lambda _: None))
            try:
                yield log, keeper
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})


class Reading:
    """Appends, and reads the views once they count that."""

    def __init__(self, log: Waltz) -> None:
        self.log = log
        self.views = Views(log, VIEWS)
        self.sum = 0

    async def append(self, row: bytes) -> int:
        """Append an order, and wait until the other script counts a row that came later; return the transaction."""
        txid = await self.log.append(ORDERS, row)
        await self.log.append(OTHERS, b'{"x": 1}')
        self.sum += 1
        await until(self._counted)
        return txid

    async def listed(self) -> list[tuple[int, int]]:
        tick = self.views.tick_of(["total"])
        await until(lambda: self._reached(tick))
        _, rows = self.views.query("SELECT id, cents FROM listed ORDER BY id")
        return [(row["id"], row["cents"]) for row in rows.to_pylist()]

    async def _counted(self) -> bool:
        await self.views.read_on()
        reader = self.views.readers.get("total")
        if reader is None or reader.tick < reader.since:
            return False
        rows: list[dict[str, int]] = self.views.query("SELECT s FROM total")[1].to_pylist()
        return rows == [{"s": self.sum}]

    async def _reached(self, tick: int) -> bool:
        await self.views.read_on()
        return self.views.tick_of(["listed"]) >= tick


async def test_bad_oversized_negative_and_late_rows_are_told_and_harm_no_other_script(tmp_path: Path) -> None:
    async with kept(tmp_path) as (log, keeper):
        reading = Reading(log)
        await reading.append(b'{"id": 1, "cents": 5, "__diff": 1}')
        txids = [await reading.append(row) for row in BAD]
        noted = BadRows.of_source(keeper.source)
        assert noted.count == len(BAD)
        assert [(row.table, row.partition, row.txid) for row in noted.last] == [
            ("orders", ORDERS, id_) for id_ in txids
        ]
        for row, reason in zip(noted.last, BAD.values(), strict=True):
            assert reason in row.reason
        assert await reading.listed() == [(1, 5)]
        # A row is taken back that comes only later.
        await reading.append(b'{"id": 5, "cents": 7, "__diff": -1}')
        assert await reading.listed() == [(1, 5)]
        await reading.append(b'{"id": 5, "cents": 7, "__diff": 2}')
        assert await reading.listed() == [(1, 5), (5, 7)]


async def test_what_others_append_to_the_partitions_of_ticks_and_views_stops_nothing(tmp_path: Path) -> None:
    """One such transaction ended a ComputeCluster for ever."""
    async with kept(tmp_path) as (log, _):
        reading = Reading(log)
        await reading.append(b'{"id": 1, "cents": 5, "__diff": 1}')
        for partition in (TICKS, VIEWS):
            await log.append(partition, b"no entry")
        await reading.append(b'{"id": 2, "cents": 6, "__diff": 1}')
        await log.append(TICKS, b"no entry")  # at best the last one, when the next generation asks who was before it
        later = Keeper(log, [parse(SCRIPT), parse(OTHER)], Place(TICKS, VIEWS), PlainEngine, 0.02, CLOCKS, 2)
        later.allowed.set()
        keeping = asyncio.create_task(later.run(lambda _: None, lambda _: None))
        try:
            await until(lambda: _leads(log, 2))
            await reading.append(b'{"id": 3, "cents": 7, "__diff": 1}')
            assert await reading.listed() == [(1, 5), (2, 6), (3, 7)]
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})


async def _leads(log: Waltz, generation: int) -> bool:
    return (await Ticks(log, TICKS, [ORDERS, OTHERS], lambda: 0).rank()).generation == generation

"""A controller and two replicas as processes: either replica may die while rows come, and generations change."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, time_ns
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from pavane.dataflow.controlling import Controller
from pavane.dataflow.evaluating import QueryError
from pavane.dataflow.keeping import Clocks, Place
from pavane.dataflow.ports import DIFF, Fenced
from pavane.dataflow.rows import Row
from pavane.dataflow.sql import parse
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.services.dataflow.recomputed import revenue, wrong_ticks
from tests.services.dataflow.test_replica import replica
from tests.services.dataflow.test_views_of_a_log import (
    SCRIPT,
    TICKS,
    VIEWS,
    WAIT_S,
    Bench,
    _async,
    bench,
    largest,
    order,
    until,
)
from tests.services.ports import free_ports

CLOCKS = Clocks(lambda: time_ns() // 1_000_000, monotonic, lambda: uuid4().hex)


class Traffic:
    """Appends orders and peeks without a pause; an error ends it and the test."""

    def __init__(self, log: Waltz, controller: Controller) -> None:
        self.log = log
        self.controller = controller
        self.appended = 0
        self.peeks = 0
        self.tick = 0
        self._stopped = asyncio.Event()
        self._peeked = asyncio.Event()
        self.tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._peek())]

    async def _write(self) -> None:
        while not self._stopped.is_set():
            await self.log.append(self.appended % 2, order(self.appended))
            self.appended += 1
            await asyncio.sleep(0.01)

    async def _peek(self) -> None:
        seen = 0
        while not self._peeked.is_set():
            async with asyncio.timeout(WAIT_S):
                tick, rows = await self.controller.peek("revenue")
            count = sum(row["n"] * row[DIFF] for row in rows.to_pylist())
            assert tick >= self.tick
            assert seen <= count <= self.appended + 1
            seen, self.tick = count, tick
            self.peeks += 1

    async def more(self) -> None:
        """Wait until rows came and were seen."""
        appended, peeks = self.appended + 20, self.peeks + 5
        for task in self.tasks:
            if task.done():
                task.result()
        await until(lambda: _async((self.appended > appended and self.peeks > peeks) or self._failed()))
        if self._failed():
            await self.stop()

    def _failed(self) -> bool:
        return any(task.done() for task in self.tasks)

    async def no_peeks(self) -> None:
        """From now on rows come, and nobody reads them."""
        self._peeked.set()
        await self.tasks[1]

    async def stop(self) -> None:
        self._stopped.set()
        self._peeked.set()
        await asyncio.gather(*self.tasks)


async def ended(*tasks: asyncio.Future[None]) -> None:
    """Cancel what still runs."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def ignored(*_: object) -> None:
    """Nobody listens."""


def controller_of(log: Waltz, ports: list[int], generation: int) -> Controller:
    replicas = {f"r{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
    return Controller(log, [parse(SCRIPT)], Place(TICKS, VIEWS), replicas, 0.1, CLOCKS, generation)


async def counted(controller: Controller, view: str) -> Counter[Row]:
    _, rows = await controller.peek(view)
    found: Counter[Row] = Counter()
    for row in rows.to_pylist():
        count = row.pop(DIFF)
        found[tuple(row.values())] += count
    return found


async def taken_over(views: Bench, port: int) -> asyncio.subprocess.Process:
    """Start the controller of generation 2 by the command line; return when its views are written."""
    options = ["--replica", f"127.0.0.1:{port}", "--generation", "2"]
    process = await views.sql("run", str(views.script), "--ticks", str(TICKS), "--interval", "0.1", *options)
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        line = await process.stdout.readline()
    assert b"up to date at tick" in line, (line, await process.communicate())
    return process


@pytest.mark.timeout(240)  # about 25 s: six processes start
async def test_either_replica_dies_and_a_generation_takes_over(tmp_path: Path) -> None:
    async with bench(tmp_path) as (views, log), AsyncExitStack() as stack:
        one, other, newer = free_ports(3)
        first, second = [await stack.enter_async_context(replica(views, port)) for port in (one, other)]
        controller = controller_of(log, [one, other], 1)
        keeping = asyncio.create_task(controller.run(ignored, ignored))
        stack.push_async_callback(ended, keeping)
        await until(lambda: _async(controller.connected == {"r0", "r1"} or keeping.done()))
        assert not keeping.done(), keeping.exception()
        assert await log.hwm(VIEWS) == await log.hwm(TICKS) == -1  # nothing before it may write
        controller.allowed.set()
        traffic = Traffic(log, controller)
        stack.push_async_callback(ended, *traffic.tasks)
        await traffic.more()
        first.kill()
        await until(lambda: _async(controller.connected == {"r1"}))
        await traffic.more()
        first = await stack.enter_async_context(replica(views, one))
        await until(lambda: _async(controller.hydrated == {"r0", "r1"}))
        second.kill()
        await until(lambda: _async(controller.connected == {"r0"}))
        await traffic.more()
        with pytest.raises(QueryError, match="there is no view revenu; views here: largest, revenue"):
            await controller.peek("revenu")
        await stack.enter_async_context(replica(views, newer, 2))
        await traffic.no_peeks()
        successor = await taken_over(views, newer)
        try:
            with pytest.raises(Fenced, match="generation 2, epoch 1"):
                async with asyncio.timeout(WAIT_S):
                    await keeping
            async with asyncio.timeout(WAIT_S):
                assert await first.wait() == 0
            await traffic.stop()
            await until(lambda: _all_counted(log, traffic.appended))
        finally:
            successor.kill()
            await successor.communicate()
        ticks, wrong = await wrong_ticks(log, (0, 1), TICKS, VIEWS, {"revenue": revenue, "largest": largest})
        assert ticks > 10
        assert wrong == []


async def _all_counted(log: Waltz, appended: int) -> bool:
    reader = Views(log, VIEWS)
    await reader.look()
    _, rows = reader.query("SELECT sum(n) AS n FROM revenue")
    reader.close()
    return bool(rows.to_pylist() == [{"n": appended}])


@pytest.mark.timeout(120)
async def test_a_controller_that_starts_again_leads_the_replicas_it_finds(tmp_path: Path) -> None:
    async with bench(tmp_path) as (views, log):
        (port,) = free_ports(1)
        orders = [json.loads(order(number)) for number in range(20)]
        async with replica(views, port):
            first = controller_of(log, [port], 1)
            first.allowed.set()
            keeping = asyncio.create_task(first.run(ignored, ignored))
            for number in range(20):
                await log.append(number % 2, order(number))
            await until(lambda: _shown(first, revenue(orders)))
            second = controller_of(log, [port], 1)
            second.allowed.set()
            again = asyncio.create_task(second.run(ignored, ignored))
            with pytest.raises(Fenced):
                async with asyncio.timeout(WAIT_S):
                    await keeping
            await log.append(0, order(20))
            await until(lambda: _shown(second, revenue([*orders, json.loads(order(20))])))
            await ended(again)
        assert (await wrong_ticks(log, (0, 1), TICKS, VIEWS, {"revenue": revenue, "largest": largest}))[1] == []


@pytest.mark.timeout(120)
async def test_a_row_leaves_a_replica_at_its_time_though_nothing_comes(tmp_path: Path) -> None:
    """Only a tick tells replicas the time, so the controller mints them also where no row came."""
    now_ms = time_ns() // 1_000_000
    made = parse("""
CREATE TABLE orders (id BIGINT, at TIMESTAMP) USING waltz OPTIONS (partitions '0', format 'json');
CREATE MATERIALIZED VIEW recent AS SELECT id FROM orders WHERE at > now() - INTERVAL '1' HOUR;
""")
    async with bench(tmp_path) as (views, log):
        (port,) = free_ports(1)
        async with replica(views, port):
            clocks = Clocks(lambda: now_ms, monotonic, lambda: uuid4().hex)
            controller = Controller(log, [made], Place(TICKS, VIEWS), {"r0": f"127.0.0.1:{port}"}, 0.1, clocks, 1)
            controller.allowed.set()
            keeping = asyncio.create_task(controller.run(ignored, ignored))
            for id_, hours in ((1, 0), (2, 3)):
                at = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(hours=hours)
                await log.append(0, json.dumps({"id": id_, "at": at.isoformat()}).encode())
            await until(lambda: _shown(controller, Counter({(1,): 1, (2,): 1}), "recent"))
            now_ms += 3_600_000
            await until(lambda: _shown(controller, Counter({(2,): 1}), "recent"))
            await ended(keeping)


async def _shown(controller: Controller, rows: Counter[Row], view: str = "revenue") -> bool:
    return await counted(controller, view) == rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replica", "foo"], "--replica foo: write HOST:PORT"),
        (["--generation", "2"], "name them with --replica"),
        (["--replica", "127.0.0.1:7", "--engine", "spark"], "give --engine to `pavane sql replica`"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    script = tmp_path / "views.sql"
    script.write_text(SCRIPT)
    options = ["--servers", "127.0.0.1:1", "--no-tls", "--ticks", "2", "-p", "3"]
    result = CliRunner().invoke(app, ["sql", "run", str(script), *options, *words])
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)
    assert result.exception.code == ExitCode.USAGE


@pytest.mark.timeout(60)
async def test_a_replica_that_does_not_answer_is_named_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as (_, log):
        (port,) = free_ports(1)
        controller = controller_of(log, [port], 1)
        controller.allowed.set()
        troubles: list[str] = []
        keeping = asyncio.create_task(controller.run(ignored, troubles.append))
        await until(lambda: _async(controller.leads))
        ticks = await log.hwm(TICKS)
        await log.append(0, order(1))
        await until(lambda: _grown(log, ticks))  # it mints, so who comes later finds the ticks
        await ended(keeping)
        assert troubles == [f"no replica answers: 127.0.0.1:{port}"]


async def _grown(log: Waltz, ticks: int) -> bool:
    return await log.hwm(TICKS) > ticks

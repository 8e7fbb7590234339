"""Views over a real log, kept by processes that are killed: no tick is wrong, missing or doubled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pavane.dataflow.rows import Row
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from tests.services.dataflow.recomputed import revenue, wrong_ticks
from tests.services.waltz.running import running_log

SCRIPT = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT) USING waltz OPTIONS (partitions '0-1', format 'json');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW largest AS SELECT id, cents FROM orders ORDER BY cents DESC, id LIMIT 3;
"""
TICKS, VIEWS = 2, 3
WAIT_S = 90.0  # a process starts in 2 s, and in 40 where the machine has much else to do

pytestmark = pytest.mark.timeout(300)


async def until(holds: Callable[[], Any]) -> Any:
    """Wait for a condition; the condition may be a coroutine function."""
    async with asyncio.timeout(WAIT_S):
        while not (found := await holds()):
            await asyncio.sleep(0.05)
        return found


class Bench:
    """A log, a script, and `pavane sql` in processes of its own."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self.options = ["--servers", servers, "--no-tls", "-p", str(VIEWS)]
        self.script = folder / "revenue.sql"
        self.script.write_text(SCRIPT)

    async def sql(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pavane_cli.main", "sql", *words, *self.options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )  # fmt: skip

    @asynccontextmanager
    async def watching(self, sql: str) -> AsyncIterator[asyncio.StreamReader]:
        """What `--watch` prints, until Ctrl-C. A failure says how the process ended, and leaves none behind."""
        process = await self.sql("query", sql, "--watch", "-o", "yaml")
        assert process.stdout is not None
        try:
            yield process.stdout
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(WAIT_S):
                await process.wait()
        except (AssertionError, TimeoutError) as error:
            process.send_signal(signal.SIGABRT)  # with PYTHONFAULTHANDLER it says where it stood
            out, told = await process.communicate()
            raise AssertionError(f"{error!r}; also printed {out!r}, {told.decode()}") from error
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def said(self, *words: str) -> str:
        process = await self.sql(*words)
        async with asyncio.timeout(WAIT_S):
            out, error = await process.communicate()
        assert process.returncode == 0, error.decode()
        return out.decode()

    async def query(self, text: str, *options: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(await self.said("query", text, "-o", "json", *options))["rows"]
        return rows

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Keep the script's views in a process; wait until it says that it does."""
        process = await self.sql("run", str(self.script), "--ticks", str(TICKS), "--interval", "0.05")
        assert process.stdout is not None
        try:
            async with asyncio.timeout(WAIT_S):
                line = await process.stdout.readline()
            assert b"up to date at tick" in line, line
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[tuple[Bench, Waltz]]:
    async with running_log(folder / "log", partitions=4, nodes=3) as running:
        await running.settled()
        servers = f"127.0.0.1:{running.servers[0].port}"
        async with Waltz([servers]) as log:
            yield Bench(folder, servers), log


def order(number: int) -> bytes:
    return json.dumps({"id": number, "customer": f"c{number % 5}", "cents": number * 7 % 101}).encode()


def largest(orders: list[dict[str, Any]]) -> Counter[Row]:
    first = sorted(orders, key=lambda each: (-each["cents"], each["id"]))[:3]
    return Counter((each["id"], each["cents"]) for each in first)


async def wrong(log: Waltz) -> tuple[int, list[tuple[str, int]]]:
    return await wrong_ticks(log, (0, 1), TICKS, VIEWS, {"revenue": revenue, "largest": largest})


async def test_processes_are_killed_while_rows_come(tmp_path: Path) -> None:
    async with bench(tmp_path) as (views, log):
        stopped = asyncio.Event()
        appended = 0

        async def write() -> None:
            nonlocal appended
            while not stopped.is_set():
                await log.append(appended % 2, order(appended))
                appended += 1
                await asyncio.sleep(0.005)

        writer = asyncio.create_task(write())
        try:
            for _ in range(4):
                async with views.kept() as process:
                    before = appended
                    await until(lambda before=before: _async(appended > before + 30))  # type: ignore[misc]
                    process.kill()
            async with views.kept() as last:
                stopped.set()
                await writer
                ends = {p: await log.hwm(p) for p in (0, 1)}
                for partition, end in ends.items():
                    after = ["--ticks", str(TICKS), "--after", f"{partition}:{end}"]
                    rows = await views.query("SELECT sum(n) AS n FROM revenue", *after)
                assert rows == [{"n": appended}]
                last.send_signal(signal.SIGTERM)
                async with asyncio.timeout(WAIT_S):
                    assert await last.wait() == 0
        finally:
            stopped.set()
            await writer
        ticks, found = await wrong(log)
        assert ticks > 1
        assert found == []


async def _async(value: Any) -> Any:
    return value


@pytest.mark.long
async def test_who_starts_last_writes(tmp_path: Path) -> None:
    async with bench(tmp_path) as (views, log):
        for number in range(20):
            await log.append(number % 2, order(number))
        async with views.kept() as first, views.kept():
            async with asyncio.timeout(WAIT_S):
                _, error = await first.communicate()
            assert first.returncode == 7
            assert b"another process took over: generation 1, epoch 2" in error
            end = await log.append(0, order(20))
            after = ["--ticks", str(TICKS), "--after", f"0:{end}"]
            assert await views.query("SELECT sum(n) AS n FROM revenue", *after) == [{"n": 21}]
            async with views.watching("SELECT max(id) AS last FROM largest") as shown, asyncio.timeout(WAIT_S):
                assert [await shown.readline() for _ in range(3)][2] == b"- last: 14\n"
                await log.append(1, b'{"id": 999, "customer": "ann", "cents": 999}')
                assert [await shown.readline() for _ in range(3)][2] == b"- last: 999\n"
            followed = await views.said("follow", "largest", "--count", "1")
            assert {json.loads(line)["row"]["cents"] for line in followed.splitlines()} >= {98, 91}
        assert (await wrong(log))[1] == []


@pytest.mark.long
async def test_words_for_what_is_wrong(tmp_path: Path) -> None:
    async with bench(tmp_path) as (views, log):
        views.script.write_text(SCRIPT.replace("cents BIGINT", "cents BIGINTT"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pavane_cli.main", "sql", "check", str(views.script),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, error = await process.communicate()
        assert (process.returncode, b"line 2, column 62: expecting )" in error) == (2, True), error
        views.script.write_text(SCRIPT)
        for words, code, said in (
            (("run", str(views.script), "--ticks", "9"), 2, b"the log has partitions 0 to 3, not 9"),
            (("run", str(views.script), "--ticks", "1"), 2, b"--ticks 1 must be a partition that nothing else uses"),
            (("query", "SELECT * FROM revenu"), 4, b"there is no view revenu; views here: none"),
            (("query", "SELEC 1"), 4, b"this is no SQL"),
        ):
            process = await views.sql(*words)
            _, error = await process.communicate()
            assert (process.returncode, said in error) == (code, True), error.decode()
        async with views.kept():
            await log.append(0, b"no JSON")
            end = await log.append(0, order(1))
            rows = await views.query("SELECT n FROM revenue", "--ticks", str(TICKS), "--after", f"0:{end}")
            assert rows == [{"n": 1}, {"n": 1}]  # PERMISSIVE: a row of NULL
        reader = Views(log, VIEWS)
        await reader.read_on()
        assert reader.names("SELECT * FROM Revenue JOIN largest ON TRUE") == ("revenue", "largest")

"""Views in SQL under changes and SIGKILLs, each compared with plain Spark at every tick (docs/specs/compute.md 19).

Orders and customers are inserted, changed and deleted in two partitions of a log. `pavane sql run` keeps twelve views
of them. Afterwards plain Spark evaluates each query over the rows that were there at each tick, read from nothing but
the log, and the chain must have had the same rows at the same tick.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster import PAVANE, STOP_TIMEOUT_S, BenchError
from bench.machine import resident_mb
from bench.options import Options
from bench.report import Measure, greatest_of
from bench.ticks import SHAPES, TABLES, Oracle, wrong_ticks
from bench.waltz import Log
from pavane.dataflow.entries import Batch, decode
from pavane.waltz.client import Waltz
from pavane_cli import output

ORDERS, CUSTOMERS, TICKS, VIEWS = range(4)
"""Partitions."""
CHANGES_PER_S = 200
BATCH_S = 0.05
ALIVE = 400
"""Orders, about which their number moves."""
CITIES, NAMES = 6, 40
MOVES_S = 180.0
"""So long a pipeline may take to write again."""
HEALED_S = 30.0
"""The bar for it."""
SETTLED_S = 60.0
"""After so long the memory at the beginning is taken."""
PAUSE_S = 2.0
"""Between two kills, once it writes again."""
LOOK_S = 0.05
WRITES_S = 90.0
"""Until a checkpoint begins; with Spark there is one every 30 s."""
CHECKPOINT = "in a checkpoint"


class Changes:
    """Inserts, updates and deletes of rows, as the lines that tell of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._orders: dict[int, dict[str, object]] = {}
        self._cities: dict[str, dict[str, object]] = {}
        self._ids = itertools.count()
        self.made = 0

    def orders(self, count: int) -> list[dict[str, object]]:
        """Return so many changes of orders; an update takes the old row back and puts the new one in."""
        told: list[dict[str, object]] = []
        for _ in range(count):
            self.made += 1
            what = self._random.random() * (1.6 if len(self._orders) > ALIVE else 1.0)
            if what < 0.4 or not self._orders:
                number = next(self._ids)
                self._orders[number] = self._order(number)
                told.append({**self._orders[number], "__diff": 1})
                continue
            number = self._random.choice(list(self._orders))
            told.append({**self._orders.pop(number), "__diff": -1})
            if what < 1.0:
                self._orders[number] = self._order(number)
                told.append({**self._orders[number], "__diff": 1})
        return told

    def customer(self) -> list[dict[str, object]]:
        """Return a change of one customer."""
        self.made += 1
        name = f"c{self._random.randrange(NAMES)}"
        told: list[dict[str, object]] = []
        if name in self._cities:
            told.append({**self._cities.pop(name), "__diff": -1})
        if not told or self._random.random() < 0.8:
            city = f"city {self._random.randrange(CITIES)}"
            self._cities[name] = {"name": name, "city": city, "limit_cents": self._random.randrange(1000)}
            told.append({**self._cities[name], "__diff": 1})
        return told

    def _order(self, number: int) -> dict[str, object]:
        choose = self._random
        return {
            "id": number,
            "customer": f"c{choose.randrange(NAMES)}" if choose.random() > 0.05 else None,
            "cents": choose.randrange(1000) if choose.random() > 0.05 else None,
            "price": f"{choose.randrange(-500, 9000) / 100:.2f}",
            "day": f"2026-{choose.randrange(1, 13):02}-01",
            "paid": choose.random() < 0.5,
        }


@dataclass(slots=True)
class Pipeline:
    """`pavane sql run`, started again whenever it ends, as a pod is."""

    folder: Path
    address: str
    engine: str
    script: str
    state: Path | None = None
    """Where the engine keeps state."""
    process: "subprocess.Popen[bytes] | None" = None
    _ended: bool = field(default=False)

    def start(self) -> None:
        """Start the process."""
        script = self.folder / "views.sql"
        script.write_text(self.script, encoding="utf-8")
        where = ("--servers", self.address, "--no-tls", "--ticks", str(TICKS), "-p", str(VIEWS))
        command = [*PAVANE, "sql", "run", str(script), *where, "--engine", self.engine]
        if self.state is not None and self.engine == "spark":
            command += ["--checkpoint", str(self.state)]
        elif self.state is not None:
            command[: len(PAVANE)] = [sys.executable, "-m", "bench.kept_sql", str(self.state)]
        with (self.folder / "pipeline.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def keep(self) -> None:
        """Start it again whenever it has ended."""
        while not self._ended:
            if self.process is None or self.process.poll() is not None:
                self.start()
            await asyncio.sleep(LOOK_S)

    def stop(self) -> None:
        """End it in order."""
        self._ended = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL all its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def family(self) -> dict[str, list[int]]:
        """Return the processes by what they are: driver, JVM, Python workers."""
        assert self.process is not None
        found: dict[str, list[int]] = {"driver": [self.process.pid], "JVM": [], "worker": []}
        for pid in children(self.process.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found["JVM" if b"org.apache.spark.deploy.SparkSubmit" in command else "worker"].append(pid)
        return found

    async def writes(self) -> None:
        """Wait until it writes into its state."""
        assert self.state is not None
        before = set(self.state.rglob("*"))
        async with asyncio.timeout(WRITES_S):
            while set(self.state.rglob("*")) <= before:
                await asyncio.sleep(LOOK_S / 10)

    def resident_mb(self) -> float:
        """Memory of all its processes."""
        return sum(resident_mb(pid) for pids in self.family().values() for pid in pids)


def children(parent: int) -> list[int]:
    """Return all processes below one."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += [int(child), *children(int(child))]
    return found


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Change rows for some minutes, kill processes meanwhile, and compare every tick."""
    log = Log(folder / "log")
    log.start()
    views = "".join(f"CREATE MATERIALIZED VIEW {name} AS {shape.sql};\n" for name, shape in SHAPES.items())
    pipeline = Pipeline(folder, log.address, options.engine, TABLES + views, folder / "state")
    changes = Changes(seed=1)
    try:
        async with Waltz([log.address]) as client, _begun(client, changes, pipeline):
            watch = _Frontier(client)
            await watch.moves(MOVES_S)
            began, made = time.monotonic(), changes.made
            await asyncio.sleep(min(SETTLED_S, options.minutes * 60))
            before_mb = pipeline.resident_mb()
            await asyncio.sleep(max(0.0, options.minutes * 60 - SETTLED_S))
            after_mb = pipeline.resident_mb()
            output.note(f"{changes.made - made} changes in {time.monotonic() - began:.0f} s")
            healed_s = await _kills(pipeline, watch, options.kills)
        async with Waltz([log.address]) as client:
            oracle = await Oracle.read(client, {"orders": [ORDERS], "customers": [CUSTOMERS]}, TICKS)
            output.note(f"{oracle.ticks} ticks; plain Spark evaluates {len(SHAPES)} queries at each")
            wrong = await wrong_ticks(oracle, client, VIEWS, output.note)
    finally:
        pipeline.stop()
        log.stop()
    return [
        Measure("changes of rows", changes.made, ""),
        Measure("views, each compared at every tick", len(SHAPES), ""),
        Measure("ticks", oracle.ticks, ""),
        Measure("views at ticks compared", oracle.compared, ""),
        Measure("of these wrong", len(wrong), "", 0, vital=True),
        Measure("ticks that fell or were skipped", oracle.broken, "", 0, vital=True),
        Measure("memory of all processes after the first minute", before_mb, "MB"),
        Measure("memory at the end / after the first minute, without kills", after_mb / before_mb, "", 1.2),
        *([greatest_of("written again after a SIGKILL", "s", healed_s, HEALED_S)] if healed_s else []),
        Measure("SIGKILLs", len(healed_s), ""),
    ]


@contextlib.asynccontextmanager
async def _begun(client: Waltz, changes: Changes, pipeline: Pipeline) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    tasks = [asyncio.create_task(_change(client, changes, stopping)), asyncio.create_task(pipeline.keep())]
    try:
        yield
        stopping.set()
        await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    pipeline.stop()


async def _change(client: Waltz, changes: Changes, stopping: asyncio.Event) -> None:
    following = asyncio.get_running_loop().time()
    for number in itertools.count():
        if stopping.is_set():
            return
        await client.append(ORDERS, json.dumps(changes.orders(round(CHANGES_PER_S * BATCH_S) - 1)).encode())
        await client.append(CUSTOMERS, json.dumps(changes.customer()).encode())
        following += BATCH_S
        await asyncio.sleep(max(0.0, following - asyncio.get_running_loop().time()))
        if number == 0:
            output.note("changes begin")


class _Frontier:
    """Sees whether views are written."""

    def __init__(self, client: Waltz) -> None:
        self._client = client

    async def moves(self, patience_s: float) -> float:
        """Wait until every view has been written from now on; return the seconds."""
        began = time.monotonic()
        position = await self._client.hwm(VIEWS) + 1
        waiting = set(SHAPES)
        while waiting:
            if time.monotonic() - began > patience_s:
                raise BenchError(f"after {patience_s:.0f} s these views are not written: {', '.join(sorted(waiting))}")
            end = await self._client.hwm(VIEWS) + 1
            async for transaction in self._client.read(VIEWS, position, end):
                position = transaction.id + 1
                entry = decode(transaction.header, transaction.data)
                if isinstance(entry, Batch):
                    waiting.discard(entry.chain)
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began


async def _kills(pipeline: Pipeline, watch: _Frontier, count: int) -> list[float]:
    """Kill so often, or until a kill is not healed: what was written by then is still compared."""
    found: list[float] = []
    for number in range(count):
        try:
            found.append(await _kill(pipeline, watch, number))
        except (BenchError, TimeoutError) as error:
            output.note(f"kill {number + 1}: {error or f'no checkpoint within {WRITES_S:.0f} s'}; no more of them")
            return [*found, MOVES_S]
    return found


async def _kill(pipeline: Pipeline, watch: _Frontier, number: int) -> float:
    """Kill the next kind of process and wait until all views are written again; return the seconds."""
    kinds = [kind for kind, pids in pipeline.family().items() if pids] + [CHECKPOINT]
    kind = kinds[number % len(kinds)]
    if kind == CHECKPOINT:
        await pipeline.writes()
    family = pipeline.family()
    victim = kind if family.get(kind) else random.choice(["driver", "JVM"])
    os.kill(random.choice(family[victim] or family["driver"]), signal.SIGKILL)
    took_s = await watch.moves(MOVES_S)
    output.note(f"kill {number + 1}: {kind}, written again after {took_s:.1f} s")
    await asyncio.sleep(PAUSE_S)
    return took_s

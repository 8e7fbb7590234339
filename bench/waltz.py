"""A log of three storage nodes and a server as processes with real fsync, beside NATS JetStream (docs/specs/waltz.md).

Both are on loopback without TLS and keep each record on three disks. Ours is acknowledged when a majority has synced
it; theirs too where JetStream can do that: from 2.10 on, but Debian 12 has 2.9, which syncs every two minutes. Runs of
the two take turns, so that whatever else the machine does befalls both.
"""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster import STOP_TIMEOUT_S
from bench.machine import cpu_s
from bench.nats import NatsCluster, found_server, syncs
from bench.options import Options
from bench.raft import MICRO
from bench.report import Measure, latencies, median_of
from bench.waltz_node import HOST
from pavane.waltz.client import Waltz
from pavane_cli import output
from tests.services.ports import free_ports

PARTITIONS = 4
NODES = 3
DATA, FEED_DATA = bytes(100), bytes(512)
WARM_UP = 200  # appends that are not counted
SEQUENTIAL = 500
UNDER_WAY = 1000  # of a pipelining client
PRODUCERS = 50
BULK = 20_000  # appends of one pipelined run
PRODUCED = 10_000
FED = 20_000  # transactions of one feed
LEAST = {"pipelined": 20_000, "producers": 10_000, "crowd": 10_000, "followers": 4_000, "feed": 50_000}
Append = Callable[[bytes], Awaitable[object]]


@dataclass(slots=True)
class _Series:
    """What the runs of one program measured."""

    sequential: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, rate: float) -> None:
        self.rates.setdefault(what, []).append(rate)

    def spent(self, what: str, before: Mapping[str, float], after: Mapping[str, float], count: int) -> None:
        """Note the CPU time of each role per append."""
        for who, seconds in after.items():
            self.costs.setdefault(f"{what}: {who}", []).append((seconds - before[who]) / count * MICRO)


class Log:
    """Storage nodes and a server in processes of their own."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = environment
        *nodes, self._port = free_ports(NODES + 1)
        self._nodes = nodes
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Of the server."""
        return f"{HOST}:{self._port}"

    def start(self) -> None:
        """Start all processes; a client waits for them."""
        self._folder.mkdir(parents=True)
        for number, port in enumerate(self._nodes):
            arguments = ("storage", str(self._folder / f"node-{number}"), str(port), str(PARTITIONS))
            self._start(f"storage-{number}", *arguments)
        self._start("server", "server", str(self._port), str(PARTITIONS), *(f"{HOST}:{port}" for port in self._nodes))

    def stop(self) -> None:
        """Stop all processes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(STOP_TIMEOUT_S)

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each role so far, in seconds; a storage node's is the mean of all."""
        spent = {name: cpu_s(process.pid) for name, process in self.processes.items()}
        server = spent.pop("server")
        return {"client": time.process_time(), "server": server, "a storage node": statistics.mean(spent.values())}

    def _start(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "bench.waltz_node", *arguments]
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Latency, throughput and reading of one log; each run begins with an empty one."""
    ours, theirs = _Series(), _Series()
    beside = found_server()
    if beside is None:
        output.note("nats-server is missing (Debian: nats-server): without it there is nothing to compare with")
    elif not syncs(beside):
        output.note("this nats-server cannot sync each record: it acknowledges what a power failure may take")
    for number in range(options.runs):
        await _run_ours(folder / f"log-{number}", ours)
        if beside is not None:
            await _run_nats(beside, folder / f"nats-{number}", theirs)
    return [*_own(ours), *_rates(ours, theirs), *(_other(theirs) if beside is not None else ())]


def _own(series: _Series) -> list[Measure]:
    costs = series.costs.items()
    return [
        *latencies("append of 100 B, one after the other", series.sequential, None, None),
        *(median_of(f"CPU per {what}", "µs", spent) for what, spent in costs),
    ]


def _other(series: _Series) -> list[Measure]:
    costs = series.costs.items()
    return [
        *latencies("JetStream: publish of 100 B, one after the other", series.sequential, None, None),
        *(median_of(f"JetStream: CPU per {what}", "µs", spent) for what, spent in costs),
    ]


def _rates(ours: _Series, theirs: _Series) -> list[Measure]:
    names = {
        "pipelined": f"appends of 100 B on one connection, {UNDER_WAY} under way",
        "producers": f"appends of 100 B by {PRODUCERS} producers on {PARTITIONS} partitions, one at a time each",
        "crowd": "the same on one partition",
        "followers": f"on {PARTITIONS} partitions, each of the {PRODUCERS} producers follows the feed of its partition",
        "feed": "transactions of 512 B read by one feed",
    }
    found = []
    for what, rates in ours.rates.items():
        found.append(Measure(names[what], statistics.median(rates), "/s", samples=rates, least=LEAST[what]))
        if others := theirs.rates.get(what):
            found.append(median_of(f"JetStream: {names[what]}", "/s", others))
            ratios = [rate / other for rate, other in zip(rates, others, strict=True)]
            found.append(median_of(f"ours / JetStream: {what}", "", ratios))
    return found


async def _run_ours(folder: Path, series: _Series) -> None:
    log = Log(folder)
    log.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(Waltz([log.address]))
            await _one_by_one(lambda data: client.append(0, data), WARM_UP)
            series.sequential += await _one_by_one(lambda data: client.append(0, data), SEQUENTIAL)
            before = log.cpu_s()
            series.add("pipelined", await _pipelined(lambda data: client.append(0, data), BULK))
            series.spent("pipelined append", before, log.cpu_s(), BULK)
            producers = [await stack.enter_async_context(Waltz([log.address])) for _ in range(PRODUCERS)]
            appends = [_appending(producer, number % PARTITIONS) for number, producer in enumerate(producers)]
            before = log.cpu_s()
            series.add("producers", await _by_producers(appends))
            series.spent("append of a producer", before, log.cpu_s(), PRODUCED)
            series.add("crowd", await _by_producers([_appending(producer, 0) for producer in producers]))
            async with _following(producers):
                before = log.cpu_s()
                series.add("followers", await _by_producers(appends))
                series.spent("append of a producer that follows the feed", before, log.cpu_s(), PRODUCED)
            await _pipelined(lambda data: client.append(1, FEED_DATA), FED)
            start = await client.hwm(1) + 1 - FED
            began = time.perf_counter()
            count = 0
            async with contextlib.aclosing(client.feed(1, from_=start)) as feed:
                async for _ in feed:
                    count += 1
                    if count == FED:
                        break
            series.add("feed", FED / (time.perf_counter() - began))
    finally:
        log.stop()


@contextlib.asynccontextmanager
async def _following(producers: list[Waltz]) -> AsyncIterator[None]:
    """Let each producer read whatever comes to its partition, once all of them have begun."""

    async def follow(producer: Waltz, partition: int, begun: asyncio.Event) -> None:
        async with contextlib.aclosing(producer.feed(partition, from_=await producer.hwm(partition))) as feed:
            async for _ in feed:
                begun.set()

    events = [asyncio.Event() for _ in producers]
    tasks = [
        asyncio.create_task(follow(producer, number % PARTITIONS, events[number]))
        for number, producer in enumerate(producers)
    ]
    await asyncio.gather(*(event.wait() for event in events))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _appending(log: Waltz, partition: int) -> Append:
    return lambda data: log.append(partition, data)


async def _run_nats(program: str, folder: Path, series: _Series) -> None:
    async with _nats(program, folder) as cluster:
        connection = await cluster.connect()
        others = [await cluster.connect() for _ in range(PRODUCERS)]
        try:
            await _one_by_one(connection.publish, WARM_UP)
            series.sequential += await _one_by_one(connection.publish, SEQUENTIAL)
            before = cluster.cpu_s()
            series.add("pipelined", await _pipelined(connection.publish, BULK))
            series.spent("pipelined publish", before, cluster.cpu_s(), BULK)
            series.add("producers", await _by_producers([other.publish for other in others]))
        finally:
            for each in (connection, *others):
                await each.close()


@contextlib.asynccontextmanager
async def _nats(program: str, folder: Path) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(program, folder, NODES)
    cluster.start()
    try:
        await cluster.until_up()
        yield cluster
    finally:
        cluster.stop()


async def _one_by_one(append: Append, count: int) -> list[float]:
    """Milliseconds of appends, one after the other."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await append(DATA)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _pipelined(append: Append, count: int) -> float:
    """Appends per second of one client with many under way."""
    return await _rate([append] * UNDER_WAY, count)


async def _by_producers(appends: list[Append]) -> float:
    """Appends per second of clients that each wait for one before the next."""
    return await _rate(appends, PRODUCED)


async def _rate(appends: list[Append], count: int) -> float:
    todo = iter(range(count))

    async def work(append: Append) -> None:
        for _ in todo:
            await append(DATA)

    began = time.perf_counter()
    await asyncio.gather(*map(work, appends))
    return count / (time.perf_counter() - began)

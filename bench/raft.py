"""Three Raft peers as processes, real fsync, our client (docs/specs/raft.md 19); in clear and, in turn, with CURVE."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from bench.cluster import PAVANE, POLL_S, START_TIMEOUT_S, STOP_TIMEOUT_S, BenchError
from bench.machine import cpu_s
from bench.options import Options
from bench.report import Measure, latencies, median_of
from pavane.raft.client import RaftClient
from pavane.raft.curve import CurveKeys, CurveServer
from pavane.raft.errors import RaftError
from tests.services.ports import free_ports

PEERS = ("1", "2", "3")
SECRET = "bench"
DATA = bytes(100)
WARM_UP = 200  # updates that are not counted
SEQUENTIAL = 1000
IN_FLIGHT = (64, 256)
BULK = 10_000  # updates of one run with many in flight
CATCH_UP_TIMEOUT_S = 60.0
MICRO = 1e6


class Peers:
    """Three peers on loopback, each with a folder below ``folder``; ``encrypted`` by CURVE or in clear."""

    def __init__(self, folder: Path, *, encrypted: bool) -> None:
        self._folder = folder
        self._curve = CurveServer(zmq.curve_keypair()[1]) if encrypted else None
        self._urls = {peer: f"tcp://127.0.0.1:{port}" for peer, port in zip(PEERS, free_ports(len(PEERS)), strict=True)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        """Where the peers listen."""
        return list(self._urls.values())

    def start(self, peer: str) -> None:
        """Start one peer; its log is ``peer-ID.log``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"peer-{peer}.log").open("ab") as log:
            self._processes[peer] = subprocess.Popen(
                self._command(peer), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def _command(self, peer: str) -> list[str]:
        members = ",".join(f"{each}={url}" for each, url in self._urls.items())
        command = [*PAVANE, "raft", "peer", "--id", peer, "--data", str(self._folder / peer), "--peers", members]
        if self._curve is not None:
            key = self._folder / "curve.secret"
            key.write_bytes(self._curve.secret)
            command += ["--curve-secret-file", str(key)]
        return [*command, "--secret", SECRET]

    def client(self) -> RaftClient:
        """A client of the three, not yet open."""
        keys = None if self._curve is None else CurveKeys(self._curve.public, *zmq.curve_keypair())
        return RaftClient(self.urls, SECRET.encode(), curve=keys)

    async def until_up(self) -> None:
        """Wait until all peers serve."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for peer, process in self._processes.items():
            while f"up {peer}\n" not in self._log(peer):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"peer {peer} does not come up: {self._log(peer).strip()}")
                await asyncio.sleep(POLL_S)

    async def leader(self) -> str | None:
        """The peer that leads."""
        async with self.client() as client:
            return (await client.configuration()).leader

    def _log(self, peer: str) -> str:
        return (self._folder / f"peer-{peer}.log").read_text(encoding="utf-8", errors="replace")

    def kill(self, peer: str) -> None:
        """Kill one peer with SIGKILL."""
        self._processes[peer].kill()
        self._processes[peer].wait()

    async def rejoin(self, peer: str) -> None:
        """Start a peer that was killed, and wait until it has caught up."""
        self.start(peer)
        async with self.client() as client:
            await self.until_level(client, peer)

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each peer so far, in seconds."""
        return {peer: cpu_s(process.pid) for peer, process in self._processes.items()}

    async def until_level(self, client: RaftClient, peer: str) -> None:
        """Wait until a peer has applied all that the leader had committed when this began."""
        target = (await client.log_info()).commit_index
        async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
            while True:
                with contextlib.suppress(RaftError):
                    if (await client.log_info(self._urls[peer])).applied_index >= target:
                        return
                await asyncio.sleep(POLL_S)

    def stop(self) -> None:
        """Stop all peers."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(STOP_TIMEOUT_S)


@dataclass(slots=True)
class _Series:
    """What the runs of one kind measured."""

    sequential: list[float] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in IN_FLIGHT})
    costs: dict[str, list[float]] = field(default_factory=dict)
    reads: list[float] = field(default_factory=list)
    failovers: list[float] = field(default_factory=list)

    def measures(self, how: str) -> list[Measure]:
        """All of them, with ``how`` behind each name."""
        costs = self.costs.items()
        return [
            *latencies(f"sequential update of 100 B{how}", self.sequential, None, None),
            *(median_of(f"updates of 100 B, {count} in flight{how}", "/s", self.rates[count]) for count in IN_FLIGHT),
            *(median_of(f"CPU per update at {IN_FLIGHT[-1]} in flight{how}: {who}", "µs", cost) for who, cost in costs),
            median_of(f"read of the whole log{how}", "entries/s", self.reads),
            median_of(f"kill -9 of the leader → next update acknowledged{how}", "ms", self.failovers),
        ]


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Latency, throughput, reading and failover of one cluster; each run begins with an empty log.

    Runs in clear and with CURVE take turns, so that whatever else the machine does befalls both.
    """
    clear, encrypted = _Series(), _Series()
    for number in range(options.runs):
        for series, curve in ((clear, False), (encrypted, True)):
            with running(Peers(folder / f"run-{number}-{'curve' if curve else 'clear'}", encrypted=curve)) as peers:
                await peers.until_up()
                async with peers.client() as client:
                    await _run(client, peers, series)
    return [*clear.measures(""), *encrypted.measures(", CURVE")]


async def _run(client: RaftClient, peers: Peers, series: _Series) -> None:
    await _sequential(client, WARM_UP)
    series.sequential += await _sequential(client, SEQUENTIAL)
    for count in IN_FLIGHT:
        rate, cost = await _bulk(client, peers, count)
        series.rates[count].append(rate)
    for who, spent in cost.items():  # of the run with the most in flight
        series.costs.setdefault(who, []).append(spent)
    series.reads.append(await _read(client))
    series.failovers.append(await _failover(client, peers))


@contextlib.contextmanager
def running(peers: Peers) -> Iterator[Peers]:
    """Start all peers, and stop those that run afterwards."""
    try:
        for peer in PEERS:
            peers.start(peer)
        yield peers
    finally:
        peers.stop()


async def _sequential(client: RaftClient, count: int) -> list[float]:
    """Milliseconds of updates, one after the other."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await client.update(DATA)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _bulk(client: RaftClient, peers: Peers, in_flight: int) -> tuple[float, dict[str, float]]:
    """Updates per second with so many under way, and microseconds of CPU per update by program."""
    leader = await _leader(peers)
    todo = iter(range(BULK))

    async def work() -> None:
        for _ in todo:
            await client.update(DATA)

    before, own_before, began = peers.cpu_s(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    took, own = time.perf_counter() - began, time.process_time() - own_before
    spent = {peer: after - before[peer] for peer, after in peers.cpu_s().items()}
    followers = [seconds for peer, seconds in spent.items() if peer != leader]
    seconds_by_program = {"client": own, "leader": spent[leader], "a follower": sum(followers) / len(followers)}
    return BULK / took, {who: seconds / BULK * MICRO for who, seconds in seconds_by_program.items()}


async def _read(client: RaftClient) -> float:
    """Entries per second, read from the first to the last."""
    began, count = time.perf_counter(), 0
    async for _ in client.entries():
        count += 1
    return count / (time.perf_counter() - began)


async def _failover(client: RaftClient, peers: Peers) -> float:
    """Milliseconds from the death of the leader until its client has the next acknowledgement."""
    leader = await _leader(peers)
    for peer in PEERS:
        await peers.until_level(client, peer)
    peers.kill(leader)
    began = time.perf_counter()
    await client.update(DATA)
    return (time.perf_counter() - began) * 1000


async def _leader(peers: Peers) -> str:
    leader = await peers.leader()
    if leader is None:
        raise BenchError("the cluster has no leader")
    return leader

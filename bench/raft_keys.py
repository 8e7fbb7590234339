"""Keys of a cluster of ours: single operations, a hundred watchers, and a long run of puts through snapshots.

docs/specs/raft.md 19.3. Nothing of npm's zmq-raft compares with keys; etcd's put is a row of `contest`.
"""

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.contestants import READY_TIMEOUT_S
from bench.machine import resident_mb
from bench.options import Options
from bench.raft import Peers, running
from bench.report import Measure, greatest_of, latencies, median_of, percentile
from pavane.raft.client import Keys, RaftClient
from pavane.raft.machines.commands import Compare, Put, Relation, Target, Txn, encode_command
from pavane.raft.machines.history import Scope, Watch

WARM_UP = 200
SEQUENTIAL = 500
BULK = 10_000
IN_FLIGHT = 64
VALUE = bytes(100)

WATCHERS = 100
CHANGES = 1000
OTHERS = 10_000  # watchers of other keys, in whose ranges nothing happens
OTHER_CLIENTS = 10
KNOWN_TIMEOUT_S = 60.0

NEVER = 1 << 40  # entries between two snapshots
ENTRIES = 10_000
KEYS = 10_000  # of the long run: the state stays as large as it is, only the log would grow
SHARE_WITHOUT = 10  # the run without snapshots is this part of the one with them
SLICES = 20  # of the long run, after each of which disk and memory are looked at
FLAT_FROM = 1_000_000  # updates: fewer do not fill segments of the log, which are given up as a whole
FLAT_RATIO = 1.25  # greatest of the second half ÷ greatest of the first; the log alone would double
P99_RATIO = 3.0
RESIDENT_MB = 250 * 1.048576  # 250 MiB

Operation = Callable[[int], Awaitable[object]]


class KeyPeers(Peers):
    """Three peers with keys, which take a snapshot every so many entries."""

    def __init__(self, folder: Path, snapshot_entries: int) -> None:
        super().__init__(folder, encrypted=False)
        self._snapshot_entries = snapshot_entries

    def _command(self, peer: str) -> list[str]:
        options = ["--machine", "KeyValue", "--snapshot-entries", str(self._snapshot_entries)]
        return [*super()._command(peer), *options]

    def disk_mb(self) -> float:
        """Megabytes of the largest of the data folders."""
        return max(map(_folder_mb, (self._folder / peer for peer in self._processes)))

    def resident_mb(self) -> float:
        """Megabytes of memory of the largest of the peers."""
        return max(resident_mb(process.pid) for process in self._processes.values())


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Put, get and compare-and-set, one after the other and many at a time, and the way to all watchers."""
    times: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    fan_out: list[float] = []
    beside: list[float] = []
    for number in range(options.runs):
        async with _cluster(folder / f"keys-{number}", ENTRIES) as (peers, client):
            for name, operation in _operations(client.kv).items():
                await _timed(operation, WARM_UP, 1)
                times.setdefault(name, []).extend((await _timed(operation, SEQUENTIAL, 1)).ms)
                rates.setdefault(name, []).append((await _timed(operation, BULK, IN_FLIGHT)).rate)
            fan_out.append(await _fan_out(peers, client.kv))
            beside.append(await _beside_others(peers, client.kv))
    return [
        *(measure for name, found in times.items() for measure in latencies(f"{name}, one by one", found, None, None)),
        *(median_of(f"{name}, {IN_FLIGHT} in flight", "/s", found) for name, found in rates.items()),
        median_of(f"changes told to {WATCHERS} watchers", "/s", fan_out),
        median_of(f"put, {IN_FLIGHT} in flight, beside {OTHERS:,} watchers of other keys", "/s", beside),
    ]


async def measure_snapshots(folder: Path, options: Options) -> list[Measure]:
    """As many updates as asked for, with and without snapshots: latency, and whether disk and memory stay the same."""
    disk: list[float] = []
    memory: list[float] = []
    without, found = _Run(), _Run()
    async with (
        _cluster(folder / "without", NEVER) as (_, other),
        _cluster(folder / "with", ENTRIES) as (peers, client),
    ):
        for _ in range(SLICES):  # in turn, so that whatever else the machine does befalls both
            without.add(await _timed(_updates(other), max(options.updates // SLICES // SHARE_WITHOUT, 1), IN_FLIGHT))
            found.add(await _timed(_updates(client), max(options.updates // SLICES, 1), IN_FLIGHT))
            disk.append(peers.disk_mb())
            memory.append(peers.resident_mb())
        info = await client.log_info()
    flat = FLAT_RATIO if options.updates >= FLAT_FROM else None
    base, loaded = percentile(without.ms, 99), percentile(found.ms, 99)
    return [
        Measure(f"entries, a snapshot every {ENTRIES:,}", info.applied_index, ""),
        Measure("terms, of which each may have had a leader", info.term, ""),
        Measure("updates without snapshots", without.rate, "/s"),
        Measure("updates with them", found.rate, "/s"),
        *latencies("update without snapshots", without.ms, None, None)[:1],
        Measure("update without snapshots, p99", base, "ms"),
        *latencies("update with them", found.ms, None, None)[:1],
        Measure("update with them, p99", loaded, "ms"),
        Measure("p99 with ÷ without", loaded / base, "×", P99_RATIO),
        greatest_of("data folder of a peer", "MB", disk),
        Measure("data folder, second half ÷ first", _growth(disk), "×", flat),
        greatest_of("resident memory of a peer", "MB", memory, RESIDENT_MB),
        Measure("resident memory, second half ÷ first", _growth(memory), "×", flat),
    ]


@dataclass(slots=True)
class _Run:
    """Milliseconds of each of many operations, and the seconds of all."""

    ms: "array[float]" = field(default_factory=lambda: array("f"))
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Operations per second."""
        return len(self.ms) / self.seconds

    def add(self, other: "_Run") -> None:
        """Take the operations of another run to this one's."""
        self.ms += other.ms
        self.seconds += other.seconds


@contextlib.asynccontextmanager
async def _cluster(folder: Path, snapshot_entries: int) -> AsyncIterator[tuple[KeyPeers, RaftClient]]:
    peers = KeyPeers(folder, snapshot_entries)
    with running(peers):
        await peers.until_up()
        async with peers.client() as client:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await client.kv.put(_key(0), VALUE)
            yield peers, client


def _operations(keys: Keys) -> dict[str, Operation]:
    """Return what is timed; each takes the number of its turn."""

    async def compare_and_set(number: int) -> None:
        key = _key(number)
        unchanged = Compare(Target.VALUE, Relation.EQUAL, key, VALUE)
        await keys.txn([unchanged], [Put(key, VALUE)], [Put(key, VALUE)])

    return {
        "put": lambda number: keys.put(_key(number), VALUE),
        "linearizable get": lambda number: keys.get(_key(number)),
        "compare-and-set": compare_and_set,
    }


def _updates(client: RaftClient) -> Operation:
    """Return puts as a client sends them that does not want to know the revision: many in a message (4.4)."""
    return lambda number: client.update(encode_command(Txn((), (Put(_key(number), VALUE),), ())))


async def _timed(operation: Operation, count: int, in_flight: int) -> _Run:
    todo, run = iter(range(count)), _Run()

    async def work() -> None:
        for number in todo:
            began = time.perf_counter()
            await operation(number)
            run.ms.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    run.seconds = time.perf_counter() - began
    return run


async def _fan_out(peers: Peers, keys: Keys) -> float:
    """Changes per second that reach all watchers together: each change counts once for each of them."""
    revision = await keys.put(b"watched", VALUE)

    async def watch(watched: Keys) -> None:
        changes = watched.watch(b"watched", from_=revision + 1)
        async with contextlib.aclosing(changes):
            for _ in range(CHANGES):
                await anext(changes)

    async with peers.client() as client, asyncio.timeout(KNOWN_TIMEOUT_S):
        began = time.perf_counter()
        watching = [asyncio.create_task(watch(client.kv)) for _ in range(WATCHERS)]
        await _timed(lambda _: keys.put(b"watched", VALUE), CHANGES, IN_FLIGHT)
        await asyncio.gather(*watching)
        return CHANGES * WATCHERS / (time.perf_counter() - began)


async def _beside_others(peers: Peers, keys: Keys) -> float:
    """Puts per second while many watch what is not written; each of them has heard of its begin before."""
    begun = asyncio.Semaphore(0)

    async def watch(watching: Keys, number: int) -> None:
        changes = watching.changes(Watch(Scope.KEYS, b"other-%05d" % number, b""))
        async with contextlib.aclosing(changes):
            await anext(changes)
            begun.release()
            async for _ in changes:
                pass

    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(KNOWN_TIMEOUT_S):
        clients = [await stack.enter_async_context(peers.client()) for _ in range(OTHER_CLIENTS)]
        tasks = [asyncio.create_task(watch(clients[number % OTHER_CLIENTS].kv, number)) for number in range(OTHERS)]
        try:
            for _ in tasks:
                await begun.acquire()
            return (await _timed(lambda number: keys.put(_key(number), VALUE), BULK, IN_FLIGHT)).rate
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _growth(samples: Sequence[float]) -> float:
    half = len(samples) // 2
    return max(samples[half:]) / max(samples[:half])


def _folder_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a segment or a snapshot that was just given up
            total += path.stat().st_size
    return total / 1e6


def _key(number: int) -> bytes:
    return b"key-%05d" % (number % KEYS)

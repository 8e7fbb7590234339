"""A log that forgets on purpose, for an hour or more: appends, three consumers, kills, rollouts (waltz.md 13.5, 13.7).

Each transaction says which one of its partition it is, and when: so a consumer of all sees what is lost or doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import signal
import time
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.cluster import LocalCluster, pid_of, running
from bench.machine import resident_mb
from bench.options import Options
from bench.report import Measure, greatest_of
from bench.waltz_chaos import NAMESPACE, VICTIMS, example, logs, signalled, until_settled
from bench.waltz_rollouts import roll
from pavane.waltz.client import Full, Trimmed, Waltz
from pavane.waltz.core.feed import RECORD_BYTES, TAILS_BYTES_MAX
from pavane.waltz.errors import OutcomeUnknown, Unavailable
from pavane_cli import output
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import PODS

KEPT = "64Mi"  # of each partition, on each storage node
VOLUME = "16Gi"  # what the dead consumer holds is on it, too
DATA_BYTES = 1000
TURN_S = 0.05
SLOW_S = 20.0  # that the slow consumer is behind
COMMIT_S = 1.0
KILLED_AFTER_S = (3.0, 15.0)
REMOVED_AFTER = 0.1  # of the time: the dead consumer is taken away, and what it held goes
SAMPLE_S = 5.0
NOTE_SAMPLES = 12  # one line a minute
WARM_S = 60.0  # of a process, before its memory counts
WARM_APPENDS = 4 * TAILS_BYTES_MAX // (DATA_BYTES + RECORD_BYTES)  # as well: two servers fill what they keep, twice
LINE_SAMPLES = 24  # of a process, for a line of its own: two minutes
FOLLOWS_MAX = 0.99  # of a sample, from the one before: beyond, no number of them tells anything
DRAINED_S = 300.0
NEVER = -1

Series = list[tuple[float, float]]
"""Seconds, and what there was then."""


@dataclass
class Tally:
    """What is known of a partition, by the number in its transactions."""

    acknowledged: array[int] = field(default_factory=lambda: array("q"))
    """Its transaction, or NEVER."""
    seen: array[int] = field(default_factory=lambda: array("q"))
    unknown: int = 0
    doubled: int = 0
    trimmed: int = 0
    """How often a consumer missed something that it had not applied."""
    last_ack: float = 0.0
    gap_s: float = 0.0
    applied: dict[str, int] = field(default_factory=dict)
    """The last transaction, by consumer."""

    def see(self, number: int, txid: int) -> None:
        """A consumer that goes through everything has come to a transaction."""
        self.seen.extend([NEVER] * (number + 1 - len(self.seen)))
        self.doubled += self.seen[number] not in (NEVER, txid)
        self.seen[number] = txid

    def appended(self, number: int, outcome: asyncio.Future[int]) -> None:
        """An append has ended."""
        try:
            self.acknowledged[number] = outcome.result()
        except (OutcomeUnknown, Unavailable):
            self.unknown += 1
            return
        now = time.monotonic()
        self.gap_s, self.last_ack = max(self.gap_s, now - (self.last_ack or now)), now

    @property
    def lost(self) -> int:
        """Acknowledged, and not seen there."""
        seen = self.seen
        return sum(at != NEVER and (n >= len(seen) or seen[n] != at) for n, at in enumerate(self.acknowledged))


class Soak:
    """Writers and consumers of all partitions."""

    def __init__(self, log: Waltz, fresh: Waltz, rate: int) -> None:
        self.log, self._fresh, self._rate = log, fresh, rate
        self.tallies = {partition: Tally() for partition in range(log.partition_count)}
        self._stopping = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Append and consume meanwhile; in the end the consumers come to the last transaction."""
        async with asyncio.TaskGroup() as group:
            for partition in self.tallies:
                await self.log.consumer("dead").start(partition, 0)
            readers = [group.create_task(self._consume(name, p)) for p in self.tallies for name in ("slow", "killed")]
            writers = [group.create_task(self._write(partition)) for partition in self.tallies]
            yield
            self._stopping = True
            await asyncio.gather(*writers)
            async with asyncio.timeout(DRAINED_S):
                for partition, tally in self.tallies.items():
                    last = await self.log.hwm(partition)
                    while min(tally.applied.values(), default=NEVER) < last or len(tally.applied) < 2:
                        await asyncio.sleep(TURN_S)
            for reader in readers:
                reader.cancel()

    async def bury(self) -> None:
        """Take the dead consumer away."""
        for partition in self.tallies:
            await self.log.consumer("dead").remove(partition)

    async def _write(self, partition: int) -> None:
        tally, under_way, due = self.tallies[partition], set[asyncio.Future[int]](), time.monotonic()
        while not self._stopping:
            due = max(due + TURN_S, time.monotonic() - TURN_S)  # what was not appended in time is not made up for
            with contextlib.suppress(Full):
                for _ in range(int(self._rate * TURN_S / len(self.tallies))):
                    number = len(tally.acknowledged)
                    data = b"%d %f " % (number, time.time())
                    future = self.log.append_nowait(partition, data.ljust(DATA_BYTES))
                    tally.acknowledged.append(NEVER)
                    under_way.add(future)
                    future.add_done_callback(under_way.discard)
                    future.add_done_callback(partial(tally.appended, number))
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _consume(self, name: str, partition: int) -> None:
        """Apply and commit; the killed one forgets again and again what it has not committed."""
        tally, consumer = self.tallies[partition], self._fresh.consumer(name)
        await consumer.start(partition, 0)
        while True:
            try:
                expected = await consumer.position(partition)
                committed = time.monotonic()
                end = committed + (random.uniform(*KILLED_AFTER_S) if name == "killed" else math.inf)
                async with contextlib.aclosing(self._fresh.feed(partition, from_=expected)) as feed:
                    async for tx in feed:
                        tally.trimmed += tx.id != expected
                        expected = tx.id + 1
                        number, at = tx.data.split()[:2]
                        if name == "slow":
                            if not self._stopping and (early := float(at) + SLOW_S - time.time()) > 0:
                                await asyncio.sleep(early)
                            tally.see(int(number), tx.id)
                        tally.applied[name] = tx.id
                        if time.monotonic() > end:
                            break
                        if time.monotonic() > committed + COMMIT_S:
                            await consumer.commit(partition, tx.id)
                            committed = time.monotonic()
            except Trimmed:
                tally.trimmed += 1
                await consumer.move(partition, await self._fresh.first(partition))
            except Unavailable:
                continue


@dataclass
class Samples:
    """What is on disk and in memory, every few seconds."""

    disk: Series = field(default_factory=list)
    appends: Series = field(default_factory=list)
    memory: defaultdict[tuple[str, int], Series] = field(default_factory=lambda: defaultdict(list))
    """By pod and process."""

    async def take(self, kube: KubeClient, cluster: LocalCluster, soak: Soak) -> None:
        """Look again and again."""
        began = time.monotonic()
        while True:
            at, used = time.monotonic() - began, 0
            for path in cluster.folder.glob(f".pavane/volumes/{NAMESPACE}/data-ledger-storage-*/**/*"):
                with contextlib.suppress(OSError):
                    used += path.stat().st_blocks * 512
            self.disk.append((at, used / 2**20))
            self.memory["pavane up", cluster.process.pid].append((at, resident_mb(cluster.process.pid)))
            for pod in (await kube.list_all(PODS)).items:
                with contextlib.suppress(OSError, KeyError, IndexError, ValueError):
                    pid = pid_of(pod)
                    self.memory[pod["metadata"]["name"], pid].append((at, resident_mb(pid)))
            count = sum(len(tally.acknowledged) for tally in soak.tallies.values())
            self.appends.append((at, count))
            if len(self.disk) % NOTE_SAMPLES == 0:
                begins = [await soak.log.first(partition) for partition in soak.tallies]
                applied = [min(tally.applied.values(), default=NEVER) for tally in soak.tallies.values()]
                output.note(
                    f"{at:.0f} s: {count} appends, {used / 2**20:.0f} MiB on disk, begins {begins}, applied {applied}"
                )
            await asyncio.sleep(SAMPLE_S)

    def measures(self) -> Iterable[Measure]:
        """How it rises."""
        yield greatest_of("disks of the storage nodes, at most", "MiB", [used for _, used in self.disk])
        late = [each for each in self.disk if each[0] > self.disk[-1][0] / 2]
        yield Measure("disks of the storage nodes, slope in the second half ± error", *_shown(late, unit="MiB/h"))
        warm = {key: [each for each in one if each[0] >= self._warm_at(one[0][0])] for key, one in self.memory.items()}
        for (pod, pid), one in sorted(warm.items()):
            if len(one) > LINE_SAMPLES:
                minutes, warm_s = (one[-1][0] - one[0][0]) / 60, one[0][0] - self.memory[pod, pid][0][0]
                what = f"{pod} ({pid}), {minutes:.0f} min from {one[0][1]:.0f} MB, warm after {warm_s:.0f} s: slope"
                yield Measure(what, *_shown(one))
        for role in VICTIMS:
            yield Measure(
                f"all {role}*: slope within each process",
                *_shown(*(one for (pod, _), one in warm.items() if pod.startswith(role) and len(one) > 1)),
            )

    def _warm_at(self, began: float) -> float:
        """When a process counts that was first seen at ``began``."""
        least = next((count for at, count in self.appends if at >= began), math.inf) + WARM_APPENDS
        filled = next((at for at, count in self.appends if count >= least), math.inf)
        return max(began + WARM_S, filled)


def _shown(*several: Series, unit: str = "MB/h") -> tuple[float, str]:
    slope, error = slope_of(several)
    return slope, f"{unit} ± {error:.1f}"


def slope_of(several: Iterable[Series]) -> tuple[float, float]:
    """Return by how much parallel lines through some series rise in an hour, and the standard error of that.

    Memory that is high now is high in five seconds, too: so many samples tell as little as a few that do not follow
    from each other, and the error is that of as few.
    """
    xx = xy = 0.0
    centred: list[Series] = []
    for one in several:
        x, y = (sum(each[axis] for each in one) / len(one) for axis in (0, 1))
        centred.append([(at - x, value - y) for at, value in one])
        xx += sum(at * at for at, _ in centred[-1])
        xy += sum(at * value for at, value in centred[-1])
    free = sum(len(one) - 1 for one in centred) - 1
    if free < 1 or not xx:
        return math.nan, math.nan
    slope = xy / xx
    rests = [[value - slope * at for at, value in one] for one in centred]
    square = sum(rest * rest for one in rests for rest in one)
    follows = sum(rest * after for one in rests for rest, after in pairwise(one)) / square if square else 0.0
    follows = min(max(follows, 0.0), FOLLOWS_MAX)
    return 3600 * slope, 3600 * math.sqrt(square / free / xx * (1 + follows) / (1 - follows))


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Let it run for `minutes`, with `kills` kills and `runs` rollouts meanwhile."""
    source = example(folder, retention={"maxBytes": KEPT}, storage={"size": VOLUME})
    with running(folder, "--fast", str(source)) as cluster:
        await cluster.until_ready()
        async with cluster.client() as kube, logs(kube, cluster) as (log, fresh):
            soak, samples = Soak(log, fresh, options.rate), Samples()
            async with asyncio.TaskGroup() as group:
                sampling = group.create_task(samples.take(kube, cluster, soak))
                async with soak.running():
                    writes = await _disturb(kube, soak, options)
                    firsts = [await log.first(partition) for partition in soak.tallies]
                sampling.cancel()
    tallies = soak.tallies.values()
    appends = sum(len(each.acknowledged) for each in tallies)
    return [
        Measure("appends", appends, ""),
        Measure("appends a second", appends / (60 * options.minutes), "/s"),
        Measure("appends with unknown outcome", sum(each.unknown for each in tallies), ""),
        Measure("appends that a consumer never saw", sum(each.lost for each in tallies), "", 0, vital=True),
        Measure("appends doubled", sum(each.doubled for each in tallies), "", 0, vital=True),
        Measure("trimmed before a living consumer had applied it", sum(t.trimmed for t in tallies), "", 0, vital=True),
        Measure("partitions that were trimmed", sum(first > 0 for first in firsts), ""),
        Measure("transactions trimmed", sum(firsts), ""),
        Measure("longest time without an append of a partition", max(each.gap_s for each in tallies), "s"),
        greatest_of("writeGapMs of status.history, each", "ms", writes),
        *samples.measures(),
    ]


async def _disturb(kube: KubeClient, soak: Soak, options: Options) -> list[float]:
    """Kill, roll out and bury, each at its time; return the gaps of the rollouts that came to their end."""
    began, length_s = time.monotonic(), 60 * options.minutes
    gaps: list[float] = []

    async def until(share: float, what: str) -> None:
        await asyncio.sleep(max(0.0, began + share * length_s - time.monotonic()))
        output.note(f"{what} ({time.monotonic() - began:.0f} s)")

    async def kill() -> None:
        for number in range(options.kills):
            await until((number + 1) / (options.kills + 1), f"kill {number + 1}")
            name, _ = await signalled(kube, signal.SIGKILL, spared=_is_spared)
            await kube.delete(PODS, name, NAMESPACE)  # another pod comes at once

    async def roll_out() -> None:
        for number in range(options.runs):
            await until((number + 0.5) / options.runs, f"rollout {number + 1}")
            await until_settled(kube)
            gaps.append(await roll(kube))

    async def bury() -> None:
        await until(REMOVED_AFTER, "the dead consumer is removed")
        await soak.bury()

    await asyncio.gather(kill(), roll_out(), bury(), until(1.0, "end"))
    return gaps


def _is_spared(pod: str) -> bool:
    """One storage node and one peer of the registry run all the time: their memory is looked at."""
    return pod.endswith("-0") and not pod.startswith(VICTIMS[0])

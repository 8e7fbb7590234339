"""The local cluster against rows 13 to 15 of docs/specs/operator.md 9."""

import asyncio
import time
from pathlib import Path

from bench import crash
from bench.cluster import (
    BenchError,
    LocalCluster,
    apply_sleepers,
    pid_of,
    running,
    until_all_ready,
    until_no_pods,
)
from bench.machine import resident_mb
from bench.options import Options
from bench.report import Measure, latencies, median_of
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, STATEFUL_SETS

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
SYSTEM = "pavane-system"
READY_S = 10.0  # row 13, all these bars
RESIDENT_MB = 120.0
CREATE_MS = 5.0
WATCH_MS = 50.0
SLEEPERS_READY_S = 1.0  # row 14
SLEEPERS = 3
WARM_UP = 20  # operations that are not counted: connections and caches
OPERATIONS = 300
EVENT_TIMEOUT_S = 10.0
NAMESPACE = "bench"


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Starts, memory, latencies, a StatefulSet, and crashes under writes."""
    return [
        *await _platform(folder, options.runs),
        *await _stateful_sets(folder / "sleepers", options.runs),
        *await crash.measure(folder / "crash", options),
    ]


async def _platform(folder: Path, runs: int) -> list[Measure]:
    """Starts of the whole platform; the rest is measured on the last one."""
    first, second = [], []
    measures: list[Measure] = []
    for number in range(runs):
        here = folder / f"start-{number}"
        with running(here, str(EXAMPLE)) as cluster:
            first.append(await cluster.until_ready())
        with running(here, str(EXAMPLE)) as cluster:
            second.append(await cluster.until_ready())
            if number == runs - 1:
                measures = [*await _memory(cluster), *await _latencies(cluster)]
    return [
        median_of("pavane up quickstart → all Ready, empty folder", "s", first, READY_S),
        median_of("pavane up quickstart → all Ready, second start", "s", second, READY_S),
        *measures,
    ]


async def _memory(cluster: LocalCluster) -> list[Measure]:
    async with cluster.client() as kube:
        pods = (await kube.list_all(PODS)).items
    named = {
        pod["metadata"]["name"]: resident_mb(pid_of(pod)) for pod in pods if pod["metadata"]["namespace"] == SYSTEM
    }
    peers = [resident_mb(pid_of(pod)) for pod in pods if pod["metadata"]["namespace"] != SYSTEM]
    return [
        Measure("resident: API server and kubelet", resident_mb(cluster.process.pid), "MB", RESIDENT_MB),
        *(Measure(f"resident: {name}", value, "MB") for name, value in sorted(named.items())),
        median_of("resident: Raft pod", "MB", peers),
    ]


async def _latencies(cluster: LocalCluster) -> list[Measure]:
    async with cluster.client() as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        created = await _creates(kube)
        seen = await _deliveries(kube)
        await kube.delete(NAMESPACES, NAMESPACE)
    return [
        *latencies("create of a small object over HTTPS", created[WARM_UP:], CREATE_MS, None),
        *latencies("create sent → event of a watch received", seen[WARM_UP:], None, WATCH_MS),
    ]


async def _creates(kube: KubeClient) -> list[float]:
    """Milliseconds of creates, one after the other, with nobody watching."""
    times = []
    for number in range(WARM_UP + OPERATIONS):
        began = time.perf_counter()
        await kube.create(CONFIG_MAPS, {"metadata": {"name": f"create-{number}"}, "data": {"key": "value"}}, NAMESPACE)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def _deliveries(kube: KubeClient) -> list[float]:
    """Milliseconds from the sending of a create until a watch shows the object."""
    position = (await kube.list(CONFIG_MAPS, NAMESPACE)).resource_version
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async for change in kube.watch(CONFIG_MAPS, NAMESPACE, resource_version=position):
            if change.type == "ADDED":
                seen.put_nowait(change.object["metadata"]["name"])

    follower = asyncio.create_task(follow())
    times = []
    try:
        for number in range(WARM_UP + OPERATIONS):
            name = f"watch-{number}"
            began = time.perf_counter()
            creating = asyncio.create_task(kube.create(CONFIG_MAPS, {"metadata": {"name": name}}, NAMESPACE))
            arrived = await asyncio.wait_for(seen.get(), EVENT_TIMEOUT_S)
            times.append((time.perf_counter() - began) * 1000)
            await creating
            if arrived != name:
                raise BenchError(f"the watch showed {arrived} where {name} was created")
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
    return times


async def _stateful_sets(folder: Path, runs: int) -> list[Measure]:
    times = []
    with running(folder, "--bare") as cluster:
        await cluster.until_serving()
        async with cluster.client() as kube:
            for number in range(runs):
                name = f"sleepers-{number}"
                began = time.monotonic()
                await apply_sleepers(kube, name, "default", SLEEPERS)
                await until_all_ready(kube, name, "default")
                times.append(time.monotonic() - began)
                await kube.delete(STATEFUL_SETS, name, "default")
                await until_no_pods(kube, name, "default")
    return [median_of(f"StatefulSet of {SLEEPERS} × sleep → Ready", "s", times, SLEEPERS_READY_S)]

"""SIGKILL of the local cluster at random moments under writes (docs/specs/operator.md 9, row 15)."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

from bench.cluster import (
    POLL_S,
    START_TIMEOUT_S,
    BenchError,
    apply_sleepers,
    processes_by_pod,
    start,
    stop,
    until_all_ready,
)
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from pavane_operator.kube import AlreadyExists, KubeClient, KubeError
from pavane_operator.kube.resources import CONFIG_MAPS

BACK_S = 3.0  # row 15
MOMENT_S_MAX = 2.0  # after the API is back: before and after the pods are up again
SLEEPERS = 3
SLEEPERS_NAME = "sleepers"
NAMESPACE = "default"


class Writer:
    """Creates small objects one after the other, repeating each until it is acknowledged."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self.acknowledged: list[str] = []
        self.news = asyncio.Event()

    async def run(self) -> None:
        """Write for ever."""
        while True:
            name = f"written-{len(self.acknowledged)}"
            try:
                await self._kube.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"key": "value"}}, NAMESPACE)
            except AlreadyExists:
                pass  # stored by the former life of the server, which could no longer say so
            except KubeError:
                await asyncio.sleep(POLL_S)
                continue
            self.acknowledged.append(name)
            self.news.set()

    async def until_next(self) -> None:
        """Wait for an acknowledgement that comes from now on."""
        self.news.clear()
        async with asyncio.timeout(START_TIMEOUT_S):
            await self.news.wait()


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Kill the cluster so many times and count what was lost, what runs twice, and how long the API was away."""
    if options.kills == 0:
        return []
    cluster = start(folder, "--bare")
    try:
        await cluster.until_serving()
        async with cluster.client() as kube:
            await apply_sleepers(kube, SLEEPERS_NAME, NAMESPACE, SLEEPERS)
            await until_all_ready(kube, SLEEPERS_NAME, NAMESPACE)
            writer = Writer(kube)
            writing = asyncio.create_task(writer.run())
            try:
                back: list[float] = []
                doubled = 0
                for _ in range(options.kills):
                    await asyncio.sleep(random.uniform(0, MOMENT_S_MAX))
                    if cluster.process.poll() is not None:
                        raise BenchError("`pavane up` ended by itself")
                    cluster.kill()
                    cluster = start(folder, "--bare")
                    await writer.until_next()
                    back.append(time.monotonic() - cluster.started)
                    doubled += sum(count > 1 for count in processes_by_pod(folder).values())
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            doubled += sum(count > 1 for count in (await _until_running(folder)).values())
            stored = {item["metadata"]["name"] for item in (await kube.list_all(CONFIG_MAPS, NAMESPACE)).items}
    finally:
        stop(cluster)
    lost = sum(name not in stored for name in writer.acknowledged)
    return [
        median_of(f"SIGKILL × {options.kills}: start → API takes writes", "s", back, BACK_S),
        greatest_of(f"SIGKILL × {options.kills}: the same, slowest", "s", back),
        Measure("SIGKILL: writes acknowledged", len(writer.acknowledged), ""),
        Measure("SIGKILL: acknowledged writes lost", lost, "", 0, vital=True),
        Measure("SIGKILL: pods running twice", doubled, "", 0, vital=True),
    ]


async def _until_running(folder: Path) -> Counter[str]:
    """Wait until every pod has a process; status alone may be that of a former life."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            found = processes_by_pod(folder)
            if len(found) == SLEEPERS:
                return found
            await asyncio.sleep(POLL_S)

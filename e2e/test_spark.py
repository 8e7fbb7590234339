"""A ComputeCluster whose SQL runs on Spark: exact while executors, replicas and JVMs die, and generations change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.test_compute import VIEWS, Orders, ViewsTest
from e2e.test_replicas import ONE, OTHER, ReplicasTest
from e2e.waiting import eventually
from pavane.waltz.client import Waltz
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_operator.kube.resources import PODS

pytest.importorskip("pyspark")
pytestmark = pytest.mark.needs(Capability.SPARK)

SCRIPT = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT, note STRING)
  USING waltz OPTIONS (partitions '0-1');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, {what} AS n, sum(cents) AS total FROM orders GROUP BY customer;
"""
NOTE = "x" * 16_384
PAUSE_S = 0.1
"""Ten such orders a second: each step has more than the driver evaluates alone, and the log stays small."""
EXECUTORS = 2
DRIVER: dict[str, Any] = {
    "engine": "Spark",
    "extraEnv": [{"name": "JDK_JAVA_OPTIONS", "value": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}],
}
SPARK: dict[str, Any] = {
    **DRIVER,
    "spark": {"master": "kubernetes", "executors": {"instances": EXECUTORS, "memory": "512Mi"}},
}
START_S = 300.0
"""Until a generation with three JVMs is ready on a machine that has other work too; 60 s on an idle one."""
TEST_S = 900.0


class DriversTest(ReplicasTest):
    """Replicas that each are a driver of Spark, as processes of this machine."""

    def jvm(self, pod: str) -> int:
        """The JVM of a pod; 0 while there is none."""
        words = {f"POD_NAME={pod}", f"POD_NAMESPACE={self.namespace}"}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                environment = (process / "environ").read_bytes().decode(errors="replace").split("\0")
                if words <= set(environment) and b"SparkSubmit" in (process / "cmdline").read_bytes():
                    return int(process.name)
        return 0

    async def until_another_jvm(self, pod: str, former: int) -> None:
        async def started() -> bool:
            return self.jvm(pod) not in (0, former)

        await eventually(started, f"{pod} has another JVM", START_S)


class SparkTest(ViewsTest):
    """Views that Spark evaluates in executors."""

    async def executors(self, generation: int) -> set[str]:
        """The names of the executors of a generation that are there, whatever their state."""
        labels = (
            f"app.kubernetes.io/component=executor,app.kubernetes.io/instance=main,pavane.dev/generation={generation}"
        )
        found = (await self.kube.list_all(PODS, self.namespace, labels=labels)).items
        return {pod["metadata"]["name"] for pod in found}

    async def until_executors(self, generation: int, *, without: str = "") -> set[str]:
        """Wait until a generation has all its executors, and no other ones."""

        async def there() -> set[str] | None:
            names = await self.executors(generation)
            return names if len(names) == EXECUTORS and without not in names else None

        return await eventually(there, f"generation {generation} has its executors", START_S)

    async def until_works(self, executor: str) -> None:
        """Wait until an executor has finished a task."""

        async def worked() -> bool:
            words = ("logs", executor, "-n", self.namespace)
            done = await asyncio.to_thread(self.platform.kubectl, *words, check=False)
            return "Finished task" in done.stdout

        await eventually(worked, f"{executor} has finished a task", START_S)

    def has_room(self) -> bool:
        """Whether executors of two generations fit, each of which asks for a CPU: kind's nodes have the machine's."""
        return Capability.NODES not in self.platform.capabilities or (os.cpu_count() or 1) > EXECUTORS

    async def until_another_generation(self) -> None:
        """Roll out another script."""
        await self.apply_script("count(DISTINCT id)", SCRIPT)
        await self.until_current("main", generation=2, timeout_s=START_S)
        for executor in await self.until_executors(2):
            await self.until_works(executor)

        async def gone() -> bool:
            return not await self.executors(1)

        await eventually(gone, "generation 1 has no executor left")

    async def until_moves(self, log: Waltz) -> float:
        """Wait until the views of two more ticks are written, as one may be under way; return the seconds it took."""
        began, before = time.monotonic(), await log.hwm(VIEWS)

        async def moved() -> bool:
            return await log.hwm(VIEWS) >= before + 2

        await eventually(moved, "the views move on", START_S)
        return time.monotonic() - began


@pytest.mark.timeout(TEST_S)
async def test_views_are_exact_while_executors_die_and_generations_change(raft: RaftTest) -> None:
    views = SparkTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start(SCRIPT, START_S, **SPARK)
    async with views.client_of_log() as log:
        orders = Orders(log, NOTE, PAUSE_S)
        writing = asyncio.create_task(orders.write())
        try:
            for executor in await views.until_executors(1):
                await views.until_works(executor)
            views.kill(executor)
            print(f"views moved on {await views.until_moves(log):.1f} s after an executor was killed")  # noqa: T201
            await orders.more()
            for other in await views.until_executors(1, without=executor):
                await views.until_works(other)
            if views.has_room():
                await views.until_another_generation()
            else:
                for _ in range(5):
                    await orders.more()
        finally:
            orders.stopped.set()
            await writing
        await views.are_exact(log, orders.appended)


@pytest.mark.long
@pytest.mark.needs(Capability.DIRECT)
@pytest.mark.timeout(TEST_S)
async def test_views_are_exact_while_replicas_and_their_jvms_die_and_generations_change(raft: RaftTest) -> None:
    views = DriversTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start(SCRIPT, START_S, replicas=2, **DRIVER)
    await views.until_replicated("AllReplicas")
    async with views.client_of_log() as log:
        orders = Orders(log, pause_s=PAUSE_S)
        writing = asyncio.create_task(orders.write())
        try:
            views.kill(ONE)
            await orders.more()
            await views.until_again(ONE, START_S)
            await views.until_replicated("AllReplicas", timeout_s=START_S)
            former = views.jvm(OTHER)
            os.kill(former, signal.SIGKILL)
            await views.until_another_jvm(OTHER, former)
            await views.until_replicated("AllReplicas", timeout_s=START_S)
            await views.counts(orders.appended)
            await views.apply_script("count(DISTINCT id)", SCRIPT)
            await views.until_current("main", generation=2, timeout_s=START_S)
            await orders.more()
        finally:
            orders.stopped.set()
            await writing
        await views.are_exact(log, orders.appended)

"""A ComputeCluster whose SQL runs on Spark's executors: exact while they die and while generations change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.targets.local import ProcessTarget
from e2e.test_compute import Orders, ViewsTest
from e2e.waiting import eventually
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_operator.kube.resources import PODS

pytest.importorskip("pyspark")
# The clients of the tests are in their own process, and the image of a chart has no Spark.
pytestmark = pytest.mark.needs(Capability.DIRECT)

SCRIPT = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT, note STRING)
  USING waltz OPTIONS (partitions '0-1');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, {what} AS n, sum(cents) AS total FROM orders GROUP BY customer;
"""
NOTE = "x" * 16_384
PAUSE_S = 0.1
"""Ten such orders a second: each step has more than the driver evaluates alone, and the log stays small."""
EXECUTORS = 2
SPARK: dict[str, Any] = {
    "engine": "Spark",
    "spark": {"master": "kubernetes", "executors": {"instances": EXECUTORS, "memory": "512Mi"}},
    "extraEnv": [{"name": "JDK_JAVA_OPTIONS", "value": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}],
}
START_S = 300.0
"""Until a generation with three JVMs is ready on a machine that has other work too; 60 s on an idle one."""
TEST_S = 900.0


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


@pytest.mark.timeout(TEST_S)
async def test_views_are_exact_while_executors_die_and_generations_change(
    raft: RaftTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(raft.platform, ProcessTarget):
        hosts = raft.platform.folder / ".pavane" / "hosts" / raft.namespace
        monkeypatch.setenv(HOSTS_FILE_VARIABLE, str(hosts))
    views = SparkTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start(SCRIPT, START_S, **SPARK)
    async with views.client_of_log() as log:
        orders = Orders(log, NOTE, PAUSE_S)
        writing = asyncio.create_task(orders.write())
        try:
            for executor in await views.until_executors(1):
                await views.until_works(executor)
            views.kill(executor)
            await orders.more()
            for other in await views.until_executors(1, without=executor):
                await views.until_works(other)
            await views.apply_script("count(DISTINCT id)", SCRIPT)
            await views.until_current("main", generation=2, timeout_s=START_S)
            for executor in await views.until_executors(2):
                await views.until_works(executor)

            async def gone() -> bool:
                return not await views.executors(1)

            await eventually(gone, "generation 1 has no executor left")
        finally:
            orders.stopped.set()
            await writing
        await views.are_exact(log, orders.appended)

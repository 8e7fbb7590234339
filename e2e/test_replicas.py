"""A ComputeCluster with replicas in pods of their own: any pod may die, a generation takes over (docs/compute.md)."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.test_compute import TEST_S, Orders, ViewsTest
from e2e.waiting import READY_S, eventually
from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.wire.commands import CreateInstance
from pavane.compute.wire.common import Epoch
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_operator.kube.resources import PODS

pytestmark = pytest.mark.needs(Capability.DIRECT)
CONTROLLER, ONE, OTHER = "main-controller-g1-0", "main-replica-g1-0", "main-replica-g1-1"
PORT = 7072


class ReplicasTest(ViewsTest):
    """Two replicas and their controller."""

    async def until_replicated(self, reason: str, message: str = "", timeout_s: float = READY_S) -> Any:
        def says(document: Any) -> bool:
            found = [each for each in document["status"]["conditions"] if each["type"] == "Replicated"]
            return bool(found) and found[0]["reason"] == reason and message in found[0]["message"]

        return await self.until(says, f"the ComputeCluster says {reason}", "main", timeout_s)

    async def counts(self, least: int) -> None:
        """Wait until the view counts so many orders."""

        async def counted() -> bool:
            words = ("sql", "query", "compute/main", "SELECT sum(n) AS n FROM revenue", "-o", "json")
            done = await asyncio.to_thread(self.platform.run, *words, "-n", self.namespace)
            return bool(json.loads(done.stdout)["rows"][0]["n"] >= least)

        await eventually(counted, f"{least} orders are counted")

    async def refuses_strangers(self, pod: str) -> None:
        """Assert that a controller without a certificate gets nowhere; by its boot number it would lead."""
        address = (await self.kube.get(PODS, pod, self.namespace))["status"]["podIP"]
        with pytest.raises(StreamEnded):
            async with ReplicaStream(f"{address}:{PORT}", Epoch(2**62, 1), CreateInstance("compute", 1)):
                pass

    async def why(self) -> str:
        done = await asyncio.to_thread(self.platform.run, "why", "compute/main", "-n", self.namespace)
        return " ".join(done.stdout.split())


@pytest.mark.timeout(2 * TEST_S)
async def test_any_pod_may_die_and_a_generation_takes_over(raft: RaftTest) -> None:
    views = ReplicasTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start(replicas=2)
    document = await views.until_replicated("AllReplicas")
    assert (document["status"]["readyPods"], document["status"]["replicas"]) == ("3/3", 2)
    await views.refuses_strangers(ONE)
    async with views.client_of_log() as log:
        orders = Orders(log)
        writing = asyncio.create_task(orders.write())
        try:
            await orders.more()
            views.kill(ONE)
            await orders.more()
            await views.until_again(ONE)
            await views.until_replicated("AllReplicas")
            # The other one hangs: it is named, and the views go on with the one that came back.
            views.signal(OTHER, signal.SIGSTOP)
            await views.until_replicated("ReplicaMissing", f"1 of 2 replicas compute the views, not {OTHER}")
            assert f"ReplicaMissing – 1 of 2 replicas compute the views, not {OTHER}" in await views.why()
            await views.counts(orders.appended)
            views.kill(OTHER)
            await views.until_again(OTHER)
            await views.until_replicated("AllReplicas")
            views.kill(CONTROLLER)
            await orders.more()
            await views.until_again(CONTROLLER)
            await views.counts(orders.appended)
            await views.rolls_out(orders)
        finally:
            orders.stopped.set()
            await writing
        await views.are_exact(log, orders.appended)
        assert await views.stateful_sets("main") == ["main-controller-g2", "main-replica-g2"]
        await views.until_bad_row(log)
        status = await views.until_dataflow("UpToDate", "UpToDate")
        assert [view["name"] for view in status["views"]] == ["revenue"]

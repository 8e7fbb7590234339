"""An operator that stands by goes on where another one ends, also within a rollout (docs/specs/operator.md 5.6)."""

import signal

import pytest

from e2e.cluster import LOADED, RaftTest
from e2e.targets import Capability
from e2e.targets.base import SYSTEM
from e2e.targets.charts import ChartTarget
from e2e.test_rollout import reached, roll
from e2e.waiting import eventually
from e2e.writer import WARM_UP_WRITES, shown
from pavane_operator.kube.resources import LEASES

pytestmark = pytest.mark.needs(Capability.CHART)


async def operator_at_work(raft: RaftTest) -> str:
    """Name of the pod that holds the Lease."""

    async def holder() -> str | None:
        held = (await raft.kube.get(LEASES, "pavane-operator", SYSTEM))["spec"].get("holderIdentity") or ""
        pods = await raft.platform.platform_pods(raft.kube, "operator")
        return next((pod["metadata"]["name"] for pod in pods if held.startswith(pod["metadata"]["uid"])), None)

    return await eventually(holder, "an operator that runs holds the Lease")


@pytest.mark.parametrize("end", ["deleted", "killed"])
async def test_a_standby_goes_on_with_a_rollout(raft: RaftTest, end: str) -> None:
    platform = raft.platform
    assert isinstance(platform, ChartTarget)
    platform.install("operator.replicas=2")
    try:
        await raft.apply(**LOADED)
        await raft.until_current(generation=1)
        async with raft.writer(end) as writer:
            await writer.reach(WARM_UP_WRITES)
            await roll(raft, 1)
            await reached(raft, "CatchingUp", 2)
            former = await operator_at_work(raft)
            if end == "deleted":
                platform.kubectl("delete", "pod", former, "--namespace", SYSTEM, "--wait=false")
            else:
                platform.signal(former, SYSTEM, signal.SIGKILL)
            await raft.until_current(generation=2)
            await writer.more(WARM_UP_WRITES)
            proof = await writer.stop()
        shown(f"operator {end}", 1, proof)
        assert proof.holds, proof
        if end == "deleted":
            assert await operator_at_work(raft) != former
    finally:
        platform.install()

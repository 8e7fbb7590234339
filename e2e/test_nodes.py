"""Nodes are drained, cordoned and lost (docs/specs/operator.md 7.5)."""

from collections.abc import AsyncIterator

import pytest

from e2e.cluster import LOADED, RaftTest
from e2e.targets import Capability
from e2e.targets.base import is_ready
from e2e.targets.kind import KindTarget
from e2e.test_rollout import reached, roll
from e2e.waiting import eventually
from e2e.writer import WARM_UP_WRITES, shown

pytestmark = pytest.mark.needs(Capability.NODES)

MEMBERS = 3
RETURN_S = 180.0
"""For a node that was lost: its start, its report, then the start of its pods."""
DRAIN_S = 20
"""How long a drain tries that must not succeed."""


@pytest.fixture
async def kind(raft: RaftTest) -> AsyncIterator[KindTarget]:
    """The target of the test; afterwards all its nodes run and take pods."""
    assert isinstance(raft.platform, KindTarget)
    yield raft.platform
    for node in raft.platform.workers():
        raft.platform.kubectl("uncordon", node)


async def members_by_node(raft: RaftTest, generation: int = 1) -> dict[str, list[str]]:
    """The nodes that run members of ``q``, those with the fewest first."""
    found: dict[str, list[str]] = {}
    for pod in await raft.pods():
        if pod["metadata"]["labels"]["pavane.dev/generation"] == str(generation):
            found.setdefault(pod["spec"]["nodeName"], []).append(pod["metadata"]["name"])
    assert len(found) > 1, f"the members were not spread: {found}"
    return dict(sorted(found.items(), key=lambda item: len(item[1])))


async def until_complete(raft: RaftTest, generation: int = 1) -> None:
    """Wait until every member is ready, and nothing else is left."""

    async def complete() -> bool:
        pods = await raft.pods()
        return len(pods) == MEMBERS and all(is_ready(pod) for pod in pods)

    await eventually(complete, "all members are ready", RETURN_S)
    await raft.until_current(generation=generation, timeout_s=RETURN_S)


def drain(kind: KindTarget, node: str, timeout_s: int) -> int:
    """Drain a node as an administrator would; returns kubectl's exit code."""
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout", f"{timeout_s}s")
    return kind.kubectl("drain", node, *options, check=False).returncode


async def test_a_drained_node_takes_its_member_and_nothing_else(raft: RaftTest, kind: KindTarget) -> None:
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    node = next(iter(await members_by_node(raft)))
    kind.kubectl("cordon", node)  # so that the load runs elsewhere
    async with raft.writer("drain") as writer:
        await writer.reach(WARM_UP_WRITES)
        assert drain(kind, node, 90) == 0
        await writer.more(WARM_UP_WRITES)
        kind.kubectl("uncordon", node)
        await until_complete(raft)  # its volume is on that node, and so it comes back there
        await writer.more(WARM_UP_WRITES)
        proof = await writer.stop()
    shown("drain", 1, proof)
    assert proof.holds, proof


async def test_a_drain_that_would_break_the_quorum_waits(raft: RaftTest, kind: KindTarget) -> None:
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    node = list(await members_by_node(raft))[-1]
    kind.kubectl("cordon", node)
    async with raft.writer("quorum") as writer:
        await writer.reach(WARM_UP_WRITES)
        assert drain(kind, node, DRAIN_S) != 0
        await writer.more(WARM_UP_WRITES)
        kind.kubectl("uncordon", node)
        await until_complete(raft)
        proof = await writer.stop()
    shown("drain of a majority", 1, proof)
    assert proof.holds, proof


async def test_a_rollout_goes_around_a_cordoned_node(raft: RaftTest, kind: KindTarget) -> None:
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    cordoned = next(iter(await members_by_node(raft)))
    kind.kubectl("cordon", cordoned)
    await roll(raft, 1)
    await until_complete(raft, 2)
    nodes = {pod["spec"]["nodeName"] for pod in await raft.pods()}
    assert cordoned not in nodes


async def test_a_lost_node_costs_no_write_and_its_member_comes_back(raft: RaftTest, kind: KindTarget) -> None:
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    node = next(iter(await members_by_node(raft)))
    kind.kubectl("cordon", node)
    async with raft.writer("node") as writer:
        await writer.reach(WARM_UP_WRITES)
        kind.lose_node(node)
        try:
            await writer.more(WARM_UP_WRITES)
        finally:
            kind.start_node(node)
        kind.kubectl("uncordon", node)
        await until_complete(raft)
        await writer.more(WARM_UP_WRITES)
        proof = await writer.stop()
    shown("node lost", 1, proof)
    assert proof.holds, proof


async def test_a_node_lost_while_promoting_delays_the_rollout_and_no_more(raft: RaftTest, kind: KindTarget) -> None:
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    node = next(iter(await members_by_node(raft)))
    kind.kubectl("cordon", node)
    async with raft.writer("promoting") as writer:
        await writer.reach(WARM_UP_WRITES)
        kind.kubectl("uncordon", node)
        await roll(raft, 1)
        await reached(raft, "Promoting", 2, RETURN_S)
        kind.lose_node(node)
        kind.start_node(node)
        await until_complete(raft, 2)
        await writer.more(WARM_UP_WRITES)
        proof = await writer.stop()
    shown("node lost while promoting", 1, proof)
    assert proof.holds, proof

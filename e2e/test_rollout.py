"""A staged rollout under load, undisturbed and with kills (docs/specs/operator.md 9, rows 1 and 2)."""

import random
import signal
from typing import Any

import pytest

from e2e.cluster import LOADED, QUICK, RaftTest, can_switch_back, state_of
from e2e.conftest import RUNS
from e2e.waiting import READY_S, eventually
from e2e.writer import WARM_UP_WRITES, shown
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.rollout.actions import Refused, undo
from pavane_cli.commands.resources import is_current
from pavane_operator.kube import Conflict

STATES = ("CreatingNext", "Initializing", "CatchingUp", "CaughtUp", "Promoting", "Retiring")


def restart(run: int) -> dict[str, Any]:
    return {"spec": {"rollout": {"restart": f"run-{run}"}}}


async def roll(raft: RaftTest, run: int) -> None:
    await raft.kube.patch(RAFT_CLUSTERS, "q", restart(run), raft.namespace, manager="e2e")


@pytest.mark.smoke
async def test_a_rollout_under_load_loses_and_doubles_nothing(raft: RaftTest) -> None:
    await raft.apply()
    await raft.until_current(generation=1)
    for run in range(1, RUNS + 1):
        async with raft.writer(f"run-{run}") as writer:
            await writer.reach(WARM_UP_WRITES)
            await roll(raft, run)
            document = await raft.until_current(generation=run + 1)
            await writer.more(WARM_UP_WRITES)
            proof = await writer.stop()
        shown("rollout", run, proof)
        assert proof.holds, proof
        assert proof.leaders >= 2, "a leader of each generation was seen"
        assert document["status"]["history"][0]["result"] == "Promoted"
        assert await raft.stateful_sets() == [f"q-server-g{run + 1}"]


async def test_a_generation_that_is_no_good_is_left_while_it_bakes_and_what_it_took_is_kept(raft: RaftTest) -> None:
    await raft.apply(rollout={**QUICK["rollout"], "bake": "1h"})
    await raft.until_current(generation=1)
    async with raft.writer("undo") as writer:
        await writer.reach(WARM_UP_WRITES)
        await roll(raft, 1)
        await raft.until(can_switch_back, "generation 1 follows")
        assert await raft.stateful_sets() == ["q-server-g1", "q-server-g2"]
        costs = raft.platform.run("rollout", "diff", "raft/q", "--to", "1", "-n", raft.namespace).stdout
        assert "pods and volumes, for 1h" in costs
        await writer.more(WARM_UP_WRITES)

        async def undone() -> bool:
            try:
                await undo(raft.kube, RAFT_CLUSTERS, raft.namespace, "q")
            except (Refused, Conflict):  # a pod was slow to answer just now, or the status was written meanwhile
                return False
            return True

        await eventually(undone, "the spec goes back")
        document = await raft.until(
            lambda item: is_current(item) and item["status"]["activeGeneration"] == 1, "generation 1 serves again"
        )
        await writer.more(WARM_UP_WRITES)
        proof = await writer.stop()
    shown("way back", 1, proof)
    assert proof.holds, proof
    results = [(each["generation"], each["result"]) for each in document["status"]["history"]]
    assert results == [(1, "Promoted"), (2, "RolledBack")]
    assert document["status"]["history"][0]["writeGapMs"] > 0
    assert await raft.stateful_sets() == ["q-server-g1"]


async def kill_leader(raft: RaftTest) -> None:
    """Kill the pod that leads; the status may still name one that has just been retired, then look again."""

    async def killed() -> bool:
        document = await raft.until(lambda item: (item.get("status") or {}).get("leader"), "a leader is known")
        leader = str(document["status"]["leader"])
        return raft.platform.signal(leader, raft.namespace, signal.SIGKILL)

    await eventually(killed, "a leader was killed")


@pytest.mark.long
@pytest.mark.parametrize("victim", ["leader", pytest.param("operator", marks=pytest.mark.smoke)])
async def test_a_rollout_survives_a_kill_at_a_random_moment(raft: RaftTest, victim: str) -> None:
    moments = random.Random(RUNS).sample(STATES, len(STATES))  # each in its turn
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    for run in range(1, RUNS + 1):
        moment = moments[run % len(moments)]
        async with raft.writer(f"{victim}-{run}") as writer:
            await writer.reach(WARM_UP_WRITES)
            await roll(raft, run)
            await reached(raft, moment, run + 1)
            if victim == "leader":
                await kill_leader(raft)
            else:
                await raft.kill_component("operator")
            await raft.until_current(generation=run + 1, timeout_s=120)
            await writer.more(WARM_UP_WRITES)
            proof = await writer.stop()
        shown(f"{victim} killed in {moment}, rollout", run, proof)
        assert proof.holds, proof
        assert await raft.stateful_sets() == [f"q-server-g{run + 1}"]


async def reached(raft: RaftTest, state: str, generation: int, timeout_s: float = READY_S) -> None:
    far_enough = STATES.index(state)
    await raft.until(lambda item: position(item, generation) >= far_enough, f"state {state}", timeout_s=timeout_s)


def position(document: dict[str, Any], generation: int) -> int:
    """How far the rollout of ``generation`` has come, as an index into STATES; beyond the last when it is active."""
    status = document.get("status") or {}
    state = state_of(document)
    if state in STATES and (status.get("rollout") or {}).get("generation") == generation:
        return STATES.index(state)
    return len(STATES) if status.get("activeGeneration") == generation else -1

"""Decisions of a user, and attempts that fail: the active generation is untouched and the reason is told."""

import re
from typing import Any

from e2e.cluster import QUICK, RaftTest, blockers_of, reason_of, state_of
from pavane_api.kinds import RAFT_CLUSTERS


async def change(raft: RaftTest, **rollout: Any) -> None:
    await raft.kube.patch(RAFT_CLUSTERS, "q", {"spec": {"rollout": rollout}}, raft.namespace, manager="e2e")


async def image(raft: RaftTest, name: str) -> None:
    await raft.kube.patch(RAFT_CLUSTERS, "q", {"spec": {"image": name}}, raft.namespace, manager="e2e")


async def serves(raft: RaftTest, generation: int) -> None:
    """The active generation is this one, takes writes, and its pods are those of before."""
    document = await raft.get()
    assert document["status"]["activeGeneration"] == generation
    assert raft.append(f"still generation {generation}") > 0


async def why(raft: RaftTest) -> str:
    return raft.platform.run("why", "raft/q", "-n", raft.namespace).stdout


async def test_manual_promotion_waits_for_approval(raft: RaftTest) -> None:
    rollout = {**QUICK["rollout"], "strategy": "Manual"}
    await raft.apply(replicas=1, rollout=rollout)
    await raft.until_current(generation=1)
    await change(raft, restart="again")
    await raft.until(lambda item: "WaitingForApproval" in blockers_of(item), "it waits for approval")
    assert "pavane rollout promote" in await why(raft)
    await serves(raft, 1)
    raft.platform.run("rollout", "promote", "raft/q", "-n", raft.namespace)
    await raft.until_current(generation=2)


async def test_pause_holds_a_caught_up_generation_until_resume(raft: RaftTest) -> None:
    await raft.apply(replicas=1)
    await raft.until_current(generation=1)
    raft.platform.run("rollout", "pause", "raft/q", "-n", raft.namespace)
    await change(raft, restart="again")
    await raft.until(lambda item: reason_of(item, "UpToDate") == "Paused", "the pause is told")
    assert "rollout resume" in await why(raft)
    await serves(raft, 1)
    raft.platform.run("rollout", "resume", "raft/q", "-n", raft.namespace)
    await raft.until_current(generation=2)


async def test_a_generation_waits_for_its_window_and_a_way_back_waits_for_none(raft: RaftTest) -> None:
    leap_day = {"schedule": "0 0 29 2 *", "duration": "1m"}
    await raft.apply(replicas=1, rollout={**QUICK["rollout"], "windows": [leap_day]})
    await raft.until_current(generation=1)
    await change(raft, restart="again")
    await raft.until_state("CaughtUp")
    await raft.until(lambda item: "OutsideWindow" in blockers_of(item), "it waits for its window")
    assert re.search(r"waits for its window, which opens at 2\d{3}-02-29\s00:00\sUTC", await why(raft))
    await serves(raft, 1)
    await change(raft, windows=[leap_day, {"schedule": "* * * * *", "duration": "1m"}])
    document = await raft.until_current(generation=2)
    assert "it waited for its window from" in document["status"]["history"][0]["message"]
    await change(raft, restart=None, windows=[leap_day])
    await raft.until(lambda item: item["status"]["activeGeneration"] == 3, "a spec that has served is promoted")


async def test_abort_and_retry(raft: RaftTest) -> None:
    await raft.apply(replicas=1, rollout={**QUICK["rollout"], "strategy": "Manual"})
    await raft.until_current(generation=1)
    await change(raft, restart="again")
    await raft.until_state("CaughtUp")
    raft.platform.run("rollout", "abort", "raft/q", "-n", raft.namespace)
    document = await raft.until_state("Idle")
    assert document["status"]["failed"]["reason"] == "Cancelled"
    assert await raft.stateful_sets() == ["q-server-g1"]
    assert "rollout retry" in await why(raft)
    await serves(raft, 1)
    raft.platform.run("rollout", "retry", "raft/q", "-n", raft.namespace)
    await raft.until_state("CaughtUp")
    raft.platform.run("rollout", "promote", "raft/q", "-n", raft.namespace)
    await raft.until_current(generation=3)


async def test_a_revert_before_promotion_ends_the_attempt(raft: RaftTest) -> None:
    await raft.apply(replicas=1, rollout={**QUICK["rollout"], "strategy": "Manual"})
    await raft.until_current(generation=1)
    await change(raft, restart="again")
    await raft.until_state("CaughtUp")
    await change(raft, restart=None)
    document = await raft.until_current(generation=1)
    assert "failed" not in document["status"]
    assert document["status"]["history"][0]["reason"] == "Reverted"
    await serves(raft, 1)


async def test_a_bad_image_is_told_and_a_new_spec_supersedes_it(raft: RaftTest) -> None:
    await raft.apply(replicas=1)
    await raft.until_current(generation=1)
    await image(raft, "nobody/has:this")
    await raft.until(lambda item: "ImagePull" in blockers_of(item), "the image is the blocker")
    assert "nobody/has:this" in await why(raft)
    await serves(raft, 1)
    corrected = {"spec": {"image": raft.platform.image, "rollout": {"restart": "corrected"}}}
    await raft.kube.patch(RAFT_CLUSTERS, "q", corrected, raft.namespace, manager="e2e")
    document = await raft.until_current(generation=3)
    assert document["status"]["history"][1]["reason"] == "Superseded"


async def test_a_crash_loop_aborts_the_attempt(raft: RaftTest) -> None:
    await raft.apply(replicas=1, rollout={**QUICK["rollout"], "crashLimit": 1})
    await raft.until_current(generation=1)
    crash = {"spec": {"extraEnv": [{"name": "PYTHONHOME", "value": "/nonexistent"}]}}
    await raft.kube.patch(RAFT_CLUSTERS, "q", crash, raft.namespace, manager="e2e")
    document = await raft.until(
        lambda item: state_of(item) == "Idle" and (item["status"].get("failed") or {}).get("reason") == "CrashLoop",
        "the attempt has failed",
    )
    assert reason_of(document, "Stalled") == "CrashLoop"
    assert await raft.stateful_sets() == ["q-server-g1"]
    assert "CrashLoop" in await why(raft)
    await serves(raft, 1)


async def test_a_deadline_holds_or_aborts(raft: RaftTest) -> None:
    rollout = {**QUICK["rollout"], "deadline": "2s", "crashLimit": 0}
    await raft.apply(replicas=1, rollout={**rollout, "onDeadline": "Hold"})
    await raft.until_current(generation=1)
    await image(raft, "nobody/has:this")
    await raft.until(lambda item: reason_of(item, "Stalled") == "DeadlineExceeded", "the deadline is told")
    await serves(raft, 1)
    await change(raft, onDeadline="Abort")
    document = await raft.until_state("Idle")
    assert document["status"]["failed"]["reason"] == "DeadlineExceeded"
    await serves(raft, 1)


async def test_force_promote_overrides_approval(raft: RaftTest) -> None:
    await raft.apply(replicas=1, rollout={**QUICK["rollout"], "strategy": "Manual"})
    await raft.until_current(generation=1)
    await change(raft, restart="again")
    await raft.until_state("CatchingUp", "CaughtUp")
    refused = raft.platform.run("rollout", "force-promote", "raft/q", "-n", raft.namespace, check=False)
    assert refused.returncode == 2
    raft.platform.run("rollout", "force-promote", "raft/q", "--yes", "-n", raft.namespace)
    await raft.until_current(generation=2)

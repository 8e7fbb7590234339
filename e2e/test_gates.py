"""Gates ask the pods of a new generation before it may write and while it bakes (docs/specs/operator.md 2.5)."""

from typing import Any

from e2e.cluster import QUICK, RaftTest, can_switch_back, reason_of
from e2e.writer import WARM_UP_WRITES, shown


def asking(path: str, **rollout: Any) -> dict[str, Any]:
    gate = {"name": "probe", "for": "0s", "onFailure": "SwitchBack", "http": {"port": 7071, "path": path}}
    return {**QUICK["rollout"], "bake": "1h", "gates": [gate], **rollout}


def reported(document: dict[str, Any]) -> list[str]:
    return [each["verdict"] for each in document["status"]["rollout"].get("gates") or ()]


async def test_a_bad_generation_gets_no_right_to_write_and_a_promoted_one_loses_it_again(raft: RaftTest) -> None:
    await raft.apply(replicas=1, rollout=asking("/livez"))
    await raft.until_current(generation=1)
    async with raft.writer("gates") as writer:
        await writer.reach(WARM_UP_WRITES)
        await raft.apply(replicas=1, rollout=asking("/nowhere", restart="1"))
        document = await raft.until(lambda item: reason_of(item, "UpToDate") == "GateFailed", "the attempt is given up")
        assert "answered 404" in document["status"]["failed"]["message"]
        await raft.apply(replicas=1, rollout=asking("/livez", restart="2"))
        document = await raft.until(lambda item: can_switch_back(item) and reported(item) == ["Passed"], "it bakes")
        assert document["status"]["activeGeneration"] == 3
        await writer.more(WARM_UP_WRITES)
        await raft.apply(replicas=1, rollout=asking("/nowhere", restart="2"))
        document = await raft.until(
            lambda item: reason_of(item, "Stalled") == "GateFailed" and item["status"]["activeGeneration"] == 1,
            "generation 1 serves again",
        )
        await writer.more(WARM_UP_WRITES)
        proof = await writer.stop()
    shown("gate that sends back", 1, proof)
    assert proof.holds, proof
    results = [(each["generation"], each["result"], each.get("reason")) for each in document["status"]["history"]]
    assert results == [(1, "Promoted", None), (3, "RolledBack", "GateFailed"), (2, "Aborted", "GateFailed")]
    assert await raft.stateful_sets() == ["q-server-g1"]

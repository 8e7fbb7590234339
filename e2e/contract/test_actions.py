"""Actions of a rollout: none stands in the way of another, on both servers (docs/specs/operator.md 7.2)."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.contract.target import KubeTarget
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_operator.kube import KubeClient, Target

pytestmark = pytest.mark.contract(since="1.29")


def every_pair(names: list[str]) -> Iterator[str]:
    """Return a sequence in which each name follows each name, itself too, once."""
    for index, name in enumerate(names):
        yield name
        for later in names[index + 1 :]:
            yield name
            yield later
    yield names[0]


async def test_every_action_works_after_every_other(target: KubeTarget) -> None:
    status: dict[str, Any] = {
        "nextGeneration": 3,
        "activeGeneration": 2,
        "lastGeneration": 3,
        "rollout": {"state": "CaughtUp"},
    }
    allowed = [name for name in ACTIONS if name != "retry"]  # which needs that no attempt runs
    async with await KubeClient.connect(Target(target.kubeconfig)) as client:
        body: dict[str, Any] = {"metadata": {"name": "q"}, "spec": {"stateMachine": "Broadcast"}}
        await client.create(RAFT_CLUSTERS, body, target.namespace)
        await client.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, target.namespace)
        for number, name in enumerate(every_pair(allowed)):
            noted = {"pavane.dev/traceparent": f"00-{number:032x}-{1:016x}-01"}
            changed, value = await act(client, RAFT_CLUSTERS, target.namespace, "q", ACTIONS[name], annotations=noted)
            assert changed["metadata"]["annotations"].items() >= noted.items()
            spec = changed["spec"]["rollout"] if ACTIONS[name].of_rollout else changed["spec"]
            assert spec[ACTIONS[name].field] == value, name

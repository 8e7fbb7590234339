"""A SwimGroup whose keys are rotated, whose attempt is given up, and which is scaled (docs/specs/operator.md 3.2)."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx2
import pytest

from e2e.cluster import QUICK, SWIM_GROUPS, RaftTest, state_of
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane_operator.kinds.swim.members import ask
from pavane_operator.kube import Object
from pavane_operator.kube.resources import SECRETS

KEYS = ("11" * 32, "22" * 32)
GROUP = "e2e/mixed"
ASK_S = 5.0

pytestmark = pytest.mark.needs(Capability.DIRECT)


class SwimTest(RaftTest):
    """One namespace of a platform and the SwimGroups in it."""

    async def apply(self, name: str = "q", **spec: Any) -> Object:
        """Apply a SwimGroup with the times of one machine and the keyring of Secret `mine`."""
        ours = {"profile": "local", "keyringSecretRef": {"name": "mine"}, "group": GROUP, **QUICK, **spec}
        body = {"metadata": {"name": name}, "spec": ours}
        return await self.kube.apply(self.type, body, self.namespace, manager="e2e", strict=True)

    async def give(self, *keys: str) -> None:
        """Make or change the user's Secret."""
        text = "".join(f"{key}\n" for key in keys)
        body = {"metadata": {"name": "mine"}, "data": {"keyring": base64.b64encode(text.encode()).decode()}}
        await self.kube.apply(SECRETS, body, self.namespace, manager="e2e")

    async def patch(self, spec: dict[str, Any]) -> None:
        await self.kube.patch(self.type, "q", {"spec": spec}, self.namespace, manager="e2e")

    async def until_members(self, **counts: int) -> Object:
        """Wait until the status has these numbers of members, and they agree."""

        def check(document: Object) -> bool:
            status = document.get("status") or {}
            conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
            members = status.get("members") or {}
            return conditions.get("MembershipConverged") == "True" and counts.items() <= members.items()

        return await self.until(check, f"members {counts}")

    async def addresses(self) -> list[str]:
        return [pod["status"]["podIP"] for pod in await self.pods() if (pod.get("status") or {}).get("podIP")]


@pytest.fixture
def swim(raft: RaftTest) -> SwimTest:
    return SwimTest(raft.platform, raft.kube, raft.namespace, SWIM_GROUPS)


async def test_keys_are_rotated_and_an_attempt_is_given_up_while_members_run(swim: SwimTest) -> None:
    await swim.give(KEYS[0])
    await swim.apply(replicas=2, rollout={**QUICK["rollout"], "strategy": "Manual"})
    await swim.until_current(generation=1)
    before = await key_ids(swim)
    started = [pod["metadata"]["uid"] for pod in await swim.pods()]
    for keys in ((KEYS[0], KEYS[1]), (KEYS[1], KEYS[0]), (KEYS[1],)):
        await swim.give(*keys)

        async def taken(count: int = len(keys), first: str = keys[0]) -> bool:
            found = await key_ids(swim)
            return len(found) == count and (found[0] == before[0]) == (first == KEYS[0])

        await eventually(taken, f"all members have {len(keys)} keys, the right one first")
    await swim.until_members(alive=2, suspect=0, dead=0)

    await swim.patch({"rollout": {"restart": "once"}})
    await swim.until_state("CaughtUp")
    await swim.until_members(alive=4, foreign=0, dead=0)
    await swim.patch({"rollout": {"abort": 2}})
    await swim.until(lambda item: state_of(item) == "Idle" and item["status"].get("failed"), "generation 2 is given up")
    await swim.patch({"replicas": 3})
    document = await swim.until_members(alive=3, foreign=0, dead=0)
    assert document["status"]["activeGeneration"] == 1
    assert {pod["metadata"]["uid"] for pod in await swim.pods()} > set(started)


async def key_ids(swim: SwimTest) -> list[str]:
    """Ids of the keys that all members have, in their order; empty while they differ."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        tables = await asyncio.gather(*(ask(http, address, ASK_S) for address in await swim.addresses()))
    found = {table.key_ids for table in tables if table is not None}
    return list(found.pop()) if len(found) == 1 else []

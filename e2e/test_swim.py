"""A SwimGroup among members that others run: rolled out, scaled, its keys rotated (docs/specs/operator.md 3.2)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from typing import Any

import httpx2
import pytest

from e2e.cluster import QUICK, SWIM_GROUPS, RaftTest, state_of
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane.swim.config import id_of_name
from pavane.swim.core.outputs import Happened
from pavane_operator.kinds.swim.members import ask
from pavane_operator.kinds.swim.names import member_id
from pavane_operator.kube import NotFound, Object
from pavane_operator.kube.resources import SECRETS
from tests.services.swim.foreign import foreigners

KEYS = ("11" * 32, "22" * 32)
GROUP = "e2e/mixed"
REPLICAS = FOREIGN = 5
ASK_S = 5.0
FULL = "ReadWrite"

pytestmark = pytest.mark.needs(Capability.DIRECT)


class SwimTest(RaftTest):
    """One namespace of a platform and the SwimGroups in it."""

    async def apply(self, name: str = "q", **spec: Any) -> Object:
        """Apply a SwimGroup with the keyring of Secret `mine`."""
        ours = {"keyringSecretRef": {"name": "mine"}, "group": GROUP, **QUICK, **spec}
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


class Writing:
    """Counts all the time how many pods are full members."""

    def __init__(self, swim: SwimTest) -> None:
        self._swim = swim
        self.counts = Counter[int]()

    async def __aenter__(self) -> Writing:
        self._http = httpx2.AsyncClient(trust_env=False)
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._http.aclose()

    async def _count(self) -> None:
        while True:
            stages = await asyncio.gather(*map(self._stage, await self._swim.addresses()))
            self.counts[stages.count(FULL)] += 1

    async def _stage(self, address: str) -> str | None:
        try:
            return str((await self._http.get(f"http://{address}:7071/stage", timeout=ASK_S)).json()["stage"])
        except (httpx2.HTTPError, ValueError):
            return None


def ids(swim: SwimTest, generation: int) -> set[int]:
    return {member_id(swim.namespace, f"q-member-g{generation}-{ordinal}") for ordinal in range(REPLICAS)}


@pytest.mark.kinds
async def test_a_rollout_among_foreign_members_kills_nobody(swim: SwimTest) -> None:
    await swim.give(KEYS[0])
    async with foreigners(GROUP, KEYS[0], FOREIGN) as others:
        await swim.apply(replicas=REPLICAS, seeds=[others.seed])
        await swim.until_current(generation=1)
        await swim.until_members(alive=REPLICAS + FOREIGN, foreign=FOREIGN, dead=0)
        said = swim.platform.run("swim", "members", "q", "-n", swim.namespace, "-o", "json").stdout
        told = {one["id"]: (one["foreign"], one["state"]) for one in json.loads(said)["items"]}
        ours, theirs = ids(swim, 1), {id_of_name(name) for name in others.names}
        assert told == {**dict.fromkeys(ours, (False, "Alive")), **dict.fromkeys(theirs, (True, "Alive"))}
        async with Writing(swim) as writing:
            await swim.patch({"rollout": {"restart": "once"}})
            await swim.until_state("Promoting", "Retiring")
            await swim.kill_component("operator")
            document = await swim.until_current(generation=2, timeout_s=120)
        assert document["status"]["history"][0]["result"] == "Promoted"
        assert min(writing.counts) >= REPLICAS, writing.counts

        async def settled() -> bool:
            return all(ids(swim, 2) <= table and not ids(swim, 1) & table for table in await others.tables())

        await eventually(settled, "every foreign member knows the new generation and not the old one")
        assert all(ids(swim, 2) <= joined for joined in others.heard(Happened.JOINED))
        assert all(ids(swim, 1) <= left for left in others.heard(Happened.LEFT))
        await swim.patch({"replicas": REPLICAS - 2})
        await swim.until_members(alive=REPLICAS - 2 + FOREIGN, foreign=FOREIGN, dead=0)
        await swim.kube.delete(SWIM_GROUPS, "q", swim.namespace)

        async def alone() -> bool:
            with contextlib.suppress(NotFound):
                return bool(await swim.get()) and False
            return all(len(table) == FOREIGN for table in await others.tables())

        await eventually(alone, "only the foreign members are left")
        assert not any(others.heard(Happened.DEAD)), "nobody was ever declared dead"


async def test_keys_are_rotated_and_an_attempt_is_given_up_while_members_run(swim: SwimTest) -> None:
    await swim.give(KEYS[0])
    await swim.apply(profile="local", replicas=2, rollout={**QUICK["rollout"], "strategy": "Manual"})
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

"""Objects beside the pods: changed in place, kept as they should be, gone when unwanted (docs/specs/operator.md 4)."""

import contextlib
from typing import Any

import pytest

from e2e.cluster import QUICK, RaftTest, state_of
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands.resources import condition
from pavane_operator.kube import Object, Resource
from pavane_operator.kube.resources import BUDGETS, NETWORK_POLICIES, SERVICE_ACCOUNTS, SERVICES, VOLUME_CLAIMS

POLICIES = ["q-clients", "q-egress", "q-operator", "q-peers"]
GENERATION = "pavane.dev/generation"


async def change(raft: RaftTest, **spec: Any) -> None:
    await raft.kube.patch(RAFT_CLUSTERS, "q", {"spec": spec}, raft.namespace, manager="e2e")


async def names(raft: RaftTest, resource: Resource) -> list[str]:
    labels = "app.kubernetes.io/instance=q"
    found = (await raft.kube.list_all(resource, raft.namespace, labels=labels)).items
    return sorted(item["metadata"]["name"] for item in found)


async def until_names(raft: RaftTest, resource: Resource, wanted: list[str]) -> None:
    async def so() -> bool:
        return await names(raft, resource) == wanted

    await eventually(so, f"{resource.plural} are {wanted}")


async def processes(raft: RaftTest) -> dict[str, tuple[str, int]]:
    """By pod: its uid, and how often its containers were restarted."""
    found = {}
    for pod in await raft.pods():
        restarts = sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        found[pod["metadata"]["name"]] = (pod["metadata"]["uid"], restarts)
    return found


def over(budget: Object) -> tuple[list[str], int]:
    """The generations of a budget, and how many of their pods may be away."""
    (requirement,) = budget["spec"]["selector"]["matchExpressions"]
    assert requirement["key"] == GENERATION
    return requirement["values"], budget["spec"]["maxUnavailable"]


async def budget(raft: RaftTest) -> tuple[list[str], int] | None:
    found = await raft.kube.get_or_none(BUDGETS, "q-server", raft.namespace)
    return None if found is None else over(found)


async def test_live_fields_change_objects_and_restart_nothing(raft: RaftTest) -> None:
    await raft.apply()
    await raft.until_current(generation=1)
    assert await names(raft, SERVICE_ACCOUNTS) == ["q"]
    await until_names(raft, NETWORK_POLICIES, POLICIES)
    await until_names(raft, BUDGETS, ["q-server"])
    before = await processes(raft)

    await change(raft, networkPolicy={"enabled": False}, podDisruptionBudget={"enabled": False})
    await until_names(raft, NETWORK_POLICIES, [])
    await until_names(raft, BUDGETS, [])
    await change(
        raft,
        networkPolicy={"enabled": True, "ingressCIDRs": ["192.0.2.0/24"]},
        podDisruptionBudget={"enabled": True, "maxUnavailable": 0},
        serviceAnnotations={"team.test/note": "x"},
    )
    await until_names(raft, NETWORK_POLICIES, POLICIES)

    async def applied() -> bool:
        service = await raft.kube.get(SERVICES, "q", raft.namespace)
        noted = (service["metadata"].get("annotations") or {}).get("team.test/note") == "x"
        return noted and await budget(raft) == (["1"], 0)

    await eventually(applied, "Service and budget have changed")
    clients = await raft.kube.get(NETWORK_POLICIES, "q-clients", raft.namespace)
    assert {"ipBlock": {"cidr": "192.0.2.0/24"}} in clients["spec"]["ingress"][0]["from"]
    document = await raft.until_current(generation=1)
    assert state_of(document) == "Idle"
    assert await processes(raft) == before


@pytest.mark.long
@pytest.mark.kinds
async def test_what_somebody_changes_or_deletes_by_hand_comes_back(raft: RaftTest) -> None:
    await raft.apply(replicas=1)
    await raft.until_current(generation=1)
    await until_names(raft, NETWORK_POLICIES, POLICIES)
    everybody: Object = {"spec": {"ingress": [{}]}}
    await raft.kube.patch(NETWORK_POLICIES, "q-operator", everybody, raft.namespace, manager="somebody")
    await raft.kube.patch(BUDGETS, "q-server", {"spec": {"maxUnavailable": 3}}, raft.namespace, manager="somebody")
    await raft.kube.delete(NETWORK_POLICIES, "q-peers", raft.namespace)
    await raft.kube.delete(SERVICE_ACCOUNTS, "q", raft.namespace)

    async def back() -> bool:
        policy = await raft.kube.get(NETWORK_POLICIES, "q-operator", raft.namespace)
        closed = all("from" in rule for rule in policy["spec"]["ingress"])
        there = await names(raft, NETWORK_POLICIES) == POLICIES and await names(raft, SERVICE_ACCOUNTS) == ["q"]
        return closed and there and await budget(raft) == (["1"], 1)

    await eventually(back, "the objects are as they should be")


@pytest.mark.long
@pytest.mark.kinds
async def test_nobody_may_be_evicted_while_a_generation_is_promoted(raft: RaftTest) -> None:
    await raft.apply()
    await raft.until_current(generation=1)
    await until_names(raft, BUDGETS, ["q-server"])
    seen: list[tuple[list[str], int] | None] = []
    start = (await raft.kube.list(BUDGETS, raft.namespace)).resource_version
    await change(raft, rollout={"restart": "again"})
    await raft.until_current(generation=2)

    async def settled() -> bool:
        return await budget(raft) == (["2"], 1)

    await eventually(settled, "the budget is that of the new generation")
    watch = raft.kube.watch(BUDGETS, raft.namespace, resource_version=start)
    async with contextlib.aclosing(watch) as changes:
        async for each in changes:
            if each.type != "BOOKMARK":
                seen.append(over(each.object))
            if seen and seen[-1] == (["2"], 1):
                break
    assert (["1", "2"], 0) in seen


async def test_volumes_of_a_retired_generation_are_kept_on_demand(raft: RaftTest) -> None:
    await raft.apply(replicas=1, storage={"size": "64Mi", "retain": True})
    await raft.until_current(generation=1)
    await change(raft, rollout={"restart": "again"})
    await raft.until_current(generation=2)
    both = ["data-q-server-g1-0", "data-q-server-g2-0"]
    assert await raft.claims() == both
    await change(raft, rollout={"restart": "and again"})
    await raft.until_current(generation=3)
    assert await raft.claims() == [*both, "data-q-server-g3-0"]
    await change(raft, storage={"retain": False})
    await until_names(raft, VOLUME_CLAIMS, ["data-q-server-g3-0"])


@pytest.mark.long
@pytest.mark.needs(Capability.GROWTH)
@pytest.mark.kinds
async def test_volumes_grow_under_running_pods_and_never_shrink(raft: RaftTest) -> None:
    await raft.apply(replicas=1)
    await raft.until_current(generation=1)
    before = await processes(raft)
    await change(raft, storage={"size": "128Mi"})

    async def grown() -> bool:
        claim = await raft.kube.get(VOLUME_CLAIMS, "data-q-server-g1-0", raft.namespace)
        return bool(claim["spec"]["resources"]["requests"]["storage"] == "128Mi")

    await eventually(grown, "the claim asks for more")
    await raft.until(lambda item: condition(item, "Reconciling") is None, "the volume has grown")
    assert await processes(raft) == before
    shrunk = raft.platform.kubectl(
        *("patch", "raft", "q", "-n", raft.namespace, "--type=merge", "-p", '{"spec":{"storage":{"size":"100Mi"}}}'),
        check=False,
    )
    assert "storage.size cannot shrink" in shrunk.stderr
    # Volumes of the next generation are made as large as that.
    await change(raft, rollout={**QUICK["rollout"], "restart": "again"})
    await raft.until_current(generation=2)
    claim = await raft.kube.get(VOLUME_CLAIMS, "data-q-server-g2-0", raft.namespace)
    assert claim["spec"]["resources"]["requests"]["storage"] == "128Mi"

"""The rights that the charts grant are those that operator and control plane use: none is missing, none too much."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
import yaml

from pavane_local.platform import LocalCluster, LocalSettings, local_cluster
from pavane_operator.charts.rules import Rule, rules
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import BUDGETS, NAMESPACES, NETWORK_POLICIES, PODS, VOLUME_CLAIMS, Resource, custom
from tests.charts.recording import Call, allowed, recorded

PLURALS = {definition["spec"]["names"]["plural"] for definition in definitions()}
RULES = rules()
OPERATOR = tuple(rule for role, each in RULES.items() if role.startswith("operator") for rule in each)
DELEGATED = (
    Rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    Rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
)
"""What the cluster's own role system:auth-delegator, which the chart binds, allows."""
FAST = {"retireDelay": "0s", "caughtUp": {"stabilityPeriod": "200ms"}}
CLUSTER = (custom("RaftCluster", "raftclusters"), "q", "default")
GROUP = (custom("SwimGroup", "swimgroups"), "w", "groups")
ONE = "/api/v1/namespaces/default/raftclusters/q"
ONE_GROUP = "/api/v1/namespaces/groups/swimgroups/w"
UNTIL_S = 120.0

pytestmark = pytest.mark.timeout(300)
"""For the life of a cluster, which all tests share; 15 s on an idle machine."""


async def _until(kube: KubeClient, what: Any, of: tuple[Resource, str, str] = CLUSTER) -> dict[str, Any]:
    async with asyncio.timeout(UNTIL_S):
        while True:
            body = await kube.get_or_none(*of) or {}
            if what(body.get("status") or {}):
                return body
            await asyncio.sleep(0.05)


def _idle(generation: int) -> Any:
    return lambda status: (
        status.get("activeGeneration") == generation and (status.get("rollout") or {}).get("state") == "Idle"
    )


async def _control_plane(local: LocalCluster, kube: KubeClient) -> httpx2.AsyncClient:
    """A client of the control plane as the administrator, once it is ready."""
    async with asyncio.timeout(UNTIL_S):
        while True:
            status = (await kube.get(PODS, "pavane-api", "pavane-system")).get("status") or {}
            if any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ()):
                break
            await asyncio.sleep(0.05)
    token = yaml.safe_load(local.kubeconfig.read_text())["users"][0]["user"]["token"]
    return httpx2.AsyncClient(
        base_url=f"http://{status['podIP']}:8000", headers={"Authorization": f"Bearer {token}"}, trust_env=False
    )


async def _use_everything(local: LocalCluster, kube: KubeClient, http: httpx2.AsyncClient) -> None:
    """A life of a cluster, by way of the control plane where it can."""
    spec = {"stateMachine": "Broadcast", "replicas": 1, "rollout": FAST, "deletionPolicy": "Delete"}
    answer = await http.put(ONE, json={"metadata": {"name": "q"}, "spec": spec}, headers={"If-None-Match": "*"})
    assert answer.status_code == 201, answer.text
    await _until(kube, _idle(1))
    answer = await http.post(f"{ONE}/log/entries", content=b"x", headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code == 201, answer.text
    assert (await http.get("/api/v1/raftclusters")).json()["items"]
    assert (await http.get(f"{ONE}/pods")).json()["items"]
    assert (await http.get(f"{ONE}/events")).json()["items"]
    async with http.stream("GET", f"{ONE}/pods", params={"watch": "true"}) as stream:
        assert await anext(aiter(stream.aiter_lines()))
    async with http.stream("GET", "/api/v1/raftclusters", params={"watch": "true"}) as stream:
        assert await anext(aiter(stream.aiter_lines()))
    backup = {"url": f"file://{local.kubeconfig.parent}/backups", "schedule": "30 2 * * *"}
    change: dict[str, Any] = {"spec": {"backup": backup}}
    assert (await http.patch(ONE, json=change, headers={"If-Match": "*"})).status_code == 200
    async with asyncio.timeout(UNTIL_S):
        while not await _is_backed_up(http):
            await asyncio.sleep(0.05)
    etag = (await http.get(ONE)).headers["ETag"]
    change = {"spec": {"rollout": {"restart": "once"}}}
    assert (await http.patch(ONE, json=change, headers={"If-Match": etag})).status_code == 200
    await _until(kube, _idle(2))
    assert (await http.post(f"{ONE}/rollout/undo")).status_code == 202
    await _until(kube, _idle(3))
    live = {"storage": {"size": "3Gi"}, "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}
    assert (await http.patch(ONE, json={"spec": live}, headers={"If-Match": "*"})).status_code == 200
    async with asyncio.timeout(UNTIL_S):
        while not await _is_live(kube):
            await asyncio.sleep(0.05)
    assert (await http.delete(ONE, headers={"If-Match": "*"})).status_code == 202
    await _until(kube, lambda status: not status)
    assert (await kube.list(VOLUME_CLAIMS, "default")).items == ()


async def _is_backed_up(http: httpx2.AsyncClient) -> bool:
    """Whether the schedule has made a backup."""
    found = (await http.get("/api/v1/namespaces/default/backups")).json()["items"]
    return any((each.get("status") or {}).get("phase") == "Complete" for each in found)


async def _use_a_group(kube: KubeClient, http: httpx2.AsyncClient) -> None:
    """A life of a group, in a namespace of its own."""
    await kube.create(NAMESPACES, {"metadata": {"name": "groups"}})
    spec = {"replicas": 1, "profile": "local", "rollout": FAST}
    answer = await http.put(ONE_GROUP, json={"metadata": {"name": "w"}, "spec": spec}, headers={"If-None-Match": "*"})
    assert answer.status_code == 201, answer.text
    await _until(kube, _idle(1), GROUP)
    assert (await http.get("/api/v1/swimgroups")).json()["items"]
    assert (await http.get(f"{ONE_GROUP}/members")).json()["items"]
    change = {"spec": {"rollout": {"restart": "once"}}}
    assert (await http.patch(ONE_GROUP, json=change, headers={"If-Match": "*"})).status_code == 200
    await _until(kube, _idle(2), GROUP)
    assert (await http.delete(ONE_GROUP, headers={"If-Match": "*"})).status_code == 202
    await _until(kube, lambda status: not status, GROUP)


async def _is_live(kube: KubeClient) -> bool:
    """Whether the volume is to grow, and policies and budget are gone."""
    claims = (await kube.list(VOLUME_CLAIMS, "default")).items
    left = [*(await kube.list(NETWORK_POLICIES, "default")).items, *(await kube.list(BUDGETS, "default")).items]
    return not left and any(claim["spec"]["resources"]["requests"]["storage"] == "3Gi" for claim in claims)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[Call]]:
    """The calls of operator and control plane during such lives."""

    async def live() -> None:
        folder = tmp_path_factory.mktemp("platform")
        async with (
            local_cluster(LocalSettings(folder / "cluster", fast=True)) as local,
            await KubeClient.connect(Target(local.kubeconfig)) as kube,
            await _control_plane(local, kube) as http,
            asyncio.TaskGroup() as lives,
        ):
            lives.create_task(_use_everything(local, kube, http))
            lives.create_task(_use_a_group(kube, http))

    with recorded(pytest.MonkeyPatch()) as found:
        asyncio.run(live())
    return found


def test_operator_and_control_plane_may_do_what_they_do(calls: dict[str, set[Call]]) -> None:
    for account, granted in {"pavane-operator": OPERATOR, "pavane-api": (*RULES["api"], *DELEGATED)}.items():
        assert calls[account]
        missing = sorted(call for call in calls[account] if not allowed(call, granted))
        assert not missing, f"{account} has no right to {missing}"


LOST = "read after a creation whose answer was lost, or which somebody else was faster with"
TAKEN = "read when what is to be made is there already: whose is it?"
CHILDREN = ("configmaps", "networkpolicies", "poddisruptionbudgets", "serviceaccounts", "services", "statefulsets")
NOT_IN_THIS_LIFE: dict[tuple[str, str, str], str] = {
    **{("operator", "get", resource): TAKEN for resource in CHILDREN},
    ("operator", "update", "kinds/finalizers"): "asked for by the admission plugin of some clusters",
    ("operator", "delete", "controllerrevisions"): "of an attempt that was given up",
    ("operator", "patch", "controllerrevisions"): "when a generation is repaired in place",
    ("operator", "get", "controllerrevisions"): LOST,
    ("operator", "get", "secrets"): LOST,
    ("operator", "delete", "kinds"): "Backups of a schedule that are older than what is kept",
    ("operator", "create", "persistentvolumeclaims"): "for the log of a Coordinator",
    ("operator", "patch", "events"): "when one is repeated, which here depends on time",
}
"""Rights that the lives above may do without, and who needs them."""


def _of_any_kind(resource: str) -> str:
    """Our kinds are served alike and have the same rights: what one of them uses, all need."""
    plural, slash, sub = resource.partition("/")
    return f"kinds{slash}{sub}" if plural in PLURALS else resource


def test_no_right_is_granted_that_nobody_uses(calls: dict[str, set[Call]]) -> None:
    for role in ("operator", "operatorDefinitions", "operatorAllDefinitions", "operatorLease", "api"):
        account = "pavane-api" if role == "api" else "pavane-operator"
        used = {(call.verb, _of_any_kind(call.resource)) for call in calls[account]}
        granted = {
            (verb, _of_any_kind(resource)) for rule in RULES[role] for resource in rule.resources for verb in rule.verbs
        }
        explained = {(verb, resource) for explained_role, verb, resource in NOT_IN_THIS_LIFE if explained_role == role}
        unused = sorted(granted - used - explained)
        assert not unused, f"nobody uses {unused} of {role}"
        assert not explained - granted, f"an explanation without a right of {role}"


def test_no_rule_holds_for_everything() -> None:
    for role, each in RULES.items():
        for rule in each:
            assert "*" not in (*rule.verbs, *rule.resources, rule.group), role

"""The rules of the definitions, as a server enforces them (docs/specs/operator.md 1)."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pavane_local.api.cluster import DEFINITIONS, Cluster, WriteOptions
from pavane_local.api.errors import ApiError
from pavane_local.store import Object
from pavane_operator.crds.definitions import API_VERSION, definitions
from pavane_operator.crds.rollout import parse_repair
from tests.local.api_server import a_cluster

RESOURCE = "raftclusters.pavane.dev"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(tmp_path) as cluster:
        for definition in definitions():
            await cluster.create(DEFINITIONS, copy.deepcopy(definition))
        yield cluster


def _raft_cluster(name: str = "thing", **spec: Any) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "RaftCluster",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"stateMachine": "Broadcast", **spec},
    }


async def test_the_server_completes_the_least_that_a_user_writes(cluster: Cluster) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster())
    spec = made["spec"]
    assert spec["replicas"] == 3
    assert spec["storage"] == {"size": "2Gi", "retain": False}
    assert spec["electionTimeout"] == {"min": "200ms", "max": "300ms"}
    assert spec["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}
    assert spec["rollout"]["caughtUp"] == {"allowedLag": 100, "stabilityPeriod": "5s"}
    assert spec["rollout"]["retireDelay"] == "30s"
    assert "promote" not in spec["rollout"]


async def test_a_manifest_that_is_applied_again_is_what_stands_there(cluster: Cluster) -> None:
    """Argo CD and Flux compare lists as wholes: what a server adds to their items would be a difference for ever."""
    lists: dict[str, Any] = {
        "tolerations": [{"key": "disk"}],
        "topologySpreadConstraints": [{"topologyKey": "zone"}],
        "extraEnv": [{"name": "A"}],
    }
    by = WriteOptions("argocd-controller")
    made, _ = await cluster.apply(RESOURCE, _raft_cluster(**copy.deepcopy(lists)), by)
    again, _ = await cluster.apply(RESOURCE, _raft_cluster(**copy.deepcopy(lists)), by)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert {field: again["spec"][field] for field in lists} == lists


DECISIONS = {"paused": True, "restart": "now", "promote": 1, "forcePromote": 1, "abort": 1, "retry": 1}
"""Each is set by a manager of its own, without force (docs/specs/operator.md 8.1)."""


@pytest.mark.parametrize("field", DECISIONS)
async def test_whoever_creates_a_resource_owns_none_of_the_later_decisions(cluster: Cluster, field: str) -> None:
    await cluster.create(RESOURCE, _raft_cluster(rollout={"strategy": "Manual"}), WriteOptions("kubectl-create"))
    decision = _raft_cluster()
    decision["spec"] = {"rollout": {field: DECISIONS[field]}}
    decided, _ = await cluster.apply(RESOURCE, decision, WriteOptions(f"pavane-{field}"))
    assert decided["spec"]["rollout"][field] == DECISIONS[field]


def clients(**requirement: Any) -> dict[str, Any]:
    """A spec that selects clients by this condition on a label."""
    selector = {"matchExpressions": [{"key": "team", **requirement}]}
    return {"networkPolicy": {"clientSelector": {"podSelector": selector}}}


async def test_clients_are_selected_as_a_network_policy_does(cluster: Cluster) -> None:
    await cluster.create(RESOURCE, _raft_cluster(**clients(operator="Exists")))
    await cluster.create(RESOURCE, _raft_cluster("other", **clients(operator="NotIn", values=["a"])))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"replicas": 2}, "replicas must be odd"),
        ({"replicas": 11}, "spec.replicas"),
        ({"stateMachine": "Tape"}, "spec.stateMachine"),
        ({"electionTimeout": {"min": "49ms"}}, "at least 50ms"),
        ({"electionTimeout": {"min": "200ms", "max": "299ms"}}, "at least 1.5 times"),
        ({"terminationGracePeriod": "61m"}, "between 1s and 1h"),
        ({"terminationGracePeriod": "0s"}, "between 1s and 1h"),
        ({"rollout": {"caughtUp": {"stabilityPeriod": "2h"}}}, "between 0s and 1h"),
        ({"rollout": {"deadline": "soon"}}, "spec.rollout.deadline"),
        ({"rollout": {"bake": "25h"}}, "bake must be between 1s and 24h"),
        ({"extraEnv": [{"name": "PAVANE_KIND", "value": "x"}]}, "PAVANE_"),
        ({"extraEnv": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]}, "only one of"),
        ({"extraEnv": [{"name": "A", "valueFrom": {}}]}, "exactly one of"),
        (clients(operator="In"), "In and NotIn require values"),
        (clients(operator="Exists", values=["a"]), "Exists and DoesNotExist allow none"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(cluster: Cluster, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        await cluster.create(RESOURCE, _raft_cluster(**spec))
    assert refused.value.code == 422
    assert said in str(refused.value)


OTHERS: dict[str, dict[str, Any]] = {
    "coordinators": {"application": {"image": "i"}},
    "swimgroups": {},
}


@pytest.mark.parametrize("plural", OTHERS)
async def test_a_kind_that_cannot_go_back_while_it_bakes_says_so(cluster: Cluster, plural: str) -> None:
    await cluster.create(RESOURCE, _raft_cluster(rollout={"bake": "10m"}))
    spec = {"metadata": {"raftClusterRef": {"name": "registry"}}, "rollout": {"bake": "10m"}}
    log = {"metadata": {"name": "log", "namespace": "default"}, "spec": spec}
    await cluster.create("waltzclusters.pavane.dev", log)
    spec = {"waltzClusterRef": {"name": "log"}, "partitions": {"ticks": 0, "views": 1}, "rollout": {"bake": "10m"}}
    views = {"metadata": {"name": "views", "namespace": "default"}, "spec": spec}
    await cluster.create("computeclusters.pavane.dev", views)
    body = {"metadata": {"name": "one", "namespace": "default"}, "spec": OTHERS[plural]}
    assert "bake" not in (await cluster.create(f"{plural}.pavane.dev", body))["spec"]["rollout"]
    body = {"metadata": {"name": "two", "namespace": "default"}, "spec": {**OTHERS[plural], "rollout": {"bake": "1m"}}}
    with pytest.raises(ApiError, match=r"rollout\.bake is not available for this kind yet"):
        await cluster.create(f"{plural}.pavane.dev", body)


@pytest.mark.parametrize("mode", ["SelfSigned", "Secret", "Disabled"])
async def test_a_log_asks_for_certificates_only_where_the_operator_issues_them(cluster: Cluster, mode: str) -> None:
    tls = {"mode": mode, **({"secretName": "mine"} if mode == "Secret" else {})}
    spec = {
        "metadata": {"raftClusterRef": {"name": "registry"}},
        "clients": {"authentication": "Certificate"},
        "tls": tls,
    }
    body = {"metadata": {"name": "ledger", "namespace": "default"}, "spec": spec}
    if mode == "SelfSigned":
        await cluster.create("waltzclusters.pavane.dev", body)
        return
    with pytest.raises(ApiError, match=r"needs tls\.mode SelfSigned"):
        await cluster.create("waltzclusters.pavane.dev", body)


@pytest.mark.parametrize("field", ["rights", "quotas"])
async def test_rights_and_quotas_need_certificates(cluster: Cluster, field: str) -> None:
    named: dict[str, Any] = {"may": ["append"]} if field == "rights" else {"connections": 3}
    clients = {"authentication": "None", field: [{"identity": "billing", **named}]}
    spec = {"metadata": {"raftClusterRef": {"name": "registry"}}, "clients": clients}
    with pytest.raises(ApiError, match=rf"clients\.{field} needs clients\.authentication Certificate"):
        await cluster.create(
            "waltzclusters.pavane.dev", {"metadata": {"name": "ledger", "namespace": "default"}, "spec": spec}
        )


@pytest.mark.parametrize(
    ("retention", "said"),
    [
        ({}, "set retention.maxAge, retention.maxBytes or both"),
        ({"maxAge": "59s"}, "at least 1m"),
        ({"maxBytes": "1023Ki"}, "at least 1Mi"),
        ({"maxAge": "1m"}, ""),
        ({"maxAge": "720h", "maxBytes": "64Mi"}, ""),
    ],
)
async def test_a_log_keeps_something(cluster: Cluster, retention: dict[str, Any], said: str) -> None:
    spec = {"metadata": {"raftClusterRef": {"name": "registry"}}, "retention": retention}
    body = {"metadata": {"name": "ledger", "namespace": "default"}, "spec": spec}
    if not said:
        assert (await cluster.create("waltzclusters.pavane.dev", body))["spec"]["retention"] == {
            "respectConsumers": True,
            **retention,
        }
        return
    with pytest.raises(ApiError) as refused:
        await cluster.create("waltzclusters.pavane.dev", body)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"engine": "Plain", "spark": {"master": "local"}}, "spark needs engine Spark"),
        ({"engine": "Spark", "rollout": {"bake": "1m"}}, "rollout.bake is not available with engine Spark"),
        ({"engine": "Spark", "spark": {"executors": {"instances": 3}}}, "executors need master kubernetes"),
        ({"engine": "Spark", "spark": {"master": "kubernetes", "executors": {"memory": "511Mi"}}}, "at least 512Mi"),
        ({"engine": "Spark", "spark": {"master": "kubernetes", "executors": {"instances": 65}}}, "spec.spark"),
        ({"engine": "Spark", "spark": {"master": "kubernetes", "executors": {"memory": "512Mi"}}}, ""),
        ({"engine": "Spark", "spark": {"master": "kubernetes"}}, ""),
    ],
)
async def test_executors_belong_to_spark_on_kubernetes(cluster: Cluster, spec: dict[str, Any], said: str) -> None:
    views = {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": 2, "views": 3}, **spec}
    body = {"metadata": {"name": "main", "namespace": "default"}, "spec": views}
    if not said:
        assert (await cluster.create("computeclusters.pavane.dev", body))["spec"]["spark"]["master"] == "kubernetes"
        return
    with pytest.raises(ApiError) as refused:
        await cluster.create("computeclusters.pavane.dev", body)
    assert refused.value.code == 422
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["x" * 33, "3things", "a.b", "default"])
async def test_a_name_that_no_child_can_have_is_refused(cluster: Cluster, name: str) -> None:
    with pytest.raises(ApiError, match="the name must"):
        await cluster.create(RESOURCE, _raft_cluster(name))


@pytest.mark.parametrize(
    "change",
    [{"clusterId": "other"}, {"storage": {"size": "2047Mi"}}],
)
async def test_what_cannot_be_changed_is_refused(cluster: Cluster, change: dict[str, Any]) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster())
    with pytest.raises(ApiError, match=r"cannot (be changed|shrink)"):
        await cluster.update(RESOURCE, {**made, "spec": {**made["spec"], **change}})


@pytest.mark.parametrize("field", ["podLabels", "podAnnotations", "serviceAnnotations"])
@pytest.mark.parametrize("key", ["pavane.dev/generation", "app.kubernetes.io/name"])
async def test_keys_that_the_operator_sets_are_refused(cluster: Cluster, field: str, key: str) -> None:
    refused: dict[str, Any] = {field: {key: "mine"}}
    with pytest.raises(ApiError, match=f"{field}.* are set by the operator"):
        await cluster.create(RESOURCE, _raft_cluster(**refused))
    taken: dict[str, Any] = {field: {"team.test/name": "mine"}}
    await cluster.create(RESOURCE, _raft_cluster(**taken))


async def test_whose_secret_a_cluster_has_stays(cluster: Cluster) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster())
    given = await cluster.create(RESOURCE, _raft_cluster("given", secretRef={"name": "mine"}))
    assert given["spec"]["secretRef"] == {"name": "mine", "key": "secret"}
    without = {name: value for name, value in given["spec"].items() if name != "secretRef"}
    for before, spec in (
        (made, {**made["spec"], "secretRef": {"name": "mine"}}),
        (given, {**given["spec"], "secretRef": {"name": "other"}}),
        (given, {**given["spec"], "secretRef": {"name": "mine", "key": "other"}}),
        (given, without),
    ):
        with pytest.raises(ApiError, match=r"secretRef cannot be changed"):
            await cluster.update(RESOURCE, {**before, "spec": spec})
    await cluster.update(RESOURCE, {**given, "spec": {**given["spec"], "image": "pavane:2"}})


@pytest.mark.parametrize("reference", [{}, {"name": ""}, {"name": "mine", "key": "a/b"}, {"name": "mine", "key": ""}])
async def test_a_reference_that_can_name_no_secret_is_refused(cluster: Cluster, reference: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=r"spec.secretRef"):
        await cluster.create(RESOURCE, _raft_cluster(secretRef=reference))


async def test_volumes_may_grow(cluster: Cluster) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster())
    changed = await cluster.update(RESOURCE, {**made, "spec": {**made["spec"], "storage": {"size": "3Gi"}}})
    assert changed["spec"]["storage"]["size"] == "3Gi"


async def test_the_user_may_change_what_steers_and_what_rolls(cluster: Cluster) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster(clusterId="mine"))
    spec = {
        **made["spec"],
        "image": "pavane:2",
        "rollout": {**made["spec"]["rollout"], "strategy": "Manual", "promote": 1},
    }
    changed = await cluster.update(RESOURCE, {**made, "spec": spec})
    assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"mode": "CertManager"}, "spec.tls.mode"),
        ({"mode": "Secret"}, "tls.secretName is required in mode Secret"),
        ({"secretName": "mine"}, "not allowed in other modes"),
        ({"duration": "300h"}, "renewBefore must be shorter than tls.duration"),
        ({"duration": "1h", "renewBefore": "59m51s"}, "by at least 10s"),
        ({"duration": "1h", "renewBefore": "4m"}, "at least 5m"),
        ({"dnsNames": ["no name"]}, "spec.tls.dnsNames"),
    ],
)
async def test_certificates_that_cannot_be_are_refused(cluster: Cluster, tls: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as refused:
        await cluster.create(RESOURCE, _raft_cluster(tls=tls))
    assert refused.value.code == 422
    assert said in str(refused.value)


async def test_where_certificates_come_from_stays_and_how_long_they_live_may_change(cluster: Cluster) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster())
    assert made["spec"]["tls"] == {"mode": "SelfSigned", "duration": "2160h", "renewBefore": "360h"}
    for fixed in ({"mode": "Disabled"}, {"mode": "Secret", "secretName": "mine"}):
        with pytest.raises(ApiError, match=r"tls.mode cannot be changed"):
            await cluster.update(RESOURCE, {**made, "spec": {**made["spec"], "tls": {**made["spec"]["tls"], **fixed}}})
    lived = {"mode": "SelfSigned", "dnsNames": ["a.test"], "duration": "24h", "renewBefore": "8h"}
    assert (await cluster.update(RESOURCE, {**made, "spec": {**made["spec"], "tls": lived}}))["spec"]["tls"] == lived
    given = await cluster.create(RESOURCE, _raft_cluster("given", tls={"mode": "Secret", "secretName": "mine"}))
    other = {**given["spec"]["tls"], "secretName": "other"}
    with pytest.raises(ApiError, match=r"tls.secretName cannot be changed"):
        await cluster.update(RESOURCE, {**given, "spec": {**given["spec"], "tls": other}})


@pytest.mark.parametrize("repair", ["1", "12.3", "999999999999999.9999"])
async def test_a_repair_names_a_generation_and_perhaps_which_time(cluster: Cluster, repair: str) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster(rollout={"repair": repair}))
    generation, _, time = repair.partition(".")
    assert parse_repair(made["spec"]["rollout"]["repair"]) == (int(generation), int(time or 1))


@pytest.mark.parametrize("repair", ["", "0", "1.0", "1.", "g1", "-1", "1.2.3"])
async def test_no_other_repair_is_taken(cluster: Cluster, repair: str) -> None:
    with pytest.raises(ApiError, match="repair"):
        await cluster.create(RESOURCE, _raft_cluster(rollout={"repair": repair}))


async def test_replicas_may_change_and_stay_odd(cluster: Cluster) -> None:
    made = await cluster.create(RESOURCE, _raft_cluster())
    made = await cluster.update(RESOURCE, {**made, "spec": {**made["spec"], "replicas": 5}})
    with pytest.raises(ApiError, match="replicas must be odd"):
        await cluster.update(RESOURCE, {**made, "spec": {**made["spec"], "replicas": 4}})

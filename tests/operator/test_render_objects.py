"""What all kinds render alike: pods, budget, Service; on a RaftCluster (docs/specs/operator.md 1.2, 4.1, 4.2)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pavane_operator.crds.common import rollout_id
from pavane_operator.kinds.raft.render import RaftRenderer
from pavane_operator.plan.model import Manifest, Resource, Writers
from tests.operator.restricted import violations
from tests.operator.test_render_raft import DEFAULTS, objects, resource, stateful_set

SELECTOR = {
    "app.kubernetes.io/name": "raftcluster",
    "app.kubernetes.io/instance": "log",
    "app.kubernetes.io/component": "server",
    "pavane.dev/generation": "1",
}
NODE_LOST = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for taint in ("not-ready", "unreachable")
]


def template(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = stateful_set(resource(**spec))["spec"]["template"]
    return found


def pod(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = template(**spec)["spec"]
    return found


# ---- pods


@pytest.mark.parametrize("spec", [{}, {"tls": {"mode": "Disabled"}}, {"extraEnv": [{"name": "A", "value": "b"}]}])
def test_pods_are_admitted_at_the_restricted_level(spec: dict[str, Any]) -> None:
    assert violations(pod(**spec)) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda spec: spec.update(hostNetwork=True),
        lambda spec: spec["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        lambda spec: spec["securityContext"].pop("runAsNonRoot"),
        lambda spec: spec["securityContext"].pop("seccompProfile"),
        lambda spec: spec["securityContext"].update(runAsUser=0),
        lambda spec: spec["containers"][0].pop("securityContext"),
        lambda spec: spec["containers"][0]["securityContext"].update(privileged=True),
        lambda spec: spec["containers"][0]["securityContext"].update(
            capabilities={"drop": ["ALL"], "add": ["SYS_TIME"]}
        ),
        lambda spec: spec["containers"][0]["ports"][0].update(hostPort=1),
    ],
)
def test_what_the_level_forbids_would_be_seen(damage: Callable[[dict[str, Any]], object]) -> None:
    spec = copy.deepcopy(pod())
    damage(spec)
    assert violations(spec) != []


def test_pods_run_without_a_token_and_can_write_only_their_volume_and_a_temporary_folder() -> None:
    spec = pod()
    account = objects(resource())["ServiceAccount/log"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert spec["automountServiceAccountToken"] is account["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == {"data", "tmp"}
    assert {"name": "tmp", "emptyDir": {}} in spec["volumes"]


def test_pods_are_spread_over_nodes_and_leave_a_lost_one_soon() -> None:
    spec = pod()
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"] == {"matchLabels": SELECTOR}
    assert spec["tolerations"] == NODE_LOST


def test_where_pods_run_is_the_users_choice() -> None:
    spec = pod(
        imagePullPolicy="Always",
        imagePullSecrets=[{"name": "registry"}],
        nodeSelector={"disk": "ssd"},
        tolerations=[
            {"key": "dedicated", "value": "state", "effect": "NoSchedule"},
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 5,
            },
        ],
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        priorityClassName="high",
        runtimeClassName="gvisor",
        topologySpreadConstraints=[{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2}],
    )
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "state", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        NODE_LOST[0],
    ]
    (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule == {"topologyKey": "zone"}
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("high", "gvisor")
    assert spec["topologySpreadConstraints"] == [
        {
            "topologyKey": "zone",
            "maxSkew": 2,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": SELECTOR},
        }
    ]


def test_no_spread_at_all_is_a_choice_too() -> None:
    assert "topologySpreadConstraints" not in pod(topologySpreadConstraints=[])


def test_labels_and_annotations_of_the_user_reach_the_pod_and_never_replace_ours() -> None:
    metadata = template(podLabels={"team": "a", "pavane.dev/generation": "9"}, podAnnotations={"team.test/note": "x"})[
        "metadata"
    ]
    assert metadata["labels"].items() >= {**SELECTOR, "team": "a"}.items()
    assert metadata["annotations"]["team.test/note"] == "x"


@pytest.mark.parametrize(
    ("field", "rolls"),
    [
        ({"imagePullPolicy": "Always"}, True),
        ({"nodeSelector": {"disk": "ssd"}}, True),
        ({"topologySpreadConstraints": []}, True),
        ({"affinity": {"nodeAffinity": {}}}, True),
        ({"podLabels": {"team": "a"}}, True),
        ({"networkPolicy": {"enabled": False, "ingressCIDRs": ["10.0.0.0/8"]}}, False),
        ({"networkPolicy": {"clientSelector": {"podSelector": {}}}}, False),
        ({"podDisruptionBudget": {"enabled": False}}, False),
        ({"storage": {"size": "9Gi", "retain": True}}, False),
        ({"serviceType": "NodePort", "serviceAnnotations": {"team.test/note": "x"}}, False),
    ],
)
def test_what_ends_in_the_pod_rolls_and_nothing_else(field: dict[str, Any], rolls: bool) -> None:
    plain, changed = resource(), resource(**field)
    assert (rollout_id("RaftCluster", changed.spec) != rollout_id("RaftCluster", plain.spec)) is rolls
    assert (template(**field) != template()) is rolls


# ---- budget


def budget(of: Resource, *writers: int, moving: bool = False) -> dict[str, Any] | None:
    manifests: tuple[Manifest, ...] = RaftRenderer(DEFAULTS).shared(of, Writers(writers, moving=moving), {})
    found = [dict(manifest.body) for manifest in manifests if manifest.kind == "PodDisruptionBudget"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("replicas", "wanted", "allowed"),
    [(1, 1, 1), (1, 0, 0), (3, 1, 1), (3, 2, 1), (3, 0, 0), (5, 1, 1), (5, 2, 2), (5, 5, 2), (9, 9, 4)],
)
def test_a_budget_never_gives_the_quorum_away(replicas: int, wanted: int, allowed: int) -> None:
    found = budget(resource(replicas=replicas, podDisruptionBudget={"maxUnavailable": wanted}), 4)
    assert found is not None
    assert found["metadata"]["name"] == "log-server"
    assert found["spec"]["maxUnavailable"] == allowed


def test_nobody_may_be_evicted_while_the_right_to_write_moves() -> None:
    found = budget(resource(replicas=5, podDisruptionBudget={"maxUnavailable": 2}), 4, 5, moving=True)
    assert found is not None
    assert found["spec"]["maxUnavailable"] == 0
    assert found["spec"]["selector"] == {
        "matchLabels": {key: value for key, value in SELECTOR.items() if key != "pavane.dev/generation"},
        "matchExpressions": [{"key": "pavane.dev/generation", "operator": "In", "values": ["4", "5"]}],
    }


def test_there_is_no_budget_where_it_is_turned_off_or_nobody_may_write_yet() -> None:
    assert budget(resource(podDisruptionBudget={"enabled": False}), 4) is None
    assert budget(resource()) is None


# ---- Service


def test_type_and_annotations_are_those_of_the_public_service_alone() -> None:
    rendered = objects(resource(serviceType="LoadBalancer", serviceAnnotations={"team.test/note": "x"}))
    public, headless = rendered["Service/log"], rendered["Service/log-server-g1"]
    assert public["spec"]["type"] == "LoadBalancer"
    assert public["metadata"]["annotations"]["team.test/note"] == "x"
    assert headless["spec"]["clusterIP"] == "None"
    assert "team.test/note" not in headless["metadata"]["annotations"]

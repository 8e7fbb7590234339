"""Every supported shape of the charts: valid, admitted at the restricted level, consistent in itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pavane_operator.charts import gen
from pavane_operator.charts.rules import rules
from pavane_operator.charts.values import Values
from pavane_operator.crds.definitions import definitions
from tests.charts.rendering import CHARTS, SHAPES, Object, find, pod_templates, render, template

SUPPORTED = ("1.29", "1.34")
"""Oldest and newest Kubernetes (docs/specs/operator.md 7.2)."""

shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda path: str(path.stem))


@pytest.fixture
def documents(shape: Path) -> list[Object]:
    return render("pavane", "--values", str(shape))


@shapes
@pytest.mark.parametrize("version", SUPPORTED)
def test_each_shape_is_valid_for_the_oldest_and_newest_kubernetes(documents: list[Object], version: str) -> None:
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@shapes
def test_each_pod_is_admitted_at_the_restricted_level(documents: list[Object]) -> None:
    for pod in pod_templates(documents):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(set(volume) - {"name"} <= {"emptyDir", "projected"} for volume in spec["volumes"])
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("values", "sent", "asked"),
    [
        ((), True, True),
        (("--set", "telemetry.requireToken=false"), False, False),
        (("--set", "telemetry.otlpEndpoint=http://collector:4318"), False, True),
    ],
)
def test_spans_go_to_the_control_plane_with_a_token_and_to_nobody_else(
    values: tuple[str, ...], sent: bool, asked: bool
) -> None:
    documents = render("pavane", *values)
    for name in ("pavane-operator", "pavane-api"):
        spec = find(documents, "Deployment", name)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        paths = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        tokens = [
            (
                source["serviceAccountToken"]["audience"],
                f"{paths[volume['name']]}/{source['serviceAccountToken']['path']}",
            )
            for volume in spec["volumes"]
            for source in volume.get("projected", {}).get("sources", ())
        ]
        said = {one["name"]: one.get("value") for one in container["env"]}
        expected = [("pavane-otlp", said.get("PAVANE_OTLP_TOKEN_FILE"))] if sent else []
        if name == "pavane-operator":
            expected += [("pavane-gates", said.get("PAVANE_CONTROL_PLANE_TOKEN_FILE"))]
            assert said["PAVANE_CONTROL_PLANE_URL"] == "http://pavane-api.pavane-system.svc:8000"
        assert tokens == expected
        if name == "pavane-operator":
            assert said.get("PAVANE_POD_OTLP_AUDIENCE") == ("pavane-otlp" if sent else None)
        else:
            assert said.get("PAVANE_API_TRACE_TOKENS") == (None if asked else "false")


@shapes
def test_each_image_names_what_it_is(documents: list[Object]) -> None:
    images = [container["image"] for pod in pod_templates(documents) for container in pod["spec"]["containers"]]
    deployments = [one for one in documents if one["kind"] == "Deployment"]
    images += [
        one["value"]
        for deployment in deployments
        for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        if one["name"] == "PAVANE_DEFAULT_IMAGE"
    ]
    assert images
    for image in images:
        _, _, tag = image.rpartition("/")[2].partition(":")
        assert tag, image
        assert tag != "latest", image


@shapes
def test_what_selects_pods_finds_them(documents: list[Object]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pod_templates(documents)]
    selectors = []
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            selectors.append(spec["selector"])
        if document["kind"] in ("Deployment", "PodDisruptionBudget"):
            selectors.append(spec["selector"]["matchLabels"])
        if document["kind"] == "NetworkPolicy":
            selectors.append(spec["podSelector"]["matchLabels"])
    assert selectors
    for selector in selectors:
        assert "app.kubernetes.io/version" not in selector
        assert len([each for each in labels if selector.items() <= each.items()]) == 1, selector


@shapes
def test_everything_says_where_it_belongs(documents: list[Object]) -> None:
    for document in documents:
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "pavane"
        assert labels["app.kubernetes.io/instance"] == "pavane"


def _granted(documents: list[Object], kind: str, name: str) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, named)
        for rule in find(documents, kind, name)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for named in rule.get("resourceNames", [""])
    }


def _ruled(role: str) -> set[tuple[str, str, str, str]]:
    return {
        (rule.group, resource, verb, name)
        for rule in rules()[role]
        for resource in rule.resources
        for verb in rule.verbs
        for name in rule.names or ("",)
    }


def test_roles_hold_the_rules_that_are_compared_with_the_calls() -> None:
    documents = render("pavane")
    assert _granted(documents, "ClusterRole", "pavane-operator") == _ruled("operator")
    definitions_rules = _ruled("operatorDefinitions") | _ruled("operatorAllDefinitions")
    assert _granted(documents, "ClusterRole", "pavane-operator-definitions") == definitions_rules
    assert _granted(documents, "Role", "pavane-operator-lease") == _ruled("operatorLease")
    assert _granted(documents, "ClusterRole", "pavane-api") == _ruled("api")
    for user in ("view", "edit", "admin"):
        assert _granted(documents, "ClusterRole", f"pavane-{user}") == _ruled(user)


def test_rights_for_executors_are_granted_only_where_they_are_asked_for() -> None:
    asked = ("--set", "rbac.sparkExecutors=true")
    both = _ruled("operator") | _ruled("operatorExecutors")
    assert _granted(render("pavane", *asked), "ClusterRole", "pavane-operator") == both
    documents = render("pavane", *asked, "--set", "watchNamespaces={one}")
    assert _granted(documents, "Role", "pavane-operator") == both


def test_in_some_namespaces_nothing_is_granted_in_all() -> None:
    documents = render("pavane", "--set", "watchNamespaces={one,two}")
    cluster_wide = {one["metadata"]["name"] for one in documents if one["kind"] == "ClusterRole"}
    assert cluster_wide == {"pavane-operator-definitions", "pavane-view", "pavane-edit", "pavane-admin"}
    assert _granted(documents, "ClusterRole", "pavane-operator-definitions") == _ruled("operatorDefinitions")
    for component in ("operator", "api"):
        places = {
            (one["kind"], one["metadata"]["namespace"])
            for one in documents
            if one["metadata"]["name"] == f"pavane-{component}" and one["kind"].startswith("Role")
        }
        assert places == {(kind, place) for kind in ("Role", "RoleBinding") for place in ("one", "two")}
    environment = find(documents, "Deployment", "pavane-operator")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "PAVANE_WATCH_NAMESPACES", "value": "one,two"} in environment


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("operator.replicaCount=2", "replicaCount"),
        ("image.tag=latest", "tag"),
        ("operator.replicas=3", "replicas"),
        ("watchNamespaces={Not_A_Name}", "watchNamespaces"),
    ],
)
def test_a_value_that_does_nothing_or_harm_is_refused(argument: str, complaint: str) -> None:
    result = template("pavane", "--set", argument, check=False)
    assert result.returncode != 0
    assert complaint in result.stderr


def test_a_digest_counts_before_a_tag() -> None:
    digest = "sha256:" + "0" * 64
    documents = render("pavane", "--set", f"image.digest={digest},api.image.tag=v2,api.image.repository=other")
    images = {
        name: find(documents, "Deployment", f"pavane-{name}")["spec"]["template"]["spec"]["containers"][0]["image"]
        for name in ("operator", "api")
    }
    assert images == {"operator": f"pavane@{digest}", "api": "other:v2"}


def test_a_standby_comes_up_before_the_first_operator_goes() -> None:
    strategies = [
        find(render("pavane", "--set", f"operator.replicas={count}"), "Deployment", "pavane-operator")["spec"][
            "strategy"
        ]
        for count in (1, 2)
    ]
    surges = [(each["rollingUpdate"]["maxSurge"], each["rollingUpdate"]["maxUnavailable"]) for each in strategies]
    assert surges == [(0, 1), (1, 0)]


@pytest.mark.parametrize("cel", [True, False])
def test_the_definitions_are_those_of_the_models(cel: bool) -> None:
    documents = render("pavane-crds", "--set", f"crds.cel={str(cel).lower()}")
    assert [one["spec"] for one in documents] == [one["spec"] for one in definitions(cel=cel)]
    for document in documents:
        assert document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_definitions_can_be_left_out_or_go_with_the_release() -> None:
    assert render("pavane-crds", "--set", "crds.install=false") == []
    for document in render("pavane-crds", "--set", "crds.keep=false,crds.labels.team=storage"):
        assert not document["metadata"]["annotations"]
        assert document["metadata"]["labels"]["team"] == "storage"


def test_the_generated_files_are_those_of_the_models() -> None:
    for name, text in gen.render().items():
        assert (CHARTS / name).read_text(encoding="utf-8") == text, "run python -m pavane_operator.charts.gen"
    values: Any = yaml.safe_load((CHARTS / "pavane" / "values.yaml").read_text())
    assert Values.model_validate(values) == Values()

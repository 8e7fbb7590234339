"""Custom resource schemas: prune, default, validate, CEL (docs/specs/operator.md 6.4)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pavane_local.api.cluster import DEFINITIONS, Cluster
from pavane_local.api.errors import ApiError
from pavane_local.store import clone
from tests.local.api_server import WIDGET_DEFINITION, WIDGETS, a_cluster, widget


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(tmp_path) as running:
        yield running


async def test_unknown_fields_go_and_defaults_come_also_inside_defaults(cluster: Cluster) -> None:
    body = widget(colour=1, config={"free": {"form": [1]}}, env=[{"name": "a", "other": 1}], rollout=None)
    made = await cluster.create(WIDGETS, body)
    assert made["spec"] == {
        "size": "1Gi",
        "replicas": 3,
        "rollout": {"deadline": "30m"},
        "config": {"free": {"form": [1]}},
        "env": [{"name": "a"}],
    }


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        (
            {"replicas": 0},
            "spec.replicas",
            "Invalid value: 0: spec.replicas in body should be greater than or equal to 1",
        ),
        ({"replicas": 11}, "spec.replicas", "should be less than or equal to 9"),
        ({"replicas": "x"}, "spec.replicas", 'Invalid value: "x": spec.replicas in body must be of type integer'),
        ({"replicas": True}, "spec.replicas", "must be of type integer"),
        ({"replicas": 4}, "spec.replicas", "Invalid value: must be odd"),
        ({"mode": "C"}, "spec.mode", 'Unsupported value: "C": supported values: "A", "B"'),
        ({"size": None}, "spec.size", "Required value"),
        ({"size": "1" * 21}, "spec.size", "Too long: "),
        ({"tags": ["a", "b", "c"]}, "spec.tags", "Too many: "),
        ({"tags": ["a", "a"]}, "spec.tags[1]", 'Duplicate value: "a"'),
        ({"env": [{"name": "a"}, {"name": "a"}]}, "spec.env[1]", 'Duplicate value: {"name": "a"}'),
        ({"env": [{"value": "a"}]}, "spec.env[0].name", "Required value"),
        ({"port": 1.5}, "spec.port", "must be of type integer,string"),
        ({"rollout": {"deadline": "soon"}}, "spec.rollout.deadline", "should match"),
        ({"rollout": {"deadline": "1ms"}}, "spec.rollout.deadline", "is too short"),
    ],
)
async def test_a_wrong_field_is_named(cluster: Cluster, spec: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ApiError) as refusal:
        await cluster.create(WIDGETS, widget(**spec))
    (cause,) = refusal.value.status()["details"]["causes"]
    assert (refusal.value.code, cause["field"]) == (422, field)
    assert message in cause["message"]
    assert refusal.value.message == f'Widget.test.dev "a" is invalid: {field}: {cause["message"]}'


async def test_all_wrong_fields_are_named_at_once(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match=r"is invalid: \[spec.mode: .*, spec.replicas: .*\]"):
        await cluster.create(WIDGETS, widget(mode="C", replicas=0))


@pytest.mark.parametrize("spec", [{"port": 1}, {"port": "http"}, {"note": None}, {"note": "x"}, {"tags": ["a", "b"]}])
async def test_right_fields_are_kept(cluster: Cluster, spec: dict[str, Any]) -> None:
    made = await cluster.create(WIDGETS, widget(**spec))
    assert made["spec"] | spec == made["spec"]


async def test_rules_see_the_object_before(cluster: Cluster) -> None:
    await cluster.create(WIDGETS, widget(size="1Gi"))
    assert (await cluster.patch(WIDGETS, "default", "a", {"spec": {"size": "10Gi"}}))["spec"]["size"] == "10Gi"
    with pytest.raises(ApiError, match=r"spec\.size: Invalid value: may not shrink"):
        await cluster.patch(WIDGETS, "default", "a", {"spec": {"size": "1Gi"}})


async def test_a_rule_that_cannot_be_evaluated_refuses(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match=r"spec\.rollout\.deadline: .* cannot be evaluated"):
        await cluster.create(WIDGETS, widget(rollout={"deadline": "99999999999999999999h"}))


async def test_a_rule_at_the_root_sees_the_name(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="the name is too long"):
        await cluster.create(WIDGETS, widget("a-much-too-long-name"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"type": "object", "properties": {"spec": {}}}, ".properties.spec"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, ".properties.a"),
        ({"type": "object", "properties": {}, "additionalProperties": True}, "openAPIV3Schema"),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "self."}]}, "compilation failed: self."),
        ({"type": "object", "x-kubernetes-validations": "self.x"}, "openAPIV3Schema"),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "self.x", "fieldPath": ".x"}]}, "fieldPath"),
        ({"type": "object", "properties": "x"}, "properties"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": True}}}, ".properties.a.items"),
        ({"type": "object", "additionalProperties": {}}, ".additionalProperties"),
    ],
)
async def test_a_schema_that_is_not_structural_is_refused(
    cluster: Cluster, change: dict[str, Any], problem: str
) -> None:
    body = clone(WIDGET_DEFINITION)
    body["metadata"]["name"] = "gadgets.test.dev"
    body["spec"]["names"] = {"plural": "gadgets", "kind": "Gadget"}
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = change
    with pytest.raises(ApiError) as refusal:
        await cluster.create(DEFINITIONS, body)
    assert refusal.value.code == 422
    assert problem in refusal.value.message
    with pytest.raises(ApiError, match="could not find"):
        await cluster.create("gadgets.test.dev", widget())


async def test_a_good_definition_is_established_at_once(cluster: Cluster) -> None:
    status = cluster.get(DEFINITIONS, "", WIDGETS)["status"]
    assert {each["type"]: each["status"] for each in status["conditions"]}["Established"] == "True"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("versions",), []),
        (("scope",), "Galaxy"),
        (("names",), {"plural": "other", "kind": "Other"}),
        (("versions", 0, "served"), False),
    ],
)
async def test_a_wrong_definition_is_refused(cluster: Cluster, path: tuple[Any, ...], value: Any) -> None:
    body = clone(WIDGET_DEFINITION)
    place = body["spec"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    await cluster.delete(DEFINITIONS, "", WIDGETS)
    with pytest.raises(ApiError) as refusal:
        await cluster.create(DEFINITIONS, body)
    assert refusal.value.code == 422


GROWING = {"rule": "quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0", "message": "cannot shrink"}


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("1Gi", "1Gi", True),
        ("900Mi", "1Gi", True),
        ("1Gi", "1023Mi", False),
        ("1Gi", "1G", False),
        (2000, "2k", True),
        ("1500m", 1, False),
        ("1.5Ki", 1537, True),
        ("999Pi", "1Ei", True),
    ],
)
async def test_quantities_are_compared_by_value(cluster: Cluster, before: Any, after: Any, allowed: bool) -> None:
    await cluster.delete(DEFINITIONS, "", WIDGETS)
    body = clone(WIDGET_DEFINITION)
    size = {"x-kubernetes-int-or-string": True, "x-kubernetes-validations": [GROWING]}
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] = size
    await cluster.create(DEFINITIONS, body)
    await cluster.create(WIDGETS, widget(size=before))
    if allowed:
        assert (await cluster.patch(WIDGETS, "default", "a", {"spec": {"size": after}}))["spec"]["size"] == after
        return
    with pytest.raises(ApiError, match=r"spec\.size: Invalid value: cannot shrink"):
        await cluster.patch(WIDGETS, "default", "a", {"spec": {"size": after}})


async def test_what_is_no_quantity_is_refused_in_words(cluster: Cluster) -> None:
    await cluster.delete(DEFINITIONS, "", WIDGETS)
    body = clone(WIDGET_DEFINITION)
    size = {"type": "string", "x-kubernetes-validations": [{"rule": "quantity(self).compareTo(quantity('1')) > 0"}]}
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] = size
    await cluster.create(DEFINITIONS, body)
    with pytest.raises(ApiError, match="much is not a quantity"):
        await cluster.create(WIDGETS, widget(size="much"))


@pytest.mark.parametrize("extra", [{"reason": "FieldValueForbidden"}, {"fieldPath": ".size"}])
async def test_parts_of_rules_that_nobody_here_needs_are_refused(cluster: Cluster, extra: dict[str, str]) -> None:
    body = clone(WIDGET_DEFINITION)
    body["metadata"]["name"] = "gadgets.test.dev"
    body["spec"]["names"] = {"plural": "gadgets", "kind": "Gadget"}
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [{"rule": "true", **extra}]
    with pytest.raises(ApiError, match=f"x-kubernetes-validations.*{next(iter(extra))}"):
        await cluster.create(DEFINITIONS, body)

"""Custom resources: definition, pruning, defaults, validation, rules (docs/specs/operator.md 6.4)."""

import copy
from typing import Any

import pytest

from e2e.contract.target import Differs, KubeTarget, established
from e2e.contract.widgets import WIDGET_DEFINITION, WIDGETS, widget
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube.resources import CRDS, Object, Resource, custom

pytestmark = pytest.mark.contract(since="1.29")

GADGETS = Resource("test.dev", "v1", "gadgets", "Gadget")
RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")


def raft_cluster(**spec: Any) -> Object:
    return {"metadata": {"name": "q"}, "spec": {"stateMachine": "Broadcast", **spec}}


def test_defaults_are_filled_in_also_inside_defaulted_objects(target: KubeTarget) -> None:
    assert target.create(WIDGETS, widget()).ok()["spec"] == {
        "size": "1Gi",
        "replicas": 3,
        "rollout": {"deadline": "30m"},
    }


def test_unknown_fields_are_dropped(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget(colour="red", config={"any": {"thing": 1}})).ok()
    assert "colour" not in made["spec"]
    assert made["spec"]["config"] == {"any": {"thing": 1}}


@pytest.mark.parametrize("verb", ["create", "apply", "merge"])
def test_unknown_fields_are_refused_when_asked_to(target: KubeTarget, verb: str) -> None:
    body = widget(colour="red")
    if verb == "create":
        answer = target.create(WIDGETS, body, fieldValidation="Strict")
    elif verb == "apply":
        answer = target.apply(WIDGETS, body, fieldValidation="Strict")
    else:
        target.create(WIDGETS, widget()).ok()
        answer = target.patch(WIDGETS, "a", {"spec": {"colour": "red"}}, fieldValidation="Strict")
    assert answer.code in (400, 422, 500), answer
    assert "spec.colour" in answer.message


@pytest.mark.contract(
    differs=Differs(
        "`fieldValidation=Warn`", "400", "accepted, with a header `Warning`", "kubectl and the platform ask for Strict"
    )
)
def test_unknown_fields_that_are_only_warned_about(target: KubeTarget) -> None:
    answer = target.create(WIDGETS, widget(colour="red"), fieldValidation="Warn")
    assert answer.code == target.either(embedded=400, kubernetes=201)


@pytest.mark.parametrize(
    ("spec", "field", "reason", "words"),
    [
        ({"size": None}, "spec.size", "FieldValueRequired", "Required value"),
        ({"mode": "C"}, "spec.mode", "FieldValueNotSupported", "Unsupported value"),
        ({"replicas": "many"}, "spec.replicas", "FieldValueTypeInvalid", "Invalid value"),
        ({"replicas": 11}, "spec.replicas", "FieldValueInvalid", "should be less than or equal to 9"),
        ({"replicas": 0}, "spec.replicas", "FieldValueInvalid", "should be greater than or equal to 1"),
        ({"size": "x" * 21}, "spec.size", "FieldValueTooLong", "Too long: may not be more than 20"),
        ({"tags": ["a", "b", "c"]}, "spec.tags", "FieldValueTooMany", "must have at most 2 items"),
        ({"tags": ["a", "a"]}, "spec.tags[1]", "FieldValueDuplicate", "Duplicate value"),
        ({"env": [{"value": "x"}]}, "spec.env[0].name", "FieldValueRequired", "Required value"),
        ({"env": [{"name": "x"}, {"name": "x"}]}, "spec.env[1]", "FieldValueDuplicate", "Duplicate value"),
        ({"rollout": {"deadline": "soon"}}, "spec.rollout.deadline", "FieldValueInvalid", "should match"),
        ({"rollout": []}, "spec.rollout", "FieldValueTypeInvalid", "must be of type object"),
        ({"port": 1.5}, "spec.port", "FieldValueTypeInvalid", "Invalid value"),
        ({"replicas": 4}, "spec.replicas", "FieldValueInvalid", "Invalid value"),
        ({"rollout": {"deadline": "1ms"}}, "spec.rollout.deadline", "FieldValueInvalid", "is too short"),
    ],
)
def test_a_wrong_field_is_refused_by_name(
    target: KubeTarget, spec: dict[str, Any], field: str, reason: str, words: str
) -> None:
    refused = target.create(WIDGETS, widget(**spec)).refused(422, "Invalid")
    assert refused.causes[field] == reason
    assert refused.body["details"]["name"] == "a"
    assert (refused.body["details"]["kind"], refused.body["details"]["group"]) == ("Widget", "test.dev")
    messages = [each["message"] for each in refused.body["details"]["causes"] if each["field"] == field]
    assert any(words in each for each in messages), messages
    assert refused.message.startswith('Widget.test.dev "a" is invalid: ')
    assert f"{field}: {messages[0]}" in refused.message


def test_all_wrong_fields_are_told_at_once(target: KubeTarget) -> None:
    refused = target.create(WIDGETS, widget(mode="C", replicas=11)).refused(422, "Invalid")
    assert refused.causes.keys() >= {"spec.mode", "spec.replicas"}


def test_broken_rules_are_told_beside_each_other(target: KubeTarget) -> None:
    refused = target.create(WIDGETS, widget(replicas=4, rollout={"deadline": "1ms"})).refused(422, "Invalid")
    assert refused.causes == {"spec.replicas": "FieldValueInvalid", "spec.rollout.deadline": "FieldValueInvalid"}
    assert "must be odd" in refused.message
    assert "is too short" in refused.message


def test_rules_of_change_compare_with_what_was(target: KubeTarget) -> None:
    target.create(WIDGETS, widget(size="10Gi")).ok()
    refused = target.patch(WIDGETS, "a", {"spec": {"size": "1Gi"}}).refused(422, "Invalid")
    assert refused.causes == {"spec.size": "FieldValueInvalid"}
    assert "may not shrink" in refused.message
    target.patch(WIDGETS, "a", {"spec": {"size": "100Gi"}}).ok()


def test_a_rule_about_the_whole_object_sees_its_name(target: KubeTarget) -> None:
    refused = target.create(WIDGETS, widget("a-very-long-name")).refused(422, "Invalid")
    assert "the name is too long" in refused.message


def test_a_wrong_status_is_refused(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    refused = target.patch(WIDGETS, "a", {"status": {"replicas": "many"}}, sub="status").refused(422, "Invalid")
    assert refused.causes["status.replicas"] == "FieldValueTypeInvalid"


@pytest.mark.parametrize(
    ("name", "code"), [("A", 422), ("a_b", 422), ("a.b", 201), ("-a", 422), ("", 422), ("x" * 254, 422)]
)
def test_names_are_checked(target: KubeTarget, name: str, code: int) -> None:
    answer = target.create(WIDGETS, widget(name) if name else {"metadata": {}, "spec": {"size": "1"}})
    assert answer.code == code
    if code == 422:
        assert next(iter(answer.causes)).startswith("metadata.name")


def test_scale_reads_and_changes_the_replicas(target: KubeTarget) -> None:
    target.create(WIDGETS, widget()).ok()
    target.patch(WIDGETS, "a", {"status": {"replicas": 1}}, sub="status").ok()
    scale = target.get(WIDGETS, "a", "scale").ok()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]["replicas"]) == ({"replicas": 3}, 1)
    scale["spec"]["replicas"] = 5
    path = target.path(WIDGETS, "a", "scale")
    assert target.call("PUT", path, scale).ok()["spec"]["replicas"] == 5
    target.call("PUT", path, scale).refused(409, "Conflict")
    assert target.patch(WIDGETS, "a", {"spec": {"replicas": 7}}, sub="scale").ok()["spec"]["replicas"] == 7
    assert target.get(WIDGETS, "a").ok()["spec"]["replicas"] == 7
    assert target.get(WIDGETS, "a").ok()["metadata"]["generation"] == 3


@pytest.mark.parametrize("replicas", [4, -1, 11])
def test_a_wrong_scale_is_refused_in_the_words_of_the_schema(target: KubeTarget, replicas: int) -> None:
    target.create(WIDGETS, widget()).ok()
    refused = target.patch(WIDGETS, "a", {"spec": {"replicas": replicas}}, sub="scale").refused(422, "Invalid")
    assert "spec.replicas" in refused.causes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "object", "properties": {"x": {}}}, "properties"),
        ({"type": "object", "properties": {"x": {"type": "array"}}}, "properties"),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "self.("}]}, "ompilation failed"),
    ],
)
def test_a_definition_must_be_structural_and_its_rules_compile(
    target: KubeTarget, change: dict[str, Any], words: str
) -> None:
    refused = target.create(CRDS, gadgets(change), dryRun="All").refused(422, "Invalid")
    assert words in refused.message


def gadgets(schema: Object) -> Object:
    """A definition with this schema, of a kind that nobody else defines."""
    body = copy.deepcopy(WIDGET_DEFINITION)
    body["metadata"]["name"] = "gadgets.test.dev"
    body["spec"]["names"] = {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"}
    body["spec"]["versions"][0] |= {"subresources": {}, "schema": {"openAPIV3Schema": schema}}
    return body


NOT_CHECKED = Differs(
    "a definition whose default breaks its own rules, or whose list keys are neither required nor defaulted",
    "accepted",
    "422",
    "definitions are generated, and these tests apply every one of them to a real server",
)
RULE = {"rule": "self.x > 1", "message": "x is too small"}
DEFAULTED = {"type": "object", "default": {}, "properties": {"x": {"type": "integer", "default": 1}}}
LISTED = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}
SLIPS = {
    "default": {**DEFAULTED, "x-kubernetes-validations": [RULE]},
    "keys": {**LISTED, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
}


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.contract(differs=NOT_CHECKED)
def test_slips_in_a_definition(target: KubeTarget, slip: str) -> None:
    answer = target.create(CRDS, gadgets({"type": "object", "properties": {"spec": SLIPS[slip]}}), dryRun="All")
    assert answer.code == target.either(embedded=201, kubernetes=422)


@pytest.mark.contract(
    differs=Differs(
        "`DELETE` of a definition that still has objects",
        "409: delete them first",
        "deletes them all",
        "a slip of the hand should not take a cluster's resources",
    )
)
def test_a_definition_goes_with_its_objects_or_after_them(target: KubeTarget) -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object"}}}
    target.apply(CRDS, gadgets(schema), force="true").ok()
    target.until(CRDS, "gadgets.test.dev", established)
    target.soon(lambda: target.create(GADGETS, {"metadata": {"name": "g"}, "spec": {}}), 201)
    assert target.delete(CRDS, "gadgets.test.dev").code == target.either(embedded=409, kubernetes=200)
    if target.either(embedded=True, kubernetes=False):
        target.delete(GADGETS, "g").ok()
        target.delete(CRDS, "gadgets.test.dev").ok()
    target.until(CRDS, "gadgets.test.dev", lambda found: found is None)
    target.soon(lambda: target.list(GADGETS), 404)


def test_our_definitions_are_established(target: KubeTarget) -> None:
    for body in definitions():
        found = target.get(CRDS, body["metadata"]["name"]).ok()
        states = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        assert (states["NamesAccepted"], states["Established"]) == ("True", "True")
        assert "NonStructuralSchema" not in states
        assert found["status"]["storedVersions"] == [each["name"] for each in body["spec"]["versions"]]


def test_our_definitions_can_be_applied_again_without_effect(target: KubeTarget) -> None:
    for body in definitions():
        before = target.get(CRDS, body["metadata"]["name"]).ok()
        after = target.apply(CRDS, body, "contract", force="true", fieldValidation="Strict").ok()
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_resource_of_ours_gets_the_same_defaults(target: KubeTarget) -> None:
    made = target.create(RAFT_CLUSTERS, raft_cluster(), fieldValidation="Strict").ok()
    assert made["spec"]["replicas"] == 3
    assert made["spec"]["rollout"]["strategy"]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"replicas": 2}, "spec.replicas", "odd"),
        ({"stateMachine": "Tape"}, "spec.stateMachine", "Unsupported value"),
        ({"electionTimeout": {"min": "200ms", "max": "250ms"}}, "spec.electionTimeout", "1.5 times"),
        ({"rollout": {"deadline": "soon"}}, "spec.rollout.deadline", "soon"),
    ],
)
def test_a_wrong_resource_of_ours_is_refused_by_its_field(
    target: KubeTarget, change: dict[str, Any], field: str, words: str
) -> None:
    refused = target.create(RAFT_CLUSTERS, raft_cluster(**change)).refused(422, "Invalid")
    assert field in refused.causes
    assert words in refused.message

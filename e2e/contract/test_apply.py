"""Server-side apply and the other ways to write (docs/specs/operator.md 6.2, 6.3)."""

from typing import Any

import pytest

from e2e.contract.target import Differs, KubeTarget
from e2e.contract.widgets import WIDGETS, config_map, widget
from pavane_operator.kube.resources import CONFIG_MAPS, NAMESPACES, SERVICES, STATEFUL_SETS, Object

pytestmark = pytest.mark.contract(since="1.22")

NOBODY = "00000000-0000-0000-0000-000000000000"  # a uid that no object has


def stateful_set(name: str = "s", **spec: object) -> dict[str, Any]:
    container = {"name": "main", "image": "pavane", "ports": [{"containerPort": 80, "protocol": "TCP"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    fixed = {"serviceName": name, "podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": selector, **fixed, "template": template, **spec},
    }


def test_apply_creates_and_then_changes(target: KubeTarget) -> None:
    first = target.apply(CONFIG_MAPS, config_map())
    assert first.code == 201
    again = target.apply(CONFIG_MAPS, config_map())
    assert (again.code, again.body["metadata"]["resourceVersion"]) == (200, first.body["metadata"]["resourceVersion"])
    changed = target.apply(CONFIG_MAPS, config_map(data={"a": "2"})).ok()
    assert changed["data"] == {"a": "2"}
    assert changed["metadata"]["resourceVersion"] != first.body["metadata"]["resourceVersion"]
    assert changed["metadata"]["uid"] == first.body["metadata"]["uid"]


def test_an_apply_names_its_manager(target: KubeTarget) -> None:
    answer = target.apply(CONFIG_MAPS, config_map(), manager="")
    assert answer.code in (400, 422)
    assert "fieldManager: Required value" in answer.message


def test_managed_fields_tell_who_owns_what(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget(env=[{"name": "x", "value": "1"}], tags=["t"]))
    found = target.patch(WIDGETS, "a", {"spec": {"mode": "A"}}, fieldManager="two").ok()
    entries = {each["manager"]: each for each in found["metadata"]["managedFields"]}
    assert entries["one"]["operation"] == "Apply"
    assert entries["one"]["apiVersion"] == "test.dev/v1"
    assert entries["one"]["fieldsType"] == "FieldsV1"
    listed: Object = {'k:{"name":"x"}': {".": {}, "f:name": {}, "f:value": {}}}
    assert entries["one"]["fieldsV1"] == {"f:spec": {"f:env": listed, "f:size": {}, "f:tags": {'v:"t"': {}}}}
    assert (entries["two"]["operation"], entries["two"]["fieldsV1"]) == ("Update", {"f:spec": {"f:mode": {}}})


def test_a_conflict_names_field_and_owner_and_can_be_forced(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget(mode="A", replicas=3))
    refused = target.apply(WIDGETS, widget(mode="B", replicas=5), "two").refused(409, "Conflict")
    assert refused.causes == {".spec.mode": "FieldManagerConflict", ".spec.replicas": "FieldManagerConflict"}
    messages = [each["message"] for each in refused.body["details"]["causes"]]
    assert set(messages) == {'conflict with "one"'}
    assert refused.message.startswith("Apply failed with 2 conflicts: conflict")
    forced = target.apply(WIDGETS, widget(mode="B", replicas=5), "two", force="true").ok()
    assert (forced["spec"]["mode"], forced["spec"]["replicas"]) == ("B", 5)
    target.apply(WIDGETS, widget(mode="A"), "one").refused(409, "Conflict")


def test_a_conflict_with_a_patch_names_the_manager_of_the_patch(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget())
    target.patch(WIDGETS, "a", {"spec": {"mode": "A"}}, fieldManager="two").ok()
    refused = target.apply(WIDGETS, widget(mode="B"), "three").refused(409, "Conflict")
    (cause,) = refused.body["details"]["causes"]
    assert cause["field"] == ".spec.mode"
    assert cause["message"].startswith('conflict with "two"')
    assert "test.dev/v1" in cause["message"]


def test_equal_values_are_owned_together(target: KubeTarget) -> None:
    target.apply(CONFIG_MAPS, config_map(data={"a": "1", "b": "2"}))
    target.apply(CONFIG_MAPS, config_map(data={"b": "2"}), "two").ok()
    assert target.apply(CONFIG_MAPS, config_map(data={"a": "1"})).ok()["data"] == {"a": "1", "b": "2"}
    assert target.apply(CONFIG_MAPS, config_map(data={}), "two").ok()["data"] == {"a": "1"}


def test_what_is_left_out_goes_with_its_empty_list(target: KubeTarget) -> None:
    target.apply(
        WIDGETS, widget(env=[{"name": "x", "value": "1"}, {"name": "y"}], tags=["t"], config={"deep": {"er": 1}})
    )
    kept = target.apply(WIDGETS, widget(env=[{"name": "y"}])).ok()["spec"]
    assert kept["env"] == [{"name": "y"}]
    assert "tags" not in kept
    assert "config" not in kept


def test_a_left_out_field_gets_its_default_again(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget(replicas=5))
    assert target.apply(WIDGETS, widget()).ok()["spec"]["replicas"] == 3


def test_lists_of_named_entries_merge_by_name(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget(env=[{"name": "x", "value": "1"}]))
    merged = target.apply(WIDGETS, widget(env=[{"name": "y", "value": "2"}]), "two").ok()
    assert merged["spec"]["env"] == [{"name": "x", "value": "1"}, {"name": "y", "value": "2"}]
    refused = target.apply(WIDGETS, widget(env=[{"name": "x", "value": "9"}]), "two").refused(409, "Conflict")
    assert list(refused.causes) == ['.spec.env[name="x"].value']


TYPED = Differs(
    "an apply with an unknown field, a wrong type, or two entries of one key in a list",
    "422 with the field",
    "500 whose message begins with `failed to create typed patch object` and names the field",
    "the platform's client takes the 500 for what it is, a wrong object; 500 would say that the server is broken",
)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"env": [{"name": "x"}, {"name": "x"}]}, "spec.env"),
        ({"colour": "red"}, "spec.colour"),
        ({"replicas": "many"}, "spec.replicas"),
    ],
)
@pytest.mark.contract(differs=TYPED)
def test_an_applied_body_that_does_not_fit_its_schema(target: KubeTarget, spec: dict[str, Any], field: str) -> None:
    answer = target.apply(WIDGETS, widget(**spec))
    assert answer.code == target.either(embedded=422, kubernetes=500)
    assert field in answer.message
    typed = answer.message.startswith("failed to create typed patch object")
    assert typed or target.either(embedded=True, kubernetes=False)
    assert target.get(WIDGETS, "a").code == 404


def test_lists_of_built_in_kinds_merge_by_their_keys(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set())
    body = stateful_set()
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "x", "value": "1"}]
    merged = target.apply(STATEFUL_SETS, body, "two").ok()
    (container,) = merged["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "x", "value": "1"}]
    kept = target.apply(STATEFUL_SETS, stateful_set(), "two").ok()
    assert "env" not in kept["spec"]["template"]["spec"]["containers"][0]
    assert kept["metadata"]["generation"] == 3


def test_ports_merge_by_number_and_protocol(target: KubeTarget) -> None:
    def service(*ports: int) -> dict[str, object]:
        told = [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports]
        return {"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "selector": {"app": "s"}, "ports": told}}

    target.apply(SERVICES, service(1, 2))
    ports = target.apply(SERVICES, service(2, 3), "two").ok()["spec"]["ports"]
    assert [each["port"] for each in ports] == [1, 2, 3]
    ports = target.apply(SERVICES, service(3), "one").ok()["spec"]["ports"]
    assert [each["port"] for each in ports] == [2, 3]


def test_a_status_is_applied_by_its_own_path(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget())
    status = {"replicas": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    changed = target.apply(WIDGETS, {"metadata": {"name": "a"}, "status": status}, "s", "status", force="true").ok()
    assert changed["status"] == status
    assert changed["spec"]["size"] == "1Gi"
    assert changed["metadata"]["generation"] == 1
    (entry,) = [each for each in changed["metadata"]["managedFields"] if each["manager"] == "s"]
    assert entry["subresource"] == "status"
    assert "status" in target.apply(WIDGETS, widget(mode="A") | {"status": {"replicas": 9}}).ok()
    assert target.get(WIDGETS, "a").ok()["status"] == status


def test_conditions_left_out_of_a_status_go(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget())

    def told(*types: str) -> dict[str, Any]:
        conditions = [{"type": each, "status": "True"} for each in types]
        return target.apply(
            WIDGETS, {"metadata": {"name": "a"}, "status": {"conditions": conditions}}, "s", "status"
        ).ok()

    told("Ready", "Stalled")
    assert [each["type"] for each in told("Ready")["status"]["conditions"]] == ["Ready"]


def test_a_status_of_nothing_cannot_be_applied(target: KubeTarget) -> None:
    body = {"metadata": {"name": "none"}, "status": {"replicas": 1}}
    target.apply(WIDGETS, body, "s", "status").refused(404, "NotFound")


@pytest.mark.parametrize("sub", ["", "status"])
def test_the_version_in_an_applied_body_is_a_precondition(target: KubeTarget, sub: str) -> None:
    made = target.apply(WIDGETS, widget()).ok()["metadata"]
    body = widget(mode="A") if not sub else {"metadata": {"name": "a"}, "status": {"replicas": 1}}
    stale = body | {"metadata": {"name": "a", "resourceVersion": "1"}}
    target.apply(WIDGETS, stale, sub=sub, force="true").refused(409, "Conflict")
    right = {key: made[key] for key in ("resourceVersion", "uid")}
    target.apply(WIDGETS, body | {"metadata": {"name": "a", **right}}, sub=sub, force="true").ok()


def test_an_apply_that_expects_an_object_creates_none(target: KubeTarget) -> None:
    expected = widget() | {"metadata": {"name": "a", "uid": NOBODY}}
    refused = target.apply(WIDGETS, expected).refused(409, "Conflict")
    assert "uid mismatch" in refused.message
    assert target.get(WIDGETS, "a").code == 404
    stale = widget() | {"metadata": {"name": "a", "resourceVersion": "1"}}
    assert target.apply(WIDGETS, stale).code == 201


@pytest.mark.contract(
    differs=Differs(
        "a `PATCH` whose `metadata.uid` is that of another object",
        "409",
        "422, and at `/status` ignored",
        "the platform names the `resourceVersion`, or the `uid` only to find out that an object is gone",
    )
)
def test_a_patch_for_another_object_of_that_name(target: KubeTarget) -> None:
    target.apply(WIDGETS, widget()).ok()
    other = widget(mode="A") | {"metadata": {"name": "a", "uid": NOBODY}}
    code = target.either(embedded=409, kubernetes=422)
    assert target.apply(WIDGETS, other).code == code
    assert target.patch(WIDGETS, "a", {"metadata": {"uid": NOBODY}, "spec": {"mode": "A"}}).code == code
    status = {"metadata": {"name": "a", "uid": NOBODY}, "status": {"replicas": 1}}
    assert target.apply(WIDGETS, status, sub="status").code == target.either(embedded=409, kubernetes=200)


def test_a_put_for_another_object_of_that_name_is_refused(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()
    other = {**made, "metadata": {**made["metadata"], "uid": NOBODY}}
    target.replace(WIDGETS, other).refused(409, "Conflict")


def test_finalizers_are_applied_and_let_go(target: KubeTarget) -> None:
    target.create(WIDGETS, widget())
    held = {"metadata": {"name": "a", "finalizers": ["test.dev/x"], "annotations": {"test.dev/n": "1"}}}
    assert target.apply(WIDGETS, held, "op", force="true").ok()["metadata"]["finalizers"] == ["test.dev/x"]
    target.delete(WIDGETS, "a").ok()
    freed = target.apply(WIDGETS, {"metadata": {"name": "a"}}, "op", force="true").ok()
    assert "finalizers" not in freed["metadata"]
    assert target.get(WIDGETS, "a").code == 404


def test_owners_of_two_managers_stand_side_by_side(target: KubeTarget) -> None:
    owners = [target.create(WIDGETS, widget(name)).ok() for name in ("p", "q")]
    for manager, owner in zip(("one", "two"), owners, strict=True):
        reference = {"apiVersion": "test.dev/v1", "kind": "Widget", "name": owner["metadata"]["name"]}
        reference["uid"] = owner["metadata"]["uid"]
        body = config_map(ownerReferences=[reference])
        found = target.apply(CONFIG_MAPS, body, manager).ok()
    assert [each["name"] for each in found["metadata"]["ownerReferences"]] == ["p", "q"]


def test_null_is_no_value(target: KubeTarget) -> None:
    made = target.apply(WIDGETS, widget(note=None, mode="A")).ok()
    assert "replicas" in made["spec"]
    assert made["spec"].get("note") is None


def test_merge_patches_change_remove_and_leave(target: KubeTarget) -> None:
    target.create(WIDGETS, widget(mode="A", env=[{"name": "x"}]))
    patched = target.patch(WIDGETS, "a", {"spec": {"mode": None, "env": [{"name": "y"}], "replicas": 5}}).ok()
    assert "mode" not in patched["spec"]
    assert (patched["spec"]["env"], patched["spec"]["replicas"]) == ([{"name": "y"}], 5)
    assert patched["metadata"]["generation"] == 2


def test_a_merge_patch_without_effect_changes_nothing(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()
    assert target.patch(WIDGETS, "a", {"spec": {"size": "1Gi"}}).ok()["metadata"] == made["metadata"]


def test_versions_in_a_merge_patch_are_preconditions(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()["metadata"]
    target.patch(WIDGETS, "a", {"metadata": {"resourceVersion": "1"}, "spec": {"mode": "A"}}).refused(409, "Conflict")
    patch = {"metadata": {key: made[key] for key in ("resourceVersion", "uid")}, "spec": {"mode": "A"}}
    target.patch(WIDGETS, "a", patch).ok()


def test_json_patches_test_and_change(target: KubeTarget) -> None:
    target.create(WIDGETS, widget(mode="A"))
    steps = [{"op": "test", "path": "/spec/mode", "value": "A"}, {"op": "replace", "path": "/spec/mode", "value": "B"}]
    assert target.patch(WIDGETS, "a", steps, "json").ok()["spec"]["mode"] == "B"
    assert target.patch(WIDGETS, "a", steps, "json").code == 422
    missing = [{"op": "remove", "path": "/spec/port"}]
    assert target.patch(WIDGETS, "a", missing, "json").code == 422


def test_custom_resources_take_no_strategic_patches(target: KubeTarget) -> None:
    target.create(WIDGETS, widget())
    target.patch(WIDGETS, "a", {"spec": {"mode": "A"}}, "strategic").refused(415, "UnsupportedMediaType")


def test_strategic_patches_merge_containers_by_name(target: KubeTarget) -> None:
    target.create(STATEFUL_SETS, stateful_set())
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "pavane:2"}]}}}}
    patched = target.patch(STATEFUL_SETS, "s", patch, "strategic").ok()
    (container,) = patched["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["ports"][0]["containerPort"]) == ("pavane:2", 80)
    gone = {
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {"containerPort": 80, "name": "main", "ports": [{"containerPort": 80, "$patch": "delete"}]}
                    ]
                }
            }
        }
    }
    patched = target.patch(STATEFUL_SETS, "s", gone, "strategic").ok()
    assert "ports" not in patched["spec"]["template"]["spec"]["containers"][0]


def test_a_put_needs_the_latest_version(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()
    target.patch(WIDGETS, "a", {"spec": {"mode": "A"}}).ok()
    refused = target.replace(WIDGETS, made).refused(409, "Conflict")
    assert "the object has been modified; please apply your changes to the latest version" in refused.message
    assert refused.body["details"] == {"name": "a", "group": "test.dev", "kind": "widgets"}
    del made["metadata"]["resourceVersion"]
    refused = target.replace(WIDGETS, made).refused(422, "Invalid")
    assert "metadata.resourceVersion: Invalid value: 0" in refused.message
    assert "must be specified for an update" in refused.message


def test_a_put_of_a_built_in_kind_needs_no_version(target: KubeTarget) -> None:
    target.create(CONFIG_MAPS, config_map())
    assert target.replace(CONFIG_MAPS, config_map(data={"b": "2"})).ok()["data"] == {"b": "2"}


def test_a_put_of_a_status_changes_nothing_else(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()
    body = made | {"spec": {"size": "9Gi"}, "status": {"replicas": 1}}
    changed = target.replace(WIDGETS, body, "status").ok()
    assert (changed["spec"]["size"], changed["status"]) == ("1Gi", {"replicas": 1})
    again = target.replace(WIDGETS, changed | {"spec": {"size": "2Gi"}, "status": {"replicas": 7}}).ok()
    assert (again["spec"]["size"], again["status"]) == ("2Gi", {"replicas": 1})
    assert again["metadata"]["generation"] == 2


def test_generation_counts_changes_of_the_spec(target: KubeTarget) -> None:
    target.create(WIDGETS, widget())
    labelled = target.patch(WIDGETS, "a", {"metadata": {"labels": {"a": "b"}}}).ok()
    assert labelled["metadata"]["generation"] == 1
    assert target.patch(WIDGETS, "a", {"spec": {"mode": "A"}}).ok()["metadata"]["generation"] == 2


def test_metadata_of_the_server_cannot_be_forged(target: KubeTarget) -> None:
    made = target.create(CONFIG_MAPS, config_map()).ok()["metadata"]
    forged = {"creationTimestamp": "1999-01-01T00:00:00Z", "generation": 99}
    found = target.patch(CONFIG_MAPS, "a", {"metadata": forged, "data": {"b": "2"}}).ok()["metadata"]
    assert found["creationTimestamp"] == made["creationTimestamp"]
    assert found.get("generation", 1) == 1


@pytest.mark.parametrize("verb", ["create", "apply", "patch", "replace", "delete"])
def test_a_dry_run_answers_and_changes_nothing(target: KubeTarget, verb: str) -> None:
    before = target.create(CONFIG_MAPS, config_map("old")).ok()
    match verb:
        case "create":
            answer = target.create(CONFIG_MAPS, config_map("new"), dryRun="All")
        case "apply":
            answer = target.apply(CONFIG_MAPS, config_map("new"), dryRun="All")
        case "patch":
            answer = target.patch(CONFIG_MAPS, "old", {"data": {"z": "1"}}, dryRun="All")
            assert answer.ok()["data"] == {"a": "1", "z": "1"}
        case "replace":
            answer = target.replace(CONFIG_MAPS, config_map("old", {"z": "1"}), dryRun="All")
            assert answer.ok()["data"] == {"z": "1"}
        case _:
            answer = target.delete(CONFIG_MAPS, "old", dryRun="All")
    answer.ok()
    assert target.get(CONFIG_MAPS, "old").ok() == before
    assert target.get(CONFIG_MAPS, "new").code == 404


def test_a_name_taken_is_refused(target: KubeTarget) -> None:
    target.create(CONFIG_MAPS, config_map())
    refused = target.create(CONFIG_MAPS, config_map()).refused(409, "AlreadyExists")
    assert refused.message == 'configmaps "a" already exists'
    assert refused.body["details"] == {"name": "a", "kind": "configmaps"}
    target.create(WIDGETS, widget()).ok()
    refused = target.create(WIDGETS, widget()).refused(409, "AlreadyExists")
    assert refused.message == 'widgets.test.dev "a" already exists'


@pytest.mark.contract(
    differs=Differs(
        "`POST` with `metadata.generateName`",
        "422",
        "201 with a name made up",
        "the platform gives every object its name",
    )
)
def test_generated_names(target: KubeTarget) -> None:
    body = {"metadata": {"generateName": "a-"}}
    assert target.create(CONFIG_MAPS, body).code == target.either(embedded=422, kubernetes=201)


def test_namespaces_of_path_and_body_agree(target: KubeTarget) -> None:
    target.create(CONFIG_MAPS, config_map(namespace="other")).refused(400, "BadRequest")
    target.create(CONFIG_MAPS, config_map() | {"kind": "Secret"}).refused(400, "BadRequest")


def test_an_object_needs_a_namespace_that_is_there(target: KubeTarget) -> None:
    answer = target.call("POST", "/api/v1/namespaces/nowhere/configmaps", config_map())
    answer.refused(404, "NotFound")
    assert answer.message == 'namespaces "nowhere" not found'
    assert answer.body["details"] == {"name": "nowhere", "kind": "namespaces"}
    assert target.create(NAMESPACES, {"metadata": {"name": target.namespace}}).code == 409

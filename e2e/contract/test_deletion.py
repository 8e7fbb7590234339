"""Deletion: preconditions, finalizers, dependents, namespaces (docs/specs/operator.md 6.2, 6.7)."""

import uuid

import pytest

from e2e.contract.target import COLLECTED_S, Differs, KubeTarget
from e2e.contract.widgets import WIDGETS, config_map, widget
from pavane_operator.kube.resources import CONFIG_MAPS, NAMESPACES, Object

pytestmark = pytest.mark.contract(since="1.22")


def owned_by(*owners: Object) -> Object:
    references = [
        {"apiVersion": "test.dev/v1", "kind": "Widget", "controller": not place, **_named(owner)}
        for place, owner in enumerate(owners)
    ]
    return {"ownerReferences": references}


def _named(owner: Object) -> Object:
    return {key: owner["metadata"][key] for key in ("name", "uid")}


def gone(found: Object | None) -> bool:
    return found is None


def test_a_deletion_tells_what_is_gone(target: KubeTarget) -> None:
    made = target.create(CONFIG_MAPS, config_map()).ok()
    told = target.delete(CONFIG_MAPS, "a").ok()
    assert (told["kind"], told["status"]) == ("Status", "Success")
    assert told["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    refused = target.delete(CONFIG_MAPS, "a").refused(404, "NotFound")
    assert refused.message == 'configmaps "a" not found'
    assert refused.body["details"] == {"name": "a", "kind": "configmaps"}


def test_preconditions_hold(target: KubeTarget) -> None:
    made = target.create(WIDGETS, widget()).ok()["metadata"]
    for wrong in ({"uid": "another"}, {"resourceVersion": "1"}):
        refused = target.delete(WIDGETS, "a", {"preconditions": wrong}).refused(409, "Conflict")
        assert refused.message.startswith("Operation cannot be fulfilled on ")
        assert next(iter(wrong.values())) in refused.message
    right = {key: made[key] for key in ("uid", "resourceVersion")}
    target.delete(WIDGETS, "a", {"preconditions": right, "propagationPolicy": "Background"}).ok()
    assert target.get(WIDGETS, "a").code == 404


def test_finalizers_hold_a_deleted_object(target: KubeTarget) -> None:
    target.create(WIDGETS, {**widget(), "metadata": {"name": "a", "finalizers": ["test.dev/x"]}}).ok()
    held = target.delete(WIDGETS, "a").ok()
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["generation"] == 2
    again = target.delete(WIDGETS, "a").ok()
    assert again["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    added = {"metadata": {"finalizers": ["test.dev/x", "test.dev/y"]}}
    refused = target.patch(WIDGETS, "a", added).refused(422, "Invalid")
    assert refused.causes == {"metadata.finalizers": "FieldValueForbidden"}
    assert "no new finalizers can be added if the object is being deleted" in refused.message
    target.patch(WIDGETS, "a", {"status": {"replicas": 1}}, sub="status").ok()
    freed = target.patch(WIDGETS, "a", {"metadata": {"finalizers": None}})
    assert freed.code == 200
    assert target.get(WIDGETS, "a").code == 404


def test_a_watch_sees_the_mark_and_then_the_end(target: KubeTarget) -> None:
    target.create(WIDGETS, {**widget(), "metadata": {"name": "a", "finalizers": ["test.dev/x"]}}).ok()
    version = target.list(WIDGETS).ok()["metadata"]["resourceVersion"]
    with target.watch(WIDGETS, resourceVersion=version) as events:
        target.delete(WIDGETS, "a").ok()
        event = next(events)
        assert (event.type, "deletionTimestamp" in event.object["metadata"]) == ("MODIFIED", True)
        target.patch(WIDGETS, "a", {"metadata": {"finalizers": []}}).ok()
        event = next(events)
        assert (event.type, event.object["metadata"]["name"]) == ("DELETED", "a")


@pytest.mark.timeout(3 * COLLECTED_S)
def test_dependents_go_when_all_owners_are_gone(target: KubeTarget) -> None:
    owners = [target.create(WIDGETS, widget(name)).ok() for name in ("p", "q")]
    target.create(CONFIG_MAPS, config_map("one", **owned_by(owners[0]))).ok()
    target.create(CONFIG_MAPS, config_map("both", **owned_by(*owners))).ok()
    target.create(CONFIG_MAPS, config_map("none")).ok()
    target.delete(WIDGETS, "p", {"propagationPolicy": "Background"}).ok()
    target.until(CONFIG_MAPS, "one", gone, COLLECTED_S)
    assert target.get(CONFIG_MAPS, "both").code == 200
    target.delete(WIDGETS, "q").ok()
    target.until(CONFIG_MAPS, "both", gone, COLLECTED_S)
    assert target.get(CONFIG_MAPS, "none").code == 200


@pytest.mark.timeout(3 * COLLECTED_S)
def test_an_owner_of_that_name_with_another_uid_is_none(target: KubeTarget) -> None:
    owner = target.create(WIDGETS, widget("p")).ok()
    forged = {"metadata": {"name": "p", "uid": str(uuid.uuid4())}}
    target.create(CONFIG_MAPS, config_map("false", **owned_by(forged))).ok()
    target.create(CONFIG_MAPS, config_map("true", **owned_by(owner))).ok()
    target.until(CONFIG_MAPS, "false", gone, COLLECTED_S)
    assert target.get(CONFIG_MAPS, "true").code == 200


@pytest.mark.timeout(3 * COLLECTED_S)
def test_dependents_wait_for_an_owner_that_is_held(target: KubeTarget) -> None:
    body = {**widget("p"), "metadata": {"name": "p", "finalizers": ["test.dev/x"]}}
    owner = target.create(WIDGETS, body).ok()
    target.create(CONFIG_MAPS, config_map("one", **owned_by(owner))).ok()
    target.delete(WIDGETS, "p").ok()
    target.create(CONFIG_MAPS, config_map("orphan", **owned_by({"metadata": {"name": "p", "uid": "gone"}}))).ok()
    target.until(CONFIG_MAPS, "orphan", gone, COLLECTED_S)  # so the collector has looked
    assert target.get(CONFIG_MAPS, "one").code == 200
    target.patch(WIDGETS, "p", {"metadata": {"finalizers": None}}).ok()
    target.until(CONFIG_MAPS, "one", gone, COLLECTED_S)


@pytest.mark.parametrize("policy", ["Foreground", "Orphan"])
@pytest.mark.contract(
    differs=Differs(
        "`DELETE` with `propagationPolicy` `Foreground` or `Orphan`",
        "501",
        "done",
        "nothing of the platform asks for it",
    )
)
def test_other_ways_to_propagate(target: KubeTarget, policy: str) -> None:
    target.create(CONFIG_MAPS, config_map()).ok()
    assert target.delete(CONFIG_MAPS, "a", {"propagationPolicy": policy}).code == target.either(
        embedded=501, kubernetes=200
    )


def test_a_deleted_namespace_is_emptied_and_takes_nothing_new(target: KubeTarget) -> None:
    name = f"{target.namespace}-gone"
    made = target.create(NAMESPACES, {"metadata": {"name": name}}).ok()
    assert (made["spec"], made["status"]["phase"]) == ({"finalizers": ["kubernetes"]}, "Active")
    path = f"/api/v1/namespaces/{name}/configmaps"
    held = config_map("held", finalizers=["test.dev/x"])
    target.call("POST", path, held).ok()
    target.call("POST", path, config_map("free")).ok()
    target.delete(NAMESPACES, name).ok()
    found = target.until(NAMESPACES, name, lambda found: found and "deletionTimestamp" in found["metadata"])
    assert found is not None
    assert found["status"]["phase"] == "Terminating"
    refused = target.call("POST", path, config_map("new")).refused(403, "Forbidden")
    assert refused.causes == {"metadata.namespace": "NamespaceTerminating"}
    assert refused.body["details"]["kind"] == "configmaps"
    with target.watch(CONFIG_MAPS, path=path) as events:
        freed = {"metadata": {"finalizers": None}}
        target.call("PATCH", f"{path}/held", freed, kind="merge").ok()
        events.until("DELETED", "held")
    target.until(NAMESPACES, name, gone)
    assert target.call("GET", f"{path}/free").code == 404
    assert target.call("POST", path, config_map("new")).code == 404


def test_each_namespace_gets_an_account(target: KubeTarget) -> None:
    path = f"/api/v1/namespaces/{target.namespace}/serviceaccounts"
    with target.watch(CONFIG_MAPS, path=path) as events:
        events.until("ADDED", "default")

"""When an object is applied again (docs/specs/operator.md 4.1, 4.3)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pavane_operator.plan.children import decided_replicas, is_missing_or_drifted, ordinal_in, pods_of_sets
from pavane_operator.plan.model import Child, Manifest

BODY: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "thing", "labels": {"a": "1"}},
    "spec": {"replicas": 3, "template": {"image": "one"}, "ports": [{"port": 1}]},
}


def _live(manifest: Manifest, **spec: Any) -> Child:
    body = copy.deepcopy(dict(manifest.body))
    body["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    body["spec"] |= spec
    return Child(manifest.kind, manifest.name, "u", "7", body)


def test_an_object_as_intended_is_left_alone_whatever_the_server_added() -> None:
    manifest = Manifest.of(BODY)
    live = _live(manifest, serviceName="added", ports=[{"port": 1, "protocol": "TCP"}])
    assert not is_missing_or_drifted(manifest, [live])


def test_a_missing_object_is_made() -> None:
    assert is_missing_or_drifted(Manifest.of(BODY), [])
    assert is_missing_or_drifted(Manifest.of({**BODY, "kind": "Service"}), [_live(Manifest.of(BODY))])


def test_what_somebody_changed_by_hand_is_applied_away() -> None:
    manifest = Manifest.of(BODY)
    assert is_missing_or_drifted(manifest, [_live(manifest, replicas=2)])
    assert is_missing_or_drifted(manifest, [_live(manifest, ports=[])])
    assert is_missing_or_drifted(manifest, [_live(manifest, ports=[{"port": 2}])])


def test_an_intent_that_only_takes_something_away_is_applied_too() -> None:
    less = Manifest.of({**BODY, "metadata": {"name": "thing", "labels": {}}})
    assert is_missing_or_drifted(less, [_live(Manifest.of(BODY))])


def test_a_template_that_drifted_is_never_rolled() -> None:
    manifest = Manifest.of(BODY)
    assert not is_missing_or_drifted(manifest, [_live(manifest, template={"image": "by hand"})])


def test_an_object_that_is_only_created_counts_as_it_stands() -> None:
    manifest = Manifest.of(BODY, create_only=True)
    assert not is_missing_or_drifted(manifest, [_live(manifest, replicas=9)])


def test_an_object_that_is_going_is_waited_for() -> None:
    manifest = Manifest.of(BODY)
    live = _live(manifest, replicas=9)
    body = {**live.body, "metadata": {**live.body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not is_missing_or_drifted(manifest, [Child("StatefulSet", "thing", "u", "7", body)])


def test_a_set_names_its_pods() -> None:
    service = Manifest.of({**BODY, "kind": "Service"})
    single = Manifest.of({**BODY, "metadata": {"name": "other"}, "spec": {}})
    later = Manifest.of({**BODY, "metadata": {"name": "late"}, "spec": {"replicas": 1, "ordinals": {"start": 2}}})
    assert pods_of_sets([Manifest.of(BODY), service, single, later]) == (
        "thing-0",
        "thing-1",
        "thing-2",
        "other-0",
        "late-2",
    )


def test_what_was_decided_outlives_what_somebody_set_by_hand() -> None:
    noted = Manifest.of({**BODY, "metadata": {"name": "thing", "annotations": {"pavane.dev/replicas": "3"}}})
    assert decided_replicas(_live(noted, replicas=7)) == 3
    assert decided_replicas(_live(Manifest.of(BODY), replicas=7)) == 7


def test_a_pod_and_its_volumes_have_the_ordinal_of_the_pod() -> None:
    assert ordinal_in("thing-12", "thing") == 12
    assert ordinal_in("data-thing-0", "thing") == 0
    assert [ordinal_in(name, "thing") for name in ("thing-x", "something-0", "thing", "thing-g1-0", "")] == [None] * 5


@pytest.mark.parametrize(("live", "same"), [("1", True), (1, True), ("1.0", True), ("1001m", False), ("one", False)])
def test_a_quantity_that_the_server_writes_otherwise_is_no_drift(live: object, same: bool) -> None:
    def body(cpu: object) -> dict[str, Any]:
        return {"kind": "ConfigMap", "metadata": {"name": "a"}, "spec": {"limits": {"cpu": cpu}}}

    manifest = Manifest(body("1000m"))
    assert is_missing_or_drifted(manifest, [Child("ConfigMap", "a", "u", "1", body(live))]) is not same

"""What the operator reads of a resource (docs/specs/operator.md 2.2, 7.5 operator upgrade)."""

from typing import Any

import pytest
from pydantic import ValidationError

from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft import kind
from pavane_operator.kube.resources import CONFIG_MAPS, PODS, SECRETS
from pavane_operator.plan.model import GENERATION_LABEL, TEMPLATE_ANNOTATION
from pavane_operator.runtime.observe import followed_secrets, pods_of, resource_of, standing_of

DEFAULTS = RenderDefaults("image", "0.1.0", None, b"k" * 32, "pavane-system")
SAID = "the log is damaged at byte 12"
END = {"exitCode": 2, "reason": "Error", "message": f"{SAID}\n"}
METADATA = {"name": "q", "namespace": "default", "uid": "1", "resourceVersion": "1"}


def body(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"metadata": METADATA, "spec": {"stateMachine": "Broadcast", **spec}, "status": status or {}}


def test_fields_of_a_newer_definition_hold_up_nothing() -> None:
    """The definitions are upgraded first, so an operator meets defaults that it does not know, at any depth."""
    spec = {"fieldOfTomorrow": {"a": 1}, "rollout": {"gateOfTomorrow": True, "restart": "again"}}
    status = {"activeGeneration": 7, "tomorrow": 1, "rollout": {"state": "Idle", "tomorrow": 1}}
    resource = resource_of(kind(DEFAULTS), body(spec, status))
    assert resource.spec.rollout.restart == "again"
    assert resource.status is not None
    assert resource.status.active_generation == 7


def test_a_value_that_no_definition_allows_is_refused() -> None:
    with pytest.raises(ValidationError, match="replicas"):
        resource_of(kind(DEFAULTS), body({"replicas": "many"}))


def test_a_secret_of_a_user_that_carries_the_labels_of_the_resource_is_asked_for() -> None:
    """A list brings it, but no watch tells when it is renewed: what the list said would stand."""
    of = {"app.kubernetes.io/name": "raftcluster", "app.kubernetes.io/instance": "q"}
    keeps = {"app.kubernetes.io/managed-by": "pavane-operator"}
    ours = {"metadata": {**METADATA, "name": "q-keys", "labels": of | keeps}}
    theirs = {"metadata": {**METADATA, "name": "q-tls", "labels": of}}
    helms = {"metadata": {**METADATA, "name": "q-ca", "labels": of | {"app.kubernetes.io/managed-by": "Helm"}}}
    members = [(SECRETS, ours), (SECRETS, theirs), (SECRETS, helms), (CONFIG_MAPS, ours)]
    assert followed_secrets(members) == {"q-keys": ours}
    assert followed_secrets([(CONFIG_MAPS, ours)]) == {}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": END}},
            f"exit code 2: {SAID}",
        ),
        ({"state": {"terminated": END}}, f"exit code 2: {SAID}"),
        ({"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}, "exit code 137 (OOMKilled)"),
        ({"lastState": {"terminated": {"exitCode": 0, "reason": "Completed"}}}, ""),
        ({"state": {"running": {}}, "lastState": {}}, ""),
    ],
)
def test_how_a_container_failed_is_what_it_left_to_say(status: dict[str, Any], told: str) -> None:
    pod = {
        "metadata": {"name": "q-server-g1-0", "uid": "1", "resourceVersion": "1", "labels": {GENERATION_LABEL: "1"}},
        "status": {"containerStatuses": [{"name": "server", "restartCount": 1, **status}]},
    }
    (seen,) = pods_of([(PODS, pod)], lambda _: None)
    assert seen.ended == told


def test_why_no_node_takes_a_pod_is_what_the_scheduler_says() -> None:
    said = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod = {
        "metadata": {"name": "q-server-g1-0", "uid": "1", "resourceVersion": "1", "labels": {GENERATION_LABEL: "1"}},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    (seen,) = pods_of([(PODS, pod)], lambda _: None)
    assert (seen.scheduled, seen.waiting_message) == (False, said)


def test_a_pod_without_a_generation_belongs_to_the_resource() -> None:
    storage = {
        "metadata": {
            "name": "q-storage-0",
            "uid": "1",
            "resourceVersion": "1",
            "annotations": {TEMPLATE_ANNOTATION: "abc"},
        }
    }
    assert pods_of([(PODS, storage)], lambda _: None) == ()
    (pod,) = standing_of([(PODS, storage)])
    assert (pod.name, pod.generation, pod.template) == ("q-storage-0", 0, "abc")

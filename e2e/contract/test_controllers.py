"""What controllers make: pods and claims of a StatefulSet, slices of a Service (docs/specs/operator.md 6.7).

No kubelet runs on the real server, so pods stay Pending there; what a kubelet reports is written by the tests.
"""

import pytest

from e2e.contract.target import Differs, KubeTarget
from e2e.contract.test_apply import stateful_set
from pavane_operator.kube.resources import (
    ENDPOINT_SLICES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
    Object,
    Resource,
)

pytestmark = pytest.mark.contract(since="1.32")

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
}


PODS_RUN = Differs(
    "a pod without a node",
    "bound to the node `local` and run at once, as a process",
    "waits for the scheduler and a kubelet",
    "the kubelet is part of the embedded server",
)


def is_there(found: Object | None) -> bool:
    return found is not None


def gone(found: Object | None) -> bool:
    return found is None


def test_a_set_makes_pods_with_identity(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set(replicas=2)).ok()
    target.until(PODS, "s-1", is_there)
    pod = target.until(PODS, "s-0", is_there)
    assert pod is not None
    found = target.get(STATEFUL_SETS, "s").ok()
    labels = pod["metadata"]["labels"]
    assert labels["app"] == "s"
    assert labels["statefulset.kubernetes.io/pod-name"] == "s-0"
    assert labels["apps.kubernetes.io/pod-index"] == "0"
    assert labels["controller-revision-hash"].startswith("s-")
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("s-0", "s")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": found["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    assert pod["spec"]["serviceAccountName"] == "default"
    assert pod["spec"]["restartPolicy"] == "Always"


def test_a_set_makes_claims_and_keeps_them(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set(replicas=1, volumeClaimTemplates=[CLAIM])).ok()
    pod = target.until(PODS, "s-0", is_there)
    assert pod is not None
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-s-0"}} in pod["spec"]["volumes"]
    claim = target.get(VOLUME_CLAIMS, "data-s-0").ok()
    assert claim["metadata"]["labels"] == {"app": "s"}
    assert claim["spec"]["resources"] == {"requests": {"storage": "64Mi"}}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "ownerReferences" not in claim["metadata"]
    target.delete(STATEFUL_SETS, "s").ok()
    target.until(PODS, "s-0", lambda found: found is None or "deletionTimestamp" in found["metadata"])
    assert "deletionTimestamp" not in target.get(VOLUME_CLAIMS, "data-s-0").ok()["metadata"]


def test_a_set_tells_its_counters(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set(replicas=2)).ok()
    found = target.until(
        STATEFUL_SETS, "s", lambda found: found and found.get("status", {}).get("updatedReplicas") == 2
    )
    assert found is not None
    status = found["status"]
    assert (status["observedGeneration"], status["replicas"]) == (1, 2)
    assert status["currentRevision"] == status["updateRevision"]
    assert status["currentReplicas"] == 2
    assert target.get(PODS, "s-0").ok()["metadata"]["labels"]["controller-revision-hash"] == status["updateRevision"]


def test_a_changed_template_replaces_no_pod_by_itself(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set(replicas=1)).ok()
    before = target.until(PODS, "s-0", is_there)
    target.until(STATEFUL_SETS, "s", lambda found: found and found.get("status", {}).get("updatedReplicas") == 1)
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "pavane:2"}]
    target.patch(STATEFUL_SETS, "s", image, "json").ok()
    found = target.until(STATEFUL_SETS, "s", lambda found: found and found["status"]["observedGeneration"] == 2)
    assert found is not None
    assert found["status"]["updateRevision"] != found["status"]["currentRevision"]
    assert found["status"].get("updatedReplicas", 0) == 0
    after = target.get(PODS, "s-0").ok()
    assert before is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["containers"][0]["image"] == "pavane"


def test_a_set_scales_from_the_end(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set(replicas=2)).ok()
    target.until(PODS, "s-1", is_there)
    target.patch(STATEFUL_SETS, "s", {"spec": {"replicas": 1}}, sub="scale").ok()
    target.until(PODS, "s-1", lambda found: found is None or "deletionTimestamp" in found["metadata"])
    assert "deletionTimestamp" not in target.get(PODS, "s-0").ok()["metadata"]


def test_what_cannot_be_changed_of_a_set_is_refused(target: KubeTarget) -> None:
    target.apply(STATEFUL_SETS, stateful_set()).ok()
    for change in ({"serviceName": "other"}, {"podManagementPolicy": "OrderedReady"}):
        refused = target.patch(STATEFUL_SETS, "s", {"spec": change}).refused(422, "Invalid")
        assert "spec" in refused.causes
        assert "updates to statefulset spec for fields other than 'replicas'" in refused.message
    labels = stateful_set("t", selector={"matchLabels": {"app": "other"}})
    refused = target.create(STATEFUL_SETS, labels).refused(422, "Invalid")
    assert "`selector` does not match template `labels`" in refused.message


def pod(name: str = "p", **labels: str) -> Object:
    container = {"name": "main", "image": "pavane", "ports": [{"name": "raft", "containerPort": 7070}]}
    return {
        "metadata": {"name": name, "labels": {"app": "p", **labels}},
        "spec": {"containers": [container], "nodeName": "local"},
    }


def service(**spec: object) -> Object:
    ports = [{"name": "raft", "port": 80, "targetPort": "raft"}]
    return {
        "metadata": {"name": "svc"},
        "spec": {"clusterIP": "None", "selector": {"app": "p"}, "ports": ports, **spec},
    }


def reported(target: KubeTarget, name: str, *, ready: bool) -> None:
    """What a kubelet would write about a pod."""
    state = "True" if ready else "False"
    conditions = [{"type": "Ready", "status": state, "lastTransitionTime": "2030-01-01T00:00:00Z"}]
    address = {"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}
    status = {"status": {"phase": "Running", "conditions": conditions, **address}}
    target.patch(PODS, name, status, sub="status").ok()


def slice_of(target: KubeTarget, *, ready: bool) -> Object:
    """The one slice of the Service, once it has one endpoint of this readiness."""
    labels = {"labelSelector": "kubernetes.io/service-name=svc"}
    with target.watch(ENDPOINT_SLICES, **labels) as events:
        for event in events:
            found = event.object.get("endpoints") or ()
            if event.type != "DELETED" and [each["conditions"]["ready"] for each in found] == [ready]:
                return event.object
    raise AssertionError("no such slice")


@pytest.mark.contract(differs=PODS_RUN)
def test_a_service_has_a_slice_of_its_ready_pods(target: KubeTarget) -> None:
    target.create(NODES, {"metadata": {"name": "local"}})  # there already, or on a server without any
    target.create(SERVICES, service()).ok()
    made = target.create(PODS, pod()).ok()
    target.create(PODS, pod("other", app="q")).ok()
    if target.either(embedded=True, kubernetes=False):
        target.until(PODS, "p", lambda found: found and found["status"].get("podIP"))
    reported(target, "p", ready=True)
    found = slice_of(target, ready=True)
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Service", "svc", True)
    assert found["addressType"] == "IPv4"
    assert found["ports"] == [{"name": "raft", "port": 7070, "protocol": "TCP"}]
    (endpoint,) = found["endpoints"]
    assert endpoint["conditions"] == {"ready": True, "serving": True, "terminating": False}
    reference = {"kind": "Pod", "namespace": target.namespace, "name": "p", "uid": made["metadata"]["uid"]}
    assert endpoint["targetRef"] == reference
    reported(target, "p", ready=False)
    assert slice_of(target, ready=False)["endpoints"][0]["conditions"]["serving"] is False

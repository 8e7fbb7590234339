"""Every kind of call that the platform makes, made to both servers (docs/specs/operator.md 6.11).

calls.txt holds what was recorded; the objects are those that the operator makes, from the golden file of its renderer.
What the embedded server answers must stand in the answer of the real one; that one may tell more, for it fills in more.
"""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.contract.calls import RECORDED, RESOURCE, record
from e2e.contract.target import TABLE, Answer, Differs, KubeTarget
from e2e.contract.test_controllers import PODS_RUN
from e2e.contract.test_watch import event, placed
from pavane_operator.kube.resources import Object, Resource

pytestmark = pytest.mark.contract(since="1.29")

CALLS = RECORDED.read_text(encoding="utf-8").splitlines()
GOLDEN = Path(__file__).parents[2] / "tests" / "operator" / "golden" / "raft_objects.yaml"
OWN = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace", "generation", "deletionTimestamp"}
"""Metadata in which two objects of one name differ."""
TEST_LABEL = "pavane.dev/contract"
CONFLICTS_MAX = 10
"""Of one deletion with writers of its own on the other side: they change a new object a few times."""
KUBELET = "pods/log"
"""Answered by the kubelet, not by the server."""


def names_of(call: str) -> tuple[str, str, set[str]]:
    _, verb, resource, *shape = call.split()
    return verb, resource, set(shape)


def bodies() -> dict[str, Object]:
    """One object per resource, by its key; what the operator renders, and by hand what it does not."""
    found: dict[str, Object] = {}
    for body in yaml.safe_load_all(GOLDEN.read_text(encoding="utf-8")):
        group = body["apiVersion"].rpartition("/")[0]
        found.setdefault(".".join(filter(None, (PLURALS[body["kind"]], group))), body)
    mine = ({"kind": "RaftCluster", **RESOURCE}, *yaml.safe_load_all(OTHERS))
    for body in (*mine, {"apiVersion": "events.k8s.io/v1", "kind": "Event", **event("o")}):
        group = body["apiVersion"].rpartition("/")[0]
        found[".".join(filter(None, (PLURALS[body["kind"]], group)))] = body
    for body in found.values():
        for key in ("namespace", "ownerReferences"):
            body.get("metadata", {}).pop(key, None)
        if not body["kind"].endswith("Review"):
            body["metadata"] = {
                **body["metadata"],
                "name": "o",
                "labels": {**body["metadata"].get("labels", {}), TEST_LABEL: ""},
            }
    return found


PLURALS = {
    "Backup": "backups",
    "ComputeCluster": "computeclusters", "Coordinator": "coordinators",
    "Dataflow": "dataflows",
    "ConfigMap": "configmaps", "ControllerRevision": "controllerrevisions", "EndpointSlice": "endpointslices",
    "Event": "events", "Lease": "leases", "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods", "PodDisruptionBudget": "poddisruptionbudgets", "RaftCluster": "raftclusters",
    "Role": "roles", "RoleBinding": "rolebindings", "Secret": "secrets",
    "Service": "services", "ServiceAccount": "serviceaccounts", "StatefulSet": "statefulsets",
    "SubjectAccessReview": "subjectaccessreviews", "SwimGroup": "swimgroups", "TokenReview": "tokenreviews",
    "WaltzCluster": "waltzclusters",
}  # fmt: skip
OTHERS = """
apiVersion: pavane.dev/v1alpha1
kind: Backup
metadata: {name: o}
spec: {of: {name: q}, url: "s3://backups/q"}
---
apiVersion: pavane.dev/v1alpha1
kind: ComputeCluster
metadata: {name: o}
spec: {waltzClusterRef: {name: ledger}, partitions: {ticks: 2, views: 3}, scripts: {}}
---
apiVersion: pavane.dev/v1alpha1
kind: Coordinator
metadata: {name: o}
spec: {application: {command: [main]}}
---
apiVersion: pavane.dev/v1alpha1
kind: Dataflow
metadata: {name: o}
spec: {computeClusterRef: {name: main}, script: CREATE TABLE orders (id BIGINT) USING waltz}
---
apiVersion: pavane.dev/v1alpha1
kind: SwimGroup
metadata: {name: o}
spec: {replicas: 1}
---
apiVersion: pavane.dev/v1alpha1
kind: WaltzCluster
metadata: {name: o}
spec: {metadata: {raftClusterRef: {name: meta}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: o}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: o}
spec: {containers: [{name: main, image: "pavane:1", env: [{name: A, value: b}]}]}
---
apiVersion: v1
kind: Event
metadata: {name: o}
involvedObject: {kind: Pod, name: o}
reason: Promoted
message: generation 2 writes
type: Normal
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: o}
spec: {holderIdentity: one, leaseDurationSeconds: 15, leaseTransitions: 1}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: o}
addressType: IPv4
endpoints: [{addresses: [10.1.2.3], conditions: {ready: true}}]
ports: [{name: raft, port: 7070, protocol: TCP}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: o}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: o}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: o}
subjects: [{kind: ServiceAccount, name: o, namespace: default}]
---
apiVersion: authentication.k8s.io/v1
kind: TokenReview
metadata: {}
spec: {token: wrong}
---
apiVersion: authorization.k8s.io/v1
kind: SubjectAccessReview
metadata: {}
spec: {user: nobody, resourceAttributes: {verb: get, resource: pods}}
"""
BODIES = bodies()


def resource_of(key: str) -> Resource:
    plural, _, group = key.partition(".")
    if key == "customresourcedefinitions.apiextensions.k8s.io":
        return Resource(group, "v1", plural, "CustomResourceDefinition", namespaced=False)
    version = BODIES[key]["apiVersion"].rpartition("/")[2]
    return Resource(group, version, plural, BODIES[key]["kind"], namespaced=not plural.endswith("reviews"))


def perform(target: KubeTarget, call: str) -> Answer:
    """Make one call of this kind, after what it needs."""
    verb, key, shape = names_of(call)
    if key.startswith("/"):
        return target.call("GET", key)
    key, _, sub = key.partition("/")
    resource, body = resource_of(key), copy.deepcopy(BODIES.get(key, {}))
    if verb == "get" and key.startswith("statefulsets") and body:
        body["spec"]["replicas"] = 0  # how many pods have come so far is another answer each time
    if key == "events":
        body["involvedObject"]["namespace"] = target.namespace
    elif resource.plural == "events":
        body = placed(target, body)
    held = [each.removeprefix("body:") for each in shape if each.startswith("body:")]
    creates = verb == "post" or (verb == "apply" and not sub and not held)
    present = target.create(resource, body).ok()["metadata"] if body and not creates else {}
    accept = TABLE if "as=Table" in shape else ""
    query: dict[str, Any] = dict(each.split("=") for each in shape if "=" in each and each != "as=Table")
    query |= {"limit": 500} if "limit" in shape else {}
    query |= {"fieldManager": "pavane"} if "fieldManager" in shape else {}
    query |= {"labelSelector": TEST_LABEL} if "labelSelector" in shape else {}
    query |= {"fieldSelector": "metadata.name=o"} if "fieldSelector" in shape else {}
    name = "o" if "one" in shape else ""
    if key.startswith("customresourcedefinitions"):
        name = "widgets.test.dev" if name else ""
    path = resource.path(
        None if "all" in shape else target.namespace if resource.namespaced else None, name or None, sub or None
    )
    named = {key: present[key] for key in held}
    if verb == "get" and resource.plural == "statefulsets" and "o" in present.values():
        # Its controller fills in the status in its own time.
        target.until(resource, "o", lambda found: found and "observedGeneration" in found.get("status", {}))
    match verb:
        case "get":
            return target.call("GET", path, accept=accept, **query)
        case "watch":
            with target.watch(resource, path, resourceVersion="0", allowWatchBookmarks="true") as events:
                found = next(each for each in events if _mine(each.object, target) or not BODIES.get(key))
                return Answer(200, {"type": found.type, "object": found.object}, {})
        case "post":
            return target.call("POST", path, body, **query)
        case "apply":
            if sub:
                body = {"apiVersion": body["apiVersion"], "kind": body["kind"], "status": {"observedGeneration": 1}}
            metadata = body.get("metadata", {"name": "o"})

            def apply(named: Object) -> Answer:
                return target.call("PATCH", path, body | {"metadata": metadata | named}, kind="apply", **query)

            return _unless_changed(target, path, named, apply)
        case "put":
            body["metadata"] |= named
            return target.call("PUT", path, body, **query)
        case "delete":

            def delete(named: Object) -> Answer:
                return target.call("DELETE", path, {"preconditions": named, "propagationPolicy": "Background"})

            return _unless_changed(target, path, named, delete)
        case _:
            patch = {"metadata": {"annotations": {"test.dev/x": "y"}}}
            return target.call("PATCH", path, patch, kind=verb, **query)


def _unless_changed(target: KubeTarget, path: str, named: Object, call: Callable[[Object], Answer]) -> Answer:
    """Make a call that names what the object holds; again where a controller has changed it since."""
    for _ in range(CONFLICTS_MAX):
        answer = call(named)
        if answer.code != 409:
            break
        present = target.call("GET", path).ok()["metadata"]
        named = {key: present[key] for key in named}
    return answer


def _mine(found: Object, target: KubeTarget) -> bool:
    return bool(found["metadata"].get("name") == "o" and found["metadata"].get("namespace") == target.namespace)


def plain(answer: Answer, target: KubeTarget) -> Any:
    """An answer without what is of this server, this namespace or this moment alone."""
    body = answer.body
    match body.get("kind"):
        case "APIResourceList" | "APIGroupList":  # in any order, and the real server has more of all
            named = {each["name"]: each for each in body.get("resources") or body.get("groups")}
            return {
                name: {**each, "verbs": {verb: "" for verb in each.get("verbs", ())}} for name, each in named.items()
            }
        case "Table":
            ages = [each["type"] == "date" for each in body["columnDefinitions"]]
            told = [[cell for cell, age in zip(each["cells"], ages, strict=True) if not age] for each in body["rows"]]
            rows = [{**each, "cells": cells} for each, cells in zip(body["rows"], told, strict=True)]
            body = {**body, "rows": [each for each in rows if _mine(each["object"], target)]}
        case _ if isinstance(body.get("items"), list):
            body = {**body, "items": [each for each in body["items"] if _mine(each, target)]}
    return _plain(body)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key not in OWN}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def missing(small: Any, large: Any, path: str = "") -> list[str]:
    """Where the first value says something that the second does not say."""
    if isinstance(small, dict) and isinstance(large, dict):
        return [each for key, value in small.items() for each in missing(value, large.get(key), f"{path}.{key}")]
    if isinstance(small, list) and isinstance(large, list) and len(small) <= len(large):
        return [
            each for at, pair in enumerate(zip(small, large, strict=False)) for each in missing(*pair, f"{path}[{at}]")
        ]
    return [] if small == large else [f"{path}: {small!r}, not {large!r}"]


DIFFERENCES = {
    r"get /apis? .*": Differs(
        "discovery", "only what section 6.1 of the specification lists, without `deletecollection`", "everything",
        "the embedded server is a convenience for one machine, never a second Kubernetes",
    ),
    r".* \S*\.spec\.(clusterIP|type)": Differs(
        "`spec.clusterIP` of a Service", "always `None`", "a virtual address, unless it is said to be `None`",
        "there are no virtual addresses between processes: names lead to pods",
    ),
    r".* \S*\.annotations\.pavane\.dev/local-ignored": Differs(
        "what has no effect on one machine (affinity, limits, tolerations and so on)",
        "accepted, and listed in the annotation `pavane.dev/local-ignored`", "honoured",
        "a process has no node to choose",
    ),
    r"(get|watch) persistentvolumeclaims .* \S*\.status\.phase": Differs(
        "a PersistentVolumeClaim", "`Bound` at once", "`Pending` until a provisioner has made a volume",
        "a claim is a folder of the embedded cluster",
    ),
    r"get statefulsets\.apps .* \S*\.status\.(current|update)Revision.*": Differs(
        "the hash at the end of `currentRevision` and `updateRevision` of a StatefulSet", "one of the pod template",
        "another one of it", "clients compare the two with each other and with the pods' label",
    ),
    r"delete (persistentvolumeclaims|services) .*": Differs(
        "the answer to `DELETE` of a claim or Service", "a `Status`",
        "the object; a claim is held by the finalizer `kubernetes.io/pvc-protection` while a pod uses it",
        "clients look at the code alone, and a folder is removed when its claim is",
    ),
    r"(get|watch) pods .*": PODS_RUN,
    r"(get|watch) customresourcedefinitions\S* .* \S*\.conditions\S*": Differs(
        "reason and message of a definition's conditions", "`Accepted`", "`NoConflicts`, `InitialNamesAccepted`",
        "clients look at type and status",
    ),
    r".* as=Table \.columnDefinitions\S*\.description": Differs(
        "descriptions of a table's columns", "empty, but for those of definitions", "the words of the API",
        "kubectl shows none",
    ),
    r".* as=Table \.rows\S*\.object": Differs(
        "the objects behind a table's rows", "whole", "their metadata, unless `includeObject=Object` asks for all",
        "kubectl and `pavane get` print the cells",
    ),
}  # fmt: skip
"""What may stand in an answer of the embedded server alone, by kind of call (without its client) and path."""


def unexplained(call: str, found: list[str]) -> list[str]:
    asked = call.partition(" ")[2]
    return [each for each in found if not any(re.match(pattern, f"{asked} {each}") for pattern in DIFFERENCES)]


@pytest.mark.parametrize("call", [each for each in CALLS if KUBELET not in each])
@pytest.mark.contract(differs=tuple(DIFFERENCES.values()))
def test_a_recorded_call_is_answered_alike(targets: tuple[KubeTarget, KubeTarget], call: str) -> None:
    embedded, real = (perform(each, call) for each in targets)
    assert embedded.code == real.code, (embedded.body, real.body)
    assert embedded.code < 300, embedded.body
    assert unexplained(call, missing(plain(embedded, targets[0]), plain(real, targets[1]))) == []


async def test_what_the_platform_asks_today_is_what_was_recorded(tmp_path: Path) -> None:
    assert await record(tmp_path) - set(CALLS) == set(), "new kinds of calls: run `make contract-calls`"

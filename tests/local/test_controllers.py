"""StatefulSet, Service → EndpointSlice, garbage collector, Namespace (docs/specs/operator.md 6.7)."""

import functools
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pavane_local.api import errors
from pavane_local.controllers import endpoints, statefulset
from pavane_local.store import Object
from tests.local.node import POD_IP, SERVE_FILE, Node, eventually, running_node

SETS = "statefulsets.apps"
SLICES = "endpointslices.discovery.k8s.io"
FOREVER = ["sleep", "1000"]


def stateful_set(name: str = "db", replicas: int = 3, command: list[str] | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "pavane:test", "command": command or FOREVER, **spec.pop("container", {})}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
            **spec,
        },
    }


def service(name: str = "db", **spec: Any) -> Object:
    ports = [{"name": "web", "port": 80}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": "db"}, "ports": ports, **spec},
    }


def ready(node: Node, name: str = "db") -> int:
    found = node.cluster.find(SETS, "default", name) or {}
    count: int = found.get("status", {}).get("readyReplicas", 0)
    return count


def pods(node: Node) -> list[str]:
    return [each["metadata"]["name"] for each in node.cluster.list("pods")]


async def test_three_pods_with_identity_claims_and_status(tmp_path: Path) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    template = {"metadata": {"name": "data", "labels": {"x": "y"}}, "spec": claim}
    async with running_node(tmp_path) as node:
        mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        write = ["sh", "-c", 'echo $HOSTNAME >> "$PAVANE_ROOT/data/who"; exec sleep 1000']
        await node.cluster.create(SETS, stateful_set(command=write, volumeClaimTemplates=[template], container=mounts))
        await eventually(lambda: ready(node) == 3)
        found = node.cluster.get(SETS, "default", "db")
        pod = node.cluster.get("pods", "default", "db-1")
        assert pod["metadata"]["labels"] == {
            "app": "db",
            "statefulset.kubernetes.io/pod-name": "db-1",
            "apps.kubernetes.io/pod-index": "1",
            "controller-revision-hash": found["status"]["updateRevision"],
        }
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("db-1", "db")
        assert pod["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
        assert {key: found["status"][key] for key in ("replicas", "updatedReplicas", "observedGeneration")} == {
            "replicas": 3,
            "updatedReplicas": 3,
            "observedGeneration": 1,
        }
        claims = node.cluster.list("persistentvolumeclaims")
        assert [each["metadata"]["name"] for each in claims] == ["data-db-0", "data-db-1", "data-db-2"]
        assert claims[0]["metadata"]["labels"] == {"app": "db", "x": "y"}
        assert claims[0]["status"]["phase"] == "Bound"
        file = tmp_path / "volumes/default/data-db-0/who"
        await eventually(lambda: file.exists() and file.read_text() == "db-0\n")
        await node.cluster.delete("pods", "default", "db-0")
        await eventually(lambda: file.read_text() == "db-0\ndb-0\n")
        await node.cluster.delete("persistentvolumeclaims", "default", "data-db-2")
        await eventually(lambda: not (tmp_path / "volumes/default/data-db-2").exists())


async def test_a_set_may_begin_with_a_later_pod(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.cluster.create(SETS, stateful_set())
        await eventually(lambda: ready(node) == 3)
        await node.cluster.patch(SETS, "default", "db", {"spec": {"replicas": 1, "ordinals": {"start": 2}}})
        await eventually(lambda: [each["metadata"]["name"] for each in node.cluster.list("pods")] == ["db-2"])
        await node.cluster.patch(SETS, "default", "db", {"spec": {"replicas": 2, "ordinals": None}})
        await eventually(lambda: [each["metadata"]["name"] for each in node.cluster.list("pods")] == ["db-0", "db-1"])


async def test_a_changed_template_reaches_a_pod_only_when_it_is_deleted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.cluster.create(SETS, stateful_set(replicas=2))
        await eventually(lambda: ready(node) == 2)
        uid = node.pod("db-1")["metadata"]["uid"]
        container = {"name": "main", "image": "pavane:other", "command": FOREVER}
        patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
        await node.cluster.patch(SETS, "default", "db", patch)
        await eventually(lambda: node.cluster.get(SETS, "default", "db")["status"].get("updatedReplicas", 0) == 0)
        await node.cluster.delete("pods", "default", "db-0")
        await eventually(lambda: node.cluster.get(SETS, "default", "db")["status"].get("updatedReplicas") == 1)
        await eventually(lambda: ready(node) == 2)
        assert node.pod("db-0")["spec"]["containers"][0]["image"] == "pavane:other"
        assert node.pod("db-1")["metadata"]["uid"] == uid


async def test_a_refused_pod_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path) as node:
        create = node.cluster.create
        refusals = 2

        async def refusing(resource: str, body: Object, *arguments: Any) -> Object:
            nonlocal refusals
            if resource == "pods" and refusals:
                refusals -= 1
                raise errors.ApiError(403, "Forbidden", "not today")
            return await create(resource, body, *arguments)

        monkeypatch.setattr(node.cluster, "create", refusing)
        await node.cluster.create(SETS, stateful_set(replicas=1))
        await eventually(lambda: ready(node) == 1)
        assert refusals == 0


async def test_a_foreign_pod_with_the_name_is_left_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.run("db-0", *FOREVER)
        uid = node.pod("db-0")["metadata"]["uid"]
        await node.cluster.create(SETS, stateful_set(replicas=2))
        await eventually(lambda: ready(node) == 1)
        assert node.pod("db-0")["metadata"]["uid"] == uid
        await node.cluster.delete("pods", "default", "db-0")
        await eventually(lambda: ready(node) == 2)


async def test_a_deleted_set_takes_its_pods_along_and_leaves_its_claims(tmp_path: Path) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    template = {"metadata": {"name": "data"}, "spec": claim}
    async with running_node(tmp_path) as node:
        await node.cluster.create(SETS, stateful_set(replicas=2, volumeClaimTemplates=[template]))
        await node.cluster.create("services", service())
        await eventually(lambda: ready(node) == 2)
        await node.cluster.delete(SETS, "default", "db")
        await node.cluster.delete("services", "default", "db")
        await eventually(lambda: not pods(node) and not node.cluster.list(SLICES))
        assert len(node.cluster.list("persistentvolumeclaims")) == 2


async def test_an_object_lives_while_one_owner_lives(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        owners = [
            await node.cluster.create("configmaps", {"metadata": {"name": name, "namespace": "default"}})
            for name in ("first", "second")
        ]
        references = [
            {"apiVersion": "v1", "kind": "ConfigMap", **{key: each["metadata"][key] for key in ("name", "uid")}}
            for each in owners
        ]
        meta = {"name": "child", "namespace": "default", "ownerReferences": references}
        await node.cluster.create("configmaps", {"metadata": meta})
        orphan = {**meta, "name": "orphan", "ownerReferences": [{**references[0], "uid": "of-a-namesake"}]}
        await node.cluster.create("configmaps", {"metadata": orphan})
        await eventually(lambda: node.cluster.find("configmaps", "default", "orphan") is None)
        await node.cluster.delete("configmaps", "default", "first")
        await node.cluster.create("configmaps", {"metadata": {**orphan, "name": "mark"}})
        await eventually(lambda: node.cluster.find("configmaps", "default", "mark") is None)
        assert node.cluster.find("configmaps", "default", "child") is not None
        await node.cluster.delete("configmaps", "default", "second")
        await eventually(lambda: node.cluster.find("configmaps", "default", "child") is None)


async def test_an_object_that_lost_its_owner_reference_stays(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        owner = await node.cluster.create("configmaps", {"metadata": {"name": "owner", "namespace": "default"}})
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        for name in ("kept", "goes"):
            meta = {"name": name, "namespace": "default", "ownerReferences": [reference]}
            await node.cluster.create("configmaps", {"metadata": meta})
        await node.cluster.patch("configmaps", "default", "kept", {"metadata": {"ownerReferences": None}})
        await node.cluster.delete("configmaps", "default", "owner")
        await eventually(lambda: node.cluster.find("configmaps", "default", "goes") is None)
        assert node.cluster.find("configmaps", "default", "kept") is not None


async def test_a_namespace_has_an_account_and_is_emptied_before_it_goes(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.cluster.create("namespaces", {"metadata": {"name": "other"}})
        await eventually(lambda: node.cluster.find("serviceaccounts", "other", "default"))
        meta = {"name": "a", "namespace": "other"}
        await node.cluster.create("configmaps", {"metadata": {**meta, "finalizers": ["example.org/hold"]}})
        spec = {"containers": [{"name": "main", "image": "pavane:test", "command": FOREVER}]}
        await node.cluster.create("pods", {"metadata": meta, "spec": spec})
        await eventually((tmp_path / "hosts/other").exists)
        await node.cluster.delete("namespaces", "", "other")
        await eventually(lambda: not node.cluster.list("pods", "other"))
        assert node.cluster.get("namespaces", "", "other")["status"]["phase"] == "Terminating"
        await node.cluster.patch("configmaps", "other", "a", {"metadata": {"finalizers": None}})
        await eventually(lambda: node.cluster.find("namespaces", "", "other") is None)
        await eventually(lambda: not (tmp_path / "hosts/other").exists())


async def test_a_service_follows_readiness_and_its_selector(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    env = [POD_IP, {"name": "SWITCH", "value": str(gate)}]
    probe = {"env": env, "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1}}
    command = [sys.executable, "-c", SERVE_FILE]

    async with running_node(tmp_path) as node:

        def addresses(state: str = "ready") -> list[str]:
            found = node.cluster.find(SLICES, "default", "db-local") or {"endpoints": []}
            return [each["addresses"][0] for each in found["endpoints"] if each["conditions"][state]]

        def resolved(name: str) -> list[str]:
            lines = (tmp_path / "hosts/default").read_text().splitlines()
            return [line.split()[0] for line in lines if name in line.split()]

        await node.cluster.create("services", service())
        await node.cluster.create("services", service("all", publishNotReadyAddresses=True))
        await node.cluster.create(SETS, stateful_set(replicas=1, command=command, container=probe))
        await eventually(lambda: node.container("db-0").get("started"))
        address = node.pod("db-0")["status"]["podIP"]
        await eventually(lambda: resolved("all") == [address])
        assert addresses() == []
        gate.touch()
        await eventually(lambda: addresses() == [address] == resolved("db") == resolved("db-0.db"))
        began = time.monotonic()
        await node.cluster.patch("services", "default", "db", {"spec": {"selector": {"app": "nobody"}}})
        await eventually(lambda: addresses() == [])
        await node.cluster.patch("services", "default", "db", {"spec": {"selector": {"app": "db"}}})
        await eventually(lambda: addresses() == [address])
        assert time.monotonic() - began < 10, "a change of the selector must not wait for a poll"
        gate.unlink()
        await eventually(functools.partial(lambda: addresses() == [] and not resolved("db")))


def test_a_terminating_pod_is_listed_and_not_ready() -> None:
    ready_condition = [{"type": "Ready", "status": "True"}]
    meta = {
        "name": "p",
        "namespace": "default",
        "uid": "u",
        "labels": {"app": "db"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    status = {"podIP": "127.64.0.1", "phase": "Running", "conditions": ready_condition}
    ports = [{"name": "http", "containerPort": 8080}]
    pod = {"metadata": meta, "spec": {"containers": [{"name": "c", "ports": ports}]}, "status": status}
    body = service(ports=[{"name": "web", "port": 80, "targetPort": "http"}])
    body |= {"apiVersion": "v1", "kind": "Service"}
    body["metadata"]["uid"] = "s"
    found = endpoints.endpoint_slice(body, [pod])
    assert found["endpoints"][0]["conditions"] == {"ready": False, "serving": True, "terminating": True}
    assert found["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]
    body["spec"]["publishNotReadyAddresses"] = True
    assert endpoints.endpoint_slice(body, [pod])["endpoints"][0]["conditions"]["ready"]


def test_equal_templates_are_one_revision() -> None:
    assert statefulset.revision(stateful_set()) == statefulset.revision(stateful_set(replicas=5))
    assert statefulset.revision(stateful_set()) != statefulset.revision(stateful_set(command=["true"]))

"""A real kubectl against the API server (docs/specs/operator.md 6.11)."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.local.api_server import WIDGETS, Server, a_server, pod, widget
from tests.requires import requires

MANIFEST = yaml.safe_dump({"apiVersion": "test.dev/v1", "kind": "Widget", **widget(env=[{"name": "x", "value": "1"}])})
STATEFUL_SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec:
  serviceName: s
  selector: {matchLabels: {app: s}}
  template:
    metadata: {labels: {app: s}}
    spec: {containers: [{name: main, image: pavane, ports: [{containerPort: 80}]}]}
"""


@dataclass
class Kubectl:
    """The program with the kubeconfig of a running server."""

    server: Server
    program: str
    folder: Path

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            "KUBECONFIG": str(self.server.api.kubeconfig),
            "HOME": str(self.folder),
            "PATH": os.environ["PATH"],
        }
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            self.program, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )

    async def run(self, *arguments: str, given: str = "", code: int = 0) -> str:
        """Run to the end; returns what it printed on both outputs."""
        process = await self.start(*arguments)
        out, errors = await process.communicate(given.encode())
        assert process.returncode == code, (arguments, out, errors)
        return (out + errors).decode()


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    program = requires("kubectl")
    async with a_server(tmp_path) as server:
        yield Kubectl(server, program, tmp_path)


async def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    apply = ("apply", "-f", "-")
    assert "created" in await kubectl.run(*apply, given=MANIFEST)
    assert "unchanged" in await kubectl.run(*apply, given=MANIFEST)
    changed = MANIFEST.replace("1Gi", "2Gi")
    difference = await kubectl.run("diff", "-f", "-", given=changed, code=1)
    assert "-  size: 1Gi\n+  size: 2Gi\n" in difference
    assert "configured" in await kubectl.run(*apply, given=changed)
    assert await kubectl.run("diff", "-f", "-", given=changed) == ""
    assert kubectl.server.cluster.get(WIDGETS, "default", "a")["spec"]["size"] == "2Gi"


async def test_apply_of_built_in_kinds(kubectl: Kubectl) -> None:
    assert "created" in await kubectl.run("apply", "-f", "-", given=STATEFUL_SET)
    assert "unchanged" in await kubectl.run("apply", "-f", "-", given=STATEFUL_SET)
    changed = STATEFUL_SET.replace("image: pavane", "image: pavane:2")
    assert "configured" in await kubectl.run("apply", "-f", "-", given=changed)
    (container,) = kubectl.server.cluster.get("statefulsets.apps", "default", "s")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == "pavane:2"
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert "scaled" in await kubectl.run("scale", "sts/s", "--replicas=2")
    assert kubectl.server.cluster.get("statefulsets.apps", "default", "s")["spec"]["replicas"] == 2


async def test_server_side_apply_and_its_conflicts(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in await kubectl.run(*apply, given=MANIFEST)
    changed = MANIFEST.replace("1Gi", "2Gi")
    assert "+  size: 2Gi" in await kubectl.run("diff", "--server-side", "-f", "-", given=changed, code=1)
    other = (*apply, "--field-manager=other")
    refused = await kubectl.run(*other, given=changed, code=1)
    assert 'conflict with "kubectl": .spec.size' in refused
    await kubectl.run(*other, "--force-conflicts", given=changed)
    assert kubectl.server.cluster.get(WIDGETS, "default", "a")["spec"]["size"] == "2Gi"


async def test_client_side_apply_can_move_to_server_side(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", given=MANIFEST)
    without = MANIFEST.replace("  env:\n  - name: x\n    value: '1'\n", "")
    assert without != MANIFEST
    await kubectl.run("apply", "--server-side", "-f", "-", given=without)
    assert "env" not in kubectl.server.cluster.get(WIDGETS, "default", "a")["spec"]


async def test_wrong_objects_are_refused_with_their_fields(kubectl: Kubectl) -> None:
    wrong = MANIFEST.replace("size: 1Gi", "size: 1Gi\n  replicas: 4\n  mode: C")
    assert 'spec.mode: Unsupported value: "C"' in await kubectl.run("apply", "-f", "-", given=wrong, code=1)
    unknown = MANIFEST.replace("size: 1Gi", "size: 1Gi\n  colour: red")
    assert 'unknown field "spec.colour"' in await kubectl.run("apply", "-f", "-", given=unknown, code=1)
    await kubectl.run("apply", "-f", "-", given=MANIFEST)
    patch = ("patch", "wd", "a", "--type=merge", "-p", json.dumps({"spec": {"replicas": 4}}))
    assert "spec.replicas: Invalid value: must be odd" in await kubectl.run(*patch, code=1)


async def test_get_in_all_its_forms(kubectl: Kubectl) -> None:
    await kubectl.run("create", "-f", "-", given=MANIFEST)
    await kubectl.run("patch", "wd", "a", "--type=merge", "-p", json.dumps({"spec": {"mode": "B"}}))
    assert (await kubectl.run("get", "wd")).split()[:4] == ["NAME", "REPLICAS", "READY", "AGE"]
    wide = (await kubectl.run("get", "things", "-o", "wide")).splitlines()
    assert wide[0].split() == ["NAME", "REPLICAS", "READY", "MODE", "AGE"]
    assert wide[1].split()[-2] == "B"
    assert yaml.safe_load(await kubectl.run("get", "wd/a", "-o", "yaml"))["spec"]["size"] == "1Gi"
    assert await kubectl.run("get", "wd", "-o", "name") == "widget.test.dev/a\n"
    assert "NotFound" in await kubectl.run("get", "wd", "none", code=1)
    await kubectl.server.cluster.create("pods", pod())
    assert (await kubectl.run("get", "pods")).split()[-5:-1] == ["a", "0/1", "Pending", "0"]


async def test_get_watches(kubectl: Kubectl) -> None:
    await kubectl.server.cluster.create(WIDGETS, widget())
    process = await kubectl.start("get", "wd", "-w", "--no-headers")
    assert process.stdout is not None
    assert (await process.stdout.readline()).split()[:2] == [b"a", b"3"]
    await kubectl.server.cluster.patch(WIDGETS, "default", "a", {"spec": {"replicas": 5}})
    assert (await process.stdout.readline()).split()[:2] == [b"a", b"5"]
    process.terminate()
    await process.communicate()


async def test_wait_sees_a_condition_and_a_deletion(kubectl: Kubectl) -> None:
    await kubectl.server.cluster.create(WIDGETS, widget())
    waiting = await kubectl.start("wait", "--for=condition=Ready", "wd/a", "--timeout=30s")
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await kubectl.server.cluster.patch(WIDGETS, "default", "a", status, subresource="status")
    out, _ = await waiting.communicate()
    assert b"condition met" in out
    await kubectl.server.cluster.patch(WIDGETS, "default", "a", {"metadata": {"finalizers": ["a.dev/x"]}})
    deleting = await kubectl.start("delete", "wd", "a", "--wait")
    assert deleting.stdout is not None
    await deleting.stdout.readline()
    await kubectl.server.cluster.patch(WIDGETS, "default", "a", {"metadata": {"finalizers": None}})
    await deleting.communicate()
    assert deleting.returncode == 0


async def test_describe_shows_the_object_and_its_events(kubectl: Kubectl) -> None:
    made = await kubectl.server.cluster.create(WIDGETS, widget())
    metadata = made["metadata"]
    about = {"kind": "Widget", "apiVersion": "test.dev/v1", "name": "a", "namespace": "default", "uid": metadata["uid"]}
    event = {"regarding": about, "reason": "Promoted", "note": "generation 2 writes", "type": "Normal"}
    named = {"metadata": {"name": "e", "namespace": "default"}, "reportingController": "pavane"}
    await kubectl.server.cluster.create("events.events.k8s.io", named | event)
    told = await kubectl.run("describe", "wd", "a")
    assert "Size:        1Gi" in told
    assert "Promoted" in told
    assert "generation 2 writes" in told
    assert "generation 2 writes" in await kubectl.run("get", "events")


async def test_the_server_explains_itself(kubectl: Kubectl) -> None:
    explained = await kubectl.run("explain", "widget.spec.rollout")
    assert "How it rolls." in explained
    assert "The longest time." in explained
    assert "widgets" in await kubectl.run("api-resources", "--categories=things", "-o", "name")
    assert await kubectl.run("auth", "can-i", "create", "pods") == "yes\n"
    assert "v1.32.0+pavane" in await kubectl.run("version")


async def test_logs_are_followed(kubectl: Kubectl) -> None:
    await kubectl.server.cluster.create("pods", pod())
    assert await kubectl.run("logs", "-f", "a") == "a 0\na 1\na 2\n"
    assert await kubectl.run("logs", "a", "--tail=1") == "a 2\n"


async def test_what_is_missing_is_refused_in_words(kubectl: Kubectl) -> None:
    await kubectl.server.cluster.create("pods", pod())
    assert "not available in the local cluster" in await kubectl.run("exec", "a", "--", "ls", code=1)
    assert "use apply -f" in await kubectl.run("create", "namespace", "x", code=1)
    assert "doesn't have a resource type" in await kubectl.run("get", "deployments", code=1)


async def test_labels_and_deletion_by_label(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", given=MANIFEST)
    await kubectl.run("label", "wd", "a", "team=x")
    await kubectl.run("annotate", "wd", "a", "note=y")
    assert await kubectl.run("get", "wd", "-l", "team=x", "-o", "name") == "widget.test.dev/a\n"
    await kubectl.run("delete", "wd", "-l", "team=x")
    assert kubectl.server.cluster.list(WIDGETS) == []

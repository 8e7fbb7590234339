"""Pods as processes: files, env, restarts, probes, end, recovery (docs/specs/operator.md 6.8, 6.10)."""

import asyncio
import base64
import functools
import os
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pavane_local.api.cluster import DeleteOptions
from pavane_local.api.errors import ApiError
from pavane_local.kubelet.logs import LogOptions
from tests.local.node import POD_IP, SERVE_FILE, Node, eventually, running_node

FOREVER = ("sleep", "1000")
_FOLLOW = LogOptions(follow=True)
_NO_GRACE = DeleteOptions(grace_seconds=0)


CLAIM = {
    "metadata": {"name": "claim", "namespace": "default"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
}


async def test_env_files_and_arguments(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        secret = {
            "metadata": {"name": "keys", "namespace": "default"},
            "data": {"key": base64.b64encode(b"k").decode()},
        }
        await node.cluster.create("secrets", secret)
        settings = {"metadata": {"name": "settings", "namespace": "default"}, "data": {"colour": "red", "other": "x"}}
        await node.cluster.create("configmaps", settings)
        env: list[dict[str, Any]] = [
            POD_IP,
            {"name": "DATA", "value": "/data"},
            {"name": "URL", "value": "tcp://$(POD_IP):1"},
            {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
            {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "none", "optional": True}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        ]
        mounts = {"data": "/data", "keys": "/etc/keys", "settings": "/etc/settings"}
        await node.run(
            "a",
            "sh",
            "-ec",
            'echo $URL $COLOUR ${NONE-unset} "<$LABEL>" $HOSTNAME; cat "$0" "$PAVANE_ROOT/etc/settings/colour"; '
            'echo done > "$DATA/file"; echo why > "$PAVANE_TERMINATION_LOG"',
            "/etc/keys/key",
            volumes=[
                {"name": "data", "emptyDir": {}},
                {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
                {"name": "settings", "configMap": {"name": "settings"}},
            ],
            container={
                "env": env,
                "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
            },
        )
        await eventually(lambda: node.container("a").get("restartCount"))
        address = node.pod("a")["status"]["podIP"]
        assert await node.log("a", previous=True) == f"tcp://{address}:1 red unset <> a\nkred\n"
        assert (node.root("a") / "data/file").read_text() == "done\n"
        assert stat.S_IMODE((node.root("a") / "etc/keys/key").stat().st_mode) == 0o400
        terminated = node.container("a")["lastState"]["terminated"]
        assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (0, "Completed", "why\n")
        kubeconfig = node.folder / "pods/default/a" / node.pod("a")["metadata"]["uid"] / "kubeconfig"
        assert kubeconfig.read_text() == "config of a"
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600


async def test_a_token_of_the_account_for_an_audience_is_a_file(tmp_path: Path) -> None:
    source = {"serviceAccountToken": {"audience": "pavane-otlp", "path": "token"}}
    async with running_node(tmp_path) as node:
        await node.run(
            "a",
            *FOREVER,
            volumes=[{"name": "otlp", "projected": {"sources": [source], "defaultMode": 0o440}}],
            container={"volumeMounts": [{"name": "otlp", "mountPath": "/etc/otlp"}]},
        )
        await eventually(lambda: node.is_ready("a"))
        file = node.root("a") / "etc/otlp/token"
        assert file.read_text() == "token of a for pavane-otlp"
        assert stat.S_IMODE(file.stat().st_mode) == 0o440


async def test_a_changed_config_map_shows_in_the_running_pod(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.run(
            "a",
            *FOREVER,
            volumes=[{"name": "settings", "configMap": {"name": "settings"}}],
            container={"volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}]},
        )
        await eventually(lambda: any(each["reason"] == "FailedMount" for each in node.cluster.list("events")))
        assert node.container("a")["state"]["waiting"]["reason"] == "ContainerCreating"
        settings = {"metadata": {"name": "settings", "namespace": "default"}, "data": {"colour": "red"}}
        await node.cluster.create("configmaps", settings)
        await eventually(lambda: node.is_ready("a"))
        await node.cluster.patch("configmaps", "default", "settings", {"data": {"colour": "blue"}})
        await eventually(lambda: (node.root("a") / "etc/settings/colour").read_text() == "blue")


async def test_a_pod_waits_for_its_claim(tmp_path: Path) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]
    async with running_node(tmp_path) as node:
        await node.run("a", *FOREVER, volumes=volumes)
        await eventually(lambda: any("claim" in each["message"] for each in node.cluster.list("events")))
        assert node.pod("a")["status"]["phase"] == "Pending"
        await node.cluster.create("persistentvolumeclaims", CLAIM)
        await eventually(lambda: node.is_ready("a"))


def waiting(node: Node, name: str) -> dict[str, str]:
    found: dict[str, str] = node.container(name)["state"].get("waiting", {})
    return found


async def test_a_pod_that_cannot_be_run_leaves_the_others_alone(tmp_path: Path) -> None:
    in_the_way = tmp_path / "pods/default/bad"
    in_the_way.parent.mkdir(parents=True)
    async with running_node(tmp_path) as node:
        in_the_way.write_text("a file where the kubelet needs a folder")
        await node.run("bad", *FOREVER)
        await node.run("good", *FOREVER)
        await eventually(lambda: node.is_ready("good"))
        await eventually(lambda: waiting(node, "bad").get("reason") == "RunContainerError")
        assert "cannot be written" in waiting(node, "bad")["message"]
        in_the_way.unlink()
        await eventually(lambda: node.is_ready("bad"))


async def test_a_hosts_file_that_could_not_be_written_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "hosts" / ".team.new"
    in_the_way.mkdir(parents=True)
    async with running_node(tmp_path) as node:
        await node.cluster.create("namespaces", {"metadata": {"name": "team"}})
        await eventually(lambda: "written again" in caplog.text)
        assert not (tmp_path / "hosts" / "team").exists()
        in_the_way.rmdir()
        await eventually((tmp_path / "hosts" / "team").exists)


async def test_a_failing_container_backs_off_and_keeps_its_last_state_and_log(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.run("a", "sh", "-c", "echo run in $PAVANE_ROOT; exit 3")
        await eventually(lambda: node.container("a").get("restartCount", 0) >= 3)
        await eventually(lambda: node.container("a")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")
        status = node.container("a")
        assert status["lastState"]["terminated"]["exitCode"] == 3
        assert not status["ready"]
        assert node.pod("a")["status"]["phase"] == "Running"
        assert (await node.log("a", previous=True)).startswith("run in ")


async def test_a_pod_that_runs_once_stays_as_it_ended(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        for name, code in (("good", 0), ("bad", 3)):
            await node.run(name, "sh", "-c", f"echo ran; exit {code}", restartPolicy="Never")
        await eventually(lambda: node.pod("good").get("status", {}).get("phase") == "Succeeded")
        await eventually(lambda: node.pod("bad").get("status", {}).get("phase") == "Failed")
    async with running_node(tmp_path) as node:
        await node.run("other", *FOREVER)
        await eventually(lambda: node.is_ready("other"))
        for name, code in (("good", 0), ("bad", 3)):
            status = node.container(name)
            assert (status["state"]["terminated"]["exitCode"], status["restartCount"]) == (code, 0)


async def test_a_pod_finds_the_api_server_in_its_environment(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        words = 'echo "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"'
        await node.run("with", "sh", "-c", words, restartPolicy="Never")
        await node.run("without", "sh", "-c", words, restartPolicy="Never", automountServiceAccountToken=False)
        for name in ("with", "without"):
            await eventually(functools.partial(_has_ended, node, name))
        assert await node.log("with") == "127.0.0.1:6443\n"
        assert await node.log("without") == ":\n"


def _has_ended(node: Node, name: str) -> bool:
    return bool(node.pod(name).get("status", {}).get("phase") == "Succeeded")


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.initContainers", {"initContainers": [{"name": "i", "image": "pavane"}]}),
        ("spec.restartPolicy", {"restartPolicy": "OnFailure"}),
        ("spec.volumes[0]", {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
        ("spec.volumes[0].secret.items", {"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{}]}}]}),
        (
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
            {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {}}]}}]},
        ),
        ("spec.containers[0].envFrom", {"container": {"envFrom": [{"configMapRef": {"name": "c"}}]}}),
        ("spec.containers[0]", {"container": {"workingDir": "/x"}}),
        ("spec.containers[0]", {"container": {"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "y"}]}}),
        ("spec.containers[0].livenessProbe.httpGet", {"container": {"livenessProbe": {"tcpSocket": {"port": 1}}}}),
    ],
)
async def test_what_is_not_there_is_refused_with_its_field(tmp_path: Path, field: str, spec: dict[str, Any]) -> None:
    async with running_node(tmp_path) as node:
        with pytest.raises(ApiError) as refusal:
            await node.run("a", *FOREVER, **spec)
        assert (refusal.value.code, [each.field for each in refusal.value.causes]) == (422, [field])


async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.run("image", *FOREVER, container={"image": "unknown:1"})
        await node.run("command", "no-such-program")
        await eventually(lambda: waiting(node, "image").get("reason") == "ErrImageNeverPull")
        await eventually(lambda: waiting(node, "command").get("reason") == "RunContainerError")
        assert "--image unknown:1=PATH" in waiting(node, "image")["message"]
        assert "no-such-program" in waiting(node, "command")["message"]
        assert node.pod("image")["status"]["phase"] == "Pending"
        assert sorted(each["reason"] for each in node.cluster.list("events")) == ["Failed", "Failed"]


async def test_readiness_and_liveness_over_http(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        switch = tmp_path / "switch"
        probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1, "failureThreshold": 2}
        await node.run(
            "a",
            sys.executable,
            "-c",
            SERVE_FILE,
            container={
                "env": [POD_IP, {"name": "SWITCH", "value": str(switch)}],
                "ports": [{"name": "web", "containerPort": 8080}],
                "startupProbe": {**probe, "failureThreshold": 1000},
                "readinessProbe": probe,
            },
        )
        await eventually(lambda: "running" in node.container("a")["state"])
        assert not node.container("a")["started"]
        assert not node.is_ready("a")
        switch.touch()
        await eventually(lambda: node.is_ready("a"))
        switch.unlink()
        await eventually(lambda: not node.is_ready("a"))
        assert node.container("a")["restartCount"] == 0


async def test_a_container_that_fails_its_liveness_probe_is_restarted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        switch = tmp_path / "switch"
        switch.touch()
        probe = {"httpGet": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 2}
        env = [POD_IP, {"name": "SWITCH", "value": str(switch)}]
        container = {"env": env, "startupProbe": {**probe, "failureThreshold": 1000}, "livenessProbe": probe}
        await node.run("a", sys.executable, "-c", SERVE_FILE, container=container)
        await eventually(lambda: node.is_ready("a"))
        switch.unlink()
        await eventually(lambda: node.container("a").get("restartCount") == 1)
        assert node.container("a")["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGTERM
        assert any("livenessProbe of main failed" in each["message"] for each in node.cluster.list("events"))


async def test_the_end_of_a_pod_is_gentle_then_firm(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        file = tmp_path / "ended"
        await node.run(
            "gentle", "sh", "-c", f"trap 'echo bye > \"{file}\"; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        )
        ignore = "trap '' TERM; echo up; sleep 1000 & while :; do sleep 0.01; done"
        await node.run("stubborn", "sh", "-c", ignore, terminationGracePeriodSeconds=1)
        for name in ("gentle", "stubborn"):
            await eventually(functools.partial(node.is_ready, name))
            log = node.kubelet.stream(node.pod(name), "main", _FOLLOW, previous=False)
            assert await anext(log) == b"up\n"
            await log.aclose()
        group = int(node.container("stubborn")["containerID"].removeprefix("process://").partition("/")[0])
        await node.cluster.delete("pods", "default", "gentle")
        await node.cluster.delete("pods", "default", "stubborn")
        await eventually(lambda: node.pod("stubborn") == {} or not node.is_ready("stubborn"))
        await eventually(lambda: not node.cluster.list("pods"))
        assert file.read_text() == "bye\n"
        await eventually(lambda: not _group_exists(group))


async def test_a_forced_deletion_does_not_wait_for_the_grace_period(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        ignore = "trap '' TERM; echo up; while :; do sleep 0.01; done"
        await node.run("a", "sh", "-c", ignore, terminationGracePeriodSeconds=1000)
        await eventually(lambda: node.is_ready("a"))
        log = node.kubelet.stream(node.pod("a"), "main", _FOLLOW, previous=False)
        assert await anext(log) == b"up\n"
        group = int(node.container("a")["containerID"].removeprefix("process://").partition("/")[0])
        await node.cluster.delete("pods", "default", "a")
        await eventually(lambda: not node.is_ready("a"))
        assert _group_exists(group)
        await node.cluster.delete("pods", "default", "a", _NO_GRACE)
        await eventually(lambda: not _group_exists(group))
        await log.aclose()


async def test_a_namesake_starts_only_when_the_former_process_is_gone(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        lock = tmp_path / "only-one"
        hold = f"mkdir '{lock}' || exit 9; trap 'rmdir \"{lock}\"; exit 0' TERM; while :; do sleep 0.01; done"
        await node.run("a", "sh", "-c", hold)
        await eventually(lock.exists)
        for _ in range(3):
            uid = node.pod("a")["metadata"]["uid"]
            await node.cluster.delete("pods", "default", "a", _NO_GRACE)
            shutil.rmtree(lock, ignore_errors=True)
            await node.run("a", "sh", "-c", hold)
            await eventually(lambda: node.is_ready("a") and lock.exists())
            assert node.pod("a")["metadata"]["uid"] != uid
        assert "running" in node.container("a")["state"]


async def test_pods_that_ran_are_terminated_and_started_again_on_their_volumes(tmp_path: Path) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    command = 'echo x >> "$PAVANE_ROOT/data/starts"; exec sleep 1000'
    starts = tmp_path / "volumes/default/claim/starts"
    stale = [tmp_path / "volumes/default/gone/file", tmp_path / "pods/default/a/gone/main/0.log"]
    async with running_node(tmp_path) as node:
        await node.cluster.create("persistentvolumeclaims", CLAIM)
        await node.run("a", "sh", "-c", command, volumes=volumes, container=mounts)
        # Ready comes with the process: it may not have run any of its command yet.
        await eventually(lambda: node.is_ready("a") and starts.exists() and starts.read_text() == "x\n")
        address = node.pod("a")["status"]["podIP"]
    for file in stale:
        file.parent.mkdir(parents=True)
        file.touch()
    async with running_node(tmp_path) as node:
        assert not any(file.exists() for file in stale), "what belongs to nobody must not turn up in a namesake"
        await eventually(lambda: node.container("a").get("restartCount") == 1 and node.is_ready("a"))
        last = node.container("a")["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (137, "ContainerStatusUnknown")
        assert node.pod("a")["status"]["podIP"].rpartition(".")[2] == address.rpartition(".")[2]
        await eventually(lambda: starts.read_text() == "x\nx\n")


async def test_a_child_that_escaped_is_killed_at_the_next_start(tmp_path: Path) -> None:
    root = tmp_path / "pods/default/a/uid/main/root"
    root.mkdir(parents=True)
    environment = {**os.environ, "PAVANE_ROOT": str(root)}
    orphan = await asyncio.create_subprocess_exec(*FOREVER, env=environment, start_new_session=True)
    async with running_node(tmp_path):
        assert await orphan.wait() == -signal.SIGKILL


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

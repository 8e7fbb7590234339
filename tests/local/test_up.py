"""`pavane up` and its companions as processes (docs/specs/operator.md 6.9, 6.10, 8.1)."""

import asyncio
import contextlib
import fcntl
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from pavane_local.controllers.loop import is_ready
from pavane_local.folder import holder
from pavane_operator.kube import KubeClient, KubeError, Target
from pavane_operator.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, PODS, STATEFUL_SETS
from tests.local.node import eventually
from tests.services.disks import no_file_beyond

BANK = (Path(__file__).parents[2] / "examples" / "bank" / "bank.py").read_text(encoding="utf-8")
FILES = 200  # that `pavane up` may open

# Holds a lock while it runs: a second process of the same identity would write "double".
WRITER = """
import fcntl, os, pathlib, threading
data = pathlib.Path(os.environ["DATA"])
lock = (data / "lock").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    word = "start"
except OSError:
    word = "double"
with (data / "history").open("a") as history:
    history.write(word + "\\n")
print("up", flush=True)
threading.Event().wait()
"""


def writers(name: str = "w", replicas: int = 2) -> dict[str, Any]:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    container = {
        "name": "main",
        "image": "pavane:test",
        "command": ["python", "-c", WRITER],
        "env": [{"name": "DATA", "value": "/data"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 5},
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }


class Cli:
    """Calls the `pavane` command in a working folder of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / ".pavane"

    def __call__(self, *arguments: str, code: int = 0) -> str:
        command = self.command(*arguments)
        result = subprocess.run(command, cwd=self.place, capture_output=True, text=True, timeout=110, check=False)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "pavane_cli.main", *arguments]

    def write(self, *documents: dict[str, Any]) -> str:
        file = self.place / "resources.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        return str(file)

    def processes(self) -> list[int]:
        """The processes of all pods of this cluster."""
        marker = f"\0PAVANE_ROOT={self.folder}/".encode()
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker in b"\0" + environment.read_bytes():
                    found.append(int(environment.parent.name))
        return found

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        async with await KubeClient.connect(Target(self.folder / "kubeconfig")) as client:
            yield client


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    pid = holder(cli.folder)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


async def until(client: KubeClient, condition: Callable[[dict[str, Any]], bool], name: str = "w") -> dict[str, Any]:
    """Watch a StatefulSet until the condition holds."""
    while True:
        with contextlib.suppress(KubeError):
            async for change in client.watch(STATEFUL_SETS, "default", fields=f"metadata.name={name}"):
                if change.type != "BOOKMARK" and condition(change.object):
                    return change.object


async def test_while_its_disk_is_full_pods_go_on_and_changes_are_refused_in_words(cli: Cli) -> None:
    cli("up", "--bare", "--detach", cli.write(writers()))
    (pid, before) = (holder(cli.folder), cli.processes())
    assert pid is not None
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"key": "x" * 200_000}}
    async with cli.client() as client:
        with no_file_beyond(1, pid):
            for _ in range(2):
                with pytest.raises(KubeError, match="make room on its disk") as refusal:
                    await client.create(CONFIG_MAPS, config_map, namespace="default")
                assert refusal.value.status == 507
            assert cli.processes() == before
            assert [line.split()[3] for line in cli("ps").splitlines()[1:]] == ["Running", "Running"]
        await client.create(CONFIG_MAPS, config_map, namespace="default")
        os.kill(before[0], signal.SIGKILL)
        await until(client, lambda found: found["status"].get("readyReplicas") == 1)
        await until(client, lambda found: found["status"].get("readyReplicas") == 2)
    assert holder(cli.folder) == pid


def test_detached_cluster_serves_pods_and_logs_and_faults_until_down(cli: Cli) -> None:
    said = cli("up", "--bare", "--detach", cli.write(writers()))
    assert f"KUBECONFIG={cli.folder / 'kubeconfig'}" in said
    assert (cli.folder / "kubeconfig").stat().st_mode & 0o777 == 0o600
    assert len(cli.processes()) == 2
    assert [line.split()[1] for line in cli("ps").splitlines()] == ["NAME", "w-0", "w-1"]
    assert cli("logs", "w-0") == "up\n"
    pid = holder(cli.folder)
    assert f"pid {pid}" in cli("up", "--bare", code=1), "a second one must name the first"
    assert holder(cli.folder) == pid
    cli("pause", "w-0")
    process = next(line.split()[5] for line in cli("ps").splitlines() if "w-0" in line)
    assert Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    cli("unpause", "w-0")
    assert Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    cli("kill", "no-such-pod", code=3)
    cli("down")
    assert cli.processes() == []
    assert holder(cli.folder) is None
    assert "No local cluster" in cli("down", "--purge")
    assert not cli.folder.exists()


async def test_a_killed_pod_comes_back_and_its_former_log_can_be_read(cli: Cli) -> None:
    cli("up", "--bare", "--detach", cli.write(writers(replicas=1)))
    async with cli.client() as client:
        pod = await client.get(PODS, "w-0", "default")
        cli("kill", "w-0")
        async for change in client.watch(PODS, "default", fields="metadata.name=w-0"):
            status = change.object["status"]["containerStatuses"][0]
            if status["restartCount"] == 1 and status["ready"]:
                break
    assert change.object["metadata"]["uid"] == pod["metadata"]["uid"]
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert cli("logs", "--previous", "w-0") == "up\n"


@pytest.mark.long
async def test_sigkill_at_any_moment_leaves_no_child_and_the_next_start_recovers(cli: Cli) -> None:
    file = cli.write(writers())
    rng = random.Random(int(os.environ.get("PAVANE_SEED", "7")))
    for _ in range(4):
        up = await asyncio.create_subprocess_exec(
            *cli.command("up", "--bare", file), cwd=cli.place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert up.stdout is not None
        for _ in range(rng.randrange(8)):  # lines of progress: from the first to all pods Ready
            await up.stdout.readline()
        up.kill()
        while await up.stdout.read(1000):
            pass
        await up.wait()
        await eventually(lambda: cli.processes() == [])
    cli("up", "--bare", "--detach", file)
    async with cli.client() as client:
        found = await client.get(STATEFUL_SETS, "w", "default")
        assert found["status"]["readyReplicas"] == 2
    for name in ("w-0", "w-1"):
        history = (cli.folder / "volumes/default" / f"data-{name}" / "history").read_text().split()
        assert set(history) == {"start"}, "no pod may run twice"
    cli("down")


async def test_a_restart_keeps_objects_addresses_and_volumes(cli: Cli) -> None:
    cli("up", "--bare", "--detach", cli.write(writers(replicas=1)))
    async with cli.client() as client:
        before = await client.get(PODS, "w-0", "default")
    cli("down")
    cli("up", "--bare", "--detach", cli.write(writers(replicas=1)))
    async with cli.client() as client:
        found = await until(client, lambda found: found.get("status", {}).get("readyReplicas") == 1)
        after = await client.get(PODS, "w-0", "default")
    assert found["status"]["replicas"] == 1
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == before["status"]["podIP"]
    history = (cli.folder / "volumes/default/data-w-0/history").read_text().split()
    assert history == ["start", "start"]
    cli("down")


async def test_ctrl_c_stops_everything(cli: Cli) -> None:
    up = await asyncio.create_subprocess_exec(
        *cli.command("up", "--bare", cli.write(writers())), cwd=cli.place, stdout=subprocess.PIPE
    )
    assert up.stdout is not None
    said = b""
    while b"All is Ready" not in said:
        said += await up.stdout.readline()
    assert len(cli.processes()) == 2
    up.send_signal(signal.SIGINT)
    said += await up.stdout.read()
    assert await up.wait() == 0
    assert cli.processes() == []
    _, _, after = said.partition("Stopping all pods …\n".encode())
    assert after.startswith(b"Stopped"), "no pod is told of as Running"


def test_what_is_refused(cli: Cli) -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    assert "unknown kind Deployment in apps/v1" in cli("up", "--bare", "--detach", cli.write(deployment), code=2)
    assert holder(cli.folder) is None
    bad = writers()
    bad["spec"]["replicas"] = "many"
    assert "spec.replicas" in cli("up", "--bare", "--detach", cli.write(bad), code=1)
    assert "REF=PATH" in cli("up", "--bare", "--image", "x=/nowhere", code=2)
    assert "pavane up" in cli("ps", "--folder", str(cli.place / "none"), code=3)


def test_what_is_not_ready_in_time_is_named_and_the_cluster_stays(cli: Cli) -> None:
    never = writers(replicas=1)
    never["spec"]["template"]["spec"]["containers"][0]["image"] = "unknown:1"
    said = cli("up", "--bare", "--detach", "--timeout", "1", cli.write(never), code=5)
    assert "0 of 1 pods are ready" in said
    assert holder(cli.folder) is not None
    assert "ErrImageNeverPull" in cli("ps")
    cli("down")


async def test_operator_and_control_plane_are_pods(cli: Cli) -> None:
    said = cli("up", "--detach")
    link = cli("dashboard").strip()
    assert "/#token=" in link
    assert link in said
    names = {line.split()[1] for line in cli("ps").splitlines()}
    assert names == {"NAME", "pavane-operator", "pavane-api"}
    async with cli.client() as client:
        slices = (await client.list_all(ENDPOINT_SLICES, "pavane-system")).items
        assert [each["conditions"]["ready"] for each in slices[0]["endpoints"]] == [True]
        assert slices[0]["ports"][0]["port"] == 8000
        version = await client.raw("GET", "/version")
    assert json.dumps(version["gitVersion"]) == '"v1.32.0+pavane"'
    cli("down")
    # What a volume projects has the modes that the pod asks for, in folders of ours.
    places = [place for place in (cli.folder, *cli.folder.rglob("*")) if "/.." not in str(place)]
    assert {"store.sqlite", "traces.sqlite"} < {place.name for place in places}
    assert any(place.suffix == ".log" and place.name != "up.log" for place in places), "what pods print"
    assert [place for place in places if not place.is_symlink() and place.lstat().st_mode & 0o077] == []
    assert cli.processes() == []


async def test_what_the_folder_holds_is_ready_too_before_all_is(cli: Cli) -> None:
    """Of two pods of a Coordinator one is ready; a resource that was not Ready is not waited for."""
    (door := cli.place / "door").touch()
    waits = f"import fcntl\nfcntl.flock(open({str(door)!r}), fcntl.LOCK_SH)\n"
    application = {"command": ["pavane", "ambrosia", "run", "bank:Account"], "files": "bank"}
    data = {"bank.py": BANK.replace("from pavane", f"{waits}from pavane", 1)}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bank"}, "data": data}
    spec = {"application": application, "storage": {"size": "16Mi"}, "replicas": 2}
    account = {"apiVersion": "pavane.dev/v1alpha1", "kind": "Coordinator", "metadata": {"name": "acct"}, "spec": spec}
    lost = {**account, "metadata": {"name": "lost"}, "spec": {**spec, "application": {**application, "files": "none"}}}
    assert "All is Ready" in cli("up", "--detach", cli.write(files, account))
    async with cli.client() as client:
        pods = (await client.list_all(PODS, "default", labels="app.kubernetes.io/instance=acct")).items
    assert [is_ready(each) for each in sorted(pods, key=is_ready)] == [False, True]
    cli("apply", "--file", cli.write(lost))
    cli("down")
    with door.open() as shut:
        fcntl.flock(shut, fcntl.LOCK_EX)
        said = cli("up", "--detach", "--timeout", "1", code=5)
        assert "acct-instance-g1-0" in said
        assert "lost" not in said
        cli("down")


async def test_no_number_of_connections_ends_a_cluster_of_few_files(cli: Cli) -> None:
    """TLS handshakes that are not gone on with, twice as many as its process may open files."""
    command = shlex.join(cli.command("up", "--bare", "--detach", cli.write(writers(replicas=1))))
    starting = await asyncio.create_subprocess_shell(f"ulimit -n {FILES}; {command}", cwd=cli.place)
    assert await starting.wait() == 0
    [pod], running = cli.processes(), holder(cli.folder)
    server = urlsplit(yaml.safe_load((cli.folder / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"])
    with contextlib.ExitStack() as stack:
        for _ in range(2 * FILES):
            stack.enter_context(socket.create_connection((server.hostname or "", server.port or 0)))
        async with cli.client() as client:
            assert await client.list(PODS, "default")
    assert (cli.processes(), holder(cli.folder)) == ([pod], running)

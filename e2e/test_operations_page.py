"""The commands of docs/operations.md as they stand there, typed into a shell for a RaftCluster `q`."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import QUICK, RaftTest
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands.resources import is_settled
from pavane_operator.kube.resources import SECRETS
from tests.requires import requires

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
requires("kubectl")


def commands(heading: str) -> str:
    """The indented lines below a heading, up to the next one."""
    _, found, behind = PAGE.read_text("utf-8").partition(f"{heading}\n")
    assert found, f"no heading {heading} in {PAGE.name}"
    section = re.split(r"^#", behind, maxsplit=1, flags=re.MULTILINE)[0]
    lines = re.findall(r"^    (.+)$", section, re.MULTILINE)
    return "\n".join(lines).replace("NAME", "q")


class Shell:
    """bash with `pavane` on its path, in the namespace of a test."""

    def __init__(self, raft: RaftTest, folder: Path) -> None:
        self._folder = folder
        config = folder / "kubeconfig"
        config.write_bytes(raft.platform.kubeconfig.read_bytes())
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "KUBECONFIG": str(config), "PATH": path, **raft.platform.environment()}
        self.run(f"kubectl config set-context --current --namespace {raft.namespace}")

    def run(self, script: str) -> str:
        """Return what the commands print; the first that fails fails the test."""
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            check=False,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert result.returncode == 0, (script, result.stdout)
        return result.stdout


async def restart(raft: RaftTest, why: str) -> None:
    await raft.kube.patch(RAFT_CLUSTERS, "q", {"spec": {"rollout": {"restart": why}}}, raft.namespace, manager="e2e")


async def test_a_rollout_is_watched_and_decided_by_the_commands_of_the_page(raft: RaftTest, tmp_path: Path) -> None:
    watch, why, diff, decide, undo = commands("## Roll out").splitlines()
    actions = shlex.split(decide)[2].split("|")
    pause, resume, abort, retry, promote = (decide.replace("|".join(actions), action) for action in actions)
    shell = Shell(raft, tmp_path)
    await raft.apply(replicas=1, rollout={**QUICK["rollout"], "strategy": "Manual"})
    await raft.until_current(generation=1)
    await restart(raft, "one")
    await raft.until_state("CaughtUp")
    assert "WaitingForApproval" in shell.run(why)
    assert "restart" in shell.run(diff)
    shell.run(pause)
    assert (await raft.get())["spec"]["rollout"]["paused"] is True
    shell.run(resume)
    assert not (await raft.get())["spec"]["rollout"].get("paused")
    shell.run(abort)
    assert (await raft.until_state("Idle"))["status"]["activeGeneration"] == 1
    shell.run(retry)
    await raft.until_state("CaughtUp")
    shell.run(promote)
    assert "serves" in shell.run(watch).splitlines()[-1]
    assert (await raft.get())["status"]["activeGeneration"] == 3
    shell.run(undo)
    await raft.until_state("CaughtUp")
    assert "restart" not in (await raft.get())["spec"]["rollout"]


async def test_scaling_and_the_end_of_a_certificate_are_as_the_page_says(raft: RaftTest, tmp_path: Path) -> None:
    (scale,) = commands("## Scaling").splitlines()
    ours, theirs = scale.split("# or: ")
    shell = Shell(raft, tmp_path)
    await raft.apply(replicas=3)
    await raft.until_current()
    for command, replicas in ((ours, 5), (theirs.replace("5", "3"), 3)):
        shell.run(command)

        async def scaled(replicas: int = replicas) -> bool:
            return is_settled(await raft.get()) and len(await raft.pods()) == replicas

        await eventually(scaled, f"it has {replicas} pods")
    (end,) = commands("## TLS").splitlines()
    assert re.search(r"^notAfter=\w", shell.run(end))


@pytest.mark.needs(Capability.CONTAINERS)
async def test_lost_keys_are_restored_from_a_pod_that_runs(raft: RaftTest, tmp_path: Path) -> None:
    block = commands("### Lost keys")
    shell = Shell(raft, tmp_path)
    (tmp_path / "keys").mkdir()
    await raft.apply(replicas=1)
    await raft.until_current(generation=1)
    before = await raft.kube.get(SECRETS, "q-keys", raft.namespace)
    async with raft.operator_gone():
        await raft.kube.delete(SECRETS, "q-keys", raft.namespace)
        shell.run(block.replace("POD", "q-server-g1-0"))
        after = await raft.kube.get(SECRETS, "q-keys", raft.namespace)
    assert after["data"] == before["data"]
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
    await restart(raft, "with the keys of before")
    await raft.until_current(generation=2)
    assert raft.append("the keys are those of before") > 0

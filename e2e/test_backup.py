"""A copy of a running cluster, and what is left of it after all volumes are lost (docs/operations.md)."""

import base64
import shutil
from pathlib import Path

import pytest

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane.raft.offline.restoring import RESTORE_STEP
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_operator.kube.resources import SECRETS

# Volumes are folders that this process reaches.
pytestmark = pytest.mark.needs(Capability.EMBEDDED)

PODS = [f"q-server-g1-{ordinal}" for ordinal in range(3)]


async def keys(raft: RaftTest, folder: Path) -> Path:
    """Write the keys of the cluster to files."""
    secret = await raft.kube.get(SECRETS, "q-keys", raft.namespace)
    known = folder / "keys"
    known.mkdir()
    for name, content in secret["data"].items():
        (known / name).write_bytes(base64.b64decode(content))
    return known


async def test_a_cluster_that_lost_all_volumes_goes_on_with_a_copy(
    raft: RaftTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = raft.platform.folder / ".pavane"
    monkeypatch.setenv(HOSTS_FILE_VARIABLE, str(root / "hosts" / raft.namespace))
    await raft.apply()
    await raft.until_current(generation=1)
    raft.append("copied")
    copy = tmp_path / "copy"
    raft.platform.run("raft", "backup", str(copy), "--peers", "tcp://q:8047", "--keys", str(await keys(raft, tmp_path)))
    assert raft.platform.run("raft", "verify", str(copy)).stdout.endswith("good\n")
    raft.append("too late")

    raft.platform.run("suspend", "raft/q", "--wait", "-n", raft.namespace)

    async def nothing_runs() -> bool:
        return await raft.pods() == []

    await eventually(nothing_runs, "the last pod has stopped")
    members = ",".join(f"{pod}=tcp://{pod}.q-server-g1.{raft.namespace}.svc:8047" for pod in PODS)
    for pod in PODS:
        data = root / "volumes" / raft.namespace / f"data-{pod}" / "raft"
        shutil.rmtree(data)
        member = ("--id", pod, "--cluster-id", "q", "--members", members)
        raft.platform.run("raft", "restore", str(copy), str(data), *member)
    raft.platform.run("resume-resource", "raft/q", "--wait", "-n", raft.namespace)
    await raft.until_current(generation=1)
    assert raft.append("new") > RESTORE_STEP  # beyond all indices that the lost cluster gave out
    raft.platform.run("rollout", "restart", "raft/q", "-n", raft.namespace)
    await raft.until_current(generation=2)
    written = [base64.b64decode(entry["data"]) for entry in raft.log(after=RESTORE_STEP) if entry["type"] == "State"]
    assert written == [b"copied", b"new"]

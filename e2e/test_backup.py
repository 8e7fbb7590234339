"""A copy of a running cluster, and what is left of it after all volumes are lost (docs/operations.md)."""

import base64
import shutil
from pathlib import Path

import pytest
import yaml

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane.raft.offline.restoring import RESTORE_STEP
from pavane_operator.kube.resources import PODS, SECRETS, Object

# Volumes are folders that this process reaches.
pytestmark = pytest.mark.needs(Capability.EMBEDDED)

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
STORE = ("aws_access_key_id", "aws_secret_access_key", "aws_region")
MEMBERS = [f"q-server-g1-{ordinal}" for ordinal in range(3)]


async def backed_up(raft: RaftTest, folder: Path) -> str:
    """Run the pod of the page's CronJob once, with a folder in place of a bucket; return the URL of what it made."""
    text = PAGE.read_text("utf-8").partition("```yaml\napiVersion: batch/v1\nkind: CronJob\n")[2].partition("```")[0]
    job = yaml.safe_load(text.replace("NAME", "q").replace("s3://", f"file://{folder}/"))
    store = {name: base64.b64encode(b"x").decode() for name in STORE}
    await raft.kube.create(SECRETS, {"metadata": {"name": "backup-store"}, "data": store}, raft.namespace)
    body = {"metadata": {"name": "q-backup-1"}, **job["spec"]["jobTemplate"]["spec"]["template"]}
    await raft.kube.create(PODS, body, raft.namespace)

    async def ended() -> Object | None:
        pod = await raft.kube.get(PODS, "q-backup-1", raft.namespace)
        return pod if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"} else None

    assert (await eventually(ended, "the pod has made a backup"))["status"]["phase"] == "Succeeded"
    return f"file://{folder}/backups/raft/q/q-backup-1"


async def test_a_cluster_that_lost_all_volumes_goes_on_with_a_copy(raft: RaftTest, tmp_path: Path) -> None:
    root = raft.platform.folder / ".pavane"
    await raft.apply()
    await raft.until_current(generation=1)
    raft.append("copied")
    copy = await backed_up(raft, tmp_path)
    assert raft.platform.run("raft", "verify", copy).stdout.endswith("good\n")
    raft.append("too late")

    raft.platform.run("suspend", "raft/q", "--wait", "-n", raft.namespace)

    async def nothing_runs() -> bool:
        return await raft.pods() == []

    await eventually(nothing_runs, "the last pod has stopped")
    members = ",".join(f"{pod}=tcp://{pod}.q-server-g1.{raft.namespace}.svc:8047" for pod in MEMBERS)
    for pod in MEMBERS:
        data = root / "volumes" / raft.namespace / f"data-{pod}" / "raft"
        shutil.rmtree(data)
        member = ("--id", pod, "--cluster-id", "q", "--members", members)
        raft.platform.run("raft", "restore", copy, str(data), *member)
    raft.platform.run("resume-resource", "raft/q", "--wait", "-n", raft.namespace)
    await raft.until_current(generation=1)
    assert raft.append("new") > RESTORE_STEP  # beyond all indices that the lost cluster gave out
    raft.platform.run("rollout", "restart", "raft/q", "-n", raft.namespace)
    await raft.until_current(generation=2)
    written = [base64.b64decode(entry["data"]) for entry in raft.log(after=RESTORE_STEP) if entry["type"] == "State"]
    assert written == [b"copied", b"new"]

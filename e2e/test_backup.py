"""Backups in object storage of all kinds, and new resources from them (docs/operations.md)."""

import asyncio
import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import QUICK, RaftTest
from e2e.targets import Capability
from e2e.test_coordinator import BankTest
from e2e.waiting import eventually
from pavane.raft.offline.restoring import RESTORE_STEP
from pavane_api.kinds import COORDINATORS, RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_cli.commands.resources import condition
from pavane_operator.kinds.backup.keeping import BACKUPS
from pavane_operator.kube.resources import PODS, SECRETS, Object

# Volumes are folders that this process reaches.
pytestmark = pytest.mark.needs(Capability.EMBEDDED)

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"


async def create(raft: RaftTest, folder: Path, **spec: Any) -> str:
    """Create the Backup of the page, with a folder in place of a bucket; return its name."""
    text = PAGE.read_text("utf-8").partition("```yaml\napiVersion: pavane.dev/v1alpha1\nkind: Backup\n")[2]
    body = yaml.safe_load(text.partition("```")[0].replace("NAME", "q").replace("s3://", f"file://{folder}/"))
    options = {"aws_region": base64.b64encode(b"eu-1").decode()}
    secret = {"metadata": {"name": body["spec"]["secretName"]}, "data": options}
    await raft.kube.create_if_absent(SECRETS, secret, raft.namespace)
    await raft.kube.create(BACKUPS, body | {"spec": body["spec"] | spec}, raft.namespace)
    return str(body["metadata"]["name"])


async def until(raft: RaftTest, name: str, reason: str) -> dict[str, Any]:
    """Return the status of a Backup once its conditions give this reason."""

    async def look() -> Object | None:
        status = (await raft.kube.get(BACKUPS, name, raft.namespace)).get("status") or {}
        told = {each["reason"] for each in status.get("conditions") or ()}
        assert not told & {"AttemptsFailed", "DeadlineExceeded"} - {reason}, status
        return status if reason in told else None

    return await eventually(look, f"{name}: {reason}")


def entries(raft: RaftTest, name: str, after: int = 0) -> list[bytes]:
    return [base64.b64decode(each["data"]) for each in raft.log(name, after) if each["type"] == "State"]


async def test_a_cluster_that_is_gone_with_its_volumes_goes_on_under_another_name(
    raft: RaftTest, tmp_path: Path
) -> None:
    await raft.apply(deletionPolicy="Delete")
    await raft.until_current(generation=1)
    async with raft.writer("load") as writer:
        await writer.reach(50)
        before = raft.append("acknowledged before")
        status = await until(raft, await create(raft, tmp_path), "Verified")
        await writer.more(10)
        assert (await writer.stop()).lost == 0
    assert status["index"] >= before
    assert (status["phase"], status["bytes"] > 0) == ("Complete", True)
    assert "digest" not in status, "the log has no state"
    copied = [
        base64.b64decode(each["data"])
        for each in raft.log()
        if each["type"] == "State" and each["index"] <= status["index"]
    ]
    assert b"acknowledged before" in copied
    assert "waits for nothing" in raft.platform.run("why", "bk/q-1", "-n", raft.namespace).stdout
    raft.append("too late")
    assert raft.platform.run("raft", "verify", status["url"]).stdout.endswith("good\n")

    async def cleared() -> bool:
        names = [each["metadata"]["name"] for each in (await raft.kube.list_all(PODS, raft.namespace)).items]
        return not any("backup" in name for name in names)

    await eventually(cleared, "the pod of the Backup is gone")
    await raft.kube.delete(raft.type, "q", raft.namespace)

    async def gone() -> bool:
        return await raft.kube.get_or_none(raft.type, "q", raft.namespace) is None

    await eventually(gone, "the cluster is gone")
    await restored(raft, "r", status["url"])
    assert raft.append("new", "r") > RESTORE_STEP  # beyond all indices that the lost cluster gave out
    raft.platform.run("rollout", "restart", "raft/r", "-n", raft.namespace)
    await raft.until_current("r", generation=2)
    assert entries(raft, "r", after=RESTORE_STEP) == [*copied, b"new"]


async def restored(raft: RaftTest, name: str, url: str) -> None:
    """Make a cluster, and give its members the folders of a backup."""
    await raft.apply(name)
    await raft.until_current(name, generation=1)
    raft.platform.run("suspend", f"raft/{name}", "--wait", "-n", raft.namespace)

    async def nothing_runs() -> bool:
        return await raft.pods(name) == []

    await eventually(nothing_runs, "the last pod has stopped")
    pods = [f"{name}-server-g1-{ordinal}" for ordinal in range(3)]
    members = ",".join(f"{pod}=tcp://{pod}.{name}-server-g1.{raft.namespace}.svc:8047" for pod in pods)
    volumes = raft.platform.folder / ".pavane" / "volumes" / raft.namespace
    for pod in pods:
        data = volumes / f"data-{pod}" / "raft"
        shutil.rmtree(data)
        member = ("--id", pod, "--cluster-id", name, "--members", members)
        raft.platform.run("raft", "restore", url, str(data), *member)
    raft.platform.run("resume-resource", f"raft/{name}", "--wait", "-n", raft.namespace)
    await raft.until_current(name, generation=1)


async def test_a_store_that_is_away_is_waited_for_and_a_damaged_backup_is_refused(
    raft: RaftTest, tmp_path: Path
) -> None:
    await raft.apply(stateMachine="KeyValue", replicas=1)
    await raft.until_current(generation=1)
    away = tmp_path / "backups"
    away.write_text("no folder can be made here")
    name = await create(raft, tmp_path)
    told = await until(raft, name, "Retrying")
    assert str(away) in told["conditions"][0]["message"], told
    assert told["phase"] == "Running"
    away.unlink()
    status = await until(raft, name, "Verified")
    assert len(status["digest"]) > 0
    verified = raft.platform.run("raft", "verify", status["url"]).stdout
    assert f"digest of the state at entry {status['index']}: {status['digest']}\n" in verified

    copy = Path(status["url"].removeprefix("file://"))
    file = max(copy.rglob("*"), key=lambda each: each.stat().st_size if each.is_file() else 0)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    member = ("--id", "a", "--members", "a=tcp://10.0.0.1:8047")
    for words in (("verify", status["url"]), ("restore", status["url"], str(tmp_path / "new"), *member)):
        refused = raft.platform.run("raft", *words, check=False)
        assert refused.returncode == 1
        assert "is not as it was written" in refused.stderr
    assert not (tmp_path / "new").exists()


async def test_a_schedule_says_on_the_cluster_that_its_backup_failed(raft: RaftTest, tmp_path: Path) -> None:
    away = tmp_path / "backups"
    backup = {"schedule": "30 2 * * *", "timeZone": "Europe/Berlin", "url": f"file://{away}/q", "keep": 2}
    never = {**backup, "schedule": "0 0 31 2 *"}
    await raft.apply(stateMachine="KeyValue", replicas=1, backup=never)

    def says(reason: str, truth: str) -> Callable[[Object], object]:
        return lambda cluster: (
            (found := condition(cluster, "BackupFailed")) and (found["reason"], found["status"]) == (reason, truth)
        )

    wrong = await raft.until(says("InvalidSchedule", "True"), "the schedule is refused")
    since = (condition(wrong, "BackupFailed") or {})["lastTransitionTime"]
    assert "spec.backup" in raft.platform.run("why", "raft/q", "-n", raft.namespace).stdout
    await raft.until_current(generation=1)
    await raft.kill_component("operator")
    await raft.apply(stateMachine="KeyValue", replicas=1, snapshot={"entries": 500}, backup=never)
    held = await raft.until(is_seen, "the next operator has looked")
    assert (condition(held, "BackupFailed") or {})["lastTransitionTime"] == since

    await raft.apply(stateMachine="KeyValue", replicas=1, backup=backup)
    await raft.until(says("LastVerified", "False"), "the first backup is made at once")
    (made,) = (await raft.kube.list(BACKUPS, raft.namespace)).items
    assert made["status"]["phase"] == "Complete"
    assert made["spec"]["keep"] == 2
    await raft.until_current(generation=1)  # no schedule starts a generation


def is_seen(cluster: Object) -> bool:
    """Whether the status speaks of the present spec."""
    return bool((cluster.get("status") or {}).get("observedGeneration") == cluster["metadata"]["generation"])


@pytest.mark.timeout(300)
async def test_an_immortal_that_is_gone_with_its_volume_has_the_money_of_the_backup(
    raft: RaftTest, tmp_path: Path
) -> None:
    bank = BankTest(raft.platform, raft.kube, raft.namespace, COORDINATORS)
    await bank.start()
    await bank.call("alice", "open", 7)
    money = await bank.query("alice", "money")
    away = tmp_path / "backups"
    away.write_text("no folder can be made here")
    of = {"kind": "Coordinator", "name": "alice"}
    name = await create(raft, tmp_path, of=of)
    assert str(away) in (await until(raft, name, "Retrying"))["conditions"][0]["message"]
    away.unlink()
    status = await until(raft, name, "Verified")
    assert status["phase"] == "Complete"
    verified = await asyncio.to_thread(raft.platform.run, "ambrosia", "verify", status["url"])
    assert f"digest of the checkpoint and all records: {status['digest']}\n" in verified.stdout
    assert "waits for nothing" in raft.platform.run("why", f"bk/{name}", "-n", raft.namespace).stdout
    await bank.call("alice", "open", 1000)  # what came later is lost

    spec = {**(await bank.get("alice"))["spec"], "deletionPolicy": "Delete"}
    body: Object = {"metadata": {"name": "alice"}, "spec": spec}
    await raft.kube.apply(COORDINATORS, body, raft.namespace, manager="e2e", strict=True)
    await asyncio.to_thread(raft.platform.run, "delete", "coord/alice", "--wait", "-n", raft.namespace)
    await raft.kube.apply(COORDINATORS, body, raft.namespace, manager="e2e", strict=True)
    await bank.until_current("alice", generation=1)
    assert (await bank.query("alice", "money"))["balance"] == 0, "its volume is gone"
    await asyncio.to_thread(raft.platform.run, "suspend", "coord/alice", "--wait", "-n", raft.namespace)

    async def stopped() -> bool:
        return await bank.pods("alice") == []

    await eventually(stopped, "the last pod has stopped")
    volumes = raft.platform.folder / ".pavane" / "volumes" / raft.namespace
    (log,) = volumes.glob("alice-log-*/ambrosia/alice-*")
    restore = ("ambrosia", "restore", status["url"], "--log", str(log))
    assert (await asyncio.to_thread(raft.platform.run, *restore, check=False)).returncode == 1
    await asyncio.to_thread(raft.platform.run, *restore, "--replace")
    await asyncio.to_thread(raft.platform.run, "resume-resource", "coord/alice", "--wait", "-n", raft.namespace)
    await bank.until_current("alice", generation=1)
    assert await bank.query("alice", "money") == money
    assert await bank.call("alice", "open", 3) == money["balance"] + 3
    assert await bank.call("alice", "transfer", "bob", 3), "bob knows of no call that was lost"


@pytest.mark.timeout(300)
async def test_a_log_that_is_gone_comes_back_to_what_was_acknowledged_when_its_backup_was_asked_for(
    raft: RaftTest, tmp_path: Path
) -> None:
    meta = {"stateMachine": "Tree", "replicas": 1, "storage": {"size": "64Mi"}, **QUICK}
    log: dict[str, Any] = {
        "partitions": 2,
        "servers": {"replicas": 1},
        "storage": {"nodes": 1, "size": "64Mi"},
        "metadata": {"raftClusterRef": {"name": "meta"}, "sessionTimeout": "3s"},
        "archive": {"url": f"file://{tmp_path}/archive", "delay": "1s"},
        **QUICK,
    }
    for kind, name, spec in ((RAFT_CLUSTERS, "meta", meta), (WALTZ_CLUSTERS, "q", log), (WALTZ_CLUSTERS, "r", log)):
        await raft.kube.apply(
            kind, {"metadata": {"name": name}, "spec": spec}, raft.namespace, manager="e2e", strict=True
        )
    logs = RaftTest(raft.platform, raft.kube, raft.namespace, WALTZ_CLUSTERS)
    for name in "qr":
        await logs.until_current(name, generation=1)

    def run(*words: str) -> str:
        return str(raft.platform.run("waltz", *words, "-n", raft.namespace).stdout)

    for number in range(20):
        run("append", "q", f"before {number}", "-p", str(number % 2))
    status = await until(raft, await create(raft, tmp_path, of={"kind": "WaltzCluster", "name": "q"}), "Verified")
    assert status["index"] == 20
    run("append", "q", "too late", "-p", "0")
    verified = await asyncio.to_thread(raft.platform.run, "waltz", "verify", status["url"])
    assert f"digest of all transactions: {status['digest']}\n" in verified.stdout
    await raft.kube.delete(WALTZ_CLUSTERS, "q", raft.namespace)
    await asyncio.to_thread(run, "restore", "r", "--backup", status["url"])
    assert [run("hwm", "r", "-p", str(number)).strip() for number in (0, 1)] == ["9", "9"]
    assert "before 18" in run("get", "r", "9", "-p", "0")

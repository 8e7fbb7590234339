"""Pods are killed, resources deleted, the platform uninstalled: what is left is what the policy says."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.cluster import LOADED, RaftTest
from e2e.conftest import DOWN_S
from e2e.targets import Capability, Target
from e2e.targets.base import SYSTEM, is_ready
from e2e.targets.charts import HELM_S, ChartTarget
from e2e.targets.local import children_in
from e2e.waiting import eventually
from e2e.writer import WARM_UP_WRITES, Writer, shown
from pavane_operator.crds.definitions import GROUP, all_kinds
from pavane_operator.kube import Object
from pavane_operator.kube.resources import BUILT_IN, EVENTS, PODS, VOLUME_CLAIMS, custom

DEFINITIONS = {f"customresourcedefinition.apiextensions.k8s.io/{kind.plural}.{GROUP}" for kind in all_kinds()}
"""They, and with them the users' resources, outlive the platform unless `crds.keep` is false."""
LEASES = ["lease.coordination.k8s.io/pavane-operator"]
"""It counts the operators that there were: one that is installed again must not repeat an epoch (5.6)."""
CLAIMS = [f"data-q-server-g1-{number}" for number in range(3)]


async def owned(raft: RaftTest) -> dict[str, list[str]]:
    """Everything of resource ``q`` in the namespace, by kind; Events tell of the past and do not count."""
    found: dict[str, list[str]] = {}
    for resource in BUILT_IN:
        if resource.namespaced and resource != EVENTS:
            items = (await raft.kube.list_all(resource, raft.namespace, labels="app.kubernetes.io/instance=q")).items
            if items:
                found[resource.kind] = sorted(item["metadata"]["name"] for item in items)
    return found


async def test_every_pod_is_killed_once_under_load(raft: RaftTest) -> None:
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    async with raft.writer("killed") as writer:
        await kill_each_pod(raft, writer)
        proof = await writer.stop()
    shown("pods killed, run", 1, proof)
    assert proof.holds, proof
    document = await raft.until_current(generation=1)
    assert document["status"]["lastGeneration"] == 1


async def test_pods_heal_without_an_operator_which_catches_up_when_it_is_back(raft: RaftTest) -> None:
    """`PAVANE_E2E_DOWN_S` = 600 is row 4 of docs/specs/operator.md 9."""
    await raft.apply(**LOADED)
    await raft.until_current(generation=1)
    async with raft.writer("alone") as writer:
        async with raft.operator_gone():
            gone_at = time.monotonic()
            await kill_each_pod(raft, writer)
            wanted = await raft.apply(**LOADED, replicas=5)
            while time.monotonic() < gone_at + DOWN_S:
                await writer.more(WARM_UP_WRITES)
            assert (await raft.get())["status"]["observedGeneration"] < wanted["metadata"]["generation"]
        back_at = time.monotonic()
        await raft.until(lambda item: item["status"]["observedGeneration"] == wanted["metadata"]["generation"], "seen")
        seen_s = time.monotonic() - back_at
        await raft.until_current(generation=1)
        scaled_s = time.monotonic() - back_at
        proof = await writer.stop()
    away_s = back_at - gone_at
    shown(f"operator away {away_s:.0f} s, saw all {seen_s:.1f} s and scaled {scaled_s:.1f} s later, run", 1, proof)
    assert proof.holds, proof
    assert len(await raft.pods()) == 5


async def kill_each_pod(raft: RaftTest, writer: Writer) -> None:
    for pod in sorted(each["metadata"]["name"] for each in await raft.pods()):
        await writer.more(WARM_UP_WRITES)
        raft.kill(pod)
        await came_back(raft, pod)
    await writer.more(WARM_UP_WRITES)


async def came_back(raft: RaftTest, name: str) -> None:
    async def ready_again() -> bool:
        pod = await raft.kube.get(PODS, name, raft.namespace)
        (state,) = pod["status"]["containerStatuses"]
        return state["restartCount"] == 1 and is_ready(pod)

    await eventually(ready_again, f"{name} came back")


@pytest.mark.kinds
@pytest.mark.long
async def test_deletion_leaves_nothing_but_retained_volumes(raft: RaftTest) -> None:
    await raft.apply(deletionPolicy="Retain")
    await raft.until_current()
    assert (await owned(raft))["PersistentVolumeClaim"] == CLAIMS
    raft.platform.run("delete", "raft/q", "--wait", "-n", raft.namespace)

    async def only_volumes() -> bool:
        return await owned(raft) == {"PersistentVolumeClaim": CLAIMS}

    await eventually(only_volumes, "only the volumes are left")


@pytest.mark.smoke
async def test_deletion_takes_the_volumes_where_the_policy_says_so(raft: RaftTest) -> None:
    await raft.apply(deletionPolicy="Delete")
    await raft.until_current()
    raft.platform.run("delete", "raft/q", "--wait", "-n", raft.namespace)

    async def nothing() -> bool:
        return await owned(raft) == {}

    await eventually(nothing, "nothing is left")


async def test_retained_volumes_of_a_former_resource_are_neither_used_nor_deleted(raft: RaftTest) -> None:
    await raft.apply(deletionPolicy="Retain")
    await raft.until_current()
    raft.append("of the former life")
    raft.platform.run("delete", "raft/q", "--wait", "-n", raft.namespace)
    await raft.apply(deletionPolicy="Delete")
    await raft.until_current(generation=2)
    assert not [entry for entry in raft.log() if entry["type"] == "State"]
    raft.platform.run("delete", "raft/q", "--wait", "-n", raft.namespace)
    left = await raft.kube.list_all(VOLUME_CLAIMS, raft.namespace)
    assert sorted(claim["metadata"]["name"] for claim in left.items if not deleting(claim)) == CLAIMS


def deleting(document: Object) -> bool:
    return "deletionTimestamp" in document["metadata"]


@pytest.fixture
async def installed(cluster: Target, raft: RaftTest) -> AsyncIterator[ChartTarget]:
    """A target whose platform the test may uninstall; it is installed again afterwards."""
    assert isinstance(cluster, ChartTarget)
    yield cluster
    cluster.install()
    await cluster.until_ready()


def left(platform: ChartTarget, *where: str) -> set[str]:
    """Everything that the selection of `kubectl get` finds, of all kinds but Events, as kind/name."""
    listed = platform.kubectl("api-resources", "--verbs=list", "--output=name").stdout.split()
    kinds = ",".join(name for name in listed if not name.startswith("events"))
    return set(platform.kubectl("get", kinds, *where, "--output=name").stdout.split())


@pytest.mark.needs(Capability.CHART)
async def test_uninstall_is_refused_while_it_would_strand_a_resource_and_leaves_only_definitions(
    raft: RaftTest, installed: ChartTarget
) -> None:
    await raft.apply(replicas=1, deletionPolicy="Delete")
    await raft.until_current()
    refused = installed.helm("uninstall", "pavane", "--namespace", SYSTEM, "--timeout", "60s", check=False)
    assert refused.returncode != 0
    job = installed.kubectl("logs", "--namespace", SYSTEM, "job/pavane-uninstall-check")
    assert f"RaftCluster {raft.namespace}/q" in job.stdout
    raft.append("still served")
    # Who keeps the platform after all gives the release back the state in which Helm upgrades it.
    history = json.loads(installed.helm("history", "pavane", "--namespace", SYSTEM, "--output=json").stdout)
    revision = str(history[-1]["revision"])
    installed.helm("rollback", "pavane", revision, "--namespace", SYSTEM, "--wait", "--timeout", f"{HELM_S}s")
    installed.install()
    raft.platform.run("delete", "raft/q", "--wait", "-n", raft.namespace)

    async def none_needs_the_operator() -> bool:  # those of earlier tests go with their namespaces, in their own time
        return all([not (await raft.kube.list_all(custom(kind.name, kind.plural))).items for kind in all_kinds()])

    await eventually(none_needs_the_operator, "no resource needs the operator")
    installed.uninstall()
    selector = "app.kubernetes.io/part-of=pavane,app.kubernetes.io/managed-by=Helm"

    async def only_the_policy() -> bool:
        return left(installed, "--all-namespaces", "--selector", selector) == DEFINITIONS

    await eventually(only_the_policy, "nothing but the definitions is left of the releases")
    leases = installed.kubectl("get", "lease", "--namespace", SYSTEM, "--output=name").stdout.split()
    assert leases == LEASES


@pytest.mark.needs(Capability.CHART)
async def test_the_charts_own_test_passes(raft: RaftTest, cluster: Target) -> None:
    assert isinstance(cluster, ChartTarget)
    assert "Succeeded" in cluster.helm("test", "pavane", "--namespace", SYSTEM, "--timeout", "100s").stdout


@pytest.mark.needs(Capability.EMBEDDED)
def test_a_purged_local_cluster_leaves_nothing(tmp_path: Path) -> None:
    def pavane(*arguments: str) -> None:
        command = [sys.executable, "-m", "pavane_cli.main", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=100)

    pavane("up", "--fast", "--detach")
    assert children_in(tmp_path) != []
    pavane("down", "--purge")
    assert children_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []

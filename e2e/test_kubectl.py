"""A real kubectl: what a user types works, on every target."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.cluster import RaftTest
from e2e.waiting import eventually
from tests.requires import requires

KUBECTL = requires("kubectl")

MANIFEST = {
    "apiVersion": "pavane.dev/v1alpha1",
    "kind": "RaftCluster",
    "metadata": {"name": "q"},
    "spec": {
        "stateMachine": "Broadcast",
        "replicas": 1,
        "storage": {"size": "64Mi"},
        "rollout": {"caughtUp": {"stabilityPeriod": "500ms"}, "retireDelay": "1s"},
    },
}


def kubectl(raft: RaftTest, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
    result = raft.platform.kubectl("-n", raft.namespace, *arguments, check=check, stdin=stdin)
    return result.stdout + result.stderr


def started(raft: RaftTest, *arguments: str) -> "subprocess.Popen[str]":
    command = [KUBECTL, "--kubeconfig", str(raft.platform.kubeconfig), "-n", raft.namespace, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.kinds
async def test_the_life_of_a_resource_by_kubectl(raft: RaftTest, tmp_path: Path) -> None:
    manifest = tmp_path / "q.yaml"
    manifest.write_text(yaml.safe_dump(MANIFEST))
    watching = started(raft, "get", "raft", "-w")
    try:
        assert "created" in kubectl(raft, "apply", "-f", str(manifest))
        assert "unchanged" in kubectl(raft, "apply", "-f", str(manifest))
        assert "condition met" in kubectl(raft, "wait", "--for=condition=Ready", "--timeout=90s", "raft/q")
        await raft.until_current()

        wide = kubectl(raft, "get", "raft", "-o", "wide").splitlines()
        assert wide[0].split() == [
            "NAME",
            "READY",
            "PODS",
            "ACTIVE",
            "NEXT",
            "STATE",
            "UPTODATE",
            "AGE",
            "IMAGE",
            "BLOCKER",
            "LEADER",
        ]
        assert "q-server-g1-0" in wide[1]
        assert "q-server-g1-0" in kubectl(raft, "get", "pods")
        assert kubectl(raft, "get", "pods", "q-server-g1-0", "-o", "jsonpath={.status.phase}") == "Running"

        described = kubectl(raft, "describe", "raft", "q")
        assert "Promoted" in described
        assert "Stage:" in described
        explained = kubectl(raft, "explain", "raftcluster.spec.rollout")
        assert "How a new generation becomes the active one" in explained
        assert "stability" in kubectl(raft, "explain", "raftcluster.spec.rollout.caughtUp")

        kubectl(raft, "patch", "raft", "q", "--type=merge", "-p", json.dumps({"spec": {"rollout": {"restart": "x"}}}))
        await raft.until_current(generation=2)
        assert kubectl(raft, "get", "raft", "q", "-o", "jsonpath={.status.activeGeneration}") == "2"

        assert "deleted" in kubectl(raft, "delete", "raft", "q", "--timeout=90s")
        assert "NotFound" in kubectl(raft, "get", "raft", "q", check=False)
    finally:
        watching.terminate()
        output, _ = await asyncio.to_thread(watching.communicate, timeout=10)
    states = [line.split()[-3] for line in output.splitlines()[1:] if len(line.split()) > 3]
    for state in ("CreatingNext", "CatchingUp", "Promoting", "Retiring", "Idle"):
        assert state in output, (state, states)


async def test_logs_follow_a_pod_to_its_end(raft: RaftTest) -> None:
    await raft.apply(replicas=1)
    await raft.until_current()
    following = started(raft, "logs", "-f", "q-server-g1-0")
    raft.kill("q-server-g1-0")
    output, _ = await asyncio.to_thread(following.communicate, timeout=30)
    assert output.strip()

    async def former() -> bool:
        told = await asyncio.to_thread(kubectl, raft, "logs", "--previous", "q-server-g1-0", check=False)
        return told.splitlines()[:1] == output.splitlines()[:1]

    await eventually(former, "the log of the former run begins like the one that was followed")


@pytest.mark.parametrize(
    ("change", "field", "word"),
    [
        ({"replicas": 2}, "spec.replicas", "odd"),
        ({"stateMachine": "Tape"}, "spec.stateMachine", "Unsupported value"),
        ({"electionTimeout": {"min": "200ms", "max": "250ms"}}, "spec.electionTimeout", "1.5 times"),
        ({"rollout": {"deadline": "soon"}}, "spec.rollout.deadline", "soon"),
    ],
)
async def test_an_invalid_resource_is_refused_with_the_field(
    raft: RaftTest, change: dict[str, object], field: str, word: str
) -> None:
    bad = {**MANIFEST, "spec": {"stateMachine": "Broadcast", **change}}
    refused = kubectl(raft, "apply", "-f", "-", check=False, stdin=yaml.safe_dump(bad))
    assert field in refused
    assert word in refused
    assert "NotFound" in kubectl(raft, "get", "raft", "q", check=False)


async def test_a_misspelt_field_is_named(raft: RaftTest) -> None:
    bad = {**MANIFEST, "spec": {"stateMachine": "Broadcast", "replica": 3}}
    assert "replica" in kubectl(raft, "apply", "-f", "-", check=False, stdin=yaml.safe_dump(bad))


VIEWS = [
    {
        "apiVersion": "pavane.dev/v1alpha1",
        "kind": "ComputeCluster",
        "metadata": {"name": "main"},
        "spec": {"waltzClusterRef": {"name": "missing"}, "partitions": {"ticks": 2, "views": 3}},
    },
    {
        "apiVersion": "pavane.dev/v1alpha1",
        "kind": "Dataflow",
        "metadata": {"name": "revenue"},
        "spec": {
            "computeClusterRef": {"name": "main"},
            "script": "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');\n"
            "CREATE MATERIALIZED VIEW v AS SELECT y FROM t;\n",
        },
    },
]
WRONG = "line 2, column 38: "


async def test_what_is_wrong_in_a_script_is_told_with_its_place(raft: RaftTest) -> None:
    kubectl(raft, "apply", "-f", "-", stdin=yaml.safe_dump_all(VIEWS))

    async def told() -> bool:
        return WRONG in await asyncio.to_thread(kubectl, raft, "describe", "dataflow", "revenue")

    await eventually(told, "kubectl describe tells line and column")
    assert WRONG in " ".join(raft.platform.run("why", "df/revenue", "-n", raft.namespace).stdout.split())

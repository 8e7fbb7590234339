"""``pavane status``: how a resource is, on one screen, with and without a leader."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pavane_cli.commands.status import told
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import created, plane


def since() -> str:
    """Five minutes ago, seen from the test itself: a whole run of the tests takes longer than that."""
    return (datetime.now(UTC) - timedelta(minutes=5)).isoformat()


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since()}


def document(kind: str, **status: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "q", "namespace": "default"}, "spec": {}, "status": status}


def pod(name: str, *, ready: bool) -> dict[str, Any]:
    labels = {"pavane.dev/generation": "2", "app.kubernetes.io/component": "server"}
    conditions = [{"type": "Ready", "status": str(ready)}]
    containers = [{"restartCount": 3}]
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"conditions": conditions, "containerStatuses": containers},
    }


def test_a_raft_cluster_is_told_whole() -> None:
    facts, members = told(
        document(
            "RaftCluster",
            activeGeneration=2,
            leader="q-0",
            term=5,
            commitIndex=90,
            members=[
                {"name": "q-0", "generation": 2, "role": "Voter", "matchIndex": 90},
                {"name": "q-1", "generation": 2, "role": "Voter", "matchIndex": 80},
            ],
            conditions=[
                condition("Ready", "True", "Serving"),
                condition("QuorumAvailable", "True", "MajorityAnswers"),
                condition("VolumesHaveRoom", "False", "VolumeFull", "the volume of q-1 is full"),
            ],
            history=[{"generation": 2, "result": "Promoted", "finishedAt": since(), "writeGapMs": 101}],
        ),
        [pod("q-1", ready=False), pod("q-0", ready=True)],
        "valid until tomorrow",
    )
    assert facts == {
        "Resource": "RaftCluster default/q",
        "Ready": "True, Serving for 5m",
        "Leader": "q-0, term 5",
        "Quorum": "True, MajorityAnswers for 5m",
        "Volumes": "False, VolumeFull for 5m: the volume of q-1 is full",
        "Rollout": "Idle; generation 2 is active",
        "Blockers": "none",
        "Write gap": "101 ms, generation 2, 5m ago",
        "Certificates": "valid until tomorrow",
    }
    assert members == [("q-0", "2", "Leader", "yes", "3", "0"), ("q-1", "2", "Voter", "no", "3", "10")]


def test_without_a_leader_it_says_what_is_missing() -> None:
    facts, members = told(
        document(
            "RaftCluster",
            activeGeneration=1,
            rollout={"state": "Idle", "blockers": [{"reason": "NoQuorum", "message": "1 of 3 members answers"}]},
            conditions=[
                condition("Ready", "False", "NoQuorum"),
                condition("LeaderElected", "False", "NoLeader", "nobody leads"),
                condition("QuorumAvailable", "False", "NoQuorum", "1 of 3"),
            ],
        ),
        [pod("q-0", ready=False)],
        "",
    )
    assert facts["Leader"] == "none; False, NoLeader for 5m: nobody leads"
    assert facts["Quorum"] == "False, NoQuorum for 5m: 1 of 3"
    assert facts["Blockers"] == "NoQuorum 1 of 3 members answers"
    assert members == [("q-0", "2", "server", "no", "3", "")]


@pytest.mark.parametrize(
    ("kind", "status", "heading", "says"),
    [
        ("SwimGroup", {"members": {"alive": 3, "dead": 1}, "digest": "a1"}, "Members", "3 alive, 1 dead"),
        ("WaltzCluster", {"partitions": {"total": 4, "writable": 3}}, "Partitions", "4 total, 3 writable"),
        ("Coordinator", {"instance": "alice"}, "Instance", "alice"),
        ("ComputeCluster", {"log": "ledger"}, "Log", "ledger"),
    ],
)
def test_each_kind_tells_its_own(kind: str, status: dict[str, Any], heading: str, says: str) -> None:
    facts, _ = told(document(kind, **status), [pod("q-0", ready=True)], "")
    assert facts[heading] == says
    assert told(document(kind), [], "")[0][heading] != says, "also before an operator has seen it"


async def test_a_name_alone_is_enough_and_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        monkeypatch.setenv("KUBECONFIG", str(api.local.kubeconfig))
        for named in ("q", "raft/q"):
            shown = await asyncio.to_thread(CliRunner().invoke, app, ["status", named, "-o", "json"])
            assert shown.exit_code == 0, shown.exception
            facts = json.loads(shown.stdout)
            assert facts["Resource"] == "RaftCluster default/q"
            assert facts["Certificates"] == "there is no Secret q-tls"
            assert facts["members"] == []
        absent = await asyncio.to_thread(CliRunner().invoke, app, ["status", "absent"])
        assert isinstance(absent.exception, UserError)
        assert absent.exception.code is ExitCode.NOT_FOUND

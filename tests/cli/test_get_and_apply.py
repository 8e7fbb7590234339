"""``pavane get`` as users of kubectl expect it, what ``apply`` would do, and ``status`` of everything on one screen."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pavane_api.kinds import RAFT_CLUSTERS, SWIM_GROUPS
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from pavane_operator.crds.effects import effect
from tests.api.plane import plane


async def ran(*words: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    if isinstance(result.exception, UserError):
        return result.exception.code, str(result.exception)
    return result.exit_code, result.stdout


async def test_resources_are_listed_compared_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "q.yaml"

    def write(**spec: object) -> None:
        metadata = {"name": "q", "labels": {"app": "bank"}}
        body = {"apiVersion": "pavane.dev/v1alpha1", "kind": "RaftCluster", "metadata": metadata, "spec": spec}
        file.write_text(json.dumps(body))

    async with plane(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.local.kubeconfig))
        write(replicas=3)
        dry = ("apply", "--dry-run", "-f", str(file))
        assert await ran(*dry) == (0, "raftcluster/q this makes it, with a first generation of 3 pods\n")
        assert (await ran("get", "raft/q"))[0] == ExitCode.NOT_FOUND
        assert await ran("apply", "-f", str(file)) == (0, "raftcluster/q applied\n")
        assert await ran(*dry) == (0, "raftcluster/q unchanged\n")
        assert await ran("diff", "-f", str(file)) == (0, "")
        write(replicas=5)
        assert await ran(*dry) == (0, "raftcluster/q this changes it in place; no generation starts\n")
        write(replicas=3, image="pavane:2")
        assert await ran(*dry) == (0, "raftcluster/q this starts a new generation of 3 pods\n")
        code, said = await ran("diff", "-f", str(file))
        assert (code, [line for line in said.splitlines() if line[:2] in {"+ ", "- "}]) == (
            1,
            ["-  image: ''", "+  image: pavane:2"],
        )

        await api.kube.create(SWIM_GROUPS, {"metadata": {"name": "g"}, "spec": {}}, "default")
        for kinds in ("raft,swim", "all"):
            code, said = await ran("get", kinds)
            assert [line.split()[0] for line in said.splitlines() if line] == [
                "NAME",
                "raftcluster/q",
                "NAME",
                "swimgroup/g",
            ]
            assert (await ran("get", kinds, "-o", "name")) == (0, "raftcluster/q\nswimgroup/g\n")
        assert (await ran("get", "all", "-l", "app=bank", "-o", "name")) == (0, "raftcluster/q\n")
        assert (await ran("get", "raft", "-l", "app!=bank", "-o", "name")) == (0, "")
        assert await ran("get", "raft/q", "-o", "jsonpath={.spec.replicas}") == (0, "3")
        named = "jsonpath={range .items[*]}{.kind} {.metadata.name}{'\\n'}{end}"
        assert await ran("get", "raft,swim", "-o", named) == (0, "RaftCluster q\nSwimGroup g\n")
        for words in (
            ("raft,swim", "q"), ("raft", "q", "-l", "a=b"), ("raft,swim", "-w"), ("raft", "-o", "csv"),
            ("raft", "-o", "jsonpath={..a}"), ("raft,what",),
        ):  # fmt: skip
            assert (await ran("get", *words))[0] == ExitCode.USAGE, words

        status = {
            "readyPods": "2/3", "activeGeneration": 4, "nextGeneration": 5,
            "rollout": {"state": "CatchingUp", "blockers": [{"reason": "PodPending", "since": "2026-01-01T00:00:00Z"}]},
            "history": [{"generation": 4, "result": "Promoted", "writeGapMs": 12, "id": "x",
                         "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z", "image": "i"}],
        }  # fmt: skip
        await api.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": status}, "default")
        code, said = await ran("status", "-o", "json")
        rows = {row["resource"]: row for row in json.loads(said)}
        assert rows["raftcluster/q"] == {
            "resource": "raftcluster/q", "ready": "Unknown", "pods": "2/3", "generation": "4 → 5",
            "rollout": "CatchingUp", "write gap": "12 ms", "waits for": "PodPending",
        }  # fmt: skip
        code, said = await ran("status", "-A")
        assert "default/swimgroup/g" in said


def test_a_dataflow_has_no_generations() -> None:
    flow = {"metadata": {}, "spec": {"computeClusterRef": {"name": "c"}, "script": "CREATE VIEW v AS SELECT 1"}}
    assert "generation" not in effect("Dataflow", None, flow)

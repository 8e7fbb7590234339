"""What `pavane demo` takes, leaves out and shows meanwhile; the demo itself runs in e2e/test_demo.py."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands import demo
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.live import LiveView
from pavane_cli.progress import Progress
from tests.api.plane import created, plane
from tests.cli.test_live import Terminal
from tests.services.eventually import eventually

PLATFORM = Path(__file__).parents[2] / "examples" / "platform.yaml"


def platform(*without: str) -> list[dict[str, Any]]:
    named = [
        each for each in yaml.safe_load_all(PLATFORM.read_text("utf-8")) if each["metadata"]["name"] not in without
    ]
    return [each for each in named if each["kind"] not in without]


def kinds(documents: list[dict[str, Any]]) -> set[str]:
    return {each["kind"] for each in documents}


def test_views_are_left_out_where_memory_is_short_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.without_views(platform(), demo.VIEWS_MEMORY_MIB) == platform()
    assert capsys.readouterr().out == ""
    left = demo.without_views(platform(), demo.VIEWS_MEMORY_MIB - 1)
    assert kinds(platform()) - kinds(left) == {"ComputeCluster"}
    assert (
        capsys.readouterr().out == "Without SQL views: 4095 MiB of memory are free, and 4096 MiB are wanted for them.\n"
    )
    assert demo.without_views(platform("ComputeCluster"), 0) == platform("ComputeCluster")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("without", "kind", "says"),
    [
        ("bob", None, "a bank is two Coordinators"),
        ("WaltzCluster", None, "a bank is two Coordinators"),
        ("Coordinator", None, "a bank is two Coordinators"),
        ("", "Deployment", "the demo needs a file with"),
    ],
)
def test_a_file_that_it_cannot_show_is_refused_before_anything_starts(
    without: str, kind: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    documents = platform(without)
    if kind is not None:
        documents[0]["kind"] = kind
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    with pytest.raises(UserError, match=says) as refused:
        demo.demo(file, once=True)
    assert refused.value.code == ExitCode.USAGE
    assert not (tmp_path / ".pavane").exists()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
async def test_a_rollout_is_shown_in_place_on_a_terminal_and_by_lines_elsewhere(
    stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")  # one that can erase, whatever this one is
    rolling = {
        "activeGeneration": 1,
        "nextGeneration": 2,
        "rollout": {"state": "CatchingUp"},
        "generations": [
            {"number": 1, "role": "Active", "id": "1", "pods": 3, "podsReady": 3, "stage": "ReadWrite"},
            {"number": 2, "role": "Next", "id": "2", "pods": 3, "podsReady": 1, "stage": "ReadOnly"},
        ],
    }
    said: list[str] = []
    async with plane(tmp_path) as api:
        await created(api)
        await api.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "q"}, "status": rolling}, "default")
        with LiveView(stream) as view:
            progress = Progress(api.kube, RAFT_CLUSTERS, "default", "q", said.append, view)
            following = asyncio.create_task(progress.until_current(60))
            await eventually(lambda: "generation 2" in stream.getvalue() or said)
            following.cancel()
            await asyncio.wait({following})
    if isinstance(stream, Terminal):
        assert "1/3 ready" in stream.getvalue()
        assert said == []
    else:
        assert stream.getvalue() == ""
        assert said[0].split()[2:] == ["q", "CatchingUp", "generation", "2"]

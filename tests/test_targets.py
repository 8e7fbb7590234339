"""What the end-to-end harness promises: skips are told and never pass for a success; programs are found, or named."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from e2e import targets
from e2e.kubernetes import tools
from e2e.kubernetes.patience import Patient

ROOT = Path(__file__).parents[1]


def test_a_run_that_skipped_everything_fails_and_says_why() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "e2e/test_crash.py"],
        cwd=ROOT,
        env={**os.environ, "E2E_TARGET": "kind"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "not run: e2e/test_crash.py::test_a_killed_cluster" in result.stdout
    assert "target kind has no embedded" in result.stdout
    assert result.returncode == pytest.ExitCode.TESTS_FAILED


def test_an_unknown_target_is_named_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CHOSEN", "moon")
    with pytest.raises(ValueError, match="E2E_TARGET=moon: there is local, apiserver, kind, kubeconfig"):
        targets.capabilities()  # each run asks for them before its first test


def program(folder: Path, name: str, said: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty folders where programs are looked for: what the user names, PATH, and what was built."""
    folders = {name: tmp_path / name for name in ("assets", "path", "cache")}
    monkeypatch.setenv("PAVANE_ENVTEST_ASSETS", str(folders["assets"]))
    monkeypatch.setenv("PATH", str(folders["path"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders["cache"]))
    return {**folders, "cache": tools.cache()}


def test_programs_are_taken_where_the_user_says_then_from_the_path_then_as_built(places: dict[str, Path]) -> None:
    assert tools.find("kube-apiserver") is None
    places["cache"].mkdir(parents=True)
    for name in ("cache", "path", "assets"):
        path = program(places[name], "kube-apiserver", "Kubernetes v1.34.4")
        assert tools.find("kube-apiserver") == path


@pytest.mark.parametrize("version", ["v1.28.3", "v1.99.0", "unknown"])
def test_a_kubernetes_that_cannot_serve_is_refused_in_words(places: dict[str, Path], version: str) -> None:
    path = program(places["assets"], "kube-apiserver", f"Kubernetes {version}")
    with pytest.raises(tools.ToolError, match=rf"{path} says 'Kubernetes {version}': .* `make e2e-tools`"):
        tools.find("kube-apiserver")


def test_nothing_is_built_twice(places: dict[str, Path]) -> None:
    calls = places["path"] / "calls"
    go = program(places["path"], "go", "")
    # `go build … -o FILE PACKAGE`
    go.write_text(f'#!/bin/sh\necho built >> "{calls}"\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    tools.build(["etcd"])
    tools.build(["etcd"])
    assert calls.read_text().splitlines() == ["built"]


def test_without_go_the_line_says_what_to_install(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "GO_FOLDER", str(places["path"]))
    with pytest.raises(tools.ToolError, match=r"helm: no Go to build them with: install Go .*go\.dev"):
        tools.build(["helm"])


def test_storage_that_is_not_ready_is_asked_again_and_a_budget_is_not() -> None:
    refusals = [b'{"message":"storage is (re)initializing"}', b'{"message":"it would violate the budget"}']
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(429, content=refusals[len(asked) - 1])

    with httpx2.Client(transport=Patient(httpx2.MockTransport(answer)), base_url="http://kubernetes") as http:
        assert http.get("/apis").content == refusals[1]
    assert asked == ["/apis"] * 2

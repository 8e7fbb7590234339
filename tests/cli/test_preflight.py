"""What keeps a local cluster from starting is said before anything starts."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pavane_cli import preflight
from pavane_cli.commands import demo
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.up import run_cluster
from pavane_local.folder import holder
from pavane_local.store import ObjectStore
from tests.services.ports import free_ports

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
START_S = 100


@pytest.fixture
def taken() -> Iterator[int]:
    (port,) = free_ports(1)
    with socket.create_server(("0.0.0.0", port)):
        yield port


def test_a_taken_port_is_named_with_who_holds_it_and_nothing_starts(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "PLATFORM_PORTS", {taken: "the control plane"})
    with pytest.raises(UserError, match=rf"port {taken} is taken .* \(pid {os.getpid()}\); the control plane must"):
        run_cluster(tmp_path / ".pavane", {}, [QUICKSTART], 1, lambda *_: None, fast=False, bare=False)
    assert not (tmp_path / ".pavane").exists()


def test_the_demo_names_a_taken_port_without_starting_anything(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "PLATFORM_PORTS", {taken: "the control plane"})
    with pytest.raises(UserError, match=rf"^port {taken} is taken .* \(pid {os.getpid()}\)"):
        demo.demo(QUICKSTART, once=True)
    assert not (tmp_path / ".pavane").exists()
    assert "starts" not in "".join(capsys.readouterr())


def test_a_port_of_one_address_alone_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(preflight, "PORTS", {port: "pods"})
    with socket.create_server(("127.0.0.1", port)):
        preflight.check(tmp_path, [], bare=True)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "PORTS", {})
    monkeypatch.setattr(preflight, "DISK_FREE_BYTES_MIN", shutil.disk_usage(tmp_path).total + 1)
    with pytest.raises(UserError, match="MiB are free, and a cluster needs"):
        preflight.check(tmp_path / "not" / "there", [], bare=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"apiVersion": "pavane.dev/v9"}, "apiVersion is pavane.dev/v9, not pavane.dev/v1alpha1"),
        ({"kind": "RaftClutser"}, r"unknown kind RaftClutser; did you mean RaftCluster\?"),
        ({"spec": {"replicsa": 3}}, r"spec.replicsa: there is no such field; did you mean spec.replicas\?"),
        ({"metadata": {"name": "Q_q"}}, "Q_q: the name must start with a letter"),
    ],
)
def test_a_resource_that_would_be_refused_starts_nothing(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(QUICKSTART.read_text()), **change}))
    with pytest.raises(UserError, match=says) as raised:
        run_cluster(tmp_path / ".pavane", {}, [file], 1, lambda *_: None, fast=False, bare=True)
    assert raised.value.code == ExitCode.USAGE
    assert not (tmp_path / ".pavane").exists()


class Terminal(NamedTuple):
    program: "subprocess.Popen[str]"
    folder: Path


@pytest.fixture(params=[("up", "--bare"), ("demo", str(QUICKSTART))], ids=["up", "demo"])
def on_a_terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """A cluster in the foreground, with a module in its working folder that must not be imported."""
    (tmp_path / "yaml.py").write_text("raise SystemExit('imported from the working folder')")
    words = [str(Path(sys.executable).with_name("pavane")), *request.param]
    # Under nohup a program is to outlive its terminal, also when these tests run so.
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        program = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, ours)
    with program:
        try:
            yield Terminal(program, tmp_path / ".pavane")
        finally:
            program.kill()


@pytest.mark.timeout(2 * START_S)
def test_the_end_of_the_terminal_ends_the_cluster(on_a_terminal: Terminal) -> None:
    program, folder = on_a_terminal
    assert program.stdout is not None
    assert any(re.search(r"All is Ready|is Ready after", line) for line in program.stdout)
    assert holder(folder) is not None
    program.send_signal(signal.SIGHUP)
    assert "Stopped; " in program.stdout.read()
    assert program.wait(START_S) == 0
    assert holder(folder) is None


@pytest.mark.timeout(2 * START_S)
def test_the_background_cluster_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('imported from the working folder')")
    pavane = str(Path(sys.executable).with_name("pavane"))
    for words in (("up", "--bare", "--detach"), ("down",)):
        ended = subprocess.run(
            [pavane, *words], cwd=tmp_path, capture_output=True, text=True, timeout=START_S, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    # Keys, tokens, what users write and what pods print: of nobody else's.
    places = [tmp_path / ".pavane", *(tmp_path / ".pavane").rglob("*")]
    assert len(places) > 5
    assert [place for place in places if place.lstat().st_mode & 0o077 and not place.is_symlink()] == []


@pytest.mark.parametrize("content", [b"no database at all", None])
def test_a_damaged_store_is_called_so(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / ".pavane"
    folder.mkdir()
    store = folder / "store.sqlite"
    if content is None:  # one that was good, with a page overwritten
        with ObjectStore(store):
            pass
        content = store.read_bytes()[:4096] + os.urandom(len(store.read_bytes()) - 4096)
    store.write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged .*pavane down --purge"):
        run_cluster(folder, {}, [], 1, lambda *_: None, fast=False, bare=True)

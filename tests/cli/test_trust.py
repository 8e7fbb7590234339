"""Whose kubeconfig a command uses: never that of another user, for it can name programs to run."""

import os
from pathlib import Path

import pytest

from pavane_cli.target import Where, nearest_local


@pytest.fixture
def below(tmp_path: Path) -> Path:
    (tmp_path / ".pavane").mkdir()
    (tmp_path / ".pavane" / "kubeconfig").write_text("{}")
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    return place


def test_a_folder_of_another_user_is_not_used(
    below: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearest_local(below) == below.parents[1] / ".pavane" / "kubeconfig"
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert nearest_local(below) is None
    assert "is another user's and is not used" in capsys.readouterr().err


def test_kubeconfig_of_the_environment_goes_first(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(below)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert Where().path() == below.parents[1] / ".pavane" / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", "/elsewhere/config")
    assert Where().path() == Path("/elsewhere/config")
    monkeypatch.setenv("KUBECONFIG", "/one:/two")  # kubectl merges them, and so does the client
    assert Where().path() is None

"""The commands of README.md as they stand, and an application beside them: docs/connect.md from a fresh environment."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.targets import Capability
from pavane_local.folder import holder
from tests.requires import requires
from tests.test_wheel import Run, default, wheel

__all__ = ["default", "wheel"]

ROOT = Path(__file__).parents[1]
COMMANDS_S = 300.0
OWN = ". .venv/bin/activate"  # the tests have an environment of their own
LAST = "pavane down"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with the examples; a cluster that is left there ends with the test."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    yield tmp_path
    if (pid := holder(tmp_path / ".pavane")) is not None:
        os.kill(pid, signal.SIGKILL)


def typed(lines: list[str], place: Path) -> str:
    """What the lines print; each must end well."""
    path = f"{Path(sys.executable).parent}:{Path(requires('kubectl')).parent}:{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(lines)
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMANDS_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.needs(Capability.EMBEDDED)
@pytest.mark.timeout(3 * COMMANDS_S)
def test_the_commands_work_as_they_stand_and_an_application_connects(place: Path, default: Run) -> None:
    *_, block = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    first, *lines, last = block.splitlines()
    assert (first, last) == (OWN, LAST)
    said = typed(lines, place)
    assert "hello\n" in said
    assert re.search(r"^Generation 2 serves\.", said, re.MULTILINE), said
    assert "raftcluster/quickstart waits for nothing: generation 2 is active." in said, said
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "connect.md").read_text("utf-8"), re.DOTALL)
    for program in programs:
        ended = default("python", "-c", program, KUBECONFIG=str(place / ".pavane" / "kubeconfig"))
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", program)
    assert "Stopped." in typed([last], place)

"""``pavane ambrosia coordinator`` hands its options over as they are."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--help"], 0, "Usage: ImmortalCoordinator [OPTIONS]"),
        (["-i", "x", "-p", "2500", "-rp", "2000"], 1, "Send port is required."),
    ],
)
def test_options_are_handed_over(arguments: list[str], code: int, line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pavane_cli.main", "ambrosia", "coordinator", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout.splitlines()[:1]) == (code, [line]), ended.stderr

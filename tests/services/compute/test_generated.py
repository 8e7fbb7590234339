"""The committed module is that of the committed source."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTO = Path("pavane/compute/proto")


def generate(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(root / PROTO / "generate.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "services" / PROTO, tmp_path / PROTO)
    return tmp_path


def test_the_generated_module_is_current() -> None:
    done = generate(ROOT / "services", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_changed_source_is_noticed_and_generated_anew(copy: Path) -> None:
    source = copy / PROTO / "compute.proto"
    source.write_text(source.read_text().replace("message Canceled {}", "message Canceled { bool late = 1; }"))
    before = (copy / PROTO / "compute_pb2.py").read_text()
    done = generate(copy, "--check")
    assert done.returncode == 1
    assert "make protos" in done.stderr
    assert (copy / PROTO / "compute_pb2.py").read_text() == before
    assert generate(copy).returncode == 0
    assert (copy / PROTO / "compute_pb2.py").read_text() != before
    assert generate(copy, "--check").returncode == 0


def test_a_missing_module_is_noticed(copy: Path) -> None:
    (copy / PROTO / "compute_pb2.py").unlink()
    assert generate(copy, "--check").returncode == 1
    assert generate(copy).returncode == 0
    assert (copy / PROTO / "compute_pb2.py").exists()


def test_a_broken_source_is_refused(copy: Path) -> None:
    source = copy / PROTO / "compute.proto"
    source.write_text(source.read_text() + "message Broken {")
    done = generate(copy)
    assert done.returncode != 0
    assert "compute.proto" in done.stderr

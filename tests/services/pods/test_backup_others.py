"""The pods that back up a Coordinator and a WaltzCluster (docs/specs/operator.md 1.10)."""

from pathlib import Path
from typing import Any

import pytest

from pavane.ambrosia.backup import BackupError, restore
from pavane.pods.backup_coordinator import BackupSettings, make
from tests.services.ambrosia.test_backup import alice

__all__ = ["alice"]


def settings(folder: Path, **more: Any) -> BackupSettings:
    given: dict[str, Any] = {"backup_url": f"file://{folder}/store", "backup_name": "c0ffee00-a-1", "instance": "alice"}
    return BackupSettings.model_construct(**{**given, "ambrosia_log": folder / "logs", "backup_keep": None, **more})


async def test_what_the_pod_made_is_restored(alice: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    made = await make(settings(tmp_path), {})
    assert await make(settings(tmp_path), {}) == made, "one that is whole is verified"
    assert made["until"] == f"record {made['index']}"
    assert made["index"] > 0
    copied = restore(tmp_path / "store" / "c0ffee00-a-1", tmp_path / "new")
    assert (copied.digest, copied.next_seq) == (made["digest"], made["index"] + 1)
    with pytest.raises(BackupError, match="no files of an instance bob"):
        await make(settings(tmp_path, backup_name="c0ffee00-b-1", instance="bob"), {})
    newest = await make(settings(tmp_path, backup_name="c0ffee00-a-2", backup_keep=1), {})
    assert newest["kept"] == ""
    assert [path.name for path in (tmp_path / "store").iterdir() if any(path.iterdir())] == ["c0ffee00-a-2"]

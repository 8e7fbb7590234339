"""The pod of a Backup comes to an end whatever an earlier attempt left in the store (docs/specs/operator.md 1.10)."""

import shutil
from pathlib import Path

import pytest

from pavane.pods import backup_raft
from pavane.pods.backup_raft import BackupSettings, make
from pavane.raft.offline.manifest import NAME
from pavane.raft.storage import StoreError
from tests.services.raft.test_backup_url import copied


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the backup in the store."""
    copy = await copied(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    async def _copied(_: BackupSettings, into: Path) -> None:
        shutil.copytree(copy, into, dirs_exist_ok=True)

    monkeypatch.setattr(backup_raft, "_copied", _copied)
    return tmp_path / "store" / "c0ffee00-nightly-1"


def settings(folder: Path, keep: int | None = None) -> BackupSettings:
    return BackupSettings.model_construct(
        backup_url=f"file://{folder.parent}", backup_name=folder.name, backup_keep=keep
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_what_an_attempt_left_that_was_interrupted_is_replaced(folder: Path) -> None:
    for name in ("snap/00000007", "log/00000009", "synced"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"of a copy that is older")
    made = await make(settings(folder), {})
    assert made["index"] > 0
    assert not {"snap/00000007", "log/00000009"} & files(folder)
    assert await make(settings(folder), {}) == made, "one that is whole is verified"


async def test_what_is_of_no_backup_is_neither_deleted_nor_written_over(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "letter").touch()
    with pytest.raises(StoreError, match="letter, which is not of this backup"):
        await make(settings(folder), {})
    assert files(folder) == {"letter"}


async def test_a_copy_that_does_not_read_back_is_made_anew_by_the_next_attempt(folder: Path) -> None:
    made = await make(settings(folder), {})
    for name in ("synced", NAME):
        data = bytearray((folder / name).read_bytes())
        data[-10] ^= 1
        (folder / name).write_bytes(data)
        with pytest.raises(StoreError, match=f"{name} is damaged"):
            await make(settings(folder), {})
        assert await make(settings(folder), {}) == made


async def test_copies_of_another_cluster_below_the_url_stay(folder: Path) -> None:
    names = ("deadbeef-nightly-1", "orders", "c0ffee00-nightly-1", "c0ffee00-nightly-2")
    for name in names:
        await make(settings(folder.parent / name, keep=1), {})
    kept = [name for name in names if (folder.parent / name / NAME).exists()]
    assert kept == ["deadbeef-nightly-1", "orders", "c0ffee00-nightly-2"]


async def test_a_folder_that_goes_with_the_pod_is_refused(folder: Path) -> None:
    for inside in ("tmp/orders", "store/../tmp", "%74mp/orders"):
        lost = settings(folder).model_copy(update={"backup_url": f"file://{folder.parents[1]}/{inside}"})
        with pytest.raises(StoreError, match="which is deleted with it"):
            await make(lost, {})
    assert list((folder.parents[1] / "tmp").iterdir()) == []

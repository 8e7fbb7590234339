import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from pavane.wal.files import DiskFolder
from pavane.waltz.state.store import SessionInfo
from pavane.waltz.storage.directory import Directory, ForeignDirectory
from pavane.waltz.storage.layout import CONTROL_FILE
from pavane.waltz.storage.lock import FolderLock
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from pavane_cli.failures import ExitCode

KEY = UUID(int=7)
PARTITIONS = 3
SEGMENT_BYTES = 4_000  # so that there are several


def record(txid: int) -> Record:
    return Record.of(txid, ReqId(1, 2, 0, txid), 5, f"transaction {txid}".encode() + b"\xff" * 100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A storage node's folder: partition 0 with 100 transactions in several segments, 1 empty, 2 not assigned."""
    path = tmp_path / "data"
    path.mkdir()
    directory = Directory(DiskFolder(path), KEY, PARTITIONS, segment_bytes=SEGMENT_BYTES)
    directory.assign([0, 1])
    files = directory.partition(0)
    assert files is not None
    for first in range(0, 100, 10):
        files.append([record(txid) for txid in range(first, first + 10)])
        files.sync()
    files.set_info(SessionInfo(3, 40, 40))
    directory.close()
    return path


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "0").glob("*.seg"))


def waltz(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pavane_cli.main", "waltz", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def verified(folder: Path) -> tuple[int, dict[int, dict[str, object]], str]:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = waltz("verify", str(folder), "-o", "json")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before, "it changed the folder"
    return done.returncode, {each["partition"]: each for each in json.loads(done.stdout)}, done.stderr


def test_a_sound_folder_is_good(folder: Path) -> None:
    assert len(segments(folder)) > 2
    code, found, _ = verified(folder)
    assert (code, sorted(found)) == (0, [0, 1])
    first = found[0]
    assert (first["first"], first["last"], first["acknowledged"], first["session"]) == (0, 99, 99, 3)
    assert (first["fault"], first["tornBytes"], found[1]["last"]) == ("", 0, -1)
    shown = waltz("verify", str(folder))
    assert "0 to 99" in shown.stdout
    assert "good" in shown.stdout


def test_a_write_that_nobody_was_told_of_is_no_damage(folder: Path) -> None:
    with segments(folder)[-1].open("ab") as file:
        file.write(b"torn" * 5)
    code, found, _ = verified(folder)
    assert (code, found[0]["fault"], found[0]["tornBytes"], found[0]["last"]) == (0, "", 20, 99)


def test_a_changed_byte_is_found_wherever_it_is(folder: Path) -> None:
    for path in segments(folder):
        sound = path.read_bytes()
        hurt = bytearray(sound)
        hurt[len(hurt) // 2] ^= 1
        path.write_bytes(hurt)
        code, found, said = verified(folder)
        assert code == ExitCode.ERROR
        assert str(path) in str(found[0]["fault"])
        assert "partition 0" in said
        assert found[1]["fault"] == ""
        path.write_bytes(sound)
    assert verified(folder)[0] == 0


def test_an_acknowledged_tail_that_is_gone_is_damage(folder: Path) -> None:
    last = segments(folder)[-1]
    last.write_bytes(last.read_bytes()[:-200])
    assert verified(folder)[0] == ExitCode.ERROR
    segments(folder)[1].unlink()
    _, found, _ = verified(folder)
    assert "begins with" in str(found[0]["fault"])


def test_the_transactions_are_printed_as_far_as_they_are_whole(folder: Path) -> None:
    lines = waltz("dump", str(folder), "--from", "98").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["98", "99"]
    assert "transaction 98" in lines[0]
    found = [json.loads(line) for line in waltz("dump", str(folder), "-o", "json").stdout.splitlines()]
    assert [each["transaction"] for each in found] == list(range(100))
    assert found[7]["header"] == 5
    assert r"transaction 98\xff\xff" in lines[0]
    last = segments(folder)[-1]
    last.write_bytes(last.read_bytes()[:-200])
    cut = waltz("dump", str(folder), "--from", "90")
    assert (cut.returncode, "behind this no record is whole" in cut.stderr) == (ExitCode.ERROR, True)
    assert cut.stdout.startswith("90 ")
    assert waltz("dump", str(folder), "--partition", "3").returncode == ExitCode.USAGE


def test_a_folder_that_is_used_or_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    lock = FolderLock(folder)
    used = waltz("verify", str(folder))
    lock.release()
    assert (used.returncode, "stop it first" in used.stderr) == (ExitCode.REFUSED, True)
    assert waltz("verify", str(folder)).returncode == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    none = waltz("verify", str(empty))
    assert (none.returncode, CONTROL_FILE in none.stderr) == (ExitCode.NOT_FOUND, True)
    assert "Traceback" not in none.stderr


def test_a_folder_of_another_log_is_left_alone_and_says_what_to_do(folder: Path) -> None:
    with pytest.raises(ForeignDirectory, match="delete it and the volumes of the former one"):
        Directory(DiskFolder(folder), UUID(int=8), PARTITIONS, segment_bytes=SEGMENT_BYTES)
    assert verified(folder)[0] == 0

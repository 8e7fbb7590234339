"""Who writes records: the loop where the disk is quick and the record small, else the storage thread (raft.md 13.4)."""

import threading
from pathlib import Path

import pytest

from pavane.ambrosia.effects import Append, Storage
from pavane.ambrosia.storage import FileStore
from pavane.ambrosia.wire.messages import Call, RpcType, outgoing
from pavane.wal.files import DiskFolder
from pavane.wal.times import SyncTimes
from pavane.wal.writer import HERE_BYTES
from tests.services.ambrosia.test_server import options, running

SMALL, LARGE = 10, HERE_BYTES


@pytest.mark.parametrize(
    ("quick", "needs_loop", "size", "on_loop"),
    [
        (True, False, SMALL, True),
        (False, False, SMALL, False),
        (True, True, SMALL, False),
        (True, False, LARGE, False),
    ],
    ids=["quick", "slow", "the-loop-is-needed", "large"],
)
async def test_who_writes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool, needs_loop: bool, size: int, on_loop: bool
) -> None:
    loop, records, others = threading.get_ident(), set[bool](), set[bool]()
    carry_out = FileStore.carry_out

    def noted(store: FileStore, effect: Storage) -> None:
        if not isinstance(effect, Append):
            others.add(threading.get_ident() == loop)
        elif effect.record.seq > 0:  # behind what the first start writes
            records.add(threading.get_ident() == loop)
        carry_out(store, effect)

    monkeypatch.setattr(FileStore, "carry_out", noted)
    monkeypatch.setattr(SyncTimes, "are_below", lambda *_: quick)
    monkeypatch.setattr(DiskFolder, "needs_loop", needs_loop)
    async with running(options(tmp_path)) as life:
        await life.begin()
        for number in range(3):
            life.binding.writer.write(outgoing("", Call(7, RpcType.FORK, bytes(size))))
            assert (await life.binding.record()).header.seq == number + 1
    assert records == {on_loop}
    assert others == {False}, "metadata and checkpoints"


async def test_a_disk_is_not_waited_for_in_the_loop_before_it_is_known_to_be_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[float] = []
    monkeypatch.setattr(SyncTimes, "note", lambda _, took: noted.append(took))
    threads: list[int] = []
    carry_out = FileStore.carry_out

    def threaded(store: FileStore, effect: Storage) -> None:
        threads.append(threading.get_ident())
        carry_out(store, effect)

    monkeypatch.setattr(FileStore, "carry_out", threaded)
    async with running(options(tmp_path)) as life:
        await life.begin()
        for _ in range(3):
            life.binding.writer.write(outgoing("", Call(7, RpcType.FORK, b"")))
            await life.binding.record()
    assert threading.get_ident() not in threads
    assert len(noted) >= 3, "each of them teaches how quick it is"

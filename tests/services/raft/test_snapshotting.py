"""Saving a snapshot beside the work of a peer (docs/specs/raft.md 9.1)."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from pavane.raft.core.outputs import Freeze
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.snapshotting import Snapshotter
from pavane.raft.state.dedup import DedupTable
from pavane.raft.storage import Identity, RaftStorage
from pavane.raft.storage.snapshots import SnapshotWriter
from pavane.wal import DiskFolder


@pytest.mark.parametrize(("step", "left"), [("add", 0), ("finish", 1)])
async def test_a_peer_that_stops_waits_until_nobody_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, left: int
) -> None:
    storage = RaftStorage(DiskFolder(tmp_path), Identity("1", "KeyValue"))
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    quick = getattr(SnapshotWriter, step)

    def slow(writer: SnapshotWriter, *arguments: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(20)
        return quick(writer, *arguments)

    monkeypatch.setattr(SnapshotWriter, step, slow)
    save = Snapshotter(storage, KeyValue()).freeze(Freeze(1, 1, b"", 0, DedupTable(), 0, bare=False))
    task = asyncio.ensure_future(save())
    await begun.wait()
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=0)
    assert not done
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(list((tmp_path / "snap").iterdir())) == left
    storage.close()

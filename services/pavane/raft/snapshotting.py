"""Saving and restoring a machine's state beside its work (docs/specs/raft.md 9.1, 9.2).

The state is serialised a slice at a time on the event loop, for only there it stands still; files are written and read
in threads.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from pavane.raft.core.outputs import Freeze
from pavane.raft.machine import StateMachine
from pavane.raft.storage import RaftStorage
from pavane.raft.wire.snapshot import SnapshotMeta

READ_BYTES = 1 << 20


class Snapshotter:
    """Works for one machine and its store, both of which it does not own."""

    def __init__(self, storage: RaftStorage, machine: StateMachine) -> None:
        self._storage = storage
        self._machine = machine

    def freeze(self, freeze: Freeze) -> Callable[[], Any]:
        """Fix the present state; return what saves it, a coroutine function that returns the bytes of its data."""
        data = self._machine.freeze()
        return lambda: self._save(freeze, data)

    async def _save(self, freeze: Freeze, data: Iterator[bytes]) -> int:
        ids = []
        for group in freeze.table.freeze(freeze.index):
            ids.append(group)
            await asyncio.sleep(0)
        meta = SnapshotMeta(
            freeze.configuration,
            freeze.configuration_index,
            self._machine.name,
            self._machine.level,
            freeze.table.floor,  # read behind the ids: what was forgotten meanwhile is at or below it
            b"".join(ids),
        )
        loop = asyncio.get_running_loop()
        writer = await loop.run_in_executor(None, self._storage.snapshots.begin, meta.encode())
        try:
            for part in data:
                await loop.run_in_executor(None, writer.add, part)
            return await loop.run_in_executor(None, writer.finish, freeze.index, freeze.term)
        except asyncio.CancelledError:
            writer.abort()
            raise

    async def restore(self, index: int) -> None:
        """Let the machine begin from the snapshot of ``index``; raises ``OSError`` and what the machine raises."""
        await asyncio.get_running_loop().run_in_executor(None, self._restore, index)

    def _restore(self, index: int) -> None:
        source = self._storage.open_snapshot(index)
        head = source.head
        end = head.data_offset + head.data_bytes
        try:
            pieces = (
                memoryview(source.read(offset, min(READ_BYTES, end - offset)))
                for offset in range(head.data_offset, end, READ_BYTES)
            )
            self._machine.restore(pieces, index)
        finally:
            source.close()

"""Saving and restoring a machine's state beside its work (docs/specs/raft.md 9.1, 9.2).

The state is serialised a slice at a time on the event loop, for only there it stands still; files are written and read
in threads. What an application makes of the log comes from a thread, too, or from a file that it left.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from pavane.raft.core.outputs import Freeze
from pavane.raft.machine import Compactor, StateMachine
from pavane.raft.state.commands import CorruptEntry
from pavane.raft.storage import RaftStorage
from pavane.raft.storage.js_files import JsSnapshot
from pavane.raft.wire.entry import EntryType, entry_data, entry_type
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.snapshot import SnapshotMeta, join_groups

READ_BYTES = 1 << 20

Result = TypeVar("Result")


class CannotCompact(Exception):
    """The application's compactor failed."""


class _Ending(Exception):
    """The peer stops: work in a thread is to end."""


class Snapshotter:
    """Works for one machine and its store, both of which it does not own."""

    def __init__(self, storage: RaftStorage, machine: StateMachine) -> None:
        self._storage = storage
        self._machine = machine
        self._offered: JsSnapshot | None = None
        self._ending = threading.Event()

    def offer(self, snapshot: JsSnapshot) -> None:
        """Take what an application left for the ``Freeze`` of its index, which the core emits next."""
        self._offered = snapshot

    def freeze(self, freeze: Freeze) -> Callable[[], Awaitable[int]]:
        """Fix the present state; return what saves it, a coroutine function that returns the bytes of its data.

        That raises ``OSError``, ``CorruptEntry`` if the log is damaged, ``CannotCompact``.
        """
        offered, self._offered = self._offered, None
        if offered is not None:
            whole = offered.data
            return lambda: self._save(freeze, [whole])
        machine = self._machine
        if isinstance(machine, Compactor):
            return lambda: self._compact(freeze, machine)
        data = machine.freeze()
        return lambda: self._save(freeze, data)

    async def _compact(self, freeze: Freeze, compactor: Compactor) -> int:
        loop = asyncio.get_running_loop()
        entries = self._entries(freeze.before + 1, freeze.index, loop)

        def compacted() -> bytes:
            # That of no bytes stands before the log of a restored cluster, in place of nothing (13.5).
            previous = b"".join(self._data_of(freeze.before)) or None if freeze.before else None
            try:
                return compactor.compact(entries, previous)
            except (CorruptEntry, OSError):
                raise  # of the log, not of the application
            except Exception as error:
                raise CannotCompact(repr(error)) from error

        return await self._save(freeze, [await self._in_thread(compacted)])

    def _entries(self, first: int, last: int, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[int, memoryview]]:
        """Yield index and data of STATE entries in another thread; the loop, to which the log belongs, reads them."""

        async def page() -> list[memoryview]:
            return list(self._storage.read(first, last, READ_BYTES))

        while first <= last:
            for entry in asyncio.run_coroutine_threadsafe(page(), loop).result():
                self._go_on()
                if entry_type(entry) == EntryType.STATE:
                    yield first, entry_data(entry)
                first += 1

    async def _save(self, freeze: Freeze, data: Iterable[Frame]) -> int:
        groups = []
        for group in freeze.table.freeze(freeze.index):
            groups.append(group)
            await asyncio.sleep(0)
        ids, digests = join_groups(groups)
        meta = SnapshotMeta(
            freeze.configuration,
            freeze.configuration_index,
            self._machine.name,
            self._machine.level,
            freeze.table.floor,  # read behind the ids: what was forgotten meanwhile is at or below it
            ids,
            freeze.bare,
            digests,
        )
        writer = await self._in_thread(self._storage.snapshots.begin, meta.encode())
        try:
            for part in data:
                await self._in_thread(writer.add, part)
            return await self._in_thread(writer.finish, freeze.index, freeze.term)
        except asyncio.CancelledError:
            writer.abort()
            raise

    async def restore(self, index: int) -> None:
        """Let the machine begin from the snapshot of ``index``; raises ``OSError`` and what the machine raises."""
        await self._in_thread(self._restore, index)

    def _restore(self, index: int) -> None:
        self._machine.restore(self._data_of(index), index)

    def _data_of(self, index: int) -> Iterator[bytes]:
        """Yield the data of a snapshot in pieces; raises ``OSError``."""
        source = self._storage.open_snapshot(index)
        try:
            end = source.head.data_offset + source.head.data_bytes
            for offset in range(source.head.data_offset, end, READ_BYTES):
                self._go_on()
                yield source.read(offset, min(READ_BYTES, end - offset))
        finally:
            source.close()

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run ``work`` in a thread. Who is cancelled asks it to end and goes on when it has: its files are in use."""
        running = asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._ending.set()
            await asyncio.wait((running,))
            raise

    def _go_on(self) -> None:
        if self._ending.is_set():
            raise _Ending

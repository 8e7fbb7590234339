"""The owner of a partition copies what is committed to the archive, and reads it there (docs/specs/waltz.md 13.9)."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from pavane.runtime.metrics import Metric
from pavane.waltz.aio.archive import Archive
from pavane.waltz.core.outputs import ReadArchive
from pavane.waltz.core.partition import Partition
from pavane.waltz.errors import ArchiveError
from pavane.waltz.state.archived import Archived, Piece
from pavane.waltz.storage.piece import cut
from pavane.waltz.wire.storage import Record

PIECE_BYTES = 8 * 1024 * 1024  # of data, after which a piece is cut
PIECE_RECORDS = 50_000  # of a piece, about: with little data each takes 0.8 KB while it is cut
PIECES_MAX = 2  # that are cut and written at a time: each is in memory, twice
LISTINGS_MAX = 8  # of partitions at a time: whoever takes over has many, and a slow one holds up no other
DELAY_S = 300.0  # after which a smaller one is cut
STEP_S = 1.0  # between two looks at a partition that has no more to be archived
READ_RECORDS = 1000  # asked of a partition at a time
READ_BYTES = 4 * 1024 * 1024  # of one answer from the archive, but one record at least
READ_S = 30.0  # for records of a partition, which may be leaving; and for a client's turn at the archive

_logger = logging.getLogger(__name__)

Call = Callable[[Callable[[float], None]], None]
"""Call into the core, with the time."""


class _OtherLog(ArchiveError):
    """The archive answers, but is not that of this log."""


class Archiver:
    """Archives the partitions that are ``owned``, for the log with ``key``; ``opened`` makes the archive.

    It is made anew after each failure, so that other keys of the store count. ``keys`` tells over how many partitions
    the log spreads keys, 0 while that is not known.
    """

    def __init__(
        self,
        opened: Callable[[], Archive],
        key: UUID,
        call: Call,
        owned: Mapping[int, Partition],
        keys: Callable[[], int],
        *,
        delay_s: float = DELAY_S,
    ) -> None:
        self._opened = opened
        self._key = key
        self._call = call
        self._owned = owned
        self._keys = keys
        self._noted = False
        self._followed: set[Partition] = set()
        self._listings, self._pieces = asyncio.Semaphore(LISTINGS_MAX), asyncio.Semaphore(PIECES_MAX)
        self._delay_s = delay_s
        self._archive: Archive | None = None
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Archive until it is cancelled; what cannot be done now is tried again."""
        async with asyncio.TaskGroup() as group:
            while True:
                owned = set(self._owned.values())
                for partition in owned - self._followed:
                    group.create_task(self._follow(partition), name=f"waltz archive of partition {partition.number}")
                self._followed = owned
                await asyncio.sleep(STEP_S)

    async def _follow(self, partition: Partition) -> None:
        while partition in self._followed:
            if not await self._looked_at(partition):
                await asyncio.sleep(STEP_S)

    async def read(self, asked: ReadArchive) -> Sequence[Record] | None:
        """Return records from below the start; ``None`` if the archive does not give them now.

        Of what one client asks for, one is read at a time: whoever else reads waits for that, and not for all of it.
        """
        if (connection := asked.connection) is None:
            return await self._read(asked)
        turn = self._turns.setdefault(connection.id, asyncio.Lock())
        try:
            async with asyncio.timeout(READ_S):
                await turn.acquire()
        except TimeoutError:
            return None
        try:
            return None if connection.gone else await self._read(asked)
        finally:
            turn.release()

    async def _read(self, asked: ReadArchive) -> Sequence[Record] | None:
        for partition in self._owned.values():
            held = partition.keeping.archive
            if partition.number == asked.partition and held is not None:
                try:
                    if (piece := held.piece(asked.txid)) is None:
                        return None
                    records = await self._store().read(asked.partition, piece)
                except ArchiveError as error:
                    _logger.warning("the archive gives nothing: %s", error)
                    held.unread, self._archive = str(error), None
                    return None
                held.unread = ""
                at = asked.txid - piece.first
                return _within(records[at : at + asked.limit], READ_BYTES)
        return None

    def _store(self) -> Archive:
        if self._archive is None:
            self._archive = self._opened()
        return self._archive

    async def _looked_at(self, partition: Partition) -> bool:
        """Look at a partition, whatever is wrong with others, and return whether more of it can be archived at once."""
        if (held := partition.keeping.archive) is None:
            return False
        more, fault = False, ""
        if held.unread:
            self._call(partition.archive_known)  # mounts and feeds of older clients wait for it
        try:
            more = await self._look_at(partition, held)
        except _OtherLog as error:
            fault = str(error)
        except ArchiveError as error:
            fault, self._archive = str(error), None
        if fault and not held.fault:  # later ones, each of another object, are told by the condition
            _logger.warning("the archive takes nothing of partition %d: %s", partition.number, fault)
            held.faulty_since, held.faulty_ms = self._loop.time(), time.time_ns() // 1_000_000
        held.fault = fault
        return more

    async def _look_at(self, partition: Partition, held: Archived) -> bool:
        if partition.hwm is None or not partition.healthy:
            return False
        if not held.known:
            async with self._listings:
                if not await self._list(partition, held):
                    return False  # with the next look
        if held.join(partition.first):
            _count_from_now(partition, held)
        if held.end > partition.hwm:
            return False
        now = self._loop.time()
        if held.waits_since is None:
            held.waits_since = now
        if _waiting_bytes(partition, held) < PIECE_BYTES and now < held.waits_since + self._delay_s:
            return False
        async with self._pieces:
            return await self._copy(partition, held)

    async def _list(self, partition: Partition, held: Archived) -> bool:
        """Learn what is there; false if that cannot be seen now."""
        pieces = await self._store().pieces(partition.number)
        if not await self._are_ours(partition, pieces):
            return False
        if not self._noted and (keys := self._keys()):
            await self._store().note_keys(keys)
            self._noted = True
        held.listed(pieces, partition.first)
        self._call(partition.archive_known)
        held.waits_since = self._loop.time() - self._delay_s  # nobody knows for how long it has waited already
        _count_from_now(partition, held)
        return True

    async def _are_ours(self, partition: Partition, pieces: Sequence[Piece]) -> bool:
        """Whether what would count of ``pieces`` ends as the log does there; false if that cannot be seen now.

        Raises ``_OtherLog`` if they are of another log, such as one that was begun anew with its former key.
        """
        found, hwm = Archived(), -1 if partition.hwm is None else partition.hwm
        found.listed(pieces, partition.first)
        last, text = found.end - 1, ""
        if last > hwm:
            text = f"has transactions up to {last} of partition {partition.number}, but the log ends with {hwm}"
        elif last >= partition.first and (piece := found.piece(last)) is not None:
            archived = (await self._store().read(partition.number, piece))[-1]
            if not (own := await self._records(partition, last, last)):
                return False
            if own[0] != archived:
                text = f"has another transaction {last} of partition {partition.number} than the log"
        if text:
            raise _OtherLog(f"{self._store().url} {text}: it is not the archive of this log")
        return True

    async def _copy(self, partition: Partition, held: Archived) -> bool:
        """Write what is next, and return whether it was as much as a piece may have."""
        records: list[Record] = []
        size, hwm = 0, -1 if partition.hwm is None else partition.hwm
        while held.end + len(records) <= hwm and not self._full(records, size):
            found = await self._records(partition, held.end + len(records), hwm)
            if not found:
                return False  # with the next look
            records += (taken := _within(found, PIECE_BYTES - size))
            size += sum(len(record.data) for record in taken)
        piece, data = await asyncio.to_thread(cut, self._key, partition.number, records)
        await self._store().put(partition.number, piece, data)
        held.add(piece)
        self._call(partition.archive_known)  # the start may have passed it while it was written
        held.counted_bytes += sum(len(record.data) for record in records if record.txid > held.counted_after)
        full = self._full(records, size)
        if not full:
            held.waits_since = None
        return full

    def _full(self, records: Sequence[Record], size: int) -> bool:
        return size >= PIECE_BYTES or len(records) >= PIECE_RECORDS

    async def _records(self, partition: Partition, txid: int, hwm: int) -> Sequence[Record] | None:
        done: asyncio.Future[Sequence[Record] | None] = self._loop.create_future()
        limit = min(READ_RECORDS, hwm - txid + 1)

        def answer(records: Sequence[Record] | None) -> None:
            if not done.done():
                done.set_result(records)

        def ask(now: float) -> None:
            partition.now = now
            if found := partition.feeds.tail.take(txid, limit):
                answer(found)
            else:
                partition.read(txid, limit, answer)

        self._call(ask)
        try:
            async with asyncio.timeout(READ_S):
                return await done
        except TimeoutError:
            return None


def _within(records: Sequence[Record], size: int) -> Sequence[Record]:
    """Return the first records with so much data, but one at least."""
    for count, record in enumerate(records):
        size -= len(record.data)
        if size <= 0:
            return records[: count + 1]
    return records


def _count_from_now(partition: Partition, held: Archived) -> None:
    held.counted_after, held.counted_bytes = -1 if partition.hwm is None else partition.hwm, partition.feeds.bytes


def _waiting_bytes(partition: Partition, held: Archived) -> int:
    """Return the data that is not archived yet, as far as this owner has seen it come."""
    return max(0, partition.feeds.bytes - held.counted_bytes)


def state_of(partition: Partition, now: float) -> dict[str, Any] | None:
    """Return what the archive has of a partition, for people and the operator."""
    held = partition.keeping.archive
    if held is None:
        return None
    return {
        "known": held.known,
        "first": held.first,
        "end": held.end,
        "waiting": 0 if partition.hwm is None else max(0, partition.hwm + 1 - held.end),
        "waiting_bytes": _waiting_bytes(partition, held),
        "fault": held.fault,
        "faulty_s": now - held.faulty_since if held.fault else 0.0,
        "faulty_ms": held.faulty_ms,
    }


def archive_metrics(labels: Mapping[str, str], partition: Partition, now: float) -> Iterator[Metric]:
    """Yield how far the archive is, and for how long it has taken nothing."""
    if (state := state_of(partition, now)) is not None:
        yield Metric("pavane_waltz_archive_end", labels, state["end"])
        yield Metric("pavane_waltz_archive_waiting_bytes", labels, state["waiting_bytes"])
        yield Metric("pavane_waltz_archive_failing_seconds", labels, state["faulty_s"])

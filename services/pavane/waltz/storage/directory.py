"""A storage folder: control file, own mark file and partitions (docs/specs/waltz.md 12.1, 12.3, 12.5)."""

import errno
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from pavane.wal.files import File, Folder
from pavane.waltz.state.store import Damaged, Kept, Refused, SessionInfo
from pavane.waltz.storage import layout
from pavane.waltz.storage.clock import Clock
from pavane.waltz.storage.expiry import first_by_age, first_by_size
from pavane.waltz.storage.segment import Segment
from pavane.waltz.storage.slots import Slots, first_image
from pavane.waltz.wire.storage import CopyState, Record

SEGMENT_BYTES = 1_000_000_000  # of the original: a segment that is larger is followed by a new one
SEGMENTS_KEPT = 8  # of what a retention keeps, by size or age, a segment is an eighth: so much more is kept at most
DROPPED_MAX = 8  # segments at a time: appends of all partitions wait meanwhile
_MARK_HEAD = struct.Struct(">4si16si")
_MARK_MAGIC, _MARK_VERSION = b"PVWS", 1
LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of what the process or the machine has run out
GROW_MAX = 16  # partitions that are made at a time: appends of all others wait meanwhile
REBUILDS_MAX = 3  # of one copy, each within REBUILT_MS of the one before: a disk that spoils them is to be replaced
REBUILT_MS = 24 * 3600 * 1000  # after which what a rebuild has made counts as sound, and one more may be tried
FIRST = ".first"  # name of an empty file: everything below its number may have been dropped
_DAMAGED = "damaged from transaction"
_REBUILT = "it was damaged, and is being copied from the other storage nodes"


class ForeignDirectory(Exception):
    """The folder belongs to another cluster, or its files are not ours to read."""


class Directory:
    """All partitions of a storage node in ``folder``, for the cluster with ``key``; made if it is empty.

    It has ``partitions`` at least: a cluster may have got more since, which ``grow`` makes. Raises ``ForeignDirectory``
    and ``OSError``.
    """

    def __init__(
        self,
        folder: Folder,
        key: UUID,
        partitions: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.folder = folder
        self.key = key
        self.segment_bytes = segment_bytes
        self.partitions = partitions
        """How many there are; those of an existing folder, as long as nobody lets it grow."""
        self._begun: int | None = None  # the first of those that growth has made and not assigned yet
        self.found_damaged = 0
        """How often a copy was found damaged."""
        self._control = self._open_control()
        had_marks = layout.MARK_FILE in folder.names()
        self._marks = self._open_marks()
        self._open: dict[int, PartitionFiles] = {}
        self._slots = [self._slots_of(number) for number in range(self.partitions)]
        for pair in self._slots:
            for slots in pair:
                slots.write_again()
        self._control.sync()
        self._marks.sync()
        self.folder.sync()
        for number, (control, _) in enumerate(self._slots):
            if control.found is None:
                raise ForeignDirectory(f"{layout.CONTROL_FILE}: both entries of partition {number} are broken")
            if control.found[3] & layout.FLAG_ASSIGNED:
                self._open[number] = self._partition(number, had_marks)
        self._lengthen(partitions)

    def grow(self, partitions: int) -> bool:
        """Make what is missing to ``partitions``, some of them at a time, durably; whether there are as many now.

        What a crash leaves begins empty: nothing was acknowledged in it. Raises ``OSError``.
        """
        first = self._begun = self.grown
        self._lengthen(min(partitions, max(self.partitions, first + GROW_MAX)))
        self.assign(range(first, self.partitions))
        self._begun = None
        return self.partitions >= partitions

    @property
    def grown(self) -> int:
        """How many there are; where growth failed, those before the first that it did not finish."""
        return self.partitions if self._begun is None else self._begun

    def _lengthen(self, partitions: int) -> None:
        """Add entries to both files; the number in a file's header comes last, so it has as many that are whole."""
        added = range(self.partitions, partitions)
        if added:
            entry = first_image(layout.CONTROL_LAYOUT, (-1, -1, -1, layout.FLAG_AVAILABLE), (-1, 0), ())
            mark = first_image(layout.MARK_LAYOUT, (-1, -1, layout.SOUND), (-1, 0), (0,))
            for file, entries, size, at in (
                (self._marks, [mark] * len(added), layout.MARK_ENTRY_BYTES, _MARK_HEAD.size - 4),
                (self._control, [one.to_bytes(4, "big") + entry for one in added], layout.CONTROL_ENTRY_BYTES, 28),
            ):
                file.truncate(layout.HEADER_BYTES + added.start * size)
                file.append([b"".join(entries)])
                file.sync()
                file.overwrite(at, partitions.to_bytes(4, "big"))
                file.sync()
            self.partitions = partitions
            self._slots += map(self._slots_of, added)

    def partition(self, number: int) -> "PartitionFiles | None":
        """Return a partition that is assigned to this node."""
        return self._open.get(number)

    def files(self, number: int) -> "PartitionFiles":
        """Return a partition that is assigned to this node; raises ``Refused`` if it is none."""
        if (found := self._open.get(number)) is None:
            raise Refused(f"partition {number} is not assigned to this storage node")
        return found

    def assigned(self) -> list["PartitionFiles"]:
        """Return the partitions of this node."""
        return list(self._open.values())

    def assign(self, numbers: Iterable[int]) -> None:
        """Give partitions to this node, durably; those that it has stay as they are."""
        for number in numbers:
            if number in self._open or not 0 <= number < self.partitions:
                continue
            self._slots[number][0].put(-1, -1, -1, layout.FLAG_AVAILABLE | layout.FLAG_ASSIGNED)
            self._open[number] = self._partition(number, True)

    def unassign(self, number: int, *, delete_files: bool) -> None:
        """Take a partition away, durably, with its files or without.

        A crash in between leaves a replica that knows that it gave everything up, whatever files are left. The fence
        stays: no older session is obeyed, if the partition ever comes back.
        """
        files = self._open.get(number)
        if files is not None:
            files.give_up(delete_files=delete_files)
            del self._open[number]

    def sync_marks(self) -> None:
        """Make fences and marks durable."""
        dirty = [files.mark_slots for files in self._open.values() if files.mark_slots.dirty]
        if dirty:
            self._marks.sync()
            for slots in dirty:
                slots.synced()

    def check_files(self) -> None:
        """Raise ``FileNotFoundError`` if somebody has emptied the folder: what is written here would be lost."""
        try:
            names = self.folder.names()
        except OSError as error:
            if error.errno in LACKING:
                return
            raise
        for name in (layout.CONTROL_FILE, layout.MARK_FILE):
            if name not in names:
                raise FileNotFoundError(f"{name} was removed while the storage node runs")

    def free_bytes(self) -> int:
        """Return what the file system has left."""
        return self.folder.free_bytes()

    def close(self) -> None:
        """Make the marks durable and close all files, also if that fails."""
        try:
            self.sync_marks()
        finally:
            for files in self._open.values():
                files.close()
            self._marks.close()
            self._control.close()

    def _slots_of(self, number: int) -> tuple[Slots, Slots]:
        at, mark_at = (layout.HEADER_BYTES + number * size for size in layout.ENTRY_BYTES)
        mark = Slots(self._marks, mark_at, layout.MARK_LAYOUT, (0,))
        return Slots(self._control, at + 4, layout.CONTROL_LAYOUT), mark

    def _partition(self, number: int, marked: bool) -> "PartitionFiles":
        return PartitionFiles(self, number, self._slots[number], marked=marked)

    def _open_control(self) -> File:
        head = layout.CONTROL_HEAD.pack(0, time.time_ns() // 1_000_000, self.key.bytes, self.partitions)
        entry = first_image(layout.CONTROL_LAYOUT, (-1, -1, -1, layout.FLAG_AVAILABLE), (-1, 0), ())
        body = b"".join(number.to_bytes(4, "big") + entry for number in range(self.partitions))
        file, found = self._whole(layout.CONTROL_FILE, head, body)
        version, _, key, partitions = layout.CONTROL_HEAD.unpack_from(found)
        if (version, key) != (0, self.key.bytes):
            file.close()
            raise ForeignDirectory(
                f"{self.folder}: {layout.CONTROL_FILE} "
                f"belongs to cluster {UUID(bytes=key)} with {partitions} partitions, not to {self.key}: "
                "give this node an empty one. "
                "If the log was deleted and made again, delete it and the volumes of the former one"
            )
        self.partitions = partitions
        return file

    def _open_marks(self) -> File:
        head = _MARK_HEAD.pack(_MARK_MAGIC, _MARK_VERSION, self.key.bytes, self.partitions)
        image = first_image(layout.MARK_LAYOUT, (-1, -1, layout.SOUND), (-1, 0), (0,))
        file, found = self._whole(layout.MARK_FILE, head, image * self.partitions)
        # It grows first, so a crash may have left it longer than the control file.
        if found[: len(head) - 4] != head[:-4] or found[len(head) - 4 : len(head)] < head[-4:]:
            file.close()
            raise ForeignDirectory(f"{self.folder}: {layout.MARK_FILE} belongs to another cluster")
        return file

    def _whole(self, name: str, head: bytes, body: bytes) -> tuple[File, bytes]:
        """Open a file that has a header, or make it: the header comes last, so a file that has one is whole.

        What is found counts after a sync, as with ``Slots.write_again``.
        """
        file = self.folder.open(name) if name in self.folder.names() else self.folder.create(name)
        found = file.read(0, layout.HEADER_BYTES)
        if len(found) < layout.HEADER_BYTES or not any(found):
            file.truncate(0)
            file.append([bytes(layout.HEADER_BYTES), body])
            file.sync()
            found = head.ljust(layout.HEADER_BYTES, b"\0")
        file.overwrite(0, found)
        return file, found


class PartitionFiles:
    """One partition's log on a disk: segments, control entry and mark.

    Every method may raise ``OSError``; reads raise ``Damaged``.
    """

    def __init__(self, directory: Directory, number: int, slots: tuple[Slots, Slots], *, marked: bool) -> None:
        self.number = number
        self._rebuilds = 0
        """How often the copy was given up, each time within REBUILT_MS of the one before; last at `_rebuilt_ms`."""
        self._rebuilt_ms = 0
        self.mended = ""
        """What was wrong with the copy when it was last rebuilt."""
        self._directory = directory
        self._folder = directory.folder.folder(str(number))
        self._key = directory.key
        self._segment_bytes = directory.segment_bytes
        self._segment_ms = -1
        """After which a segment is followed by a new one; -1: never for that."""
        self._clock = directory.clock
        self._control, self.mark_slots = slots
        *info, self._flags = self._control.found or ()
        self.info = SessionInfo(*info)
        found = self.mark_slots.found
        self.fence = max(self.info.session, found[0] if found is not None else -1)
        self.mark = found[1] if found is not None and marked else self.info.local_lwm
        self._damaged_from = found[2] if found is not None else layout.SOUND
        self.fault = ""
        self._sync_failed = False
        """The kernel may take what it could not write for written, so a sync that is tried again may lie."""
        self._segments: list[Segment] = []
        try:
            self._recover()
            if found is None:
                raise Damaged(f"both entries of the partition in {layout.MARK_FILE} are broken")
        except Damaged as error:
            self._damage(error.txid if error.txid >= 0 else self.max_txid + 1, str(error))
        except OSError as error:
            self.close()
            self._segments = []  # of some of its segments nobody may take the last one for the end of the log
            self.fault = f"it cannot be opened: {error}"

    @property
    def available(self) -> bool:
        """Whether the partition may be used; a damaged one may not."""
        return not self.fault and bool(self._flags & layout.FLAG_AVAILABLE)

    @property
    def state(self) -> CopyState:
        """Whether its records are damaged, or being copied anew; of what a tool or the disk stopped: neither."""
        if not self._flags & layout.FLAG_AVAILABLE or self._wears_out:
            return CopyState.SOUND
        if self.fault.startswith(_DAMAGED):
            return CopyState.DAMAGED
        return CopyState.REBUILDING if self.fault == _REBUILT else CopyState.SOUND

    @property
    def _wears_out(self) -> bool:
        """Whether it was rebuilt so often that it is left alone for a while, damaged again."""
        often = self._rebuilds >= REBUILDS_MAX and self.fault != _REBUILT
        return often and self._clock.ms() - self._rebuilt_ms < REBUILT_MS

    @property
    def first(self) -> int:
        """The first record that is kept, or will be."""
        return self._segments[0].first if self._segments else 0

    @property
    def size(self) -> int:
        """Bytes of all segments and their indexes."""
        return sum(segment.size for segment in self._segments)

    @property
    def max_txid(self) -> int:
        """The last record; -1 if there is none."""
        return self._segments[-1].last if self._segments else -1

    def is_full(self, ahead: int = 0) -> bool:
        """Whether an append begins a new segment, which takes some syncs of its own, with ``ahead`` bytes before it."""
        if not self._segments:
            return False
        last = self._segments[-1]
        is_used = ahead > 0 or last.last >= last.first
        return is_used and (last.end + ahead > self._segment_bytes or self._is_old(last))

    def raise_fence(self, session: int) -> None:
        """Note a promise; it is durable after ``Directory.sync_marks``."""
        if session > self.fence:
            self.fence = session
            self._write_mark()

    def append(self, records: Sequence[Record]) -> None:
        """Write records that continue the log; one that does not fit leaves nothing behind."""
        self._check_syncs()
        if self.is_full():
            with self._syncing():
                self._segments[-1].finish()
            self._segments.append(self._segment(self.max_txid + 1))
        try:
            self._segments[-1].append(records)
        except Damaged as error:
            self.fault = f"{error}; check the disk, then restart the storage node"
            raise

    def begin_sync(self) -> None:
        """Have what was appended written soon: the ``sync`` of several partitions then costs one commit."""
        for segment in self._segments[-1:]:
            segment.begin_sync()

    def sync(self) -> None:
        """Make everything durable; after a failure nobody knows what is, so the partition is unavailable."""
        with self._syncing():
            self._segments[-1].sync()
        if self.max_txid > self.mark:
            self.mark = self.max_txid
            self._write_mark()

    @contextmanager
    def _syncing(self) -> Iterator[None]:
        self._check_syncs()
        try:
            yield
        except OSError as error:
            self._sync_failed = True
            self.fault = f"a sync failed: {error}; check the disk, then restart the storage node"
            raise

    def _check_syncs(self) -> None:
        """Raise ``OSError`` where a sync has failed, till the node starts anew, or no segment could be opened."""
        if self._sync_failed or not self._segments:
            raise OSError(self.fault)

    def truncate(self, txid: int) -> None:
        """Cut everything behind ``txid``, durably, but nothing of what was dropped: that was committed."""
        txid = max(txid, self.first - 1)
        if txid >= self.max_txid:
            return
        if txid < self.mark:
            # What is cut was acknowledged: the mark says first that it is given up.
            self.mark = txid
            self._write_mark()
            self._directory.sync_marks()
        try:
            while len(self._segments) > 1 and self._segments[-1].first > txid + 1:
                self._segments.pop().remove()
            self._segments[-1].truncate(txid)
        except (OSError, Damaged) as error:
            self._sync_failed = True  # perhaps: a cut is synced too
            self.fault = f"a cut failed: {error}; check the disk, then restart the storage node"
            raise

    def retain(self, start: int, bytes_max: int, age_ms_max: int) -> Kept:
        """Drop segments below ``start``, durably and oldest first; begin there if nothing reaches as far.

        Return what is left, and from where on this node would keep it by size and age.
        """
        self._segment_bytes = self._directory.segment_bytes
        if bytes_max >= 0:
            self._segment_bytes = min(self._segment_bytes, bytes_max // SEGMENTS_KEPT)
        self._segment_ms = age_ms_max // SEGMENTS_KEPT if age_ms_max >= 0 else -1
        try:
            if start > self.max_txid + 1:
                self._begin_at(start)
            dropped = [one for one in self._segments[1 : DROPPED_MAX + 1] if one.first <= start]
            if dropped:
                self._note_first(dropped[-1].first)
            for _ in dropped:
                self._segments.pop(0).remove()
        except OSError as error:
            self.fault = f"old transactions cannot be dropped: {error}; check the disk, then restart the storage node"
            raise
        wanted = max(first_by_size(self._segments, bytes_max), first_by_age(self._segments, age_ms_max, self._clock))
        return Kept(self.first, self.max_txid, wanted, self.size)

    def _note_first(self, first: int) -> None:
        """Say durably that what is below may be missing: else a file that somebody has lost would look like a trim."""
        names = [name for name in self._folder.names() if name.endswith(FIRST)]
        if f"{first:019d}{FIRST}" not in names:
            self._folder.create(f"{first:019d}{FIRST}").close()
            self._folder.sync()
        for name in names:
            if int(name[:19]) < first:
                self._folder.remove(name)

    def _begin_at(self, start: int) -> None:
        """Give up what is here, which is committed and dropped elsewhere; a crash on the way leaves a part of it."""
        self.mark = -1
        self._write_mark()
        self._directory.sync_marks()
        self._note_first(start)
        while self._segments:
            self._segments.pop().remove()
        self._segments.append(self._segment(start))
        self.mark = start - 1
        self._write_mark()
        self._directory.sync_marks()

    def _is_old(self, segment: Segment) -> bool:
        """Whether it has served for its time, or was made at a time that is still to come, which says nothing."""
        age_ms = self._clock.ms(segment.created_ms) - segment.created_ms
        return self._segment_ms >= 0 and not 0 <= age_ms <= self._segment_ms

    def _segment(self, first: int, *, found: bool = False) -> Segment:
        """Make a segment, or open one that was ``found``; the time of a new one is not before that of the last."""
        now = self._clock.ms(self._segments[-1].created_ms if self._segments else 0)
        return Segment(self._folder, first, self._key, self.number, now, found=found)

    def set_info(self, info: SessionInfo) -> None:
        """Make the records durable, then the session."""
        self.sync()
        with self._syncing():
            self._segments[-1].sync_index()
        self._directory.sync_marks()
        with self._syncing():
            self._control.put(info.session, info.lwm, info.local_lwm, self._flags)
        self.info = info

    def set_available(self, available: bool) -> None:
        """Let the partition be used, or not, durably."""
        self._flags = self._flags & ~layout.FLAG_AVAILABLE | (layout.FLAG_AVAILABLE if available else 0)
        self._control.put(self.info.session, self.info.lwm, self.info.local_lwm, self._flags)

    def give_up(self, *, delete_files: bool) -> None:
        """Forget that the partition was here; it is not to be used any more."""
        self._flags = layout.FLAG_AVAILABLE
        self._forget_session()
        self.mark, self._damaged_from = -1, layout.SOUND
        self._write_mark()
        self._directory.sync_marks()
        self.close()
        if delete_files:
            self._remove_files()

    def _forget_session(self) -> None:
        for _ in range(2):  # both places, as in a fresh control file
            self._control.put(-1, -1, -1, self._flags)
        self.info = SessionInfo()

    def _remove_files(self) -> None:
        """The last ones first: what a crash leaves has no gap."""
        for name in sorted(self._folder.names(), reverse=True):
            self._folder.remove(name)
        self._folder.sync()

    def read(self, txid: int, count: int) -> list[Record]:
        """Return records from ``txid`` on, as many as fit one message, up to what is damaged.

        If that is ``txid`` itself, the partition is unavailable from now on; raises ``Damaged``.
        """
        try:
            return self._read(txid, count)
        except Damaged as error:
            if not self.fault or self.state is CopyState.REBUILDING:
                self._damage(txid, str(error))
                self._directory.sync_marks()
            raise Damaged(f"transaction {txid}: {error}", txid) from error

    def scrub(self, txid: int, size: int) -> int:
        """Check about ``size`` bytes from ``txid`` on, with files and index; return what follows, -1 at the end.

        What is damaged makes the partition unavailable from now on, as with ``read``.
        """
        if not self.available:
            return -1
        segment = next((one for one in reversed(self._segments) if one.first <= txid), self._segments[0])
        try:
            following = segment.check(max(txid, segment.first), size)
        except (Damaged, OSError) as error:
            if getattr(error, "errno", None) not in LACKING:  # else it says nothing of the disk
                self._damage(error.txid if isinstance(error, Damaged) else txid, str(error))
                self._directory.sync_marks()
            return -1
        return following if following <= self.max_txid or segment is not self._segments[-1] else -1

    def rebuild(self) -> None:
        """Give up all records and the session, durably, and begin empty: to be copied again.

        Whatever a crash on the way leaves counts as damaged, until the mark says that it is being rebuilt.
        """
        if self.state is CopyState.REBUILDING:
            self._damage(self.first, "what was copied is not what the others have")
        if self.state is not CopyState.DAMAGED:
            raise Damaged(self.fault)
        self.mended = self.fault
        now = self._clock.ms()
        self._rebuilds = 1 + (self._rebuilds if now - self._rebuilt_ms < REBUILT_MS else 0)
        self._rebuilt_ms = now
        try:
            self._directory.sync_marks()
            self._forget_session()
            for segment in self._segments:
                segment.close()
            self._segments.clear()
            self._remove_files()
            self._segments.append(self._segment(0))
        except (OSError, Damaged) as error:
            self.fault = f"{_DAMAGED}, and it cannot be given up: {error}"
            raise
        self.mark, self._damaged_from, self.fault = -1, layout.REBUILDING, _REBUILT
        self._write_mark()
        self._directory.sync_marks()

    def rebuilt(self) -> None:
        """What was copied since is verified: that is durable before the partition is available."""
        self.sync()
        self._damaged_from = layout.SOUND
        self._write_mark()
        self._directory.sync_marks()
        self.fault = ""

    def _read(self, txid: int, count: int) -> list[Record]:
        segment = next((one for one in reversed(self._segments) if one.first <= txid), None)
        return segment.read(txid, count) if segment is not None else []

    def close(self) -> None:
        """Close all files."""
        for segment in self._segments:
            segment.close()

    def _recover(self) -> None:
        names = [name for name in self._folder.names() if name.endswith(".seg") and len(name) == 23]
        for name in self._folder.names():
            if name.endswith(".idx") and f"{name[:-4]}.seg" not in names:  # the power went while both were removed
                self._folder.remove(name)
        firsts = sorted(int(name[:19]) for name in names) or [0]
        noted = max((int(name[:19]) for name in self._folder.names() if name.endswith(FIRST)), default=0)
        if firsts[0] > noted:
            raise Damaged(f"the first segment there is begins with {firsts[0]}", noted)
        for first in firsts:
            if self._segments and first != self.max_txid + 1:
                raise Damaged(f"segment {first} does not follow transaction {self.max_txid}")
            segment = self._segment(first, found=True)
            self._segments.append(segment)
            fault = segment.recover(self.info.local_lwm)
            torn = segment.last >= self.mark and first == firsts[-1]
            if fault and not torn:
                raise Damaged(f"{fault}, behind transaction {segment.last}")
        if self.max_txid < self.mark:
            raise Damaged(f"the log ends at {self.max_txid}, but transactions up to {self.mark} were acknowledged")
        self._segments[-1].settle(self.mark)
        if self._damaged_from == layout.REBUILDING:
            self.fault = _REBUILT
        elif self._damaged_from != layout.SOUND:
            self._look_again(self._damaged_from)
        if not self._damaged_from >= 0 and self.max_txid > self.mark:
            self.mark = self.max_txid
            self._write_mark()

    def _look_again(self, txid: int) -> None:
        """Judge what a read found damaged in a former life: somebody may have put the right file there."""
        try:
            self._read(txid, 1)
        except Damaged as error:
            self._damage(txid, str(error))
        else:
            self._damaged_from = layout.SOUND
            self._write_mark()

    def _damage(self, txid: int, fault: str) -> None:
        self.fault = f"{_DAMAGED} {txid} on: {fault}"
        if self._rebuilds >= REBUILDS_MAX:
            self.fault += f"; it was copied anew {self._rebuilds} times, each within a day: replace the disk"
        self._damaged_from = txid
        self._directory.found_damaged += 1
        self._write_mark()

    def _write_mark(self) -> None:
        self.mark_slots.write(self.fence, self.mark, self._damaged_from)

"""Log, checkpoints and metadata of one instance in files (docs/specs/ambrosia.md 12, 13, 17.4).

Everything stands on ``pavane.wal.Folder``, so that the same code runs on a disk and on its twin in memory. Methods
block until what they wrote is on stable storage; an ``OSError`` of an append means that nobody knows what is there, and
the process must end (10).
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pavane.ambrosia.effects import (
    Append,
    BeginCheckpoint,
    CheckpointBytes,
    CreateLog,
    EndCheckpoint,
    Storage,
    StoreMeta,
)
from pavane.ambrosia.errors import Fatal, FatalError, LogDamaged, Reason, Superseded
from pavane.ambrosia.state import Meta, Progress
from pavane.ambrosia.tenure import Tenure, read_number
from pavane.ambrosia.wire.files import CheckpointHead
from pavane.ambrosia.wire.limits import HEAD_BYTES_MAX, MIB
from pavane.ambrosia.wire.primitives import Cursor, i32
from pavane.ambrosia.wire.records import LogRecord
from pavane.wal.files import File, Folder, read_file, replace_file, write_again
from pavane.wire import RemoteProtocolError

LOG = "serverlog"
CHECKPOINT = "serverchkpt"
END = ".end"  # of a log that a writer may still hold who stood still: how much of it counts
READ_BYTES = MIB  # of a log at a time
HEAD_READ_BYTES = MIB
SOME_BYTES = MIB  # of a replay between two looks at the application
TenureOf = Callable[[Folder, str, int], Tenure]
"""Makes the tenure of an instance's folder, by its name and generation."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the registry knows of an instance; ``version`` counts its changes."""

    meta: Meta = field(default_factory=Meta)
    address: str = ""
    process: str = ""
    since: str = ""
    generation: int = 0
    log: str = ""
    registration: dict[str, str] = field(default_factory=dict)  # options of 16.2
    version: int = 0


class Registry:
    """Rows of instances in one folder that the coordinators of a host share."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def load(self, instance: str) -> Row:
        """Return the row, an empty one for a new instance; ``FatalError`` when it cannot be read."""
        data = read_file(self._folder, file_name(instance))
        if data is None:
            return Row()
        try:
            found = json.loads(data)
            meta = found.pop("meta")
            lists = {name: tuple(meta[name]) for name in ("connections", "met") if name in meta}
            return Row(Meta(**{**meta, **lists}), **found)
        except (ValueError, KeyError, TypeError) as error:
            text = f"the registry's {file_name(instance)} cannot be read: {error}; restore it or remove the instance"
            raise FatalError(Fatal.CHECKPOINT, text) from error

    def store(self, instance: str, row: Row, *, seen: int) -> Row:
        """Replace the row if it is still the one of version ``seen``; ``Superseded`` if it is not."""
        current = self.load(instance)
        if current.version != seen:
            raise Superseded(f"the registry's row of {instance} was changed by {current.process}")
        row = replace(row, version=seen + 1)
        meta = row.meta
        names = ("address", "process", "since", "generation", "log", "registration", "version")
        fields = {name: getattr(row, name) for name in names}
        shown = {name: getattr(meta, name) for name in ("current_version", "last_checkpoint", "last_log")}
        backup = {"restored": meta.restored, "made": meta.made, "met": list(meta.met)} if meta.restored else {}
        data = {"meta": {**shown, "connections": list(meta.connections), **backup}, **fields}
        replace_file(self._folder, file_name(instance), json.dumps(data, indent=1).encode())
        return row


def file_name(instance: str) -> str:
    """Return the file of an instance; what is no plain character is percent-encoded."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else f"%{ord(c):x}" for c in instance)
    return f"{plain}.json"


class LogReader:
    """Records of one log file in order; also of a file that grows meanwhile."""

    def __init__(self, folder: Folder, number: int) -> None:
        try:
            self._file = folder.open(f"{LOG}{number}")
        except FileNotFoundError as error:
            raise LogDamaged(f"{folder}/{LOG}{number} is missing; restore it from a copy") from error
        self.number = number
        self._end = read_number(folder, f"{LOG}{number}{END}")
        self.offset = 0  # of the next record
        self._start = 0  # of the bytes at hand
        self._bytes = b""

    def read(self) -> LogRecord | None:
        """Return the next record, ``None`` where no whole and valid one stands; it may stand there later."""
        wanted = READ_BYTES
        while True:
            cursor = Cursor(memoryview(self._bytes)[self.offset - self._start :])
            try:
                if not cursor.remaining:
                    raise RemoteProtocolError(Reason.SHORT, "end of what was read")
                record = LogRecord.decode(cursor)
            except RemoteProtocolError:
                # Perhaps it is not all there: the beginning of this record with more behind it tells.
                held = len(self._bytes) - (self.offset - self._start)
                self._bytes = self._file.read(self.offset, min(held + wanted, self.size - self.offset))
                self._start = self.offset
                if len(self._bytes) <= held:
                    return None
                wanted *= 2
                continue
            self.offset += cursor.position
            return record

    def later(self, committer: int, seq: int) -> int | None:
        """Return the offset of a whole record of at least ``seq`` behind the next one, ``None`` if there is none."""
        data = self._file.read(self.offset, self.size - self.offset)
        mark = i32(committer)
        at = data.find(mark, 1)
        while at >= 0:
            try:
                record = LogRecord.decode(Cursor(memoryview(data)[at:]))
            except RemoteProtocolError:
                record = None
            if record is not None and record.committer == committer and record.seq >= seq:
                return self.offset + at
            at = data.find(mark, at + 1)
        return None

    @property
    def size(self) -> int:
        """Bytes in the file now that count."""
        return self._file.size if self._end is None else min(self._file.size, self._end)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class Replay:
    """All records behind a checkpoint, over the files in order (13).

    ``last_log`` may be raised while a primary writes. A damaged record that had a successor raises ``LogDamaged``.
    """

    def __init__(self, folder: Folder, number: int, last_log: int, progress: Progress) -> None:
        self.last_log = last_log
        self.bytes_read = 0
        self._folder = folder
        self._progress = progress
        self._reader = LogReader(folder, number)
        self._any = False  # whether this file had a valid record
        self.last = 0
        """Where the last record of this log begins; where the next one would while there is none."""

    @property
    def number(self) -> int:
        """The log that is being read."""
        return self._reader.number

    @property
    def offset(self) -> int:
        """Where the next record of this log would begin."""
        return self._reader.offset

    def next(self) -> LogRecord | None:
        """Return the next record, ``None`` at the end of what there is."""
        while True:
            start = self._reader.offset
            record = self._reader.read()
            if record is not None:
                refused = self._progress.refuses(record)
                if refused is None:
                    self._any, self.last = True, start
                    self._progress.advance(record)
                    self.bytes_read += self._reader.offset - start
                    return record
                if not self._any and refused == Reason.SEQUENCE and record.seq < self._progress.next_seq:
                    continue  # the checkpoint has a lower number than the log that it belongs to
                self._reader.offset = start
            if self._reader.number >= self.last_log:
                return None
            self._next_file()

    def some(self, check: Callable[[], None] | None = None) -> tuple[list[LogRecord], bool]:
        """Return the next records of about SOME_BYTES, once ``check`` raised nothing, and whether more may come."""
        records: list[LogRecord] = []
        end = self.bytes_read + SOME_BYTES
        more = True
        while more and self.bytes_read < end:
            record = self.next()
            more = record is not None
            if record is not None:
                records.append(record)
        if check is not None:
            check()
        return records, more

    @property
    def behind_bytes(self) -> int:
        """Bytes of the file that is being read that were not read yet; of later files it knows nothing."""
        return max(0, self._reader.size - self._reader.offset)

    def finish(self) -> None:
        """Nobody writes any more: judge the tail; ``LogDamaged`` when acknowledged records stand behind it."""
        self._judge()

    def _next_file(self) -> None:
        self._judge()
        number = self._reader.number + 1
        following = LogReader(self._folder, number)
        self._reader.close()
        self._reader = following
        self._any, self.last = False, 0
        first = following.read()
        following.offset = 0
        if first is not None and first.seq > self._progress.next_seq and first.committer == self._progress.committer:
            text = f"{self._folder}/{LOG}{number} begins with record {first.seq}"
            raise LogDamaged(f"{text}; record {self._progress.next_seq} is missing; restore it from a copy")

    def _judge(self) -> None:
        later = self._reader.later(self._progress.committer, self._progress.next_seq)
        if later is not None:
            name = f"{self._folder}/{LOG}{self._reader.number}"
            text = f"{name}: record {self._progress.next_seq} at offset {self._reader.offset} is damaged"
            raise LogDamaged(f"{text}, a whole record follows at {later}; restore the file from a copy")

    def close(self) -> None:
        """Release the file."""
        self._reader.close()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instance keeps its files and its row, and how a process gets the right to write there."""

    folder: Folder
    registry: Registry
    tenure: TenureOf = Tenure


@dataclass(slots=True)
class _Checkpoint:
    file: File
    digest: "hashlib._Hash"
    head: CheckpointHead
    size: int


class FileStore:
    """The files of one instance, for its one writer; ``carry_out`` does what a coordinator's effects ask."""

    def __init__(
        self, folder: Folder, registry: Registry, instance: str, generation: int = 0, tenure: TenureOf = Tenure
    ) -> None:
        self.folder = folder
        self.tenure = tenure(folder, instance, generation)
        self._registry = registry
        self._instance = instance
        self._row = registry.load(instance)
        self.tenure.restored = self._row.meta.restored
        self._log: File | None = None
        self._checkpoint: _Checkpoint | None = None

    @property
    def row(self) -> Row:
        """The registry's row as last read or written."""
        return self._row

    def refresh(self) -> Meta:
        """Read the metadata again, as a follower does."""
        self._row = self._registry.load(self._instance)
        return self._row.meta

    def lock(self, process: str, address: str) -> Meta:
        """Become the writer; ``FatalError`` 4 while another process is. Raises as ``Tenure.check``."""
        try:
            self.tenure.take()
        except BlockingIOError as error:
            row = self._registry.load(self._instance)
            text = f"instance {self._instance} is already running: process {row.process} since {row.since}"
            raise FatalError(Fatal.STORAGE, text) from error
        with self.tenure.turn():
            self.refresh()
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            row = replace(
                self._row,
                process=process,
                address=address,
                since=since,
                generation=self.tenure.generation,
                log=str(self.folder),
            )
            self._row = self._registry.store(self._instance, row, seen=self._row.version)
        return self._row.meta

    def finish(self, replay: Replay) -> None:
        """Judge the end of what was replayed, and let nobody read more of that log, whatever comes of its old writer.

        Raises ``LogDamaged``, and ``FatalError`` 4 if another process found an earlier end.
        """
        replay.finish()
        name = f"{LOG}{replay.number}"
        file = self.folder.open(name)
        try:
            if not self.folder.needs_loop:  # a partition has no cache of the kernel's that could lie
                write_again(file, replay.last, replay.offset)
            file.sync()  # who wrote the last record may have ended before this
        finally:
            file.close()
        if not self.tenure.term:
            return
        with self.tenure.turn():
            end = read_number(self.folder, name + END)
            if end is None:
                replace_file(self.folder, name + END, str(replay.offset).encode())
            elif end < replay.offset:
                raise FatalError(Fatal.STORAGE, f"{self.folder}/{name} ended at {end} meanwhile: start again")

    def carry_out(self, effect: Storage) -> None:
        """Do it and return when it is durable; ``Superseded`` means that it must not be acknowledged."""
        match effect:
            case Append(parts=parts):
                if self._log is None:
                    raise AssertionError("append before a log was created")
                self._log.append(parts)
                self._log.sync()
                self.tenure.check()
            case CheckpointBytes(data):
                self._write_checkpoint(data)
            case _:
                with self.tenure.turn():
                    self._change(effect)

    def _change(self, effect: Storage) -> None:
        match effect:
            case CreateLog(number):
                self._create_log(number)
            case StoreMeta(meta):
                self._row = self._registry.store(self._instance, replace(self._row, meta=meta), seen=self._row.version)
            case BeginCheckpoint(number, head):
                self._begin_checkpoint(number, head)
            case EndCheckpoint(number):
                self._end_checkpoint(number)

    def _create_log(self, number: int) -> None:
        name = f"{LOG}{number}"
        if name in self.folder.names():  # left by a crash before the metadata named it
            self.folder.rename(name, f"{name}.stale-{time.time_ns()}")
        if self._log is not None:
            self._log.close()
        self._log = self.folder.create(name)
        self._log.sync()
        self.folder.sync()

    def _begin_checkpoint(self, number: int, head: CheckpointHead) -> None:
        name = f"{CHECKPOINT}{number}.tmp"
        if name in self.folder.names():
            self.folder.remove(name)
        self._checkpoint = _Checkpoint(self.folder.create(name), hashlib.sha256(), head, 0)
        self._write_checkpoint(head.encode())

    def _write_checkpoint(self, data: bytes) -> None:
        if self._checkpoint is None:
            raise AssertionError("bytes of no checkpoint")
        self._checkpoint.file.append([data])
        self._checkpoint.digest.update(data)
        self._checkpoint.size += len(data)

    def _end_checkpoint(self, number: int) -> None:
        made, self._checkpoint = self._checkpoint, None
        if made is None:
            raise AssertionError("the end of no checkpoint")
        made.file.sync()
        made.file.close()
        info = {
            "sha256": made.digest.hexdigest(),
            "bytes": made.size,
            "next_seq": made.head.next_seq,
            "generation": self.tenure.generation,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        name = f"{CHECKPOINT}{number}"
        replace_file(self.folder, f"{name}.info", json.dumps(info).encode())
        self.folder.rename(f"{name}.tmp", name)
        self.folder.sync()

    def close(self) -> None:
        """Release files and the lock."""
        if self._checkpoint is not None:
            self._checkpoint.file.close()
            self._checkpoint = None
        if self._log is not None:
            self._log.close()
            self._log = None
        self.tenure.release()


class CheckpointReader:
    """A checkpoint file: ``head``, and the application's bytes by ``blob``. ``check`` the whole file first."""

    def __init__(self, folder: Folder, number: int, *, check: bool = True) -> None:
        name = f"{CHECKPOINT}{number}"
        try:
            self._file = folder.open(name)
        except FileNotFoundError as error:
            raise FatalError(Fatal.CHECKPOINT, f"{folder}/{name} is missing; restore it from a copy") from error
        try:
            if check:
                self._verify(folder, name)
            self.head, self._start = self._read_head(f"{folder}/{name}")
            if self._file.size < self._start + self.head.size:
                raise FatalError(Fatal.CHECKPOINT, f"{folder}/{name} ends early; restore it from a copy")
        except FatalError:
            self._file.close()
            raise

    def _verify(self, folder: Folder, name: str) -> None:
        info = read_file(folder, f"{name}.info")
        if info is None:
            return
        digest = hashlib.sha256()
        for chunk in self._chunks(0, self._file.size):
            digest.update(chunk)
        try:
            wanted = json.loads(info)["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise FatalError(Fatal.CHECKPOINT, f"{folder}/{name}.info cannot be read: {error}") from error
        if digest.hexdigest() != wanted:
            text = f"{folder}/{name} is damaged: its SHA-256 is not that of {name}.info; restore it from a copy"
            raise FatalError(Fatal.CHECKPOINT, text)

    def _read_head(self, name: str) -> tuple[CheckpointHead, int]:
        size = HEAD_READ_BYTES
        while True:
            data = self._file.read(0, size)
            try:
                return CheckpointHead.decode(data)
            except RemoteProtocolError as error:
                if len(data) < size or size > HEAD_BYTES_MAX:
                    raise FatalError(Fatal.CHECKPOINT, f"{name} cannot be read: {error}") from error
            size *= 4

    def blob(self) -> Iterator[bytes]:
        """Return the application's bytes in pieces."""
        return self._chunks(self._start, self._start + self.head.size)

    def _chunks(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            chunk = self._file.read(start, min(READ_BYTES, end - start))
            if not chunk:
                return
            start += len(chunk)
            yield chunk

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def instance_folder(log: str, name: str, version: int) -> Path:
    """Return where an instance of this version has its files."""
    return Path(f"{log}{name}_{version}")


def last_log(folder: Folder) -> int:
    """Return the greatest number of a log file in ``folder``."""
    numbers = [name.removeprefix(LOG) for name in folder.names() if name.startswith(LOG)]
    return max((int(text) for text in numbers if text.isdigit()), default=0)

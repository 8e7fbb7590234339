"""The files of an immortal on one partition of a log (docs/specs/ambrosia.md 14.8).

A transaction holds changes of files. Each process follows the partition's feed and makes the same changes in a folder
of its own, the mirror, which it reads; what it writes is in no file before it came back in the feed. Who takes over
writes a lock that every other change reads, so the log itself refuses what a writer that was overtaken still sends.
"""

import asyncio
import errno
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from pavane.ambrosia.errors import Fatal, FatalError
from pavane.ambrosia.storage import CHECKPOINT, LOG, Place, Registry
from pavane.ambrosia.tenure import FENCE, TERM, Tenure, read_fence, read_number
from pavane.pods import consumers
from pavane.runtime.certificates import client_of
from pavane.wal.files import Buffer, DiskFile, DiskFolder, Folder, read_file
from pavane.waltz.client import Transaction, View, Waltz, WaltzError

_logger = logging.getLogger(__name__)

ENTRY = 0x414D4231  # header of our transactions
LOCK = ("ambrosia.log", 0)
PIECE_BYTES = 4 << 20  # of one transaction: a record beyond takes several, and counts when it is whole
Change = list[Any]
"""``create NAME``, ``append NAME BYTES``, ``write NAME BYTES``, ``rename NAME NAME``, ``remove NAME``."""


def client(folder: Path) -> Waltz:
    """Return a client of the log whose Secret is in ``folder``."""
    return Waltz((folder / "servers").read_text(encoding="utf-8").split(), tls=client_of(folder))


class PartitionFolder(DiskFolder):
    """The files of one instance; ``owner`` names it: no other one may use the partition.

    ``async with`` connects, and returns when the mirror holds all that the partition had. Methods that write block
    until it is done, and must not be called on the event loop. They raise ``OSError`` when the log is not there, what
    the tenure's ``check`` raises for who was overtaken, and ``FatalError`` 4 on a partition that holds anything else.
    """

    needs_loop = True

    def __init__(self, log: Waltz, partition: int, mirror: Path, owner: str) -> None:
        shutil.rmtree(mirror, ignore_errors=True)  # what a former process had read
        super().__init__(mirror)
        self._mirror = DiskFolder(mirror)
        self._log = log
        self._partition = partition
        self._owner = owner
        self._stack = AsyncExitStack()
        self._from = 0
        """Where a reader begins who wants the last checkpoint and what follows."""
        self._logs: dict[int, int] = {}  # where each log file begins
        self._check: Callable[[], None] | None = None  # of the writer
        self._consumer = log.consumer(consumers.of_immortal(owner))
        self._kept = -1
        """Where the partition begins, by the last transaction that says so."""
        self._trimming: asyncio.Task[None] | None = None
        self._changes: list[Change] = []
        self._payload = bytearray()
        self._loop: asyncio.AbstractEventLoop
        self._view: View

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await self._stack.enter_async_context(self._log)
            end = await self._log.hwm(self._partition)
            if end >= 0:
                told = self._decode(await self._log.get(self._partition, end))[0]["from"]
                # It may be of one who had not seen the last checkpoint; nobody trims beyond that.
                self._from = max(told, await self._log.start(self._partition))
            view = self._log.view(self._partition, self._apply, from_=self._from)
            self._view = await self._stack.enter_async_context(view)
            await self._view.wait(end)
        except BaseException:
            with suppress(FatalError, OSError, WaltzError):
                await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
            await asyncio.wait([self._trimming])
        with suppress(FatalError, OSError, WaltzError):  # who waited for the view has it already
            await self._stack.aclose()

    # --- what the store calls -------------------------------------------------------------------------------------

    def create(self, name: str) -> "PartitionFile":
        """Make an empty file. With a log file comes all that a reader needs who begins with it."""
        self._changes.append(["create", name])
        self._flush(with_small_files=_log_number(name) is not None)
        return self.open(name)

    def open(self, name: str) -> "PartitionFile":
        """Open a file."""
        return PartitionFile(self, self._path / name)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file."""
        self._changes.append(["rename", name, new_name])

    def remove(self, name: str) -> None:
        """Take a name away."""
        self._changes.append(["remove", name])

    def append(self, name: str, data: Buffer) -> None:
        """Add to a file's end."""
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if len(self._payload) + len(piece) > PIECE_BYTES:
                self._flush()
            self._changes.append(["append", name, len(piece)])
            self._payload += piece

    def sync(self) -> None:
        """Return when all changes are in the log and have come back."""
        self._flush()

    def alive(self) -> None:
        """Raise what has ended the feed, if anything did."""
        self._wait(self._view.wait(-1))

    def take(self, build: Callable[[], tuple[str, bytes] | None], check: Callable[[], None] | None) -> None:
        """Write the small file that ``build`` names, in one moment, and refuse what others had not read by then.

        ``check`` is asked before each later change; what was left of the writer before is dropped.
        """

        def built() -> bytes | None:
            found = build()
            return None if found is None else self._encode([["write", found[0], len(found[1])]], found[1])

        self._commit(built, write=(LOCK,))
        if check is not None:
            self._check = check
            self._changes, self._payload = [], bytearray()

    # --- the log --------------------------------------------------------------------------------------------------

    def _flush(self, *, with_small_files: bool = False) -> None:
        if not self._changes:
            return
        changes, payload = self._changes, bytes(self._payload)
        self._changes, self._payload = [], bytearray()

        def build() -> bytes:
            if self._check is None:
                raise OSError(errno.EPERM, "this process is not the writer")
            self._check()
            small = self._small_files() if with_small_files else []
            writes: list[Change] = [["write", name, len(data)] for name, data in small]
            return self._encode([*writes, *changes], b"".join(data for _, data in small) + payload)

        self._commit(build, read=(LOCK,))

    def _small_files(self) -> list[tuple[str, bytes]]:
        names = [name for name in self.names() if not name.startswith((LOG, CHECKPOINT))]
        return [(name, read_file(self._mirror, name) or b"") for name in names]

    def _commit(self, build: Callable[[], bytes | None], **locks: Sequence[tuple[str, int]]) -> None:
        self._wait(self._view.transact(build, header=ENTRY, **locks))

    def _wait(self, work: Any) -> None:
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except WaltzError as error:
            text = f"partition {self._partition} of {self._log.cluster}: {error}"
            raise OSError(errno.EIO, text, str(self)) from error

    def _encode(self, changes: list[Change], payload: bytes) -> bytes:
        head = {"of": self._owner, "from": self._from, "do": changes}
        return json.dumps(head).encode() + b"\n" + payload

    def _decode(self, transaction: Transaction) -> tuple[dict[str, Any], bytes]:
        head, _, payload = transaction.data.partition(b"\n")
        try:
            found = json.loads(head) if transaction.header == ENTRY else {}
        except ValueError:
            found = {}
        if found.get("of") != self._owner:
            whose = f"of {found['of']}" if "of" in found else "not of an immortal"
            text = f"transaction {transaction.id} of partition {self._partition} of {self._log.cluster} is {whose}"
            raise FatalError(Fatal.STORAGE, f"{text}, not of {self._owner}: give it a partition of its own")
        return found, payload

    def _apply(self, transaction: Transaction) -> None:
        head, payload = self._decode(transaction)
        if self._check is not None and head["from"] > self._kept:
            self._kept = head["from"]
            if self._trimming is None or self._trimming.done():
                self._trimming = asyncio.create_task(self._trim(), name="trim behind the checkpoint")
        at = 0
        for verb, name, *more in head["do"]:
            data = b""
            if verb in ("append", "write"):
                data = payload[at : at + more[0]]
                at += more[0]
            # Who began with the last checkpoint does not have the files before it.
            with suppress(FileNotFoundError):
                self._change(verb, name, more, data)
            if (number := _log_number(name)) is not None and verb == "create":
                self._logs[number] = transaction.id

    async def _trim(self) -> None:
        """Give up what is before the last checkpoint, now that the end of the log says where it is."""
        start = -1
        while start < self._kept:  # another one may have come meanwhile
            start = self._kept
            try:
                await self._consumer.start(self._partition, start)
                await self._consumer.commit(self._partition, start - 1)
                await self._log.trim(self._partition, start)
            except WaltzError as error:  # with the next checkpoint, then
                _logger.warning("partition %d keeps what is before the checkpoint: %s", self._partition, error)

    def _change(self, verb: str, name: str, more: list[Any], data: bytes) -> None:
        match verb:
            case "create":
                if name in self._mirror.names():
                    self._mirror.remove(name)
                self._mirror.create(name).close()
            case "append":
                self._add(self._mirror.open(name), data)
            case "write":
                self._add(self._mirror.create(f"{name}.new"), data)
                self._mirror.rename(f"{name}.new", name)
            case "rename":
                self._mirror.rename(name, more[0])
                if more[0].endswith(".json"):  # the registry's row
                    row = json.loads(read_file(self._mirror, more[0]) or b"{}")
                    self._from = self._logs.get(row["meta"]["last_checkpoint"], self._from)
            case "remove":
                self._mirror.remove(name)

    @staticmethod
    def _add(file: DiskFile, data: bytes) -> None:
        try:
            file.append([data])
        finally:
            file.close()


class PartitionFile(DiskFile):
    """A file that is read from the mirror and written to the partition."""

    def __init__(self, folder: PartitionFolder, path: Path) -> None:
        super().__init__(path, os.O_RDONLY)
        self._folder = folder
        self._name = path.name

    def append(self, parts: Sequence[Buffer]) -> None:
        """Add ``parts`` at the end."""
        for part in parts:
            self._folder.append(self._name, part)

    def overwrite(self, offset: int, data: Buffer) -> None:
        """Refuse: a log only grows."""
        raise io.UnsupportedOperation(f"{self._name} only grows")

    def truncate(self, size: int) -> None:
        """Refuse: a log only grows."""
        raise io.UnsupportedOperation(f"{self._name} only grows")

    def sync(self) -> None:
        """Return when what was added is in the log."""
        self._folder.sync()


class PartitionTenure(Tenure):
    """The right to write a partition. Whoever takes it has it at once; the one before learns it from the log."""

    def __init__(self, folder: PartitionFolder, instance: str, generation: int = 0) -> None:
        super().__init__(folder, instance, generation)
        self._files = folder
        self._held = False

    @property
    def held(self) -> bool:
        """Whether this process took the right."""
        return self._held

    def check_term(self) -> None:
        """Raise ``FatalError`` 4 if another process took the right; a follower does not mind who writes."""
        if self._held:
            super().check_term()

    def fence(self) -> None:
        """Stop every writer of a lower generation, for good."""

        def build() -> tuple[str, bytes] | None:
            fenced = read_fence(self._files) >= self.generation
            return None if fenced else (FENCE, str(self.generation).encode())

        self._files.take(build, None)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Change what every writer would change; the log refuses what comes too late. Raises as ``check``."""
        self.check()
        yield

    def take(self) -> None:
        """Become the writer. Raises ``Superseded`` if a greater generation may write."""
        self._held = False
        terms: list[int] = []

        def build() -> tuple[str, bytes]:
            self.check()
            terms.append((read_number(self._files, TERM) or 0) + 1)
            return TERM, str(terms[-1]).encode()

        self._files.take(build, self.check)
        self.term = terms[-1]
        self._held = True

    def beat(self) -> None:
        """Raise as ``check`` once this writer was overtaken, and when the log cannot be followed."""
        self._files.alive()
        self.check()

    def look(self) -> None:
        """Raise ``OSError`` once the log cannot be followed: what this process has not read yet was trimmed, say."""
        self._files.alive()

    def stands_still(self) -> bool:
        """Nobody has to look: the right is taken without asking."""
        return False

    def release(self) -> None:
        """Give the right up."""
        self._held = False


def _log_number(name: str) -> int | None:
    number = name.removeprefix(LOG)
    return int(number) if name.startswith(LOG) and number.isdigit() else None


def place(folder: PartitionFolder) -> Place:
    """Return ``folder`` as a coordinator wants it; the registry's row is in the partition, too."""

    def tenure(_: Folder, instance: str, generation: int) -> PartitionTenure:
        return PartitionTenure(folder, instance, generation)

    return Place(folder, Registry(folder), tenure)

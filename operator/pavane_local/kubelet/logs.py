"""Container logs: one set of files per run, rotated, followed without polling (docs/specs/operator.md 6.8.10).

A stored line is `<RFC 3339 time> <text>`.
"""

import asyncio
import contextlib
import datetime
import errno
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

FILE_BYTES_MAX = 10 * 1024 * 1024
FILES_MAX = 3
LINE_BYTES_MAX = 256 * 1024  # bounds what a line without end keeps in memory: a longer one becomes several


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What `pods/log` takes: lines from the end, times in front, follow."""

    follow: bool = False
    tail_lines: int | None = None
    timestamps: bool = False


class RunLog:
    """The log of one run of a container, written while it runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.open = True
        self.changed = asyncio.Event()  # set at the next write or the end; then there is another one
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._rest = b""
        self._lost = 0  # lines that a full disk did not take

    def feed(self, data: bytes) -> None:
        """Store what the container wrote, split into lines with the present time."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        if self._lost:
            lines.insert(0, b"(%d lines are missing here: the disk had no room for them)" % self._lost)
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
        data = b"".join(b"%s %s\n" % (stamp, line) for line in lines)
        try:
            self._write(data)
            self._lost = 0
        except OSError:  # the container goes on: it must not wait for a reader of its output
            self._lost += len(lines) - (self._lost > 0)
        self._wake()

    def _write(self, data: bytes) -> None:
        """Append all of it, or nothing and raise ``OSError``."""
        if self._size and self._size + len(data) > FILE_BYTES_MAX:
            scratch = self._path.with_name(f".{self._path.name}.new")
            fresh = scratch.open("ab", buffering=0)
            for number in range(FILES_MAX - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    _numbered(self._path, number - 1).replace(_numbered(self._path, number))
            scratch.replace(self._path)
            self._file.close()
            self._file, self._size = fresh, 0
        if self._file.write(data) < len(data):
            self._file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)

    def close(self) -> None:
        """End the run: an unfinished line is stored, followers end."""
        if self._rest:
            self.feed(b"\n")
        self._file.close()
        self.open = False
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


async def read(path: Path, options: LogOptions, live: RunLog | None = None) -> AsyncGenerator[bytes, None]:
    """Pieces of a run's log, to be sent as they are. With `follow`, until the run `live` ends."""
    numbered = [_numbered(path, number) for number in range(FILES_MAX - 1, -1, -1)]
    files = [each.open("rb") for each in numbered if each.exists()]
    try:
        stored: Iterable[bytes] = (line for file in files for line in file)
        if options.tail_lines is not None:
            stored = deque(stored, maxlen=options.tail_lines)
        while True:
            for line in stored:
                yield line if options.timestamps else line.partition(b" ")[2]
            if not options.follow or live is None or not files:
                return
            if not (stored := list(_fresh(path, files))):
                if not live.open:
                    return
                await live.changed.wait()  # nothing was awaited since the files were read, so no write is missed
    finally:
        for file in files:
            file.close()


def _fresh(path: Path, files: list[BufferedReader]) -> Iterator[bytes]:
    """Lines written since the last call, also over a rotation."""
    yield from files[-1]
    if path.exists() and path.stat().st_ino != os.fstat(files[-1].fileno()).st_ino:
        files.pop().close()
        files.append(path.open("rb"))
        yield from files[-1]


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path

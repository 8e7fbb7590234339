"""Container logs: one set of files per run, rotated, followed without polling (docs/specs/operator.md 6.8.10).

A stored line is `<RFC 3339 time> <F|P> <text>`; P marks a piece of a line that goes on in the next one.
"""

import asyncio
import datetime
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

FILE_BYTES_MAX = 10 * 1024 * 1024
FILES_MAX = 3
PIECE_BYTES_MAX = 16 * 1024  # what Kubernetes uses; bounds what a line without end keeps in memory

Pieces = AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What `pods/log` takes: lines from the end, the oldest time (aware), bytes in all, times in front, follow."""

    follow: bool = False
    tail_lines: int | None = None
    since: datetime.datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False


class RunLog:
    """The log of one run of a container, written while it runs."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.open = True
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._rest = b""
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Store what the container wrote, split into lines with the present time."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
        stored = []
        for line in lines:
            *pieces, last = _pieces(line)
            stored += [b"%s P %s\n" % (stamp, piece) for piece in pieces] + [b"%s F %s\n" % (stamp, last)]
        while len(self._rest) > PIECE_BYTES_MAX:
            stored.append(b"%s P %s\n" % (stamp, self._rest[:PIECE_BYTES_MAX]))
            self._rest = self._rest[PIECE_BYTES_MAX:]
        self._store(b"".join(stored))

    def close(self) -> None:
        """End the run: an unfinished line is stored, followers end."""
        if self._rest:
            self.feed(b"\n")
        self._file.close()
        self.open = False
        self._wake()

    async def changed(self) -> None:
        """Wait for the next write or the end."""
        await self._changed.wait()

    def _store(self, data: bytes) -> None:
        if not data:
            return
        if self._size and self._size + len(data) > FILE_BYTES_MAX:
            self._file.close()
            for number in range(FILES_MAX - 1, 0, -1):
                older = _numbered(self.path, number - 1)
                if older.exists():
                    older.replace(_numbered(self.path, number))
            self._file, self._size = self.path.open("ab", buffering=0), 0
        self._file.write(data)
        self._size += len(data)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def read(path: Path, options: LogOptions, live: RunLog | None = None) -> Pieces:
    """Pieces of a run's log, to be sent as they are. With `follow`, until the run `live` ends."""
    left = options.limit_bytes if options.limit_bytes is not None else float("inf")
    files = [number.open("rb") for i in range(FILES_MAX - 1, -1, -1) if (number := _numbered(path, i)).exists()]
    try:
        stored: Iterable[bytes] = (line for file in files for line in file)
        if options.tail_lines is not None:
            stored = deque(stored, maxlen=options.tail_lines)
        while True:
            for line in stored:
                if left <= 0:
                    return
                if text := _shown(line, options):
                    yield text[: int(min(left, len(text)))]
                    left -= len(text)
            if not options.follow or live is None or not files:
                return
            if not (stored := list(_fresh(path, files))):
                if not live.open:
                    return
                await live.changed()  # nothing was awaited since the files were read, so no write is missed
    finally:
        for file in files:
            file.close()


def _fresh(path: Path, files: list[BufferedReader]) -> Iterator[bytes]:
    """Lines written since the last call, also over a rotation."""
    yield from files[-1]
    if path.stat().st_ino != os.fstat(files[-1].fileno()).st_ino:
        files.pop().close()
        files.append(path.open("rb"))
        yield from files[-1]


def _pieces(line: bytes) -> list[bytes]:
    return [line[i : i + PIECE_BYTES_MAX] for i in range(0, len(line), PIECE_BYTES_MAX)] or [b""]


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _shown(line: bytes, options: LogOptions) -> bytes:
    stamp, whole, text = line.split(b" ", 2)
    if options.since is not None and datetime.datetime.fromisoformat(stamp.decode()) < options.since:
        return b""
    text = text if whole == b"F" else text[:-1]
    return stamp + b" " + text if options.timestamps else text

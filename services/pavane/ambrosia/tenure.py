"""Who may write an instance's files, and how a writer that stands still loses its right (docs/specs/ambrosia.md 14)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pavane.ambrosia.errors import Fatal, FatalError, Superseded
from pavane.wal.files import Folder, Lock, read_file, replace_file

LOCK = "server.lock"
FENCE = "serverkillFile"  # holds the generation that may write; every lower one stops
TERM = "server.term"  # how often a writer was overtaken because it stood still
BEAT = "server.beat"  # changes for as long as the writer lives
TURN = "server.turn"  # held for moments only
BEAT_BYTES = 8
STILL_LOOKS = 30  # looks at the beat in which it did not change: a busy machine delays them as it delays the writer
GENERATIONS_MAX = 1 << 20  # of what was made from one backup: its peers may have seen as many before
TURN_S = 5.0  # a turn is a few system calls and fsyncs
TURN_POLL_S = 0.005


def read_number(folder: Folder, name: str) -> int | None:
    """Return the number in a small file, ``None`` if there is no such file; ``FatalError`` 4 for anything else."""
    data = read_file(folder, name)
    try:
        return None if data is None else int(data)
    except ValueError as error:
        text = f"{folder}/{name} holds {data!r}, not a number; restore it from a copy"
        raise FatalError(Fatal.STORAGE, text) from error


def read_fence(folder: Folder) -> int:
    """Return the generation that may write, 0 if none took over yet."""
    return read_number(folder, FENCE) or 0


class Tenure:
    """The right of a process to write. ``term`` is the one in which it began; in a later one it has lost that right."""

    def __init__(self, folder: Folder, instance: str, generation: int = 0) -> None:
        self.generation = generation
        self.term = read_number(folder, TERM) or 0
        self.restored = 0
        """When the instance was made from a backup, in seconds since 1970; 0: it was not."""
        self._folder = folder
        self._instance = instance
        self._lock: Lock | None = None
        self._beats = 0
        self._seen: bytes | None = None
        self._looks = 0

    @property
    def held(self) -> bool:
        """Whether this process is the writer."""
        return self._lock is not None

    @property
    def token(self) -> tuple[int, int]:
        """What peers compare: they turn away a process that was overtaken, or that is older than a restore."""
        return self.restored * GENERATIONS_MAX + self.generation, self.term

    def check(self) -> None:
        """Raise ``Superseded`` if a greater generation may write, else as ``check_term``."""
        fence = read_fence(self._folder)
        if fence > self.generation:
            text = f"generation {fence} of {self._instance} took over from generation {self.generation}"
            raise Superseded(text)
        self.check_term()

    def check_term(self) -> None:
        """Raise ``FatalError`` 4 if the writer of this term was overtaken."""
        if (read_number(self._folder, TERM) or 0) > self.term:
            text = f"the process that wrote {self._instance} stood still, and another one took over"
            raise FatalError(Fatal.STORAGE, f"{text}: start this one again")

    def fence(self) -> None:
        """Stop every writer of a lower generation, for good."""
        if read_fence(self._folder) < self.generation:
            replace_file(self._folder, FENCE, str(self.generation).encode())

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Change what every writer would change: nobody overtakes this one inside. Raises as ``check``."""
        turn = self._take_turn()
        try:
            self.check()
            yield
        finally:
            turn.release()

    def _take_turn(self) -> Lock:
        until = time.monotonic() + TURN_S
        while True:
            try:
                return self._folder.lock(TURN)
            except BlockingIOError as error:
                if time.monotonic() > until:
                    text = f"a process that stands still holds {self._folder}/{TURN}: end it"
                    raise FatalError(Fatal.STORAGE, text) from error
                time.sleep(TURN_POLL_S)

    def take(self) -> None:
        """Become the writer; ``BlockingIOError`` while another process is. Raises as ``check``."""
        self.check()
        name = f"{LOCK}.{self.term}" if self.term else LOCK
        self._lock = self._folder.lock(name)
        with self.turn():
            names = self._folder.names()
            if BEAT not in names:
                file = self._folder.create(BEAT)
                file.append([bytes(BEAT_BYTES)])
                file.close()
            for old in names:
                if old.startswith(f"{LOCK}.") and old != name:  # of former terms, which nobody can lead any more
                    self._folder.remove(old)

    def beat(self) -> None:
        """Show that this writer lives; raises as ``check``."""
        self.check()
        self._beats += 1
        file = self._folder.open(BEAT)
        try:
            file.overwrite(0, self._beats.to_bytes(BEAT_BYTES, "little"))
        finally:
            file.close()

    def look(self) -> None:
        """Raise ``OSError`` if a follower cannot see any more what is written; in a folder it always can."""

    def stands_still(self) -> bool:
        """Look at the writer; whether it has shown no life for ``STILL_LOOKS`` looks."""
        seen = read_file(self._folder, BEAT)
        self._looks = self._looks + 1 if seen == self._seen else 0
        self._seen = seen
        return seen is not None and self._looks >= STILL_LOOKS

    def overtake(self) -> None:
        """Take the right from a writer that stands still, for good; then ``take`` it. Raises as ``check``."""
        with self.turn():
            replace_file(self._folder, TERM, str(self.term + 1).encode())
            self.term += 1
        self._looks = 0

    def release(self) -> None:
        """Give the right up."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

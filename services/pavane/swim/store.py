"""Where a member keeps its generation, so that it never starts with one that was used (docs/specs/swim.md 5.2)."""

from pathlib import Path

from pavane.swim.errors import ConfigError
from pavane.swim.wire.values import U32_MAX, NodeId
from pavane.wal.files import DiskFolder, replace_file

FILE = "generation"
_LOCK = "lock"
FILE_BYTES_MAX = 64  # two numbers and what separates them


class GenerationStore:
    """A folder with one small file, which one process at a time may use.

    ``last`` is what the file held when it was opened, ``None`` if there was none. Raises ``OSError``, and
    ``ConfigError`` for a folder that is in use or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = DiskFolder(path)
        try:
            self._lock = self._folder.lock(_LOCK)
        except BlockingIOError:
            raise ConfigError(f"{path} is in use by another member; give each a folder of its own") from None
        try:
            self.last = self._read()
        except BaseException:
            self._lock.release()
            raise

    def save(self, node: NodeId) -> None:
        """Make ``node`` durable; a crash leaves the old content or the new. Raises ``OSError``."""
        replace_file(self._folder, FILE, f"{node.id} {node.gen}\n".encode())

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.release()

    def _read(self) -> NodeId | None:
        if FILE not in self._folder.names():
            return None
        file = self._folder.open(FILE)
        try:
            words = file.read(0, FILE_BYTES_MAX).split()
        finally:
            file.close()
        if len(words) != 2 or not all(word.isdigit() and int(word) <= U32_MAX for word in words):
            raise ConfigError(f"{self._path / FILE} is no generation; remove it, and the clock decides")
        return NodeId(int(words[0]), int(words[1]))

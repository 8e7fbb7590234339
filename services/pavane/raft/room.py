"""What a peer's volume has left (docs/specs/raft.md 13.4)."""

import logging

from pavane.wal.files import Folder

_logger = logging.getLogger(__name__)

DISK_RESERVE_BYTES = 256 << 20  # left for what is under way, elections and compaction when updates are not taken
RESERVE_SHARE = 16  # of a small volume the reserve is this part: it would else be full when it is empty
CHECK_S = 1.0  # asking the file system costs more than an update


class Room:
    """Looks at the file system once in ``CHECK_S``. ``full`` says why no updates are taken, ``None`` if they are."""

    def __init__(self, folder: Folder) -> None:
        self.full: str | None = None
        self._folder = folder
        self._known_until = 0.0

    def check(self, now_s: float) -> bool:
        """Look again if it is time; says whether it was."""
        if now_s < self._known_until:
            return False
        self._known_until = now_s + CHECK_S
        had_room = self.full is None
        reserve = min(DISK_RESERVE_BYTES, self._folder.total_bytes() // RESERVE_SHARE)
        free = self._folder.free_bytes()
        text = f"the volume is full: {free >> 20} MiB are free, {reserve >> 20} MiB are kept for compaction"
        self.full = text if free < reserve else None
        if had_room and self.full:
            _logger.error("no more updates are taken: %s", text)
        return True

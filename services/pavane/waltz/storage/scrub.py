"""Reading all that a storage node keeps, a piece at a time, to find what has rotted before a reader does (12.6)."""

from pavane.waltz.storage.directory import Directory

SCRUB_PIECE_BYTES = 64 * 1024  # read at a time: appends wait for a piece at most
SCRUB_BYTES_PER_S = 2 * 1024 * 1024  # of one node: 10 GB in 1 h 20, and 4 % of its time with records of 100 bytes
SCRUB_PAUSE_S = 60.0  # between two passes, which on a small log would follow each other at once


class Scrub:
    """Where a node is in reading its partitions, one after the other."""

    def __init__(self, directory: Directory, piece_bytes: int = SCRUB_PIECE_BYTES) -> None:
        self._directory = directory
        self._piece = piece_bytes
        self._partition = self._txid = 0
        self.passes = 0
        """How often everything was read."""

    def step(self) -> None:
        """Check a piece; what is damaged is unavailable from then on. Raises ``OSError`` if the folder was emptied."""
        if not self._partition and not self._txid:
            self._directory.check_files()
        files = self._directory.partition(self._partition)
        following = files.scrub(self._txid, self._piece) if files is not None else -1
        self._txid = max(0, following)
        if following < 0:
            self._partition += 1
        if self._partition >= self._directory.partitions:
            self._partition = 0
            self.passes += 1

"""What an archive holds of one partition, as the partition's owner knows it (docs/specs/waltz.md 13.9)."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Self
from urllib.parse import quote
from uuid import UUID

_NAME = re.compile(r"(\d{19})-(\d{19})-([0-9a-f]{64})\.seg")


def folder_of(cluster: str, key: UUID) -> str:
    """Return the folder of a log below its archive's URL: a log that was made anew has another."""
    return f"{quote(cluster, safe='')}-{key.hex[:8]}"


class Piece(NamedTuple):
    """An object of the archive: transactions ``first`` to ``last``, and the SHA-256 of its bytes."""

    first: int
    last: int
    digest: str

    @property
    def name(self) -> str:
        """Its name in the partition's folder; the same transactions always have the same."""
        return f"{self.first:019d}-{self.last:019d}-{self.digest}.seg"

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the piece that has this name; ``None``: it is none, such as what an interrupted write left."""
        found = _NAME.fullmatch(name)
        piece = cls(int(found[1]), int(found[2]), found[3]) if found is not None else None
        return piece if piece is not None and piece.first <= piece.last else None


class Archived:
    """All transactions from ``first`` up to but not ``end``; nothing is ``known`` before the archive was listed.

    Pieces may overlap: two owners of a partition cut the same transactions differently.
    """

    def __init__(self) -> None:
        self.known = False
        self.first = self.end = 0
        self.fault = ""
        """Why the archive takes nothing now, for people."""
        self.faulty_since = 0.0
        self.faulty_ms = 0
        """The same as a date, in milliseconds since 1970; 0: it never was."""
        self.unread = ""
        """Why the archive did not give what was last read: that is no reason to archive nothing."""
        self.waits_since: float | None = None
        """When a transaction at the end was first seen."""
        self.counted_after = -1
        self.counted_bytes = 0
        """Data that had come up to ``counted_after``, or came later and is archived."""
        self._pieces: list[Piece] = []

    def listed(self, pieces: Iterable[Piece], start: int) -> None:
        """Take what is there: what is joined without a gap to the log, which begins with ``start``."""
        self.known = True
        self._begin(start)
        for piece in sorted(pieces, key=lambda piece: (piece.first, -piece.last)):
            if piece.first > max(start, self.end):
                break  # what lies between is in the log still, and not archived
            if not self._pieces or piece.first > self.end:
                self._begin(piece.first)
            self.add(piece)
        self.join(start)

    def add(self, piece: Piece) -> None:
        """Take a piece that begins no later than where the archive ends."""
        if piece.last >= self.end:
            self._pieces.append(piece)
            self.end = piece.last + 1

    def join(self, start: int) -> bool:
        """The log begins with ``start``: if the archive ends before, what it has cannot be read without a gap."""
        lacks = self.end < start
        if lacks:
            self._begin(start)
        return lacks

    def begins(self, start: int) -> int:
        """Return the first transaction that can be read of a log whose storage nodes begin with ``start``.

        As long as nothing is known that is 0: whoever asks is to ask again, and is not told that it is gone.
        """
        if not self.known:
            return 0
        return min(self.first, start) if self.end >= start else start

    def piece(self, txid: int) -> Piece | None:
        """Return a piece with this transaction."""
        if not self.first <= txid < self.end:
            return None
        return self._pieces[bisect_right(self._pieces, txid, key=lambda piece: piece.first) - 1]

    def pieces(self) -> tuple[Piece, ...]:
        """Return all pieces, in order."""
        return tuple(self._pieces)

    def _begin(self, first: int) -> None:
        self._pieces.clear()
        self.first = self.end = first

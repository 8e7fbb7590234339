"""What the core asks storage to make durable, and what storage found at start (docs/specs/raft.md 5.2, 13.2, 13.3).

Core and storage do not import each other; this module is the seam. Tickets grow by one per command. Storage executes
commands in order, may let several share one fsync, and reports the greatest ticket that is durable (``Stored``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pavane.raft.wire.snapshot import SnapshotHead, SnapshotMeta

RECOVERING_FLOOR = (1 << 64) - 1  # vote_floor of a peer that may neither vote nor answer yet (5.5)


@dataclass(frozen=True, slots=True)
class HardState:
    """Record 2: current term, the peer voted for in it ("" = nobody) and the greatest term never to vote in."""

    ticket: int
    term: int
    vote: str
    vote_floor: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """Record 1: ``entries`` (encoded as in 2.3) at ``first``, ``first + 1``, …; replaces equal and higher indices."""

    ticket: int
    first: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Record 3: forget every entry with an index above ``after``."""

    ticket: int
    after: int


@dataclass(frozen=True, slots=True)
class Note:
    """Record 6: a hint that may be lost without harm; it causes no fsync of its own."""

    ticket: int
    key: str
    value: int | str | bytes


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The next bytes of a snapshot file that a leader sends; ``begin`` drops what came of another one before.

    Nobody waits for its durability: ``SnapshotInstall`` covers all parts.
    """

    ticket: int
    begin: bool
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class SnapshotInstall:
    """Record 4 for the file whose last part was stored: the log goes on behind entry ``index``.

    ``keep_log`` is true where the log holds that entry with that term (9.4); else all of its entries are forgotten.
    """

    ticket: int
    index: int
    term: int
    keep_log: bool


@dataclass(frozen=True, slots=True)
class SnapshotSave:
    """Record 4 for a snapshot of our own, whose verified file is in its place already."""

    ticket: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Compact:
    """Forget entries below ``first_kept``, as far as whole files can go, and snapshots beside the newest two.

    To be given after a command that made a snapshot at ``first_kept - 1`` or above durable (P6).
    """

    ticket: int
    first_kept: int


StoreCommand = HardState | Append | Truncate | Note | SnapshotPart | SnapshotInstall | SnapshotSave | Compact


@dataclass(frozen=True, slots=True)
class Stored:
    """Every command with a ticket up to ``ticket`` is durable."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Token:
    """Record 7: the token of AllowWrites. The pod's composition root writes it, not the core."""

    generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A verified snapshot file: the last entry that it covers, its meta part, and the size of the machine's data."""

    index: int
    term: int
    meta: SnapshotMeta
    data_bytes: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of the store at start.

    ``term_runs`` holds (first index, term) per run of equal terms, ascending; ``reqids`` the 12-byte ids of the entries
    ``first_index … last_index`` back to back, ``digests`` those of their commands (10.3), as ``array("Q")`` has them;
    ``configurations`` (index, data) of every CONFIG entry, ascending. ``snapshot`` is the newest good one; the log
    begins at most one behind it. A log without entries has ``last_index`` = ``first_index`` - 1. ``corrupt`` is true
    when entries at or below the synced mark were set aside: the peer starts Recovering. ``commit`` is the last commit
    index that a note names, at most ``last_index`` and at least the snapshot's index.
    """

    term: int = 0
    vote: str = ""
    vote_floor: int = 0
    first_index: int = 1
    last_index: int = 0
    term_runs: tuple[tuple[int, int], ...] = ()
    reqids: bytes = b""
    digests: bytes = b""
    configurations: tuple[tuple[int, bytes], ...] = ()
    commit: int = 0
    notes: Mapping[str, int | str | bytes] = field(default_factory=dict)
    token: Token | None = None
    corrupt: bool = False
    snapshot: StoredSnapshot | None = None


class CorruptEntry(Exception):
    """A stored entry does not match its checksum; ``index`` is the first such entry that was asked for."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} does not match its checksum")
        self.index = index


class SnapshotSource(Protocol):
    """A snapshot file being sent: it stays readable until it is closed, whatever replaces it meanwhile."""

    head: SnapshotHead

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of the file from ``offset``; raises ``OSError``."""
        ...

    def close(self) -> None:
        """Let the file go."""
        ...


class EntrySource(Protocol):
    """Positional reads of stored entries, for entries that the core no longer holds in its cache."""

    def open_snapshot(self, index: int) -> SnapshotSource:
        """Open the snapshot file up to entry ``index``, which was saved, installed or recovered here."""
        ...

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[bytes | memoryview]:
        """Return the entries from ``first`` on, at least one, at most up to ``last`` or about ``bytes_max`` bytes.

        Raises ``CorruptEntry`` when a checksum does not match.
        """
        ...

"""What the core asks storage to make durable, and what storage found at start (docs/specs/raft.md 5.2, 13.2, 13.3).

Core and storage do not import each other; this module is the seam. Tickets grow by one per command. Storage executes
commands in order, may let several share one fsync, and reports the greatest ticket that is durable (``Stored``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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


StoreCommand = HardState | Append | Truncate | Note


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
class Recovered:
    """The state of the store at start.

    ``term_runs`` holds (first index, term) per run of equal terms, ascending; ``reqids`` the 12-byte ids of the entries
    ``first_index … last_index`` back to back; ``configurations`` (index, data) of every CONFIG entry, ascending.
    An empty log has ``first_index`` 1 and ``last_index`` 0. ``corrupt`` is true when entries at or below the synced
    mark were set aside: the peer starts Recovering. ``commit`` is the last commit index that a note names, at most
    ``last_index``.
    """

    term: int = 0
    vote: str = ""
    vote_floor: int = 0
    first_index: int = 1
    last_index: int = 0
    term_runs: tuple[tuple[int, int], ...] = ()
    reqids: bytes = b""
    configurations: tuple[tuple[int, bytes], ...] = ()
    commit: int = 0
    notes: Mapping[str, int | str | bytes] = field(default_factory=dict)
    token: Token | None = None
    corrupt: bool = False


class CorruptEntry(Exception):
    """A stored entry does not match its checksum; ``index`` is the first such entry that was asked for."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} does not match its checksum")
        self.index = index


class EntrySource(Protocol):
    """Positional reads of stored entries, for entries that the core no longer holds in its cache."""

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[bytes | memoryview]:
        """Return the entries from ``first`` on, at least one, at most up to ``last`` or about ``bytes_max`` bytes.

        Raises ``CorruptEntry`` when a checksum does not match.
        """
        ...

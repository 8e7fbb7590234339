"""The lock table of a partition: which transaction wrote last under a lock, in fixed memory (docs/specs/waltz.md 5).

Only hashes of locks travel. Each names three slots, and the least of them is never below the truth: no conflict is
missed, some are seen where there is none. The constants are the original's, so that both say the same.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

SLOTS = 30_000
HASHES = 3
_MULTIPLIER, _INCREMENT, _SLOT_MASK = 1_103_515_245, 12_345, 0x3FFF_FFFF
_WORD = 0xFFFF_FFFF


class Taken(NamedTuple):
    """An append may go on; ``slots`` are marked until ``commit`` or ``release``."""

    slots: tuple[int, ...]


class Conflicting(NamedTuple):
    """Transaction ``txid`` may have written under a lock after the client looked."""

    txid: int


class Waiting(NamedTuple):
    """An append in flight holds a slot: ask again when it is resolved."""


_NOTHING = Taken(())


class LockTable:
    """Locks of one partition whose highest committed transaction is ``hwm``."""

    def __init__(self, hwm: int, slots: int = SLOTS) -> None:
        self._slots = slots
        self._last = array("q", [hwm]) * slots
        self._marked = bytearray(slots)

    def begin(
        self, hwm: int, write: Sequence[int], read: Sequence[int], append: Sequence[int]
    ) -> Taken | Conflicting | Waiting:
        """Check the locks of an append whose client has seen everything up to ``hwm``."""
        if not write and not read and not append:
            return _NOTHING if hwm >= -1 else Conflicting(-1)
        checked = self.slots_of(write) + self.slots_of(read)
        recorded = checked[: HASHES * len(write)] + self.slots_of(append)
        marked = self._marked
        if any(marked[slot] for slot in checked) or any(marked[slot] for slot in recorded):
            return Waiting()
        last = self._last
        highest = -1
        for first in range(0, len(checked), HASHES):
            highest = max(highest, min(last[slot] for slot in checked[first : first + HASHES]))
        if highest > hwm:
            return Conflicting(highest)
        for slot in recorded:
            marked[slot] = 1
        return Taken(tuple(recorded))

    def commit(self, slots: Sequence[int], txid: int) -> None:
        """Note that ``txid`` wrote under the locks of an append, and let others have them."""
        for slot in slots:
            self._last[slot] = txid
            self._marked[slot] = 0

    def release(self, slots: Sequence[int]) -> None:
        """Let others have the locks of an append that was not committed."""
        for slot in slots:
            self._marked[slot] = 0

    def slots_of(self, hashes: Sequence[int]) -> list[int]:
        """Return the slots of each hash in turn."""
        found = []
        for value in hashes:
            for _ in range(HASHES):
                value = (value * _MULTIPLIER + _INCREMENT) & _WORD  # noqa: PLW2901 -- each step goes on from the last
                found.append((value & _SLOT_MASK) % self._slots)
        return found

"""Exactly once: which request ids the log holds, and which seconds are forgotten (docs/specs/raft.md 10.3)."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeAlias

from pavane.raft.wire.reqid import reqid_second
from pavane.raft.wire.snapshot import ID_BYTES, IdGroup, decode_digests, decode_groups, encode_group

DEDUP_IDS_MAX = 1_000_000  # about 28 MB of table; the retry window shrinks to this many updates
YOUNG_S = 5  # ids of the last seconds still come in by the thousand; older seconds are packed
LATE_MAX = 1024  # late ids of a packed second are merged into it when there are so many
# A floor ahead of the clock moves by so many seconds at most for DEDUP_IDS_MAX updates, and those take as long.
BEYOND_FLOOR_S = 60
_SECOND_BYTES = 4
_U64 = (1 << 64) - 1


Known: TypeAlias = tuple[int, int]
"""Index of the entry with an id, and the digest of its command; 0 where that is not known."""


class _Second:
    """The ids of one second: 24 bytes each once packed, a dict for those that came since.

    Its values are numbers, index · 2⁶⁴ + digest: a tuple for each update would keep the garbage collector busy.
    """

    __slots__ = ("digests", "indices", "keys", "recent")

    def __init__(self) -> None:
        self.recent: dict[int, int] = {}
        self.keys = array("Q")  # ascending
        self.indices = array("Q")
        self.digests = array("Q")

    def __len__(self) -> int:
        return len(self.recent) + len(self.keys)

    def get(self, key: int) -> Known | None:
        known = self.recent.get(key)
        if known is not None:
            return known >> 64, known & _U64
        if self.keys:
            at = bisect_left(self.keys, key)
            if at < len(self.keys) and self.keys[at] == key:
                return self.indices[at], self.digests[at]
        return None

    def remove(self, key: int) -> bool:
        if self.recent.pop(key, None) is not None:
            return True
        at = bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            return False
        del self.keys[at], self.indices[at], self.digests[at]
        return True

    def pack(self) -> None:
        if not self.recent:
            return
        if not self.keys:
            ascending = sorted(self.recent)
            known = [self.recent[key] for key in ascending]
            self.keys = array("Q", ascending)
            self.indices = array("Q", [each >> 64 for each in known])
            self.digests = array("Q", [each & _U64 for each in known])
            self.recent = {}
            return
        late = ((key, each >> 64, each & _U64) for key, each in self.recent.items())
        merged = sorted([*zip(self.keys, self.indices, self.digests, strict=True), *late])
        self.keys = array("Q", (key for key, _, _ in merged))
        self.indices = array("Q", (index for _, index, _ in merged))
        self.digests = array("Q", (digest for _, _, digest in merged))
        self.recent = {}

    def encode(self, last: int) -> tuple[bytes, bytes]:
        """Return the ids of entries up to index ``last``, ascending, as ``encode_group`` takes them, and their digests.

        A snapshot holds a million of them while updates wait, so this works on whole arrays.
        """
        self.pack()
        keys, indices, digests = self.keys[:], self.indices[:], self.digests[:]
        if indices and max(indices) > last:
            kept = [at for at, index in enumerate(indices) if index <= last]
            keys, indices, digests = (array("Q", map(each.__getitem__, kept)) for each in (keys, indices, digests))
        if sys.byteorder == "little":
            keys.byteswap()  # keys are big-endian, the others little-endian
        else:
            indices.byteswap()
            digests.byteswap()
        pairs = array("Q", bytes(2 * keys.itemsize * len(keys)))
        pairs[0::2], pairs[1::2] = keys, indices
        return pairs.tobytes(), digests.tobytes()


class DedupTable:
    """Maps every non-zero request id of the log to its index and the digest of its command, by the second in the id.

    ``floor`` is the greatest second that was forgotten; an id at or below it is refused, so an id is either known or
    refused, whatever the clock says (X1–X4).
    """

    def __init__(self, ids_max: int = DEDUP_IDS_MAX) -> None:
        self._seconds: dict[int, _Second] = {}
        self._young: set[int] = set()
        self._newest = 0
        self._ids_max = ids_max
        self._count = 0
        self.floor = 0

    def __len__(self) -> int:
        return self._count

    @property
    def oldest_second(self) -> int | None:
        """The smallest second still in the table."""
        return min(self._seconds, default=None)

    def index_of(self, reqid: bytes) -> int | None:
        """Return the index of the entry with this id, ``None`` if the table does not hold it."""
        known = self.find(reqid)
        return known[0] if known is not None else None

    def find(self, reqid: bytes) -> Known | None:
        """Return what is known of the entry with this id, ``None`` if the table does not hold it."""
        number = int.from_bytes(reqid, "big")
        ids = self._seconds.get(number >> 64)
        return ids.get(number & _U64) if ids is not None else None

    def add(self, reqid: bytes, index: int, digest: int = 0) -> None:
        """Remember an appended entry. Forgets the smallest second when the table is full, even a fresh one.

        ``digest`` is that of its command (``command_digest``), 0 if nobody knows.
        """
        number = int.from_bytes(reqid, "big")
        second, key = number >> 64, number & _U64
        if second <= self.floor or not number:
            return
        ids = self._seconds.get(second)
        if ids is None:
            ids = self._begin(second)
        if key not in ids.recent and not (ids.keys and ids.remove(key)):
            self._count += 1
        ids.recent[key] = index << 64 | digest
        if second not in self._young and len(ids.recent) >= LATE_MAX:
            ids.pack()
        while self._count > self._ids_max:
            self._forget(min(self._seconds))

    def remove(self, reqid: bytes) -> None:
        """Forget one id, because its entry was truncated: unlike forgetting a second, this moves no floor."""
        second = reqid_second(reqid)
        ids = self._seconds.get(second)
        if ids is None or not ids.remove(_key(reqid)):
            return
        self._count -= 1
        if not ids:
            self._drop(second)

    def forget_before(self, second: int) -> None:
        """Forget every second below ``second``, and refuse ids of them from now on."""
        for known in sorted(self._seconds):
            if known >= second:
                break
            self._forget(known)

    def freeze(self, index: int) -> Iterator[IdGroup]:
        """Yield the ids of entries up to ``index``, second by second, as a snapshot's meta part has them (9.2).

        The table may change meanwhile: whatever is forgotten raises ``floor``, which has to be read at the end.
        """
        for second in sorted(self._seconds):
            ids = self._seconds.get(second)
            if ids is None:
                continue
            group, digests = ids.encode(index)
            if group:
                yield IdGroup(encode_group(second, group), digests)

    def restore(self, ids: bytes, floor: int, digests: bytes = b"") -> None:
        """Take in what ``freeze`` wrote, beside the ids that are here already; ``floor`` may only rise.

        Without ``digests``, which a program of an older version does not write, no repetition is compared.
        """
        done = 0
        for second, group in decode_groups(ids):
            count = len(group) // ID_BYTES
            known = decode_digests(digests, done, count)
            done += count
            if second <= self.floor:
                continue
            prefix = second.to_bytes(_SECOND_BYTES, "big")
            for number, at in enumerate(range(0, len(group), ID_BYTES)):
                middle = at + ID_BYTES // 2
                index = int.from_bytes(group[middle : at + ID_BYTES], "little")
                self.add(prefix + group[at:middle], index, known[number])
        self.refuse_up_to(floor)

    def refuse_up_to(self, floor: int) -> None:
        """Forget every second up to ``floor``, and refuse their ids whether or not there were any."""
        self.forget_before(floor + 1)
        self.floor = max(self.floor, floor)

    def _begin(self, second: int) -> _Second:
        ids = self._seconds[second] = _Second()
        self._young.add(second)
        self._newest = max(self._newest, second)
        for old in [young for young in self._young if young < self._newest - YOUNG_S]:
            self._young.remove(old)
            self._seconds[old].pack()
        return ids

    def _forget(self, second: int) -> None:
        self._count -= len(self._seconds[second])
        self._drop(second)
        self.floor = max(self.floor, second)

    def _drop(self, second: int) -> None:
        del self._seconds[second]
        self._young.discard(second)


def _key(reqid: bytes) -> int:
    return int.from_bytes(reqid[_SECOND_BYTES:], "big")


class Freshness:
    """Whether a request id is recent enough: from ``ttl_s - margin_s`` in the past to ``margin_s`` in the future."""

    def __init__(self, ttl_s: int, margin_s: int) -> None:
        self.ttl_s = ttl_s
        self.margin_s = margin_s

    def fresh(self, reqid: bytes, wall_s: int, floor: int) -> bool:
        """Judge ``reqid`` by the clock and by the floor of the table."""
        second = reqid_second(reqid)
        newest = max(wall_s + self.margin_s, floor + BEYOND_FLOOR_S)
        return second > floor and wall_s - (self.ttl_s - self.margin_s) <= second <= newest


def id_clock(wall_s: int, floor: int) -> int:
    """Return the second by which clients shall make their ids.

    A clock that was hours ahead for a moment has left its floor there: without this no id were good until the clock
    gets there again.
    """
    return max(wall_s, floor + 1)

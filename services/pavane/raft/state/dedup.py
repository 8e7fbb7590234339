"""Exactly once: which request ids the log holds, and which seconds are forgotten (docs/specs/raft.md 10.3)."""

from pavane.raft.wire.entry import ZERO_REQID
from pavane.raft.wire.reqid import reqid_second

DEDUP_IDS_MAX = 1_000_000  # about 150 MB of table; the retry window shrinks to this many updates


class DedupTable:
    """Maps every non-zero request id of the log to its index, grouped by the second in the id.

    ``floor`` is the greatest second that was forgotten; an id at or below it is refused, so an id is either known or
    refused, whatever the clock says (X1–X4).
    """

    def __init__(self, ids_max: int = DEDUP_IDS_MAX) -> None:
        self._seconds: dict[int, dict[bytes, int]] = {}
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
        ids = self._seconds.get(reqid_second(reqid))
        return ids.get(reqid) if ids is not None else None

    def add(self, reqid: bytes, index: int) -> None:
        """Remember an appended entry. Forgets the smallest second when the table is full, even a fresh one."""
        second = reqid_second(reqid)
        if reqid == ZERO_REQID or second <= self.floor:
            return
        ids = self._seconds.setdefault(second, {})
        if reqid not in ids:
            self._count += 1
        ids[reqid] = index
        while self._count > self._ids_max:
            self._forget(min(self._seconds))

    def remove(self, reqid: bytes) -> None:
        """Forget one id, because its entry was truncated: unlike forgetting a second, this moves no floor."""
        second = reqid_second(reqid)
        ids = self._seconds.get(second)
        if ids is None or ids.pop(reqid, None) is None:
            return
        self._count -= 1
        if not ids:
            del self._seconds[second]

    def forget_before(self, second: int) -> None:
        """Forget every second below ``second``, and refuse ids of them from now on."""
        for known in sorted(self._seconds):
            if known >= second:
                break
            self._forget(known)

    def _forget(self, second: int) -> None:
        self._count -= len(self._seconds.pop(second))
        self.floor = max(self.floor, second)


class Freshness:
    """Whether a request id is recent enough: from ``ttl_s - margin_s`` in the past to ``margin_s`` in the future."""

    def __init__(self, ttl_s: int, margin_s: int) -> None:
        self.ttl_s = ttl_s
        self.margin_s = margin_s

    def fresh(self, reqid: bytes, wall_s: int, floor: int) -> bool:
        """Judge ``reqid`` by the clock and by the floor of the table."""
        second = reqid_second(reqid)
        return second > floor and wall_s - (self.ttl_s - self.margin_s) <= second <= wall_s + self.margin_s

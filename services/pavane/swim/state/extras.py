"""Application data and key rotations that are gossiped beside the news of members (docs/specs/swim.md 10, 14, 15.4)."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from pavane.swim.wire.payload import HEADER_BYTES, KeyStep, Meta, Trace, User

NUMBERS_MAX = 64  # remembered of each origin: two periods of its fastest rate
_META_HEAD, _USER_HEAD, _KEY_HEAD, _TRACE = 10, 14, 5, 33


class Extra:
    """Something to tell; ``trace`` goes along with a USER as far as it fits."""

    __slots__ = ("record", "sent", "trace")

    def __init__(self, record: Meta | User | KeyStep, trace: Trace | None = None) -> None:
        self.record = record
        self.trace = trace
        self.sent = 0

    @property
    def key(self) -> Hashable:
        """What a later piece replaces: one META per node, one USER per number, one step per operation and key."""
        match self.record:
            case Meta():
                return self.record.node.id
            case User():
                return self.record.origin.id, self.record.useq
            case _:
                return self.record.op, self.record.key_id

    @property
    def size(self) -> int:
        """Bytes with the record's header, without TRACE."""
        match self.record:
            case Meta():
                return HEADER_BYTES + _META_HEAD + len(self.record.blob)
            case User():
                return HEADER_BYTES + _USER_HEAD + len(self.record.blob)
            case _:
                return HEADER_BYTES + _KEY_HEAD + len(self.record.key)


TRACE_BYTES = HEADER_BYTES + _TRACE


class ExtraQueue:
    """Pieces by how rarely they were sent, newest first among equals; ``maximum`` at most, the oldest go."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._queued: OrderedDict[Hashable, Extra] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, extra: Extra) -> None:
        """Add a piece."""
        self._queued.pop(extra.key, None)
        self._queued[extra.key] = extra
        if len(self._queued) > self._maximum:
            self._queued.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._queued.clear()

    def take(self, fits: Callable[[Extra], bool], transmissions: int) -> None:
        """Offer the pieces in their order to ``fits``; one that it takes was sent once more."""
        order = sorted(reversed(self._queued.values()), key=lambda extra: extra.sent)
        for extra in [extra for extra in order if fits(extra)]:
            extra.sent += 1
            if extra.sent >= transmissions:
                del self._queued[extra.key]


class Numbers:
    """Which messages were had: the last numbers of each origin, for some time after its last one."""

    def __init__(self, origins_max: int) -> None:
        self._origins_max = origins_max
        self._seen: OrderedDict[Hashable, tuple[float, deque[Hashable]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def fresh(self, origin: Hashable, number: Hashable, now: float, memory_s: float) -> bool:
        """Note a message; false if it was had and its origin's last one is not longer ago than ``memory_s``."""
        at, numbers = self._seen.pop(origin, (now, deque[Hashable](maxlen=NUMBERS_MAX)))
        if now - at > memory_s:
            numbers.clear()
        fresh = number not in numbers
        if fresh:
            numbers.append(number)
        self._seen[origin] = (now if fresh else at, numbers)
        if len(self._seen) > self._origins_max:
            self._seen.popitem(last=False)
        return fresh

"""Application data and key rotations that are gossiped beside the news of members (docs/specs/swim.md 10, 14, 15.4)."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from pavane.swim.wire.payload import HEADER_BYTES, KeyStep, Meta, Trace, User
from pavane.swim.wire.values import U32_MAX, NodeId

NUMBERS_MAX = 1024  # behind the highest of an origin: half a minute of its fastest rate, 128 bytes as a bit mask
_HALF = (U32_MAX + 1) // 2
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
    """Which messages were received: of each origin the highest number, and which of the ``NUMBERS_MAX`` below it.

    What lies further back counts as received, as does what an earlier process of the origin sent: a message that is
    taken for new is told anew, so that two nodes with a shorter memory than what circulates would tell it for ever. An
    origin is forgotten when nothing was heard of it for some time.
    """

    def __init__(self, origins_max: int) -> None:
        self._origins_max = origins_max
        self._seen: OrderedDict[int, _Origin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def fresh(self, origin: NodeId, number: int, now: float, memory_s: float) -> bool:
        """Note a message; false if it is known and its origin was last heard of no longer ago than ``memory_s``."""
        seen = self._seen.pop(origin.id, None)
        fresh = seen is None or now - seen.at > memory_s or seen.restarted(origin.gen, number)
        if seen is None or fresh:
            seen = _Origin(origin.gen, number)
        else:
            fresh = seen.take(origin.gen, number)
        seen.at = now
        self._seen[origin.id] = seen
        if len(self._seen) > self._origins_max:
            self._seen.popitem(last=False)
        return fresh


class _Origin:
    """The window over the numbers of one origin, which rise by one and wrap; its generation never falls."""

    __slots__ = ("_bits", "_gen", "_highest", "at")

    def __init__(self, gen: int, number: int) -> None:
        self.at = 0.0
        self._gen = gen
        self._highest = number
        self._bits = 1  # bit n: highest - n was had

    def _ahead(self, number: int) -> int:
        return (number - self._highest + _HALF) % (2 * _HALF) - _HALF

    def restarted(self, gen: int, number: int) -> bool:
        """Say whether a message is of a later process, whose numbers began elsewhere."""
        return gen > self._gen and abs(self._ahead(number)) >= NUMBERS_MAX

    def take(self, gen: int, number: int) -> bool:
        """Note a number; false if it was had, or cannot be told from those that were."""
        ahead = self._ahead(number)
        if ahead <= -NUMBERS_MAX or (ahead >= NUMBERS_MAX and gen < self._gen):
            return False
        self._gen = max(self._gen, gen)
        if ahead > 0:
            self._bits = (self._bits << ahead if ahead < NUMBERS_MAX else 0) | 1
            self._bits &= (1 << NUMBERS_MAX) - 1
            self._highest = number
            return True
        fresh = not self._bits >> -ahead & 1
        self._bits |= 1 << -ahead
        return fresh

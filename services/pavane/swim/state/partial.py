"""What a node keeps of a group that it does not track as a whole (docs/specs/swim.md 7.3 - 7.5)."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pavane.swim.state.precedence import Verdict, judge
from pavane.swim.wire.values import Address, NodeId, NodeInfo, State

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

LINKS_MIN = 2  # one link is a leaf: its end is the end of the membership
LINKS_MAX = 5  # links that a node makes by itself; its peers make as many to it
PASSIVE_MAX = 30  # addresses for repair: enough that some of them live when half of the group has crashed
NEWS_MAX = 4096  # ids whose last news is remembered, so that it is passed on once
REDIRECTED_MAX = 256
REDIRECTED_S = 10.0  # who comes back within that time found no slot elsewhere
KEPT_S = 5.0  # a slot for somebody who was named to us, and to whom we were named
KEPT_MAX = 64  # six times what edge splits can ask for in that time, and far above it for their receivers
NEVER = float("-inf")


def links_wanted(capacity: int) -> int:
    """Return t of 7.3: a member that made more would leave no slot for joiners."""
    return max(LINKS_MIN, min(LINKS_MAX, capacity // 2 - 1))


def links_sought(capacity: int) -> int:
    """Return how many links a node looks for.

    With t alone two members in five have no more than t, and of those one in forty loses all when 30 % crash.
    """
    return max(LINKS_MIN, min(links_wanted(capacity) + 1, capacity - 1))


class Link:
    """What is known of one peer beside its entry in the table."""

    __slots__ = ("asked_at", "exchanges", "free", "proven_at", "told_free")

    def __init__(self) -> None:
        self.free = 0  # slots that it showed last
        self.exchanges = 0  # datagrams to it that could show our own slots
        self.told_free: int | None = None  # what the last of them showed
        self.proven_at = NEVER  # it answered a ping of ours directly
        self.asked_at = NEVER  # because something that anybody may have sent says that the link is over


class Passive:
    """Members that are not tracked, for repair; a random one makes room."""

    def __init__(self) -> None:
        self._infos: list[NodeInfo] = []

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self._infos)

    def add(self, info: NodeInfo, rng: "Random") -> None:
        """Add a member, or what is new of it."""
        self._remove(lambda old: info.id == old.id or info.address == old.address)
        if len(self._infos) < PASSIVE_MAX:
            self._infos.append(info)
        else:
            self._infos[rng.randrange(PASSIVE_MAX)] = info

    def sample(self, count: int, rng: "Random") -> list[NodeInfo]:
        """Draw up to ``count`` of them."""
        return rng.sample(self._infos, min(count, len(self._infos)))

    def gone(self, node: NodeId) -> None:
        """Forget a member that is dead or has left."""
        self._remove(lambda old: old.id == node.id and old.gen <= node.gen)

    def silent(self, address: Address) -> None:
        """Forget a member that does not answer."""
        self._remove(lambda old: old.address == address)

    def _remove(self, chosen: Callable[[NodeInfo], bool]) -> None:
        self._infos = [info for info in self._infos if not chosen(info)]


class LastNews:
    """The last news about ids that are not tracked, for some time after it came: it is passed on once."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, tuple[float, State, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def fresh(self, kind: State, info: NodeInfo, now: float, memory_s: float) -> bool:
        """Say whether neither this nor later news about the same id was had within ``memory_s`` (5.3)."""
        while self._last and now - next(iter(self._last.values()))[0] > memory_s:
            self._last.popitem(last=False)
        last = self._last.get(info.id)
        return last is None or judge(kind, info.gen, last[1], last[2]) is Verdict.APPLY

    def note(self, kind: State, info: NodeInfo, now: float) -> None:
        """Note a piece of news that is told."""
        self._last.pop(info.id, None)
        self._last[info.id] = (now, kind, info.gen)
        if len(self._last) > NEWS_MAX:
            self._last.popitem(last=False)


class Times:
    """When something last happened, by member, for ``lifetime_s``; ``maximum`` of them, the oldest go."""

    def __init__(self, maximum: int, lifetime_s: float) -> None:
        self._maximum = maximum
        self._lifetime_s = lifetime_s
        self._at: OrderedDict[int | Address, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at)

    def note(self, whom: int | Address, now: float) -> None:
        """Note that it happens now."""
        self._at.pop(whom, None)
        self._at[whom] = now
        if len(self._at) > self._maximum:
            self._at.popitem(last=False)

    def forget(self, whom: int | Address) -> None:
        """Take it back."""
        self._at.pop(whom, None)

    def clear(self) -> None:
        """Forget everything."""
        self._at.clear()

    def lately(self, whom: int | Address, now: float) -> bool:
        """Say whether it happened within the lifetime."""
        self._expire(now)
        return whom in self._at

    def count(self, now: float, without: int | Address | None = None) -> int:
        """Return to how many others it happened within the lifetime."""
        self._expire(now)
        return len(self._at) - (without in self._at)

    def _expire(self, now: float) -> None:
        while self._at and now - next(iter(self._at.values())) >= self._lifetime_s:
            self._at.popitem(last=False)


class PartialView:
    """All of it, of one node. ``links`` is in the order in which they were made."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.wanted = links_wanted(capacity)
        self.sought = links_sought(capacity)
        self.links: dict[int, Link] = {}
        self.passive = Passive()
        self.news = LastNews()
        self.kept = Times(KEPT_MAX, KEPT_S)
        self.redirected = Times(REDIRECTED_MAX, REDIRECTED_S)
        self.dialled = Times(REDIRECTED_MAX, REDIRECTED_S)

    def clear(self) -> None:
        """Forget the links: the node is out. What it knows of the group serves its next join."""
        self.links.clear()
        self.kept.clear()
        self.dialled.clear()

    def free(self, now: float, for_whom: int | None = None) -> int:
        """Return how many slots are free, one that is kept for ``for_whom`` included; below 0 never."""
        kept = self.kept.count(now, for_whom)
        return max(self.capacity - len(self.links) - kept, 0)

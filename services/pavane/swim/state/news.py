"""The queue of news to be gossiped (docs/specs/swim.md 10)."""

from collections.abc import Callable, Iterator

from pavane.swim.state.suspicion import CONFIRMATIONS, TRANSMISSIONS_MAX
from pavane.swim.wire.values import NodeInfo, State

_SIZES = {State.SUSPECT: 12, State.DEAD: 8, State.LEFT: 8}


class News:
    """Something to tell: ``kind`` is the state of ``about``; a suspicion has its ``reporter``."""

    __slots__ = ("about", "kind", "reporter", "sent")

    def __init__(self, kind: State, about: NodeInfo, reporter: int = 0) -> None:
        self.kind = kind
        self.about = about
        self.reporter = reporter
        self.sent = 0

    @property
    def size(self) -> int:
        """Bytes of the item in its record."""
        return _SIZES.get(self.kind) or self.about.size


class NewsQueue:
    """News ordered by how rarely it was sent, newest first among equals; ``maximum`` pieces at most."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._of: dict[int, list[News]] = {}
        self._queued: dict[News, None] = {}  # in the order of arrival
        self._by_sent: list[dict[News, None]] = [{} for _ in range(TRANSMISSIONS_MAX)]

    def __len__(self) -> int:
        return len(self._queued)

    def __iter__(self) -> Iterator[News]:
        return iter(self._queued)

    def put(self, news: News) -> None:
        """Add a piece; it replaces what was queued about the same node, but suspicions gather their reporters."""
        others = self._of.get(news.about.id, [])
        same = news.kind is State.SUSPECT and all(
            other.kind is State.SUSPECT and other.about.gen == news.about.gen for other in others
        )
        if not same:
            self.drop(news.about.id)
        elif len(others) > CONFIRMATIONS or any(other.reporter == news.reporter for other in others):
            return
        self._of.setdefault(news.about.id, []).append(news)
        self._queued[news] = None
        self._by_sent[0][news] = None
        if len(self._queued) > self._maximum:
            self._remove(next(iter(self._queued)))

    def drop(self, node: int) -> None:
        """Forget what is queued about ``node``."""
        for news in list(self._of.get(node, ())):
            self._remove(news)

    def clear(self) -> None:
        """Forget everything."""
        for node in list(self._of):
            self.drop(node)

    def take(self, fits: Callable[[News], bool], transmissions: int) -> None:
        """Offer the pieces in their order to ``fits``; one that it takes was sent once more, and ends with the last."""
        taken = [news for level in self._by_sent if level for news in reversed(level) if fits(news)]
        for news in taken:
            del self._by_sent[news.sent][news]
            news.sent += 1
            if news.sent >= transmissions:
                self._remove(news)
            else:
                self._by_sent[news.sent][news] = None

    def _remove(self, news: News) -> None:
        self._queued.pop(news, None)
        self._by_sent[min(news.sent, TRANSMISSIONS_MAX - 1)].pop(news, None)
        others = self._of[news.about.id]
        others.remove(news)
        if not others:
            del self._of[news.about.id]

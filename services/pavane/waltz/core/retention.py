"""With which transaction a partition begins: what its storage nodes say of size and age (docs/specs/waltz.md 13.5)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pavane.waltz.wire import storage as s

LOOK_S = 10.0  # between two questions to storage nodes: a partition grows beyond its size by what comes in that time


@dataclass(frozen=True, slots=True)
class Policy:
    """How much of a partition is kept, in bytes on each node and by age in milliseconds; -1: without that limit."""

    bytes_max: int = -1
    age_ms_max: int = -1

    @property
    def limited(self) -> bool:
        """Whether anything is ever dropped by it."""
        return self.bytes_max >= 0 or self.age_ms_max >= 0

    @property
    def limits(self) -> tuple[int, int]:
        """Both, as storage nodes are told them."""
        return self.bytes_max, self.age_ms_max


KEEP_ALL = Policy()


def agreed(wanted: Iterable[int], replicas: int) -> int:
    """Return what a majority of all ``replicas`` would keep: one clock that is wrong decides nothing."""
    told = sorted(wanted, reverse=True)
    quorum = replicas // 2 + 1
    return told[quorum - 1] if len(told) >= quorum else 0


@dataclass(slots=True)
class Told:
    """What the nodes have answered to the last question."""

    waiting: set[str] = field(default_factory=set)
    kept: dict[str, s.Retained] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why a node could not drop what it should."""

    def start(self, replicas: int) -> int:
        """Return with what the log is to begin: what any has dropped was agreed, whatever old metadata say."""
        kept = self.kept.values()
        return max([agreed([one.wanted for one in kept], replicas), *(one.first for one in kept)])

    def take(self, node: str, answer: Any) -> bool:
        """Note the answer of a node, and return whether it has dropped anything since the last; ``None``: none came."""
        self.waiting.discard(node)
        before = self.kept[node].first if node in self.kept else 0
        if isinstance(answer, s.Retained):
            self.kept[node] = answer
            self.refused.pop(node, None)
            return bool(answer.first > before)
        self.kept.pop(node, None)
        self.refused[node] = "no answer" if answer is None else str(answer.message)
        return False

"""Majorities, in one group or in both while a change is joint (docs/specs/raft.md 7.2, 8.1)."""

from collections.abc import Callable, Set
from typing import TypeVar

from pavane.raft.state.configuration import Configuration

Rank = TypeVar("Rank", int, float)


def has_majority(configuration: Configuration, peers: Set[str]) -> bool:
    """Whether ``peers`` hold a majority of each group that counts. An empty configuration has none."""
    return all(2 * len(group & peers) > len(group) for group in configuration.groups)


def majority_value(configuration: Configuration, value: Callable[[str], Rank], floor: Rank) -> Rank:
    """Return the greatest rank that a majority of each group has reached; ``floor`` if the configuration is empty.

    With match indices this is what may be committed, with times of answers how long a quorum has been silent.
    """
    reached = [_reached(group, value, floor) for group in configuration.groups]
    return min(reached)


def _reached(group: Set[str], value: Callable[[str], Rank], floor: Rank) -> Rank:
    if not group:
        return floor
    ranks = sorted((value(peer) for peer in group), reverse=True)
    return ranks[len(group) // 2]

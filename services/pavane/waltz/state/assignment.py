"""Who serves which partition (docs/specs/waltz.md 8.3): a function of the old assignment and the live servers.

The result is always complete, a partition that goes to another server gets the next generation, and everything else
stays where it is as far as fairness allows.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pavane.waltz.wire.blobs import Rollout

Owned = tuple[int, int]
"""Partition and its generation."""
Assignment = Mapping[int, Sequence[Owned]]
"""Server id → what it owns."""


class Candidate(NamedTuple):
    """A live server: the partitions that it prefers, and the number of its rollout (0: it has none)."""

    preferred: tuple[int, ...] = ()
    rollout: int = 0


def entitled(live: Mapping[int, Candidate], rollout: Rollout | None) -> frozenset[int]:
    """Return the servers that may be given partitions."""
    if rollout is None:
        # Not rolled out yet: the first generation writes the node before anybody else is there.
        lowest = min((candidate.rollout for candidate in live.values()), default=0)
        return frozenset(server for server, candidate in live.items() if candidate.rollout == lowest)
    new = frozenset(server for server, candidate in live.items() if candidate.rollout == rollout.number)
    old = frozenset(live) - new
    if not new or not old:
        return frozenset(live)
    return new if len(new) >= -(-rollout.servers // 2) else old


def assign(
    current: Assignment,
    live: Mapping[int, Candidate],
    partitions: int,
    rollout: Rollout | None = None,
    moves_max: int | None = None,
) -> dict[int, list[Owned]] | None:
    """Return who serves what from now on, ``None`` if there is no live server: then everything stays as it was.

    At most ``moves_max`` partitions are taken from live servers (default: any number).
    """
    if not live:
        return None
    servers = sorted(entitled(live, rollout))
    generation = {partition: number for owned in current.values() for partition, number in owned}
    moves_left = partitions if moves_max is None else moves_max
    owner = {partition: server for server, owned in current.items() for partition, _ in owned}
    given: dict[int, int] = {}
    count = dict.fromkeys(live, 0)

    def give(partition: int, server: int) -> None:
        nonlocal moves_left
        moves = owner.get(partition, server) != server and owner[partition] in live
        if partition in given or not 0 <= partition < partitions or (moves and moves_left == 0):
            return
        moves_left -= moves
        given[partition] = server
        count[server] += 1

    for server in servers:
        for partition in live[server].preferred:
            give(partition, server)
    share, more = divmod(partitions, len(servers))
    for partition in sorted(owner):
        server = owner[partition]
        if server not in servers or partition in given:
            continue
        over = sum(count[other] > share for other in servers)
        if count[server] < share or (count[server] == share and over < more):
            give(partition, server)
    for partition in range(partitions):
        give(partition, min(servers, key=lambda server: (count[server], server)))
    for partition in range(partitions):  # what may not move yet stays
        if partition not in given:
            given[partition] = owner[partition]
    result: dict[int, list[Owned]] = {server: [] for server in sorted(live)}
    for partition, server in sorted(given.items()):
        moved = owner.get(partition) != server
        result[server].append((partition, generation.get(partition, 0) + moved))
    return result

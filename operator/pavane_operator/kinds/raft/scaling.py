"""Which members a running RaftCluster gets next, as sets of names (docs/specs/operator.md 3.1 *Scaling*)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """What is known of the members while no change of them is under way."""

    current: Set[str]
    """The committed configuration."""
    own: Set[str]
    """Those of them that are pods of the active generation; all others are foreign peers and stay."""
    wanted: Sequence[str]
    """The pods that the spec asks for, in the order in which they join."""
    sound: Set[str]
    """Peers that answer, follow the log and may vote."""
    lost: Set[str]
    """Peers that lost their volume."""
    ready: Set[str]
    """Pods that follow the log and were allowed to write, or may come back with an empty volume."""


def next_members(membership: Membership) -> frozenset[str] | None:
    """The members to ask for now; None = the present ones are right, or something has to happen first.

    A member that lost its volume goes first, and comes back like a new pod. What the spec asks for comes in one change;
    as long as a pod is not ready, only as many join as keep the number odd: one more would need one more for a
    majority.
    """
    current, wanted = frozenset(membership.current), frozenset(membership.wanted)
    lost = current & membership.lost
    if lost:
        target = current - lost
    else:
        kept = {peer for peer in current if peer not in membership.own or peer in wanted}
        joining = [pod for pod in membership.wanted if pod not in current and pod in membership.ready]
        complete = wanted <= kept | set(joining)
        if not complete and (len(kept) + len(joining)) % 2 == 0:
            if not joining:
                return None
            joining.pop()
        target = frozenset(kept.union(joining))
    if target in (current, frozenset()):
        return None
    both = (current, target)
    if any(len(members & membership.sound) < majority(len(members)) for members in both):
        return None
    return target


def majority(members: int) -> int:
    """How many of so many members are a majority."""
    return members // 2 + 1

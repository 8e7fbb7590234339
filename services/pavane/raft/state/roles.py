"""The roles of a peer and the table of their transitions (docs/specs/raft.md 5.1)."""

from enum import IntEnum


class Role(IntEnum):
    """What a peer is at the moment; the numbers are those of the metric ``role`` (15.1)."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3
    LEARNER = 4
    REMOVED = 5
    RECOVERING = 6

    @property
    def title(self) -> str:
        """The word that users read, for example ``PreCandidate``."""
        return self.name.title().replace("_", "")


TRANSITIONS: frozenset[tuple[Role, Role]] = frozenset(
    {
        (Role.FOLLOWER, Role.PRE_CANDIDATE),  # election time-out
        (Role.FOLLOWER, Role.CANDIDATE),  # asked by its leader to stand
        (Role.FOLLOWER, Role.LEARNER),  # the entry that named it was rolled back
        (Role.FOLLOWER, Role.REMOVED),  # a configuration without it is known committed
        (Role.FOLLOWER, Role.RECOVERING),  # an empty member learns that others are not
        (Role.PRE_CANDIDATE, Role.FOLLOWER),  # nobody is to be disturbed, somebody leads, or a higher term
        (Role.PRE_CANDIDATE, Role.REMOVED),  # as a follower: it has read on
        (Role.PRE_CANDIDATE, Role.CANDIDATE),  # a majority would vote for it
        (Role.CANDIDATE, Role.PRE_CANDIDATE),  # a majority has answered, and none has voted for it
        (Role.CANDIDATE, Role.FOLLOWER),  # somebody leads, or a higher term
        (Role.CANDIDATE, Role.REMOVED),  # as a follower: it has read on
        (Role.CANDIDATE, Role.LEADER),  # a majority
        (Role.LEADER, Role.FOLLOWER),  # higher term, or no quorum
        (Role.LEADER, Role.REMOVED),  # Cnew without it is committed
        (Role.LEARNER, Role.FOLLOWER),  # its own log names it
        (Role.LEARNER, Role.RECOVERING),  # the leader's configuration names it, its store is empty
        (Role.LEARNER, Role.REMOVED),  # a later configuration does not name it, an earlier one did
        (Role.REMOVED, Role.FOLLOWER),  # taken in again, or the entry without it was rolled back
        (Role.RECOVERING, Role.FOLLOWER),  # 5.5 (b), or taken out and in again
        (Role.RECOVERING, Role.LEARNER),  # a damaged learner has its log again
        (Role.RECOVERING, Role.REMOVED),  # 5.5 (b), but the log got back says that it is no member any more
    }
)
"""Every pair that may follow one another. Any other pair is a bug of ours."""

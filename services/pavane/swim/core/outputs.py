"""What comes out of the core, in the order in which it takes effect (docs/specs/swim.md 2.4, 17.4)."""

from dataclasses import dataclass
from enum import StrEnum

from pavane.swim.wire.payload import Trace
from pavane.swim.wire.values import Address, NodeStage, State


class Own(StrEnum):
    """Where this node itself stands (2.6)."""

    OUT = "out"
    DIALING = "dialing"
    MEMBER = "member"
    LEAVING = "leaving"


class Happened(StrEnum):
    """What an event tells."""

    JOINED = "joined"  # a peer is there, for the first time or again
    ALIVE = "alive"  # a suspicion was refuted, or a peer that was alive has another address
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"
    OWN_STATE = "own_state"  # ``text`` is the new one
    ADMITTED = "admitted"  # this node let ``member`` in
    JOIN_REFUSED = "join_refused"  # ``address`` refused for the reason in ``text``
    JOIN_RETRY = "join_retry"  # every seed was tried; names should be resolved anew before the next round
    ONE_WAY = "one_way"  # the peer hears us only by detours: look for a firewall or NAT
    ONE_WAY_OVER = "one_way_over"
    ID_CONFLICT = "id_conflict"  # another process has our id; ``address`` is where
    NEAR_CAPACITY = "near_capacity"
    OVER_CAPACITY = "over_capacity"
    UNLINKED = "unlinked"  # the peer lives, but it and this node track each other no more (7.4)
    VIEW_MISMATCH = "view_mismatch"  # the peer has a full view and this node a partial one
    CAUGHT_UP = "caught_up"  # ``text``: no, approximate, yes (16.3)
    PROMOTED = "promoted"  # this node is a full member from now on
    FENCED = "fenced"  # full members of a later rollout, ``text``, are there: this node stays an observer
    DRAINED = "drained"  # this node leaves now, as it was told
    META = "meta"  # what ``member`` says of itself is new
    USER = "user"  # a message of ``member``, who may be unknown here and then has no address: ``data``, ``trace``
    KEYS = "keys"  # a step of a key rotation was made; keep the keys that this member has now
    PINGED = "pinged"  # the outcome of a ping that a user asked for: ``rtt_s``, or nothing came back
    MISSED = "missed"  # the reader was slow: ``text`` events are lost, look at the members again


@dataclass(frozen=True, slots=True)
class Member:
    """One member as this node sees it at the moment; a snapshot that does not change.

    ``stage`` and ``rollout`` are what it showed last; who never showed any has no stages. ``meta`` is what it says of
    itself, as far as that is known here.
    """

    id: int
    gen: int
    address: Address
    state: State
    stage: NodeStage = NodeStage.READ_WRITE
    rollout: int = 0
    meta: bytes | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something a user may want to know. ``member`` is the peer as it is after the event."""

    kind: Happened
    member: Member | None = None
    address: Address | None = None
    text: str = ""
    rtt_s: float | None = None
    data: bytes = b""
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A datagram to be sent, at once; it may be lost."""

    to: Address
    datagram: bytes


@dataclass(frozen=True, slots=True)
class Persist:
    """``gen`` must be durable before any ``Send`` after this; asked for only if the node was told of a store (5.2)."""

    id: int
    gen: int


Output = Persist | Send | Event

"""What goes into and comes out of the core (docs/specs/raft.md 5.2, 5.3).

Order is an output: the adapter executes ``store`` in order, releases each ``Send`` once its ticket is durable, feeds
``apply`` to the machine and turns ``events`` into spans, metrics and log lines. Events never have to be handled for
safety, with three exceptions that their docstrings name: ``Disconnect``, ``Corrupt`` and ``Fork``.
"""

from dataclasses import dataclass
from enum import Enum

from pavane.raft.state.commands import StoreCommand
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.dedup import DedupTable
from pavane.raft.state.roles import Role
from pavane.wire import Stage

Route = bytes
"""Opaque handle of one ROUTER connection: its identity frame. Good for as long as the connection lives (10.1)."""


class Channel(Enum):
    """Which socket carries a message that we send on our own account."""

    RPC = "rpc"  # DEALER to a peer: ``?`` and ``+``, one outstanding
    SIDE = "side"  # second DEALER to a peer: ``pv.`` messages and the polls ``^`` and ``%``
    SEED = "seed"  # DEALER to a url of which no PEER ID is known: what learners and fenced pods ask
    PUBLISH = "publish"  # the PUB socket; it has no replies


@dataclass(frozen=True, slots=True)
class PeerChannel:
    """One outgoing socket. Two values that are equal mean the same socket.

    ``peer`` is the PEER ID for ``RPC`` and ``SIDE``, the url again for ``SEED`` and empty for ``PUBLISH``. It is what
    ``Core.reply`` and ``Core.connection`` take back. The adapter opens the socket at the first ``Send`` and keeps it
    until a ``Disconnect`` names it. A url may hold a host name; a ``SEED`` socket connects to every address of it.
    """

    channel: Channel
    peer: str
    url: str


PUBLISH = PeerChannel(Channel.PUBLISH, "", "")


@dataclass(slots=True)  # made many times in a turn; a frozen one takes three times as long
class Now:
    """The time of an input: ``mono`` in monotonic seconds, ``wall_s`` in Unix seconds (freshness of request ids).

    ``wall_part_ms`` are the milliseconds since that second: the write gap is told in them (8.6).
    """

    mono: float
    wall_s: int
    wall_part_ms: int = 0


@dataclass(slots=True)  # made many times in a turn; a frozen one takes three times as long
class Send:
    """Frames for a route (as a ROUTER sends them, without the identity frame) or for one of our own sockets.

    ``after`` is the storage ticket that must be durable first; ``None`` means at once.
    """

    to: Route | PeerChannel
    frames: tuple[bytes | memoryview, ...]
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Committed entries (encoded as in 2.3) at ``first``, ``first + 1``, …; no further batch before ``Applied``."""

    first: int
    entries: tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class Freeze:
    """Save the snapshot of ``index``: the state that the machine has now, after everything given to it before, or what
    an application made of the entries up to there.

    The caller serialises it while the machine goes on, with what ``table`` has up to ``index`` and then its floor,
    puts the file in its place and reports ``Core.snapshot_saved``. There is one at a time; ``before`` is the index of
    the newest until now, 0 if there is none. ``bare`` belongs into the meta part.
    """

    index: int
    term: int
    configuration: bytes
    configuration_index: int
    table: DedupTable
    before: int
    bare: bool


@dataclass(frozen=True, slots=True)
class Restore:
    """Let the machine begin from the snapshot of ``index`` and report ``Core.restored``; nothing comes before that."""

    index: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The machine has applied every entry up to ``index``."""

    index: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The peer took another role in ``term``; ``reason`` is a short stable word."""

    old: Role
    new: Role
    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class TermChanged:
    """The current term rose."""

    term: int


@dataclass(frozen=True, slots=True)
class VoteGranted:
    """We gave our vote in ``term``; it is sent once it is durable."""

    term: int
    candidate: str


@dataclass(frozen=True, slots=True)
class Standing:
    """We ask the other members, first whether we may stand, then for their votes: ``kinds`` are id and kind of each."""

    kinds: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class VoteReceived:
    """``voter`` votes for us in the current term; ourselves, once that is durable."""

    voter: str


@dataclass(frozen=True, slots=True)
class LeaderKnown:
    """Another leader, or nobody (``None``), is believed to lead."""

    leader: str | None
    term: int


@dataclass(frozen=True, slots=True)
class Appended:
    """``count`` entries from ``first`` on were handed to storage with ``ticket``.

    ``origin`` is ``leader`` or ``follower``; ``reqids`` holds the first request ids of the batch, for span links.
    """

    first: int
    count: int
    ticket: int
    origin: str
    reqids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """What happened to the CONFIG entry at ``index``: ``effective`` (appended), ``committed`` or ``rolled_back``."""

    what: str
    index: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class TransferChanged:
    """A leadership transfer: ``result`` is ``started``, ``done`` or ``failed``."""

    target: str
    result: str


@dataclass(slots=True)  # not frozen: one is made for each update, and that would take three times as long
class UpdateDone:
    """An update ended: ``result`` is ``done``, ``repeat``, ``expired``, ``taken``, ``not_leader`` or ``overload``.

    ``method`` is how it was asked for last, as its span is called (15.2).
    """

    reqid: bytes
    result: str
    index: int
    seconds: float
    method: str


@dataclass(frozen=True, slots=True)
class BarrierDone:
    """A barrier was confirmed (``ok``) or ended with our leadership, after ``seconds``."""

    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """A leader heard no majority for two election time-outs and stepped down (6.5)."""

    term: int


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """A leader waited for one fsync for ten election time-outs and stepped down (7.5)."""

    term: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """An input was dropped; ``reason`` is a word of 3.4."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeasesEnded:
    """We made the entry at ``index`` to end ``count`` leases whose time was over; ``seconds`` later it was applied."""

    reqid: bytes
    index: int
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KindChanged:
    """A peer turned out to be ``ours`` or ``js`` (4.2)."""

    peer: str
    kind: str


@dataclass(frozen=True, slots=True)
class FollowerLostLog:
    """A follower refused what it had acknowledged before; the leader no longer counts it from ``match`` on."""

    peer: str
    match: int


@dataclass(frozen=True, slots=True)
class StageReached:
    """The core is ReadWrite because its own log names it (8.3), or because ``set_stage`` said so."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class RecoveringChanged:
    """``what``: ``lost`` (turned Recovering), ``answering`` (5.5 a reached), ``healed`` (votes again)."""

    what: str
    vote_floor: int


@dataclass(frozen=True, slots=True)
class FollowChanged:
    """A peer without a vote reads the log of a leader (8.3): ``what`` is ``begun``; ``caught_up`` when it has all that
    is committed there; or ``ended`` when something else makes it give up before. ``index`` is its last entry.
    """

    what: str
    index: int


@dataclass(frozen=True, slots=True)
class SnapshotChanged:
    """What happened to the snapshot of ``index``: ``taken``, ``sent``, ``installed`` or ``bad``, in ``seconds``."""

    what: str
    index: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close this socket; a later ``Send`` to it opens a new one. To be handled before the sends of the same Outputs."""

    to: PeerChannel


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Entry ``index`` is damaged or contradicts the leader below the commit index.

    The core is halted and answers nothing more: the adapter MUST end the process with exit code 4. The next start finds
    the damage, sets the entries aside and is Recovering (13.3).
    """

    index: int


@dataclass(frozen=True, slots=True)
class Fork:
    """A learner's log differs from the leader's at ``index``, which both call committed: foreign data.

    The core is halted: the adapter MUST end the process with exit code 5.
    """

    index: int


MachineWork = Apply | Freeze | Restore
"""What the machine has to do, in this order."""

Event = (
    RoleChanged
    | TermChanged
    | VoteGranted
    | Standing
    | VoteReceived
    | LeaderKnown
    | Appended
    | ConfigurationChanged
    | TransferChanged
    | UpdateDone
    | BarrierDone
    | QuorumLost
    | SlowDisk
    | Dropped
    | KindChanged
    | FollowerLostLog
    | StageReached
    | RecoveringChanged
    | FollowChanged
    | SnapshotChanged
    | LeasesEnded
    | Disconnect
    | Corrupt
    | Fork
)


@dataclass(slots=True)  # made many times in a turn; a frozen one takes three times as long
class Outputs:
    """What is to be done since the last call, each group in its order."""

    store: tuple[StoreCommand, ...]
    send: tuple[Send, ...]
    apply: tuple[MachineWork, ...]
    events: tuple[Event, ...]

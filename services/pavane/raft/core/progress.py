"""How far one peer has come, in the states of the leader's view of it (docs/specs/raft.md 7.2-7.4)."""

import math
from dataclasses import dataclass, field

from pavane.raft.core.inflight import Inflight, Sent
from pavane.raft.core.outputs import Channel, PeerChannel
from pavane.raft.core.uploading import Upload


@dataclass(frozen=True, slots=True)
class Probe:
    """Where its log and ours agree is unknown: one message at a time, with one entry, until it takes one."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """Its log agrees with ours: messages are full."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Our log no longer has what it needs next: it is sent a snapshot and nothing else, then probed."""

    upload: Upload


State = Probe | Replicate | Snapshot


@dataclass(slots=True)
class StopAndWait:
    """How entries go to a peer of the original program, and to one not known as ours: one message is outstanding."""

    outstanding: Sent | None = None
    repeat_at: float = 0.0  # while it is


@dataclass(slots=True)
class Pipeline:
    """How entries go to a peer of ours that takes ``pv.append``: many messages are outstanding."""

    window: Inflight
    repeat_at: float = 0.0  # when it has been silent for too long, while something is outstanding
    told_commit: int = 0
    tell_at: float = math.inf  # when it is told the commit index, if no entries carry it before


@dataclass(frozen=True, slots=True)
class Leaving:
    """Entry ``index`` removed the peer: it is led until it knows that, at most until ``until``."""

    index: int
    until: float


@dataclass(slots=True)
class Progress:
    """How far one peer has come. ``next`` is the first index that the next message will carry."""

    id: str
    url: str
    next: int
    answered_at: float
    heartbeat_at: float
    match: int = 0
    commit: int = 0  # the commit index that it has acknowledged
    state: State = field(default_factory=Probe)
    form: StopAndWait | Pipeline = field(default_factory=StopAndWait)
    quiet_until: float = 0.0  # its RPC socket is left alone, so that an original peer drains the old connection
    sent: int = 0  # sequence of the newest message
    confirmed: int = 0  # sequence of the newest message that it answered in our term
    leaving: Leaving | None = None

    @property
    def to(self) -> PeerChannel:
        """The socket for AppendEntries."""
        return PeerChannel(Channel.RPC, self.id, self.url)

    @property
    def in_flight(self) -> int:
        """Entries under way."""
        if isinstance(self.form, Pipeline):
            return self.next - 1 - self.match if self.form.window else 0
        return 0 if self.form.outstanding is None else self.form.outstanding.last - self.next + 1

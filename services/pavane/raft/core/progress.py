"""How far one peer has come, in the states of the leader's view of it (docs/specs/raft.md 7.2-7.4)."""

from dataclasses import dataclass, field

from pavane.raft.core.inflight import Inflight
from pavane.raft.core.outputs import Channel, PeerChannel
from pavane.raft.core.uploading import Upload


@dataclass(frozen=True, slots=True)
class Probe:
    """Where its log and ours agree is unknown: one message at a time, with one entry, until it takes one."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """Its log agrees with ours: messages are full."""


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Our log no longer has what it needs next: it is sent a snapshot and nothing else, then probed."""

    upload: Upload


State = Probe | Replicate | SendSnapshot


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
    window: Inflight
    match: int = 0
    commit: int = 0  # the commit index that it has acknowledged
    state: State = field(default_factory=Probe)
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
        if not self.window:
            return 0
        return self.next - 1 - self.match if self.window.pipelined else self.window.first.last - self.next + 1

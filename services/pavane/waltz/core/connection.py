"""What a server remembers of a client's connection (docs/specs/waltz.md 3.6, 4.1)."""

from dataclasses import dataclass, field
from typing import Any

from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId

FEEDS_MAX = 16  # of one connection and partition, below V5, where they add up
PARKED_MAX = 1000  # requests of one connection that wait for a partition


@dataclass(slots=True)
class Connection:
    """``version`` is the negotiated one; ``client`` comes from the first message, ``net_seq`` from the first mount."""

    id: int
    version: int
    identity: str | None = None
    """The name in its certificate; ``None`` where none is asked for."""
    client: int | None = None
    net_seq: int | None = None
    writable: bool = True
    fed: int = 0
    """Bytes that its feeds have sent since it was last asked whether it has taken them."""
    parked: int = 0
    ids_asked: int = 0
    """Client ids that it has asked for and did not get yet."""
    blind: set[int] = field(default_factory=set)
    """Partitions that it may not read: a mount there sends nothing of them."""
    gone: bool = False
    """What it asked for is answered to nobody."""
    excess: str = ""
    """Why it is one connection too many."""
    held_until: float = 0.0
    """When its client, which understands no refusal, may append again: it is not read until then."""
    waiting: set[int] = field(default_factory=set)
    """Partitions whose queue this connection has filled: it is not read until they have room."""

    @property
    def ours(self) -> bool:
        """Whether the peer understands refusals."""
        return self.version >= 5


@dataclass(slots=True)
class Registration:
    """The connection through which a client has mounted a partition."""

    connection: Connection
    generation: int
    reqid: ReqId


KINDS = {
    m.MountRequest: 0,
    m.AppendRequest: 2,
    m.FeedRequest: 3,
    m.TransactionDataRequest: 6,
    m.FlushRequest: 8,
    m.HighWaterMarkRequest: 11,
    m.FeedBatchRequest: 32,
    m.FeedCredit: 34,
    m.AppendIdempotent: 37,
    m.TrimRequest: 47,
    m.ConsumerRequest: 49,
}
"""What is asked of a partition, and by which number a refusal names it."""
APPENDS = (m.AppendIdempotent, m.AppendRequest)


def kind_of(request: Any) -> int:
    """Return the number by which a refusal names a request."""
    return KINDS[type(request)]

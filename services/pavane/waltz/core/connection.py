"""What a server remembers of a client's connection (docs/specs/waltz.md 3.6, 4.1)."""

from dataclasses import dataclass, field

from pavane.waltz.wire.fields import ReqId

FEEDS_MAX = 16  # of one connection and partition, below V5, where they add up
PARKED_MAX = 1000  # requests of one connection that wait for a partition


@dataclass(slots=True)
class Connection:
    """``version`` is the negotiated one; ``client`` comes from the first message, ``net_seq`` from the first mount."""

    id: int
    version: int
    client: int | None = None
    net_seq: int | None = None
    writable: bool = True
    parked: int = 0
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

"""What the cores ask their adapter to do, in this order, and what they tell each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pavane.waltz.core.connection import Connection
from pavane.waltz.wire.blobs import PartitionAssignment, PartitionMetadata
from pavane.waltz.wire.messages import AddPreferredRequest, RemovePreferredRequest
from pavane.waltz.wire.storage import Record


@dataclass(frozen=True, slots=True)
class Reach:
    """Keep a connection to a storage node that the assignment does not name any more."""

    node: str


@dataclass(frozen=True, slots=True)
class ReadMeta:
    """Read a partition's metadata; the answer, with ``attempt``, goes to ``metadata``."""

    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WriteMeta:
    """Write a partition's metadata if it still has ``version`` (-1: create it); the answer goes to ``written``."""

    partition: int
    attempt: int
    version: int
    meta: PartitionMetadata


@dataclass(frozen=True, slots=True)
class WriteAssignment:
    """Write who owns what if the node still has ``version``; nobody waits for the answer."""

    version: int
    assignment: PartitionAssignment


class Send(NamedTuple):
    """Send a message to a storage node."""

    node: str
    message: Any


class Reply(NamedTuple):
    """Send a message to a client's connection."""

    connection: int
    message: Any


@dataclass(frozen=True, slots=True)
class Drain:
    """Say by ``set_connection_writable`` when a client's connection has taken what was sent to it."""

    connection: int


@dataclass(frozen=True, slots=True)
class Resume:
    """``may_read`` says something else of clients' connections now."""


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close a client's connection."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class NextClientId:
    """Take the next client id from the metadata store; the answer goes to ``client_id``."""

    connection: int
    seq: int


@dataclass(frozen=True, slots=True)
class Prefer:
    """Publish that this server prefers other partitions from now on; the answer goes to ``preferred``."""

    connection: int
    request: AddPreferredRequest | RemovePreferredRequest


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Ask the server at ``address`` for the HWM of a partition; the answer goes to ``owner_hwm``."""

    partition: int
    attempt: int
    address: str


@dataclass(frozen=True, slots=True)
class ReadStorage:
    """Read by the admin port of ``node`` which session has stamped it, then records; both go to ``records``."""

    partition: int
    read: int
    node: str
    txid: int
    count: int


@dataclass(frozen=True, slots=True)
class ReadArchive:
    """Read up to ``count`` records of a partition from its archive; ``answer`` gets ``None`` if that gives none.

    ``connection`` is of a client that may ask for many at once.
    """

    partition: int
    txid: int
    count: int
    answer: Callable[[Sequence[Record] | None], None]
    connection: Connection | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A store session has recovered the log up to ``hwm``."""

    session: int
    hwm: int


@dataclass(frozen=True, slots=True)
class Began:
    """The log begins with ``start`` from now on: what is below is trimmed."""

    start: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything up to ``hwm`` is on a quorum."""

    hwm: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The store session has ended; begin another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The store session has ended because another owner has begun."""

    reason: str


class Appended(NamedTuple):
    """These records of a partition were committed; nobody has to do anything."""

    partition: int
    records: Sequence[Record]


class Recovered(NamedTuple):
    """A store session of a partition is open, ``seconds`` after it began; nobody has to do anything."""

    partition: int
    session: int
    hwm: int
    seconds: float


Output = (
    Reach
    | ReadMeta
    | WriteMeta
    | WriteAssignment
    | Send
    | Reply
    | Drain
    | Resume
    | Hangup
    | NextClientId
    | Prefer
    | AskOwner
    | ReadStorage
    | ReadArchive
    | Opened
    | Began
    | Committed
    | Closed
    | Fenced
    | Appended
    | Recovered
)

"""What the cores ask their adapter to do, in this order, and what they tell each other."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pavane.waltz.core.connection import Connection
from pavane.waltz.wire.blobs import PartitionAssignment, PartitionMetadata
from pavane.waltz.wire.messages import AddPreferredRequest, RemovePreferredRequest
from pavane.waltz.wire.storage import Record


class Reach(NamedTuple):
    """Keep a connection to a storage node that the assignment does not name any more."""

    node: str


class ReadMeta(NamedTuple):
    """Read a partition's metadata; the answer, with ``attempt``, goes to ``metadata``."""

    partition: int
    attempt: int


class WriteMeta(NamedTuple):
    """Write a partition's metadata if it still has ``version`` (-1: create it); the answer goes to ``written``."""

    partition: int
    attempt: int
    version: int
    meta: PartitionMetadata


class WriteAssignment(NamedTuple):
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


class Drain(NamedTuple):
    """Say by ``set_connection_writable`` when a client's connection has taken what was sent to it."""

    connection: int


class Resume(NamedTuple):
    """``may_read`` says something else of clients' connections now."""


class Hangup(NamedTuple):
    """Close a client's connection."""

    connection: int
    reason: str


class NextClientId(NamedTuple):
    """Take the next client id from the metadata store; ``answer`` gets -1 if that does not answer."""

    answer: Callable[[int], None]


class Prefer(NamedTuple):
    """Publish that this server prefers other partitions from now on; ``answer`` gets whether it did."""

    request: AddPreferredRequest | RemovePreferredRequest
    answer: Callable[[bool], None]


class AskOwner(NamedTuple):
    """Ask the server at ``address`` for the HWM of a partition; ``answer`` gets ``None`` if that gives none."""

    partition: int
    address: str
    answer: Callable[[float, int | None], None]


class ReadStorage(NamedTuple):
    """Read by the admin port of ``node`` which session has stamped it, then records; ``answer`` gets both.

    It gets ``None`` in place of records if the node could not serve them.
    """

    partition: int
    node: str
    txid: int
    limit: int
    answer: Callable[[float, int, Sequence[Record] | None], None]


class ReadArchive(NamedTuple):
    """Read up to ``limit`` records of a partition from its archive; ``answer`` gets ``None`` if that gives none.

    ``connection`` is of a client that may ask for many at once.
    """

    partition: int
    txid: int
    limit: int
    answer: Callable[[Sequence[Record] | None], None]
    connection: Connection | None = None


class Opened(NamedTuple):
    """A store session has recovered the log up to ``hwm``."""

    session: int
    hwm: int


class Began(NamedTuple):
    """The log begins with ``start`` from now on: what is below is trimmed."""

    start: int


class Committed(NamedTuple):
    """Everything up to ``hwm`` is on a quorum."""

    hwm: int


class Closed(NamedTuple):
    """The store session has ended; begin another one, unless it is ``fenced``: another owner has begun."""

    reason: str
    fenced: bool = False


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
    | Appended
    | Recovered
)

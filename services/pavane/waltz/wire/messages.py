"""Messages between client and server (docs/specs/waltz.md 3, 6.2); ``tables`` has their layouts."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pavane.waltz.errors import RejectCode
from pavane.waltz.wire.blobs import AssignedPartition
from pavane.waltz.wire.fields import ReqId
from pavane.wire import Stage

BATCH_ITEMS_MAX = 1000  # of one FEED_BATCH
FLAG_DUPLICATE = 1  # AppendAck: the record was there before
FLAG_ACK = 1  # AppendIdempotent: answer with AppendAck
FLAG_RETRY = 2  # AppendIdempotent: may have been committed before
FLAG_NO_PAYLOAD = 1  # FeedBatchRequest
FLAG_CAUGHT_UP = 1  # FeedBatch: its last item is the server's HWM
FLAG_SUSPENDED = 2  # FeedBatch: a credit reached 0
FLAG_CLIENT_ID = 1  # ViewRequest: hand out a client id
FLAG_KEYS = 2  # ViewRequest: tell the number of partitions over which keys are spread, which never changes
FLAG_DRY_RUN = 1  # TrimRequest: only say what would happen
FLAG_FORCE = 2  # TrimRequest: also what consumers still need


class MountState(IntEnum):
    """Answer to a mount. Below V3 all but READY travel as false."""

    READY = 0
    NOT_READY = 1
    CLIENT_AHEAD = 2
    READY_READ_ONLY = 3  # V5


@dataclass(frozen=True, slots=True)
class Message:
    """What all have but the busiest ones, which are NamedTuples."""

    reqid: ReqId


@dataclass(frozen=True, slots=True)
class MountRequest(Message):
    """Register at a partition and catch up from ``hwm``; ``net_seq`` tells a newer connection from an older one."""

    hwm: int
    net_seq: int


@dataclass(frozen=True, slots=True)
class MountResponse(Message):
    """The mount is done, or why not."""

    state: MountState


class AppendRequest(NamedTuple):
    """Append ``data`` unless a lock was written after ``hwm``."""

    reqid: ReqId
    hwm: int
    write: tuple[int, ...]
    read: tuple[int, ...]
    append: tuple[int, ...]
    header: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FeedRequest(Message):
    """Feed from ``hwm`` + 1."""

    hwm: int


class FeedData(NamedTuple):
    """A committed transaction; ``reqid`` is that of its append."""

    reqid: ReqId
    txid: int
    header: int


@dataclass(frozen=True, slots=True)
class FeedSuspended(Message):
    """The credit of a feed is used up."""


@dataclass(frozen=True, slots=True)
class TransactionDataRequest(Message):
    """Fetch the payload of ``txid``."""

    txid: int


@dataclass(frozen=True, slots=True)
class TransactionDataResponse(Message):
    """The payload, or a text that says why there is none."""

    txid: int
    result: bytes | str


def no_such_transaction(reqid: ReqId, txid: int, first: int) -> TransactionDataResponse:
    """Return the answer about a transaction that is not committed, in the original's words, which logs are read for.

    ``first`` is the first one that there is.
    """
    name = "com.wepay.waltz.store.exception.TransactionNotFoundException"
    trimmed = f" ({begins(reqid.partition, first)})" if txid < first else ""
    return TransactionDataResponse(reqid, txid, f"{name}: partition={reqid.partition}transactionId={txid}{trimmed}")


def begins(partition: int, first: int) -> str:
    """Return what is said to those who want something older."""
    return f"partition {partition} begins with transaction {first}: older ones were trimmed"


@dataclass(frozen=True, slots=True)
class FlushRequest(Message):
    """Answer when every earlier append is resolved."""


@dataclass(frozen=True, slots=True)
class FlushResponse(Message):
    """HWM after the flush; -1 if empty."""

    txid: int


@dataclass(frozen=True, slots=True)
class LockFailure(Message):
    """The append is refused; ``txid`` may have written under one of its locks."""

    txid: int


@dataclass(frozen=True, slots=True)
class HighWaterMarkRequest(Message):
    """Ask for the last committed txid."""


@dataclass(frozen=True, slots=True)
class HighWaterMarkResponse(Message):
    """The last committed txid; -1 if empty."""

    txid: int


@dataclass(frozen=True, slots=True)
class CheckStorageRequest(Message):
    """Ask which storage nodes the server can reach."""


class StorageReachable(NamedTuple):
    """One storage node, ``host:port``."""

    address: str
    reachable: bool


@dataclass(frozen=True, slots=True)
class CheckStorageResponse(Message):
    """Storage nodes and whether they answered."""

    nodes: tuple[StorageReachable, ...]


@dataclass(frozen=True, slots=True)
class AssignmentRequest(Message):
    """Ask which partitions are on the server."""


@dataclass(frozen=True, slots=True)
class AssignmentResponse(Message):
    """Partitions on the server."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddPreferredRequest(Message):
    """Ask the server to prefer partitions."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddPreferredResponse(Message):
    """Whether it does."""

    done: bool


@dataclass(frozen=True, slots=True)
class RemovePreferredRequest(Message):
    """Ask the server to prefer partitions no longer."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemovePreferredResponse(Message):
    """Whether it does."""

    done: bool


@dataclass(frozen=True, slots=True)
class HealthRequest(Message):
    """Ask how the server's partitions are."""


class PartitionHealth(NamedTuple):
    """Whether the store session of a partition is usable."""

    partition: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class HealthResponse(Message):
    """Partitions and whether they are healthy."""

    partitions: tuple[PartitionHealth, ...]


@dataclass(frozen=True, slots=True)
class FeedBatchRequest(Message):
    """Feed in batches from ``hwm`` + 1 as far as the credits go; -1 inlines every payload."""

    hwm: int
    credit_items: int
    credit_bytes: int
    frame_bytes_max: int
    inline_bytes_max: int
    flags: int


class FeedItem(NamedTuple):
    """One transaction of a batch; ``data`` is ``None`` if its payload was not inlined."""

    reqid: ReqId
    header: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class FeedBatch(Message):
    """Transactions ``first_txid``, ``first_txid`` + 1, …"""

    first_txid: int
    server_hwm: int
    credit_items_left: int
    credit_bytes_left: int
    flags: int
    items: tuple[FeedItem, ...]


@dataclass(frozen=True, slots=True)
class FeedCredit(Message):
    """More credit for a feed."""

    add_items: int
    add_bytes: int


@dataclass(frozen=True, slots=True)
class Reject(Message):
    """A request of type ``request_type`` is refused; ``generation`` is the server's, -1 if unknown."""

    request_type: int
    code: RejectCode
    detail: int
    generation: int
    message: str


class AppendAck(NamedTuple):
    """The append is committed as ``txid``."""

    reqid: ReqId
    txid: int
    flags: int


class AppendIdempotent(NamedTuple):
    """An append that asks for an answer of its own."""

    reqid: ReqId
    hwm: int
    write: tuple[int, ...]
    read: tuple[int, ...]
    append: tuple[int, ...]
    header: int
    producer_epoch: int
    not_before: int
    flags: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ViewRequest(Message):
    """Ask any server for the cluster; FLAG_CLIENT_ID asks for a client id too, FLAG_KEYS for another number."""

    flags: int


class ViewServer(NamedTuple):
    """A live server: where it is, how far its pod has come and what it owns."""

    server_id: int
    host: str
    port: int
    stage: Stage
    partitions: tuple[AssignedPartition, ...]


@dataclass(frozen=True, slots=True)
class View(Message):
    """The cluster; ``version`` grows with every assignment, ``client_id`` is -1 unless one was asked for."""

    cluster: str
    version: int
    partitions: int
    client_id: int
    servers: tuple[ViewServer, ...]


@dataclass(frozen=True, slots=True)
class TrimRequest(Message):
    """Let the log begin with ``before``: what is below is given up for good, unless FLAG_DRY_RUN is set."""

    before: int
    flags: int


@dataclass(frozen=True, slots=True)
class TrimResponse(Message):
    """The log began with ``former`` and begins with ``start`` now, durably, or would; it ends with ``hwm``."""

    former: int
    start: int
    hwm: int


class ConsumerAction(IntEnum):
    """What is asked of the consumers of a partition."""

    LIST = 0  # the one that is named, all if the name is empty
    COMMIT = 1  # everything before ``position`` was applied
    START = 2  # begin at ``position``; one that is there stays as it is
    SET = 3  # begin at ``position``, whatever was before
    REMOVE = 4


@dataclass(frozen=True, slots=True)
class ConsumerRequest(Message):
    """Ask for or change the position of consumer ``name``; ``since`` tells it from others of its name before it."""

    action: ConsumerAction
    name: str
    position: int
    since: int
    who: str


class ConsumerState(NamedTuple):
    """A consumer as the owner sees it: ``lag_ms`` is how long there is something that it has not applied.

    ``idle_ms`` is how long ago it committed, ``held_ms`` for how long retention waits for it; -1: it does not.
    """

    name: str
    position: int
    since: int
    who: str
    lag_ms: int
    idle_ms: int
    held_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerResponse(Message):
    """What was asked is done, durably; the log begins with ``first`` and ends with ``hwm``."""

    first: int
    hwm: int
    consumers: tuple[ConsumerState, ...]

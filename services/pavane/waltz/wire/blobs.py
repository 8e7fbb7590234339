"""Blobs in the metadata store (docs/specs/waltz.md 8.2-8.4), byte for byte those of the original.

``X.encode(blob)`` and ``X.decode(data)`` with X one of the layouts at the end; decoding raises ``RemoteProtocolError``.
"""

from typing import NamedTuple
from uuid import UUID as Uuid

from pavane.waltz.wire.fields import INT32, INT64, INTS, JAVA_TEXT, UUID, Listed
from pavane.wire import RemoteProtocolError
from pavane.wire.fields import Constant, Layout

UNRESOLVED = -(1 << 63)  # closing HWM of a replica whose session has not ended
_VERSION = b"\x01"
_CONSUMERS = b"\x81"


class ClusterParams(NamedTuple):
    """Root of the tree: the cluster's name and number of partitions."""

    name: str
    partitions: int


class AssignedPartition(NamedTuple):
    """A partition that the assignment gives to a server, and its generation."""

    partition: int
    generation: int


class ServerPartitions(NamedTuple):
    """What a server owns."""

    server_id: int
    partitions: tuple[AssignedPartition, ...]


class PartitionAssignment(NamedTuple):
    """Who owns what; consistent iff ``cversion`` is that of the node's children."""

    cversion: int
    partitions: int
    servers: tuple[ServerPartitions, ...]


class ServerDescriptor(NamedTuple):
    """A live server and the partitions that it prefers."""

    server_id: int
    host: str
    port: int
    preferred: tuple[int, ...] = ()


class StoreParams(NamedTuple):
    """Key of the storage and its number of partitions."""

    key: Uuid
    partitions: int


class ReplicaAssignment(NamedTuple):
    """Partitions that a storage node, ``host:port``, holds."""

    address: str
    partitions: tuple[int, ...]


class ReplicaAssignments(NamedTuple):
    """Which storage node holds which partitions."""

    replicas: tuple[ReplicaAssignment, ...]


class NodeNumber(NamedTuple):
    """A storage node, ``host:port``, and its group or its admin port."""

    address: str
    number: int


class NodeNumbers(NamedTuple):
    """Which storage node belongs to which group, or has which admin port: two blobs of one shape."""

    nodes: tuple[NodeNumber, ...]


class ReplicaState(NamedTuple):
    """The last session of a replica and where it ended, or UNRESOLVED."""

    partition: int
    address: str
    session: int
    closing_hwm: int


class Consumer(NamedTuple):
    """Ours: somebody who has applied all of a partition before ``position``, and says of itself ``who`` it is.

    Times are in milliseconds since 1970, by the clock of the server: ``since`` is when it was given a position by name,
    which tells it from one of its name before, ``committed`` when it last said how far it is, ``held`` when retention
    began to wait for it at this position; 0: it does not.
    """

    name: str
    position: int
    since: int
    committed: int
    who: str
    held: int = 0


class PartitionMetadata(NamedTuple):
    """The current store session of a partition and its replicas; ``start`` is the first transaction that is kept."""

    generation: int
    session: int
    replicas: tuple[ReplicaState, ...]
    start: int = 0
    consumers: tuple[Consumer, ...] = ()


class Rollout(NamedTuple):
    """Ours: the rollout whose servers shall own everything as soon as half of so many are there."""

    number: int
    servers: int
    left: int = 0
    """The last rollout that was left for a former one; behind the others only where there was one."""

    def has_passed(self, number: int) -> bool:
        """Whether that rollout had its turn, or may never have it."""
        return number != self.number and number <= max(self.number, self.left)


class ServerRollout(NamedTuple):
    """Ours: the rollout that a live server belongs to."""

    server_id: int
    number: int


EMPTY_ASSIGNMENT = PartitionAssignment(-1, 0, ())
EMPTY_METADATA = PartitionMetadata(-1, -1, ())


class _Start:
    """Ours: a number behind what is always written; 0 is nothing, so that the bytes are those of before."""

    size_min = 0

    def put(self, out: bytearray, value: int) -> None:
        if value:
            INT64.put(out, value)

    def get(self, body: bytes, at: int) -> tuple[int, int]:
        return (0, at) if body[at : at + 1] in (b"", _CONSUMERS) else INT64.get(body, at)


class _Consumers:
    """Ours: behind that, where there are any; the first byte is one that no start has."""

    size_min = 0

    def put(self, out: bytearray, value: tuple[Consumer, ...]) -> None:
        if value:
            out += _CONSUMERS
            _LISTED.put(out, value)

    def get(self, body: bytes, at: int) -> tuple[tuple[Consumer, ...], int]:
        if at == len(body):
            return (), at
        if body[at : at + 1] != _CONSUMERS:
            raise RemoteProtocolError("consumers", f"version {body[at : at + 1].hex()}")
        return _LISTED.get(body, at + 1)


_V = Constant(_VERSION)
ASSIGNED = Layout(AssignedPartition, INT32, INT32)
_SERVER = Layout(ServerPartitions, INT32, Listed(ASSIGNED))
_REPLICA = Layout(ReplicaAssignment, JAVA_TEXT, INTS)
_LISTED = Listed(Layout(Consumer, JAVA_TEXT, INT64, INT64, INT64, JAVA_TEXT, INT64))
_STATE = Layout(ReplicaState, Constant(b"\x01\x01"), INT32, JAVA_TEXT, INT64, INT64)

CLUSTER_PARAMS = Layout(ClusterParams, Constant(bytes.fromhex("b4e87347") + _VERSION), JAVA_TEXT, INT32)
PARTITION_ASSIGNMENT = Layout(PartitionAssignment, Constant(b"\x03"), INT32, INT32, Listed(_SERVER))
SERVER_DESCRIPTOR = Layout(ServerDescriptor, _V, INT32, JAVA_TEXT, INT32, INTS)
STORE_PARAMS = Layout(StoreParams, _V, UUID, INT32)
REPLICA_ASSIGNMENTS = Layout(ReplicaAssignments, _V, Listed(_REPLICA))
NODE_NUMBERS = Layout(NodeNumbers, _V, Listed(Layout(NodeNumber, JAVA_TEXT, INT32)))
PARTITION_METADATA = Layout(PartitionMetadata, _V, INT32, INT64, Listed(_STATE), _Start(), _Consumers())
ROLLOUT = Layout(Rollout, _V, INT32, INT32, _Start())
SERVER_ROLLOUT = Layout(ServerRollout, _V, INT32, INT32)

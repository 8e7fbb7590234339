"""What a storage node's core needs of its files: the port that ``pavane.waltz.storage`` implements."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from pavane.waltz.wire.storage import CopyState, Record


class Damaged(Exception):
    """What a partition acknowledged cannot be read back; it must not vote or answer until it is repaired.

    ``txid`` is the first bad transaction, -1 where whoever reads knows it.
    """

    def __init__(self, text: str, txid: int = -1) -> None:
        super().__init__(text)
        self.txid = txid


class Refused(Exception):
    """Why a storage node answers a request by FAILURE."""


class SessionInfo(NamedTuple):
    """What the last SET_LOW_WATER_MARK wrote."""

    session: int = -1
    lwm: int = -1
    local_lwm: int = -1


class Kept(NamedTuple):
    """A node has ``first`` to ``last`` in ``size`` bytes, and can do without what is below ``wanted``."""

    first: int
    last: int
    wanted: int
    size: int


class PartitionStore(Protocol):
    """One partition's log on a disk. Every method may raise ``OSError``; reads raise ``Damaged``."""

    @property
    def number(self) -> int:
        """Which."""

    @property
    def available(self) -> bool:
        """Whether the partition may be used; a damaged one may not."""

    @property
    def fault(self) -> str:
        """Why it is not available, for people; empty if it is."""

    @property
    def state(self) -> CopyState:
        """Whether its records are damaged, or being copied anew; one that a tool or the disk stopped is neither."""

    @property
    def info(self) -> SessionInfo:
        """The durable session."""

    @property
    def fence(self) -> int:
        """The greatest session id that was promised to be the only one obeyed."""

    @property
    def max_txid(self) -> int:
        """The last record, synced or not; -1 if there is none."""

    def raise_fence(self, session: int) -> None:
        """Note a promise; it is durable after ``NodeStore.sync_marks``."""

    def append(self, records: Sequence[Record]) -> None:
        """Write records that continue the log."""

    def begin_sync(self) -> None:
        """Have what was appended written soon: the ``sync`` of several partitions then costs one commit."""

    def sync(self) -> None:
        """Make everything that was appended durable; after a failure the partition is unavailable."""

    def truncate(self, txid: int) -> None:
        """Cut everything behind ``txid``, durably."""

    def retain(self, start: int, bytes_max: int, age_ms_max: int) -> Kept:
        """Drop what is below ``start``; -1: without that limit. Reads below what is left return nothing."""

    def rebuild(self) -> None:
        """Give up all records and the session, durably; it is empty then, and unavailable until ``rebuilt``."""

    def rebuilt(self) -> None:
        """What was copied since is verified: make that known durably, and the partition available."""

    def set_info(self, info: SessionInfo) -> None:
        """Write the session durably."""

    def set_available(self, available: bool) -> None:
        """Let a tool say whether the partition may be used, durably."""

    def read(self, txid: int, count: int) -> list[Record]:
        """Return up to ``count`` records from ``txid`` on, as far as they fit one message."""


class NodeStore(Protocol):
    """All partitions of one node."""

    @property
    def partitions(self) -> int:
        """How many the cluster has."""

    def partition(self, number: int) -> PartitionStore | None:
        """Return a partition that is assigned to this node."""

    def assigned(self) -> Sequence[PartitionStore]:
        """Return the partitions of this node."""

    def assign(self, numbers: Iterable[int]) -> None:
        """Give partitions to this node, durably; those that it has stay as they are."""

    def unassign(self, number: int, *, delete_files: bool) -> None:
        """Take a partition away, durably, with its files or without."""

    def sync_marks(self) -> None:
        """Make fences and marks durable."""

    def free_bytes(self) -> int:
        """Return how much more may be written."""


def assigned(store: NodeStore, number: int) -> PartitionStore:
    """Return a partition of this node; raises ``Refused`` if it is none."""
    if (files := store.partition(number)) is None:
        raise Refused(f"partition {number} is not assigned to this storage node")
    return files

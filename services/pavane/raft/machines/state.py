"""What a key-value machine replicates (docs/specs/raft.md 12.2, 12.7, 12.8): keys, nodes, leases, history, results."""

from typing import NamedTuple

from pavane.raft.errors import Code, DropReason
from pavane.raft.machines import limits
from pavane.raft.machines.commands import ROOT
from pavane.raft.machines.history import History
from pavane.raft.machines.table import Table
from pavane.raft.wire.frames import Frame, malformed
from pavane.raft.wire.msgpack import Value, decode, encode_pv


class KeyRecord(NamedTuple):
    """One key. ``create`` and ``mod`` are revisions, ``version`` counts its writes from 1."""

    value: bytes
    create: int
    mod: int
    version: int
    lease: int

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len(self.value)


class TreeNode(NamedTuple):
    """One node of the tree. ``created`` counts the children it ever had, ``children`` those it has."""

    data: bytes
    version: int
    cversion: int
    created: int
    create: int
    mod: int
    lease: int
    children: int = 0

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return len(self.data)


class Lease(NamedTuple):
    """A lease that has not ended."""

    ttl_ms: int
    holder: bytes


class Result(NamedTuple):
    """What a command came to: ``data`` is the array of 12.3, encoded, which begins with ``code`` and the revision."""

    code: Code
    data: bytes

    @classmethod
    def of(cls, code: Code, revision: int, value: Value) -> "Result":
        """Encode a payload or, if ``code`` is not OK, an argument."""
        return cls(code, encode_pv([int(code), revision, value]))


def decode_result(data: Frame) -> tuple[Code, int, Value]:
    """Return code, revision and value of an encoded result; raises ``RemoteProtocolError`` if it is none."""
    match decode(data):
        case [int(code), int(revision), value] if code in _CODES:
            return Code(code), revision, value
    malformed(DropReason.JSON)


_CODES = frozenset(Code)


class Results:
    """The results of the last commands by request id; a client that repeats is told what came of the first (12.4)."""

    def __init__(self) -> None:
        self.kept: dict[bytes, tuple[int, Result]] = {}
        self._bytes = 0

    def get(self, reqid: bytes) -> Result | None:
        """Return the result of the command with this id, ``None`` if it is forgotten or was never applied."""
        entry = self.kept.get(reqid)
        return entry[1] if entry is not None else None

    def add(self, reqid: bytes, index: int, result: Result) -> None:
        """Remember ``result``; the oldest are forgotten when there are too many."""
        self._forget(reqid)
        self.kept[reqid] = (index, result)
        self._bytes += len(result.data)
        while len(self.kept) > limits.RESULTS_KEPT_MAX or self._bytes > limits.RESULTS_BYTES_MAX:
            self._forget(next(iter(self.kept)))

    def _forget(self, reqid: bytes) -> None:
        entry = self.kept.pop(reqid, None)
        if entry is not None:
            self._bytes -= len(entry[1].data)


class State:
    """All of it; equal in every replica that has applied the same entries. ``leases`` is ascending."""

    def __init__(self, *, tree: bool) -> None:
        self.level = limits.LEVEL_FIRST
        self.revision = 0
        self.keys: Table[KeyRecord] = Table()
        self.nodes: Table[TreeNode] = Table([(ROOT, TreeNode(b"", 0, 0, 0, 0, 0, 0))] if tree else ())
        self.leases: dict[int, Lease] = {}
        self.results = Results()
        self.history = History()

    @property
    def bytes(self) -> int:
        """Bytes of all keys, values, paths and data."""
        return self.keys.bytes + self.nodes.bytes

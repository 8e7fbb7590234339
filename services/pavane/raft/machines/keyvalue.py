"""The state machines ``KeyValue`` and ``Tree`` (docs/specs/raft.md 12.1, 12.2): deterministic, without clock or I/O."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.changing import Change
from pavane.raft.machines.commands import (
    Command,
    Failed,
    LeaseExpire,
    LeaseGrant,
    LeaseRevoke,
    SetLevel,
    Txn,
)
from pavane.raft.machines.decoding import bad, decode_command, decode_read_ops, items, uint
from pavane.raft.machines.history import Cursor, History, Watch
from pavane.raft.machines.reads import Reads, holds
from pavane.raft.machines.snapshot import BadSnapshot, freeze, restore
from pavane.raft.machines.state import Lease, Result, State
from pavane.raft.machines.table import Table
from pavane.raft.state.configuration import Configuration
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.msgpack import Value

DIGEST_BYTES = 32
NODE_VERSION_STEP = 1 << 24
"""Versions of a node that a restored cluster leaves out: ten changes a second for 19 days.

Not more, for ZooKeeper and what is written for it, as the log's registry, have 32 bits: room for 127 restores.
"""
UNKNOWN = "unknown"
COMMAND_NAMES: Mapping[type[Command], str] = {
    Txn: "txn",
    LeaseGrant: "lease_grant",
    LeaseRevoke: "lease_revoke",
    LeaseExpire: "lease_expire",
    SetLevel: "set_level",
}
"""What each command is called where it is counted (15.1)."""


class KeyValue:
    """Flat keys, leases and their history.

    ``state`` is for reading: only ``apply`` and ``restore`` change it.
    """

    name = "KeyValue"
    tree = False
    level_max = limits.LEVEL_FIRST

    def __init__(self) -> None:
        self.state = State(tree=self.tree)
        self.applied: Counter[tuple[str, str]] = Counter()  # commands by name and code; not part of the state
        self.expired = 0  # leases that were ended by time; not part of the state either

    @property
    def level(self) -> int:
        """The number of the command set that all replicas may use (12.2)."""
        return self.state.level

    # --- replicated --------------------------------------------------------------------------------------------------

    def apply(self, index: int, reqid: bytes, data: Frame) -> Result:
        """Apply the STATE entry at ``index``; whatever ``data`` is, the outcome is a result, kept under ``reqid``."""
        state = self.state
        state.revision = index
        change = Change(state, index)
        name = UNKNOWN
        try:
            command = decode_command(data, state.level, tree=self.tree)
            name = COMMAND_NAMES[type(command)]
            value = self._carry_out(command, change, index)
            result = Result.of(Code.OK, index, value)
        except Failed as failed:
            change.undo()
            result = Result.of(failed.code, index, failed.argument)
        if change.events:
            state.history.add(index, tuple(change.events))
        state.results.add(reqid, index, result)
        self.applied[name, result.code.name] += 1
        return result

    def configuration(self, index: int, configuration: Configuration) -> None:
        """Do nothing: members are not part of this state."""

    def freeze(self) -> Iterator[bytes]:
        """Return the snapshot data of this moment in slices; applying goes on while they are taken (9.1, 12.9)."""
        return freeze(self.state, self.name)

    def restore(self, data: Iterable[bytes | memoryview], index: int) -> None:
        """Begin from the snapshot at ``index``; ``BadSnapshot``, and no change, if it is none of this machine."""
        state = restore(data, self.name, self.level_max)
        if state.revision > index:
            raise BadSnapshot(f"the snapshot of index {index} holds revision {state.revision}; take it again")
        self.state = state

    def go_on_behind(self, index: int) -> None:
        """Begin a new cluster with this state, whose next revision lies behind ``index`` (13.5).

        Versions go up as well, so that a comparison with one that the old cluster gave out later fails. Counters of
        children stay: they are in the names of nodes. Watchers of the old cluster are told COMPACTED.
        """
        state = self.state
        step = index - state.revision
        state.revision = index
        state.history = History(floor=index + 1)
        everything = b"", None
        state.keys = Table(
            (key, record._replace(version=record.version + step)) for key, record in state.keys.between(*everything)
        )
        step = NODE_VERSION_STEP
        state.nodes = Table(
            (path, node._replace(version=node.version + step, cversion=node.cversion + step))
            for path, node in state.nodes.between(*everything)
        )

    def digest(self) -> bytes:
        """Return BLAKE2b-256 of the replicated state, equal at all replicas that have applied the same entries."""
        hasher = blake2b(digest_size=DIGEST_BYTES)
        for part in self.freeze():
            hasher.update(part)
        return hasher.digest()

    def _carry_out(self, command: Command, change: Change, index: int) -> Value:
        state = self.state
        match command:
            case Txn(compares, then, otherwise):
                succeeded = all(holds(state, compare) for compare in compares)
                return [succeeded, [change.run(op) for op in (then if succeeded else otherwise)]]
            case LeaseGrant(ttl_ms, holder):
                if len(state.leases) >= limits.LEASES_MAX:
                    raise Failed(Code.NO_SPACE, limits.LEASES_MAX)
                ttl_ms = min(max(ttl_ms, limits.LEASE_TTL_MIN_MS), limits.LEASE_TTL_MAX_MS)
                state.leases[index] = Lease(ttl_ms, holder)
                return [index, ttl_ms]
            case LeaseRevoke(lease):
                if lease not in state.leases:
                    raise Failed(Code.NO_LEASE, lease)
                change.end_lease(lease)
            case LeaseExpire(leases):
                for lease in leases:
                    # One that was revoked meanwhile is gone.
                    if lease in state.leases:
                        change.end_lease(lease)
                        self.expired += 1
            case SetLevel(level):
                if level > self.level_max:
                    raise Failed(Code.UNSUPPORTED, state.level)
                state.level = max(state.level, level)
        return None

    # --- what a server asks ------------------------------------------------------------------------------------------

    def check(self, data: Frame) -> None:
        """Look at a client's command before a leader appends it; raises ``Failed`` if it cannot take effect (12.2).

        What only the state can say is not looked at.
        """
        command = decode_command(data, self.state.level, tree=self.tree)
        if isinstance(command, LeaseExpire):
            bad("only a leader ends leases by time")
        if isinstance(command, SetLevel) and command.level > self.level_max:
            raise Failed(Code.UNSUPPORTED, self.state.level)

    def result_of(self, reqid: bytes) -> Result | None:
        """Return what became of an applied command, ``None`` if that is forgotten: RESULT_LOST (12.4)."""
        return self.state.results.get(reqid)

    def read(self, ops: Value) -> list[Value]:
        """Evaluate the ops of ``pv.read`` on the present state; raises ``Failed`` (12.5)."""
        reads = Reads(self.state)
        return [reads.run(op) for op in decode_read_ops(ops, self.state.level, tree=self.tree)]

    def watch(self, query: dict[str, Value], applied: int) -> Cursor:
        """Begin a watch at a replica that has applied everything up to ``applied``; raises ``Failed`` (12.6)."""
        return Cursor(Watch.decode(query, self.state.level, tree=self.tree), applied)


class Tree(KeyValue):
    """All of ``KeyValue`` and a tree of nodes, with one order of revisions and one set of leases (12.8)."""

    name = "Tree"
    tree = True


def decode_query(query: Value) -> tuple[Value, int | None]:
    """Split ``[flags, ops, min_revision]`` of ``pv.read`` into ops and, if any peer may answer, the least revision.

    That is ``None`` for a linearizable read, which the leader answers after a barrier. Raises ``Failed``.
    """
    match query:
        case [flags, ops, *rest] if len(rest) <= 1:
            match uint(flags):
                case 0 if not rest:
                    return ops, None
                case 1:
                    return ops, uint(rest[0]) if rest else 0
    bad("a read is [0, ops], [1, ops] or [1, ops, revision]")


def decode_lease_ids(value: Value) -> tuple[int, ...]:
    """Take the array of ``pv.lease``; raises ``Failed``."""
    return tuple(map(uint, items(value, limits.LEASE_BATCH_MAX)))

"""What the ops of one transaction do, all or nothing (docs/specs/raft.md 12.3, 12.7, 12.8)."""

from typing import Any

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    ANY_VERSION,
    SEQUENCE_DIGITS,
    Check,
    Children,
    Create,
    Delete,
    DeleteRange,
    Failed,
    Get,
    Op,
    Put,
    Range,
    Remove,
    Set,
    parent_of,
    span,
)
from pavane.raft.machines.history import Event, Happened
from pavane.raft.machines.reads import Reads
from pavane.raft.machines.state import KeyRecord, State, TreeNode
from pavane.raft.machines.table import R, Table
from pavane.raft.wire.msgpack import Value


class Change:
    """The writes of the command at ``revision``, made at once and undone together.

    ``events`` are what watchers are told if the command stands.
    """

    def __init__(self, state: State, revision: int) -> None:
        self.events: list[Event] = []
        self._state = state
        self._revision = revision
        self._reads = Reads(state)
        self._old: list[tuple[Table[Any], bytes, Any]] = []

    def undo(self) -> None:
        """Take everything back."""
        for table, key, record in reversed(self._old):
            table.write(key, record)
        self.events.clear()

    def run(self, op: Op) -> Value:
        """Carry out ``op`` and return its result; raises ``Failed``, after which ``undo`` is due."""
        match op:
            case Put():
                return self._put(op)
            case Delete(key):
                return [Delete.NUMBER, self._delete_all([key], Happened.DELETE)]
            case DeleteRange(start, end):
                keys = [key for key, _ in self._state.keys.between(*span(start, end))]
                return [DeleteRange.NUMBER, self._delete_all(keys, Happened.DELETE)]
            case Create():
                return self._create(op)
            case Set():
                return self._set(op)
            case Remove(path, version):
                self._remove(path, self._node(path, version))
                return [Remove.NUMBER]
            case Check(path, version):
                self._node(path, version)
                return [Check.NUMBER]
            case Range() | Get() | Children():
                return self._reads.run(op)

    def end_lease(self, lease: int) -> None:
        """End a lease that is alive: what is bound to it goes, keys first, each in ascending order."""
        self._delete_all(self._state.keys.bound_to(lease), Happened.EXPIRED)
        for path in self._state.nodes.bound_to(lease):
            self._remove(path, self._node(path, ANY_VERSION))
        del self._state.leases[lease]

    # --- keys --------------------------------------------------------------------------------------------------------

    def _put(self, op: Put) -> Value:
        self._check_lease(op.lease)
        old = self._state.keys.get(op.key)
        if old is None:
            record = KeyRecord(op.value, self._revision, self._revision, 1, op.lease)
            self._check_room(len(op.key) + len(op.value), new=True)
        else:
            record = KeyRecord(op.value, old.create, self._revision, old.version + 1, op.lease)
            self._check_room(len(op.value) - len(old.value), new=False)
        self._write(self._state.keys, op.key, record)
        self.events.append(Event(Happened.PUT, op.key, op.value, record.version, op.lease))
        return [Put.NUMBER, record.version]

    def _delete_all(self, keys: list[bytes], happened: Happened) -> int:
        count = 0
        for key in keys:
            record = self._write(self._state.keys, key, None)
            if record is not None:
                self.events.append(Event(happened, key, None, record.version, record.lease))
                count += 1
        return count

    # --- tree --------------------------------------------------------------------------------------------------------

    def _create(self, op: Create) -> Value:
        above = parent_of(op.path)
        parent = self._node(above, ANY_VERSION)
        if parent.lease:
            raise Failed(Code.EPHEMERAL_PARENT, above)
        self._check_lease(op.lease)
        path = op.path
        if op.flags & Create.SEQUENTIAL:
            path += b"%0*d" % (SEQUENCE_DIGITS, parent.created)
        if self._state.nodes.get(path) is not None:
            raise Failed(Code.NODE_EXISTS, path)
        self._check_room(len(path) + len(op.data), new=True)
        self._write(self._state.nodes, path, TreeNode(op.data, 0, 0, 0, self._revision, self._revision, op.lease))
        self.events.append(Event(Happened.CREATED, path, op.data, 0, 0))
        self._count_child(above, parent._replace(created=parent.created + 1), 1)
        return [Create.NUMBER, path]

    def _set(self, op: Set) -> Value:
        node = self._node(op.path, op.version)
        self._check_room(len(op.data) - len(node.data), new=False)
        node = node._replace(data=op.data, version=node.version + 1, mod=self._revision)
        self._write(self._state.nodes, op.path, node)
        self.events.append(Event(Happened.DATA, op.path, op.data, node.version, node.cversion))
        return [Set.NUMBER, node.version]

    def _remove(self, path: bytes, node: TreeNode) -> None:
        if node.children:
            raise Failed(Code.NOT_EMPTY, path)
        self._write(self._state.nodes, path, None)
        self.events.append(Event(Happened.REMOVED, path, None, node.version, node.cversion))
        above = parent_of(path)
        self._count_child(above, self._node(above, ANY_VERSION), -1)

    def _count_child(self, path: bytes, node: TreeNode, change: int) -> None:
        node = node._replace(children=node.children + change, cversion=node.cversion + 1)
        self._write(self._state.nodes, path, node)
        self.events.append(Event(Happened.CHILDREN, path, None, node.version, node.cversion))

    def _node(self, path: bytes, version: int) -> TreeNode:
        node = self._state.nodes.get(path)
        if node is None:
            raise Failed(Code.NO_NODE, path)
        if version not in (ANY_VERSION, node.version):
            raise Failed(Code.BAD_VERSION, path)
        return node

    # --- both --------------------------------------------------------------------------------------------------------

    def _write(self, table: Table[R], key: bytes, record: R | None) -> R | None:
        old = table.write(key, record)
        self._old.append((table, key, old))
        return old

    def _check_lease(self, lease: int) -> None:
        if lease and lease not in self._state.leases:
            raise Failed(Code.NO_LEASE, lease)

    def _check_room(self, growth: int, *, new: bool) -> None:
        """Refuse what makes a full store larger; everything else goes on, above all deleting."""
        state = self._state
        if new and len(state.keys) + len(state.nodes) >= limits.STORE_KEYS_MAX:
            raise Failed(Code.NO_SPACE, limits.STORE_KEYS_MAX)
        if growth > 0 and state.bytes + growth > limits.STORE_BYTES_MAX:
            raise Failed(Code.NO_SPACE, limits.STORE_BYTES_MAX)

"""What reads and compares find in the state (docs/specs/raft.md 12.3, 12.5)."""

from typing import Any

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    ROOT,
    Children,
    Compare,
    Failed,
    Get,
    Range,
    ReadOp,
    Relation,
    Target,
    span,
)
from pavane.raft.machines.state import State
from pavane.raft.wire.msgpack import Value

MISSING_NODE_VERSION = -1
ITEM_ELEMENTS = 8  # of a node with the array that holds it; a key has one less
_BEHIND_SLASH = b"0"  # the byte after "/"


class Reads:
    """The reads of one command or query: together what they find fits one reply.

    A value that alone is larger than a reply is given whole if it comes first.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._left = limits.REPLY_BYTES_MAX
        self._elements_left = limits.REPLY_ELEMENTS_MAX

    def run(self, op: ReadOp) -> Value:
        """Return the result of ``op``. Raises ``Failed``: TOO_LARGE, NO_NODE."""
        match op:
            case Range():
                return self._range(op)
            case Get(path):
                return self._get(path)
            case Children(path):
                return self._children(path)

    def _range(self, op: Range) -> Value:
        keys = self._state.keys
        start, end = span(op.start, op.end)
        if op.flags & Range.COUNT_ONLY:
            return [Range.NUMBER, keys.count(start, end), False]
        limit = min(op.limit or limits.RANGE_ITEMS_MAX, limits.RANGE_ITEMS_MAX)
        found: list[Value] = []
        for key, record in keys.between(start, end, descending=bool(op.flags & Range.DESCENDING)):
            value = b"" if op.flags & Range.KEYS_ONLY else record.value
            if len(found) == limit or not self._take(len(key) + len(value)):
                return [Range.NUMBER, found, True]
            found.append([key, value, *record[1:]])
        return [Range.NUMBER, found, False]

    def _get(self, path: bytes) -> Value:
        node = self._state.nodes.get(path)
        if node is None:
            return [Get.NUMBER, None]
        if not self._take(node.size):
            raise Failed(Code.TOO_LARGE, limits.REPLY_BYTES_MAX)
        data, version, cversion, _, create, mod, lease, children = node
        return [Get.NUMBER, [data, version, cversion, create, mod, children, lease]]

    def _children(self, path: bytes) -> Value:
        nodes = self._state.nodes
        node = nodes.get(path)
        if node is None:
            raise Failed(Code.NO_NODE, path)
        names: list[Value] = []
        prefix = path if path == ROOT else path + b"/"
        position = prefix + b"\x00"
        while len(names) < node.children:
            name = next(nodes.between(position, None))[0][len(prefix) :]
            child, slash, _ = name.partition(b"/")
            if slash:
                # Descendants of a child that is named already: go to the first key behind all of them.
                position = prefix + child + _BEHIND_SLASH
                continue
            self._left -= len(name) + limits.NAME_BYTES
            self._elements_left -= 1
            if self._left < 0 or self._elements_left < 0:
                raise Failed(Code.TOO_LARGE, limits.REPLY_BYTES_MAX)
            names.append(name)
            position = prefix + name + b"\x00"
        return [Children.NUMBER, names, node.cversion]

    def _take(self, size: int) -> bool:
        """Take room for a key or node of ``size`` bytes, if it is there or this is the first."""
        cost = size + limits.ITEM_BYTES
        if cost > self._left < limits.REPLY_BYTES_MAX or self._elements_left < ITEM_ELEMENTS:
            return False
        self._left = max(0, self._left - cost)
        self._elements_left -= ITEM_ELEMENTS
        return True


def holds(state: State, compare: Compare) -> bool:
    """Return whether a condition of a transaction is met."""
    if compare.target == Target.LEASE_ALIVE:
        return (compare.operand in state.leases) == (compare.relation == Relation.EQUAL)
    if compare.target in (Target.DATA_VERSION, Target.CVERSION):
        return _related(_of_node(state, compare), compare)
    record = state.keys.get(compare.key)
    if record is None:
        if compare.target == Target.VALUE:
            return compare.relation in (Relation.NOT_EQUAL, Relation.LESS)
        return _related(0, compare)
    match compare.target:
        case Target.VALUE:
            return _related(record.value, compare)
        case Target.VERSION:
            return _related(record.version, compare)
        case Target.CREATE_REVISION:
            return _related(record.create, compare)
        case Target.MOD_REVISION:
            return _related(record.mod, compare)
        case _:
            return _related(record.lease, compare)


def _of_node(state: State, compare: Compare) -> int:
    node = state.nodes.get(compare.key)
    if node is None:
        return MISSING_NODE_VERSION
    return node.version if compare.target == Target.DATA_VERSION else node.cversion


def _related(stored: bytes | int, compare: Compare) -> bool:
    # The decoder sees to it that both are of one type.
    operand: Any = compare.operand
    left: Any = stored
    match compare.relation:
        case Relation.EQUAL:
            return bool(left == operand)
        case Relation.NOT_EQUAL:
            return bool(left != operand)
        case Relation.LESS:
            return bool(left < operand)
        case Relation.GREATER:
            return bool(left > operand)

"""Reading commands, the ops of reads and their parts (docs/specs/raft.md 12.3).

What a command of a wrong form, beyond a limit or of an unknown number comes to is decided here, by ``Failed``, the same
way in every replica. **The texts of BAD_COMMAND are kept with the results, so they are replicated state: they change
only with the level.**
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    ANY_VERSION,
    ROOT,
    SEQUENCE_DIGITS,
    Check,
    Children,
    Command,
    Compare,
    Create,
    Delete,
    DeleteRange,
    Failed,
    Get,
    LeaseExpire,
    LeaseGrant,
    LeaseRevoke,
    Op,
    Put,
    Range,
    ReadOp,
    Relation,
    Remove,
    Set,
    SetLevel,
    Target,
    Txn,
    span,
)
from pavane.raft.wire.frames import UINT_MAX, Frame
from pavane.raft.wire.msgpack import Value, decode
from pavane.wire import RemoteProtocolError


def decode_command(data: Frame, level: int, *, tree: bool) -> Command:
    """Decode one command for a machine of ``level``, with or without a tree.

    Raises ``Failed``: BAD_COMMAND for a wrong form, TOO_LARGE for what is beyond a limit, UNSUPPORTED for what is not
    in the level or, without a tree, in the machine.
    """
    if len(data) > limits.TXN_BYTES_MAX:
        raise Failed(Code.TOO_LARGE, limits.TXN_BYTES_MAX)
    try:
        value = decode(data)
    except RemoteProtocolError:
        bad("not MessagePack")
    number, fields = _numbered(value)
    try:
        match number:
            case Txn.NUMBER:
                compares, then, otherwise = fields
                return Txn(_compares(compares, level, tree), _ops(then, level, tree), _ops(otherwise, level, tree))
            case LeaseGrant.NUMBER:
                ttl_ms, holder = fields
                return LeaseGrant(uint(ttl_ms), _blob(holder, limits.HOLDER_BYTES_MAX))
            case LeaseRevoke.NUMBER:
                (lease,) = fields
                return LeaseRevoke(uint(lease))
            case LeaseExpire.NUMBER:
                (leases,) = fields
                return LeaseExpire(tuple(map(uint, items(leases, limits.LEASE_BATCH_MAX))))
            case SetLevel.NUMBER:
                (wanted,) = fields
                return SetLevel(uint(wanted))
    except ValueError:
        bad("wrong number of fields")
    raise Failed(Code.UNSUPPORTED, level)


def decode_read_ops(value: Value, level: int, *, tree: bool) -> tuple[ReadOp, ...]:
    """Decode the ops of ``pv.read``; raises ``Failed`` as ``decode_command`` does, also for an op that writes."""
    ops = []
    for item in items(value, limits.TXN_ITEMS_MAX):
        op = _op(item, level, tree)
        if not isinstance(op, Range | Get | Children):
            bad("a read holds only RANGE, GET and CHILDREN")
        ops.append(op)
    return tuple(ops)


def bad(text: str) -> NoReturn:
    """Refuse input of a wrong form; ``text`` is part of the level."""
    raise Failed(Code.BAD_COMMAND, text)


def uint(value: Value) -> int:
    """Take a number 0 … 2⁵³ - 1."""
    if type(value) is not int or not 0 <= value <= UINT_MAX:
        bad("not a number of 0 to 2^53-1")
    return value


def items(value: Value, count_max: int) -> list[Value]:
    """Take an array of at most ``count_max`` items."""
    if not isinstance(value, list):
        bad("not an array")
    if len(value) > count_max:
        raise Failed(Code.TOO_LARGE, count_max)
    return value


def range_start(value: Value) -> bytes:
    """Take the start or end of a range; unlike a key it may be empty, or be the place right behind the longest key."""
    return _blob(value, limits.KEY_BYTES_MAX + 1)


def path_of(value: Value) -> bytes:
    """Take a path: absolute, without empty, ``.`` or ``..`` component and without a trailing ``/``."""
    path = _blob(value, limits.KEY_BYTES_MAX)
    if path != ROOT and (path[:1] != ROOT or not _NO_NAMES.isdisjoint(path[1:].split(b"/"))):
        bad("not a path")
    return path


_NO_NAMES = frozenset((b"", b".", b".."))


def _numbered(value: Value) -> tuple[int, list[Value]]:
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        bad("not an array that begins with a number")
    return value[0], value[1:]


def _blob(value: Value, bytes_max: int) -> bytes:
    if not isinstance(value, bytes):
        bad("not binary")
    if len(value) > bytes_max:
        raise Failed(Code.TOO_LARGE, bytes_max)
    return value


def _key(value: Value) -> bytes:
    key = _blob(value, limits.KEY_BYTES_MAX)
    if not key:
        bad("empty key")
    return key


def _data(value: Value) -> bytes:
    return _blob(value, limits.VALUE_BYTES_MAX)


def _integer(value: Value) -> int:
    if type(value) is not int:
        bad("not an integer")
    return value


def _version(value: Value) -> int:
    return ANY_VERSION if value == ANY_VERSION and type(value) is int else uint(value)


def _flags(value: Value, known: int) -> int:
    flags = uint(value)
    if flags & ~known:
        bad("unknown flag")
    return flags


def _branch_path(value: Value) -> bytes:
    """The path of a node that may come and go."""
    path = path_of(value)
    if path == ROOT:
        bad("the root is neither created nor removed")
    return path


# --- compares --------------------------------------------------------------------------------------------------------

_TREE_TARGETS = (Target.DATA_VERSION, Target.CVERSION)


def _compares(value: Value, level: int, tree: bool) -> tuple[Compare, ...]:
    return tuple(_compare(item, level, tree) for item in items(value, limits.TXN_ITEMS_MAX))


def _compare(value: Value, level: int, tree: bool) -> Compare:
    number, fields = _numbered(value)
    if number not in _TARGETS or (number in _TREE_TARGETS and not tree):
        raise Failed(Code.UNSUPPORTED, level)
    target = Target(number)
    wanted, key, operand = fields
    if uint(wanted) not in _RELATIONS:
        bad("unknown comparison")
    relation = Relation(uint(wanted))
    if target == Target.LEASE_ALIVE:
        if key != b"" or relation > Relation.NOT_EQUAL:
            bad("LEASE_ALIVE takes an empty key and comparison 0 or 1")
        return Compare(target, relation, b"", uint(operand))
    if target == Target.VALUE:
        return Compare(target, relation, _key(key), _data(operand))
    return Compare(target, relation, path_of(key) if target in _TREE_TARGETS else _key(key), _integer(operand))


_TARGETS = frozenset(Target)
_RELATIONS = frozenset(Relation)


# --- ops -------------------------------------------------------------------------------------------------------------


def _ops(value: Value, level: int, tree: bool) -> tuple[Op, ...]:
    ops = tuple(_op(item, level, tree) for item in items(value, limits.TXN_ITEMS_MAX))
    _check_written_once(ops)
    return ops


def _op(value: Value, level: int, tree: bool) -> Op:
    number, fields = _numbered(value)
    if number not in _OPS or (number >= Create.NUMBER and not tree):
        raise Failed(Code.UNSUPPORTED, level)
    kind, readers = _OPS[number]
    if len(fields) != len(readers):
        bad("wrong number of fields")
    if number in _RANGES and fields[1] == b"":  # of the one key
        readers = (_key, *readers[1:])
    op = kind(*[read(field) for read, field in zip(readers, fields, strict=True)])
    if isinstance(op, Create):
        _check_create(op)
    return op


def _check_create(create: Create) -> None:
    if bool(create.flags & Create.EPHEMERAL) != bool(create.lease):
        bad("an ephemeral node needs a lease, and no other has one")
    if create.flags & Create.SEQUENTIAL and len(create.path) + SEQUENCE_DIGITS > limits.KEY_BYTES_MAX:
        raise Failed(Code.TOO_LARGE, limits.KEY_BYTES_MAX - SEQUENCE_DIGITS)


_RANGE_FLAGS = partial(_flags, known=Range.KEYS_ONLY | Range.COUNT_ONLY | Range.DESCENDING)
_CREATE_FLAGS = partial(_flags, known=Create.EPHEMERAL | Create.SEQUENTIAL)
_OPS: Mapping[int, tuple[Callable[..., Op], tuple[Callable[[Value], Any], ...]]] = {
    Put.NUMBER: (Put, (_key, _data, uint)),
    Delete.NUMBER: (Delete, (_key,)),
    DeleteRange.NUMBER: (DeleteRange, (range_start, range_start)),
    Range.NUMBER: (Range, (range_start, range_start, uint, _RANGE_FLAGS)),
    Create.NUMBER: (Create, (_branch_path, _data, _CREATE_FLAGS, uint)),
    Set.NUMBER: (Set, (path_of, _data, _version)),
    Remove.NUMBER: (Remove, (_branch_path, _version)),
    Check.NUMBER: (Check, (path_of, _version)),
    Get.NUMBER: (Get, (path_of,)),
    Children.NUMBER: (Children, (path_of,)),
}
"""Number → the op and what reads each of its fields, in order. From Create on they are of the tree."""
_RANGES = (DeleteRange.NUMBER, Range.NUMBER)


def _check_written_once(ops: Sequence[Op]) -> None:
    """A key, or a path as it is named, is written by one op of a branch: so the order of events is that of effects."""
    keys: set[bytes] = set()
    paths: set[bytes] = set()
    spans: list[tuple[bytes, bytes | None]] = []
    for op in ops:
        match op:
            case Put(key=key) | Delete(key=key):
                written, name = keys, key
            case Set(path=path) | Remove(path=path):
                written, name = paths, path
            case Create(path=path, flags=flags) if not flags & Create.SEQUENTIAL:
                written, name = paths, path
            case DeleteRange():
                start, end = span(op.start, op.end)
                if end is None or start < end:
                    spans.append((start, end))
                continue
            case _:
                continue
        if name in written:
            bad("a key is written twice")
        written.add(name)
    spans.sort(key=lambda bounds: bounds[0])
    for (_, end), (start, _) in pairwise(spans):
        if end is None or start < end:
            bad("a key is written twice")
    for start, end in spans:
        if any(start <= key and (end is None or key < end) for key in keys):
            bad("a key is written twice")

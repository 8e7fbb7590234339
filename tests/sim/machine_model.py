"""The key-value machines once more, as plainly as docs/specs/raft.md 12 puts it, to compare the real ones with.

Dictionaries that are copied before each command and sorted for each read; nothing is shared with the implementation
but the command types. Forms and sizes of commands are not the model's matter: what it is given is well formed.
"""

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from pavane.raft.errors import Code
from pavane.raft.machines.commands import (
    Check,
    Children,
    Command,
    Compare,
    Create,
    Delete,
    DeleteRange,
    Get,
    LeaseExpire,
    LeaseGrant,
    LeaseRevoke,
    Op,
    Put,
    Range,
    Relation,
    Remove,
    Set,
    SetLevel,
    Target,
    Txn,
)

KEYS = [b"a", b"a/1", b"a/2", b"b", b"b\0", b"c", b"\xff"]
ENDS = [*KEYS, b"", b"\0", b"z"]
PATHS = [b"/a", b"/b", b"/a/x", b"/a/y", b"/a-", b"/a/x/1", b"/a0", b"/b/s"]
VALUES = [b"", b"1", b"2", b"\xff", bytes(20)]


class Refused(Exception):
    def __init__(self, code: Code, argument: Any) -> None:
        super().__init__(code, argument)
        self.code, self.argument = code, argument


@dataclass
class Model:
    """State after the commands so far; ``events`` of every revision, ``results`` of every request."""

    store_keys: int
    store_bytes: int
    keys: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)
    events: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes[b"/"] = {"data": b"", "v": 0, "cv": 0, "created": 0, "create": 0, "mod": 0, "lease": 0}

    def apply(self, index: int, command: Command) -> list[Any]:
        """Return the result array."""
        before = copy.deepcopy((self.keys, self.nodes, self.leases))
        happened: list[tuple[Any, ...]] = []
        try:
            value = self._carry_out(index, command, happened)
        except Refused as refused:
            self.keys, self.nodes, self.leases = before
            return [refused.code, index, refused.argument]
        if happened:
            self.events[index] = happened
        return [0, index, value]

    def _carry_out(self, index: int, command: Command, happened: list[tuple[Any, ...]]) -> Any:
        match command:
            case Txn(compares, then, otherwise):
                for branch in (then, otherwise):
                    self._check_written_once(branch)
                succeeded = all([self._holds(compare) for compare in compares])
                branch = then if succeeded else otherwise
                return [succeeded, [self._op(index, op, happened) for op in branch]]
            case LeaseGrant(ttl_ms, _):
                self.leases[index] = sorted((200, ttl_ms, 3_600_000))[1]
                return [index, self.leases[index]]
            case LeaseRevoke(lease):
                if lease not in self.leases:
                    raise Refused(Code.NO_LEASE, lease)
                self._end(lease, happened)
            case LeaseExpire(leases):
                for lease in leases:
                    self._end(lease, happened)
            case SetLevel(level):
                assert level == 1
        return None

    def _end(self, lease: int, happened: list[tuple[Any, ...]]) -> None:
        self.leases.pop(lease, None)
        self._delete([key for key, item in self.keys.items() if item["lease"] == lease], happened, 3)
        for path in sorted(path for path, node in self.nodes.items() if node["lease"] == lease):
            self._remove(path, happened)

    def _check_written_once(self, ops: tuple[Op, ...]) -> None:
        written: list[Any] = []
        for op in ops:
            match op:
                case Put(key=key) | Delete(key=key):
                    written.append(key)
                case DeleteRange(start, end):
                    # All bounds are of KEYS and ENDS, so two ranges that overlap share one of these.
                    written.extend(key for key in {*KEYS, *ENDS} if self._within(key, start, end))
                case Set(path=path) | Remove(path=path):
                    written.append((path,))
                case Create(path=path, flags=flags) if not flags & 2:
                    written.append((path,))
        if len(written) != len(set(written)):
            raise Refused(Code.BAD_COMMAND, "a key is written twice")

    def _within(self, key: bytes, start: bytes, end: bytes) -> bool:
        if end == b"":
            return key == start
        return start <= key and (end == b"\0" or key < end)

    def _holds(self, compare: Compare) -> bool:
        stored: Any
        operand: Any = compare.operand
        names = {Target.VERSION: "version", Target.CREATE_REVISION: "create", Target.MOD_REVISION: "mod"}
        match compare.target:
            case Target.LEASE_ALIVE:
                return (operand in self.leases) is (compare.relation == 0)
            case Target.DATA_VERSION | Target.CVERSION:
                name = "v" if compare.target == Target.DATA_VERSION else "cv"
                stored = self.nodes[compare.key][name] if compare.key in self.nodes else -1
            case Target.VALUE:
                # A missing value is less than any: put a mark before each that is there.
                stored = [1, self.keys[compare.key]["value"]] if compare.key in self.keys else [0]
                operand = [1, operand]
            case _:
                stored = self.keys.get(compare.key, {}).get(names.get(compare.target, "lease"), 0)
        outcomes: dict[Relation, bool] = {
            Relation.EQUAL: stored == operand,
            Relation.NOT_EQUAL: stored != operand,
            Relation.LESS: stored < operand,
            Relation.GREATER: stored > operand,
        }
        return outcomes[compare.relation]

    def _op(self, index: int, op: Op, happened: list[tuple[Any, ...]]) -> Any:
        match op:
            case Put(key, value, lease):
                self._alive(lease)
                old = self.keys.get(key)
                self.keys[key] = {
                    "value": value,
                    "create": old["create"] if old else index,
                    "mod": index,
                    "version": old["version"] + 1 if old else 1,
                    "lease": lease,
                }
                grows = len(value) - len(old["value"]) if old else len(key) + len(value)
                self._room(new=old is None, grows=grows > 0)
                happened.append((1, key, value, self.keys[key]["version"], lease))
                return [1, self.keys[key]["version"]]
            case Delete(key):
                return [2, self._delete([key], happened)]
            case DeleteRange(start, end):
                return [3, self._delete([key for key in self.keys if self._within(key, start, end)], happened)]
            case Range(start, end, limit, flags):
                found = sorted(key for key in self.keys if self._within(key, start, end))
                if flags & 2:
                    return [4, len(found), False]
                found = found[::-1] if flags & 4 else found
                shown = found[: limit or 1000]
                return [4, [self._item(key, flags) for key in shown], len(shown) < len(found)]
            case _:
                return self._tree_op(index, op, happened)

    def _item(self, key: bytes, flags: int) -> list[Any]:
        item = self.keys[key]
        value = b"" if flags & 1 else item["value"]
        return [key, value, item["create"], item["mod"], item["version"], item["lease"]]

    def _delete(self, keys: list[bytes], happened: list[tuple[Any, ...]], kind: int = 2) -> int:
        gone = sorted(key for key in keys if key in self.keys)
        for key in gone:
            item = self.keys.pop(key)
            happened.append((kind, key, None, item["version"], item["lease"]))
        return len(gone)

    def _tree_op(self, index: int, op: Op, happened: list[tuple[Any, ...]]) -> Any:
        match op:
            case Create(path, data, flags, lease):
                return [16, self._create(index, path, data, flags, lease, happened)]
            case Set(path, data, version):
                node = self._node(path, version)
                grows = len(data) > len(node["data"])
                node |= {"data": data, "v": node["v"] + 1, "mod": index}
                self._room(new=False, grows=grows)
                happened.append((18, path, data, node["v"], node["cv"]))
                return [17, node["v"]]
            case Remove(path, version):
                self._node(path, version)
                if self._children(path):
                    raise Refused(Code.NOT_EMPTY, path)
                self._remove(path, happened)
                return [18]
            case Check(path, version):
                self._node(path, version)
                return [19]
            case Get(path):
                if path not in self.nodes:
                    return [20, None]
                node = self.nodes[path]
                children = len(self._children(path))
                return [20, [*(node[name] for name in ("data", "v", "cv", "create", "mod")), children, node["lease"]]]
            case Children(path):
                return [21, self._children(path), self._node(path, -1)["cv"]]
        raise AssertionError(op)

    def _create(
        self, index: int, path: bytes, data: bytes, flags: int, lease: int, happened: list[tuple[Any, ...]]
    ) -> bytes:
        parent = self._above(path)
        if self._node(parent, -1)["lease"]:
            raise Refused(Code.EPHEMERAL_PARENT, parent)
        self._alive(lease)
        if flags & 2:
            path += str(self.nodes[parent]["created"]).rjust(10, "0").encode()
        if path in self.nodes:
            raise Refused(Code.NODE_EXISTS, path)
        self.nodes[path] = {
            "data": data, "v": 0, "cv": 0, "created": 0, "create": index, "mod": index, "lease": lease
        }  # fmt: skip
        self._room(new=True, grows=True)
        happened.append((17, path, data, 0, 0))
        self.nodes[parent]["created"] += 1
        self._count_child(parent, happened)
        return path

    def _remove(self, path: bytes, happened: list[tuple[Any, ...]]) -> None:
        node = self.nodes.pop(path)
        happened.append((19, path, None, node["v"], node["cv"]))
        self._count_child(self._above(path), happened)

    def _count_child(self, path: bytes, happened: list[tuple[Any, ...]]) -> None:
        self.nodes[path]["cv"] += 1
        happened.append((20, path, None, self.nodes[path]["v"], self.nodes[path]["cv"]))

    def _node(self, path: bytes, version: int) -> dict[str, Any]:
        if path not in self.nodes:
            raise Refused(Code.NO_NODE, path)
        if version not in (-1, self.nodes[path]["v"]):
            raise Refused(Code.BAD_VERSION, path)
        return self.nodes[path]

    def _above(self, path: bytes) -> bytes:
        return b"/".join(path.split(b"/")[:-1]) or b"/"

    def _children(self, path: bytes) -> list[bytes]:
        below = [other for other in self.nodes if other != b"/" and self._above(other) == path]
        return sorted(other.split(b"/")[-1] for other in below)

    def _alive(self, lease: int) -> None:
        if lease and lease not in self.leases:
            raise Refused(Code.NO_LEASE, lease)

    def _room(self, *, new: bool, grows: bool) -> None:
        if new and len(self.keys) + len(self.nodes) > self.store_keys:
            raise Refused(Code.NO_SPACE, self.store_keys)
        size = sum(len(key) + len(item["value"]) for key, item in self.keys.items())
        size += sum(len(path) + len(node["data"]) for path, node in self.nodes.items())
        if grows and size > self.store_bytes:
            raise Refused(Code.NO_SPACE, self.store_bytes)


# --- random commands -------------------------------------------------------------------------------------------------


def random_command(rng: random.Random, index: int, leases: list[int]) -> Command:
    """Return a well-formed command that often meets what earlier ones left; ``leases`` are those alive."""
    match rng.randrange(12):
        case 0 | 1:
            return LeaseGrant(rng.choice([0, 500, 1 << 30]), rng.choice(VALUES))
        case 2:
            return LeaseRevoke(_lease(rng, index, leases)) if rng.random() < 0.5 else SetLevel(1)
        case 3:
            return LeaseExpire(tuple(_lease(rng, index, leases) for _ in range(rng.randrange(3))))
        case _:
            compares = tuple(_random_compare(rng, index, leases) for _ in range(rng.choice([0, 0, 1, 2])))
            return Txn(compares, *(_random_ops(rng, index, leases) for _ in range(2)))


def _lease(rng: random.Random, index: int, leases: list[int]) -> int:
    return rng.choice([*leases * 3, rng.randint(1, index)])


def _random_compare(rng: random.Random, index: int, leases: list[int]) -> Compare:
    target = rng.choice(list(Target))
    relation = rng.choice(list(Relation))
    if target == Target.LEASE_ALIVE:
        return Compare(target, Relation(relation % 2), b"", _lease(rng, index, leases))
    if target == Target.VALUE:
        return Compare(target, relation, rng.choice(KEYS), rng.choice(VALUES))
    key = rng.choice([*PATHS, b"/"] if target >= Target.DATA_VERSION else KEYS)
    return Compare(target, relation, key, rng.choice([-1, 0, 1, 2, rng.randint(1, index)]))


def _random_ops(rng: random.Random, index: int, leases: list[int]) -> tuple[Op, ...]:
    return tuple(_random_op(rng, index, leases) for _ in range(rng.choice([0, 1, 1, 2, 3, 5])))


def _random_op(rng: random.Random, index: int, leases: list[int]) -> Op:
    key, path, value, end = rng.choice(KEYS), rng.choice(PATHS), rng.choice(VALUES), rng.choice(ENDS)
    lease, version = _lease(rng, index, leases), rng.choice([-1, -1, -1, 0, 1, 2])
    start = b"" if end and rng.random() < 0.2 else key
    ops: list[Op] = [
        Put(key, value, rng.choice([0, lease])),
        Put(key, value, rng.choice([0, lease])),
        Delete(key),
        DeleteRange(start, end),
        Range(start, end, rng.randrange(4), rng.randrange(8)),
        Create(path, value),
        Create(path, value),
        Create(path, value, Create.SEQUENTIAL),
        Create(rng.choice(PATHS[:2]), value, Create.EPHEMERAL, lease),
        Create(path, value, Create.EPHEMERAL | rng.choice([0, Create.SEQUENTIAL]), lease),
        Set(rng.choice([*PATHS, b"/"]), value, version),
        Remove(path, version),
        Check(path, version),
        Get(rng.choice([*PATHS, b"/"])),
        Children(rng.choice([*PATHS, b"/"])),
    ]
    return rng.choice(ops)

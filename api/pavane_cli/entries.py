"""Entries of a log in words: configurations, and commands of keys (docs/specs/raft.md 12.3, 17)."""

from collections.abc import Sequence

from pavane.raft.machines.commands import (
    Command,
    Compare,
    Create,
    Failed,
    LeaseExpire,
    LeaseGrant,
    LeaseRevoke,
    Op,
    Put,
    Relation,
    Set,
    SetLevel,
    Txn,
)
from pavane.raft.machines.decoding import decode_command
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.state.configuration import Configuration, Members
from pavane_cli.output import printable

_SIGNS = {Relation.EQUAL: "=", Relation.NOT_EQUAL: "!=", Relation.LESS: "<", Relation.GREATER: ">"}


def words(kind: str, data: bytes) -> str:
    """Return what an entry of a kind says; data that is no command as printable text."""
    match kind:
        case "Config":
            configuration = Configuration.decode(data)
            new = f"members {_ids(configuration.new)}"
            return new if configuration.old is None else f"{new}, before {_ids(configuration.old)}"
        case "Checkpoint":
            return ""
        case "State":
            try:
                return _command(decode_command(data, Tree.level_max, tree=True))
            except Failed:
                pass
    return printable(data)


def _ids(members: Members) -> str:
    return " ".join(peer for peer, _ in members)


def _command(command: Command) -> str:
    match command:
        case Txn(compares, then, otherwise):
            parts = [_ops(then)]
            if compares:
                parts = ["if", " and ".join(map(_compare, compares)), "then", _ops(then)]
            return " ".join([*parts, *(["else", _ops(otherwise)] if otherwise else [])])
        case LeaseGrant(ttl_ms, holder):
            return f"grant {ttl_ms} ms {printable(holder)}".rstrip()
        case LeaseRevoke(lease):
            return f"revoke {lease}"
        case LeaseExpire(leases):
            return f"expire {' '.join(map(str, leases))}"
        case SetLevel(level):
            return f"level {level}"


def _compare(compare: Compare) -> str:
    operand = compare.operand
    shown = printable(operand) if isinstance(operand, bytes) else str(operand)
    return f"{compare.target.name.lower()}({printable(compare.key)}) {_SIGNS[compare.relation]} {shown}"


def _ops(ops: Sequence[Op]) -> str:
    return ", ".join(map(_op, ops)) or "nothing"


def _op(op: Op) -> str:
    name = type(op).__name__.lower()
    match op:
        case Put(key, value):
            return f"{name} {printable(key)}={printable(value)}"
        case Create(path, data) | Set(path, data):
            return f"{name} {printable(path)}={printable(data)}"
    return " ".join([name, *(printable(part) for part in _names(op))])


def _names(op: Op) -> list[bytes]:
    return [value for name in op.__slots__ if isinstance(value := getattr(op, name), bytes) and value]

"""Conditions and ops of ``pavane raft kv txn``, as a user writes them (docs/specs/raft.md 12.3)."""

import os
import re
import shlex
from collections.abc import Callable, Mapping

from pavane.raft.client import prefix_range
from pavane.raft.machines.commands import (
    ANY_VERSION,
    Check,
    Children,
    Compare,
    Create,
    Delete,
    DeleteRange,
    Get,
    Op,
    Put,
    Range,
    Relation,
    Remove,
    Set,
    Target,
)
from pavane.raft.wire.frames import UINT_MAX
from pavane_cli.failures import ExitCode, UserError

_RELATIONS = {"=": Relation.EQUAL, "!=": Relation.NOT_EQUAL, "<": Relation.LESS, ">": Relation.GREATER}
_TARGETS = {
    "value": Target.VALUE,
    "version": Target.VERSION,
    "create": Target.CREATE_REVISION,
    "mod": Target.MOD_REVISION,
    "lease": Target.LEASE,
    "dataversion": Target.DATA_VERSION,
    "cversion": Target.CVERSION,
}
_CONDITION = re.compile(r"\s*(?P<target>[a-z]+)\((?P<key>.*)\)\s*(?P<relation>=|!=|<|>)\s*(?P<operand>.*)", re.DOTALL)
_ALIVE = re.compile(r"\s*(?P<no>!?)\s*alive\((?P<lease>[0-9]{1,15})\)\s*")

_bytes = os.fsencode


def _number(text: str | int) -> int:
    """Return a number of a revision, version or lease; raises ``ValueError``."""
    number = int(text)
    if not ANY_VERSION <= number <= UINT_MAX:
        raise ValueError(f"{text} is beyond {UINT_MAX}")
    return number


_OPS: Mapping[str, tuple[int, int, Callable[..., Op]]] = {
    "put": (2, 3, lambda key, value, lease="0": Put(_bytes(key), _bytes(value), _number(lease))),
    "get": (1, 1, lambda key: Range(_bytes(key))),
    "del": (1, 1, lambda key: Delete(_bytes(key))),
    "list": (0, 1, lambda prefix="": Range(*prefix_range(_bytes(prefix)))),
    "delprefix": (1, 1, lambda prefix: DeleteRange(*prefix_range(_bytes(prefix)))),
    "create": (1, 2, lambda path, data="": Create(_bytes(path), _bytes(data))),
    "set": (2, 3, lambda path, data, version=ANY_VERSION: Set(_bytes(path), _bytes(data), _number(version))),
    "rm": (1, 2, lambda path, version=ANY_VERSION: Remove(_bytes(path), _number(version))),
    "check": (1, 2, lambda path, version=ANY_VERSION: Check(_bytes(path), _number(version))),
    "node": (1, 1, lambda path: Get(_bytes(path))),
    "children": (1, 1, lambda path: Children(_bytes(path))),
}
"""Word → least and most arguments, and the op that they make."""


def parse_compare(text: str) -> Compare:
    """Return the condition; raises ``UserError`` that names what is wrong."""
    alive = _ALIVE.fullmatch(text)
    if alive is not None:
        relation = Relation.NOT_EQUAL if alive["no"] else Relation.EQUAL
        return Compare(Target.LEASE_ALIVE, relation, b"", int(alive["lease"]))
    found = _CONDITION.fullmatch(text)
    if found is None or found["target"] not in _TARGETS:
        raise UserError(
            f"--if {text!r}: write TARGET(KEY) = OPERAND, where TARGET is one of {', '.join(_TARGETS)} and the sign "
            "one of = != < >; or alive(LEASE), !alive(LEASE)",
            ExitCode.USAGE,
        )
    target = _TARGETS[found["target"]]
    operand: bytes | int
    if target is Target.VALUE:
        operand = _bytes(found["operand"])
    else:
        try:
            operand = _number(found["operand"])
        except ValueError as error:
            raise UserError(f"--if {text!r}: {found['operand']!r} is not a number", ExitCode.USAGE) from error
    return Compare(target, _RELATIONS[found["relation"]], _bytes(found["key"]), operand)


def parse_op(text: str) -> Op:
    """Return the op, whose words are split as a shell does; raises ``UserError`` that names what is wrong."""
    try:
        word, *arguments = shlex.split(text)
        least, most, make = _OPS[word]
        if not least <= len(arguments) <= most:
            raise UserError(f"{text!r}: {word} takes {least} to {most} words", ExitCode.USAGE)
        return make(*arguments)
    except KeyError as error:
        raise UserError(f"{text!r}: unknown op {error}; known: {', '.join(_OPS)}", ExitCode.USAGE) from error
    except ValueError as error:
        raise UserError(f"{text!r}: {error}", ExitCode.USAGE) from error

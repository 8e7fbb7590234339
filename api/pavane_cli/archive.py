"""``pavane raft kv export|import``: all keys and nodes as lines of JSON (docs/specs/raft.md 12.8)."""

import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TextIO

from pavane.raft.client import prefix_range
from pavane.raft.errors import Refused, Unsupported
from pavane.raft.machines.commands import (
    ROOT,
    SEQUENCE_DIGITS,
    Compare,
    Create,
    Put,
    Relation,
    Remove,
    Set,
    Target,
    parent_of,
)
from pavane.raft.machines.limits import TXN_ITEMS_MAX
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.plane import ApiError
from pavane_cli.raft_reach import ClusterKeys

BATCH_BYTES = 1 << 20  # half of what a transaction may have: names and headers count too
PARENTS_NAMED_MAX = 5
NO_NODE = -1  # the version of a node that is not there
REFUSED_STATUS = 409
COUNT_ON_MAX = 100_000  # nodes created and removed to move one counter; names may end in any ten digits
_SUFFIX = re.compile(rb"[0-9]{10}$")
"""Of a sequential node, SEQUENCE_DIGITS long."""


async def export_to(store: ClusterKeys, target: TextIO) -> int:
    """Write every key and node that no lease holds, a parent before its children; returns their number."""
    count = 0
    for item in (await store.kv.list(*prefix_range(b""))).items:
        if not item.lease:
            count += 1
            _line(target, key=item.key, value=item.value)
    if await _has_tree(store):
        async for node in _nodes(store, ROOT):
            count += 1
            _line(target, path=node.path, data=node.data)
    return count


async def import_from(store: ClusterKeys, source: Iterable[str]) -> int:
    """Write every line over what is there; counters of children go on behind the greatest suffix found.

    Raises ``UserError`` that names the line for what ``export_to`` did not write, and one that names the parents whose
    counters are more than COUNT_ON_MAX behind; then all is written but these are as they were.
    """
    count = size = 0
    batch: list[Put | Create | Set] = []
    greatest: dict[bytes, int] = {}
    for number, line in enumerate(source, 1):
        op = _op(number, line)
        count += 1
        size += len(op.value if isinstance(op, Put) else op.data)
        if batch and (len(batch) == TXN_ITEMS_MAX or size > BATCH_BYTES):
            await _write(store, batch)
            batch, size = [], 0
        batch.append(op)
        suffix = _SUFFIX.search(op.path) if isinstance(op, Create) else None
        if suffix is not None and isinstance(op, Create):
            parent = parent_of(op.path)
            greatest[parent] = max(greatest.get(parent, 0), int(suffix[0]))
    await _write(store, batch)
    left = [parent for parent, last in greatest.items() if not await _count_on(store, parent, last)]
    if left:
        names = ", ".join(parent.decode(errors="replace") for parent in left[:PARENTS_NAMED_MAX])
        raise UserError(
            f"all {count} keys and nodes are written, but children created in sequence do not count on behind those "
            f"of {names}{' and others' if len(left) > PARENTS_NAMED_MAX else ''}: their names end in numbers more than "
            f"{COUNT_ON_MAX} ahead; if these are no sequence numbers (a date, an id), nothing is to be done",
            ExitCode.REFUSED,
        )
    return count


async def _write(store: ClusterKeys, batch: Sequence[Put | Create | Set]) -> None:
    """Write a batch in one transaction, or, if one of its nodes is there already, each by itself."""
    try:
        await store.kv.txn(then=batch)
    except (Refused, ApiError):
        if not any(isinstance(op, Create) for op in batch):
            raise
        for op in batch:
            if isinstance(op, Create):
                absent = Compare(Target.DATA_VERSION, Relation.EQUAL, op.path, NO_NODE)
                await store.kv.txn([absent], [op], [Set(op.path, op.data)])
            else:
                await store.kv.txn(then=[op])


async def _count_on(store: ClusterKeys, parent: bytes, last: int) -> bool:
    """Let the counter of a node's children go beyond ``last``, by children removed at once; False if too far."""
    stem = parent.rstrip(b"/") + b"/import"
    first = await store.tree.create(stem, sequential=True)
    await store.tree.remove(first)
    counter = int(first[-SEQUENCE_DIGITS:]) + 1
    if last - counter >= COUNT_ON_MAX:
        return False
    while counter <= last:
        names = [b"%s%d_" % (stem, place) for place in range(min(TXN_ITEMS_MAX // 2, last + 1 - counter))]
        created = [Create(name, flags=Create.SEQUENTIAL) for name in names]
        removed = [Remove(b"%s%0*d" % (name, SEQUENCE_DIGITS, counter + place)) for place, name in enumerate(names)]
        await store.kv.txn(then=[*created, *removed])
        counter += len(names)
    return True


async def _has_tree(store: ClusterKeys) -> bool:
    try:
        await store.tree.get(ROOT)
    except (Unsupported, ApiError) as error:
        if isinstance(error, ApiError) and error.status != REFUSED_STATUS:
            raise
        return False
    return True


async def _nodes(store: ClusterKeys, path: bytes) -> AsyncIterator[Create]:
    """Yield what would create the nodes from ``path`` down; one that goes meanwhile is left out."""
    waiting = [path]
    while waiting:
        path = waiting.pop()
        node = await store.tree.get(path)
        if node is None or node.lease:
            continue
        yield Create(path, node.data)
        if node.children:
            names, _ = await store.tree.children(path)
            waiting += [path.rstrip(b"/") + b"/" + name for name in reversed(names)]


def _op(number: int, line: str) -> Put | Create | Set:
    try:
        match json.loads(line):
            case {"key": str(key), "value": str(value), **more} if not more:
                return Put(_bytes(key), _bytes(value))
            case {"path": str(path), "data": str(data), **more} if not more:
                node = Create(_bytes(path), _bytes(data))
                return Set(ROOT, node.data) if node.path == ROOT else node
    except ValueError:
        pass
    raise UserError(f"line {number} was not written by `pavane raft kv export`", ExitCode.USAGE)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _line(target: TextIO, **fields: bytes) -> None:
    target.write(json.dumps({name: base64.b64encode(data).decode() for name, data in fields.items()}) + "\n")

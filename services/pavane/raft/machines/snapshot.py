"""Snapshot data of the key-value machines: pv objects one after the other (docs/specs/raft.md 12.9).

The ``msgpack`` package writes and reads them: its form is the shortest one, which is what ``pv`` means (2.2), and in C
it does a million records in seconds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgpack

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import ROOT, parent_of
from pavane.raft.machines.history import Event, History
from pavane.raft.machines.state import KeyRecord, Lease, Result, State, TreeNode, decode_result
from pavane.raft.machines.table import Frozen, Table
from pavane.wire import RemoteProtocolError

FORMAT = 1


class BadSnapshot(Exception):
    """The data is of another machine, of a later format or level, or damaged; nothing was restored."""


def freeze(state: State, machine: str) -> Iterator[bytes]:
    """Return the data of ``state`` as it is at this call, in slices to be taken one per turn of the loop.

    Later changes of ``state`` are not in it.
    """
    keys, nodes = state.keys.freeze(), state.nodes.freeze()
    leases, results, history = list(state.leases.items()), list(state.results.kept.items()), list(state.history)
    header = {
        "format": FORMAT,
        "machine": machine,
        "level": state.level,
        "revision": state.revision,
        "floor": state.history.floor,
        "counts": [len(leases), len(keys), len(nodes), len(results), len(history)],
    }

    def objects() -> Iterator[Any]:
        yield header
        for lease, (ttl_ms, holder) in leases:
            yield lease, ttl_ms, holder
        for key, record in _all_of(keys):
            yield key, *record
        for path, node in _all_of(nodes):
            data, version, cversion, created, create, mod, bound, _ = node
            yield path, data, version, cversion, created, create, mod, bound
        for reqid, (index, result) in results:
            yield reqid, index, result.data
        yield from history
        yield None

    return _slices(objects())


def _all_of(frozen: Frozen[Any]) -> Iterator[tuple[bytes, Any]]:
    while records := frozen.take(limits.SNAPSHOT_SLICE):
        yield from records


def _slices(objects: Iterator[Any]) -> Iterator[bytes]:
    packer = msgpack.Packer()
    parts: list[bytes] = []
    size = 0
    for item in objects:
        parts.append(packer.pack(item))
        size += len(parts[-1])
        if len(parts) >= limits.SNAPSHOT_SLICE or size >= limits.SNAPSHOT_SLICE_BYTES:
            yield b"".join(parts)
            parts.clear()
            size = 0
    yield b"".join(parts)


def restore(data: Iterable[bytes | memoryview], machine: str, level_max: int) -> State:
    """Return the state that ``freeze`` wrote for the machine of this name.

    Raises ``BadSnapshot`` for anything else, also for what a later version of the program wrote.
    """
    try:
        return _restore(_objects(data), machine, level_max)
    except (ValueError, TypeError, KeyError, StopIteration, msgpack.UnpackException, RemoteProtocolError) as error:
        raise BadSnapshot(f"the snapshot of {machine} is damaged: {error!r}") from error


def _restore(objects: Iterator[Any], machine: str, level_max: int) -> State:
    header = next(objects)
    if header["format"] != FORMAT or header["machine"] != machine or header["level"] > level_max:
        raise BadSnapshot(
            f"the snapshot has format {header['format']}, machine {header['machine']}, level {header['level']}; this "
            f"program reads format {FORMAT}, machine {machine}, levels up to {level_max}: start the one that wrote it"
        )
    leases, keys, nodes, results, history = header["counts"]
    state = State(tree=False)
    state.level, state.revision = header["level"], header["revision"]
    for lease, ttl_ms, holder in _next(objects, leases):
        state.leases[lease] = Lease(ttl_ms, holder)
    state.keys = Table((key, KeyRecord(*fields)) for key, *fields in _next(objects, keys))
    state.nodes = Table(_with_children([(path, TreeNode(*fields)) for path, *fields in _next(objects, nodes)]))
    for reqid, index, result in _next(objects, results):
        state.results.add(reqid, index, Result(Code(decode_result(result)[0]), result))
    state.history = History(
        ((revision, tuple(Event(*event) for event in events)) for revision, events in _next(objects, history)),
        header["floor"],
    )
    if next(objects) is not None or any(True for _ in objects):
        raise BadSnapshot("the snapshot holds more than this program knows; start the version that wrote it")
    return state


def _objects(data: Iterable[bytes | memoryview]) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    for part in data:
        unpacker.feed(part)
        yield from unpacker


def _next(objects: Iterator[Any], count: int) -> Iterator[Any]:
    taken = 0
    for item in islice(objects, count):
        taken += 1
        yield item
    if taken < count:
        raise ValueError("it is cut off")


def _with_children(nodes: list[tuple[bytes, TreeNode]]) -> Iterator[tuple[bytes, TreeNode]]:
    children = Counter(parent_of(path) for path, _ in nodes if path != ROOT)
    return ((path, node._replace(children=children[path])) for path, node in nodes)

"""A new cluster out of a copy of another, which gives out no index and no revision again (docs/specs/raft.md 13.5)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pavane.raft.machine import Broadcast, StateMachine, machine_of
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.offline.compacting import replay
from pavane.raft.offline.manifest import Manifest, checked
from pavane.raft.offline.moving import Moved, batches, counted
from pavane.raft.offline.store import Progress, StoredLog, no_progress
from pavane.raft.offline.writing import StoreWriter, configuration_entry, new_folder, next_term, snapshot_file
from pavane.raft.state.commands import Append, HardState
from pavane.raft.state.configuration import Configuration, Members, fault_in
from pavane.raft.storage import Identity, StoreError
from pavane.raft.wire.frames import UINT_MAX
from pavane.raft.wire.snapshot import SnapshotHead, SnapshotMeta, later_groups

RESTORE_STEP = 1 << 40
"""Indices, and terms, that a restored cluster leaves out behind those of the copy: what the old one gave out since.

It had 100 000 entries a second for 127 days to give out more. 8191 restores one after the other end at ``UINT_MAX``.
"""


def restore(
    source: Path,
    target: Path,
    peer: str,
    members: Members,
    cluster_id: str = "",
    progress: Progress = no_progress,
    *,
    beyond: int = 0,
    unverified: bool = False,
) -> Moved:
    """Make the folder of ``peer``, one of the ``members`` of a new cluster, out of a copy of another (13.5).

    Each member's folder is made so, from the same copy: they all begin with the same state, ``RESTORE_STEP`` behind the
    last entry of the copy and behind ``beyond``, and an entry that names them, in a term as far on. ``unverified``
    takes a copy without manifest as it is, every entry of it. Raises ``StoreError`` for a copy that is damaged,
    incomplete or empty and for members that cannot be, ``UnknownMachine`` and ``OSError``.
    """
    fault = fault_in(members)
    if fault is not None:
        raise StoreError(fault)
    if peer not in dict(members):
        raise StoreError(f"{peer!r} must be one of the members: {', '.join(name for name, _ in members)}")
    manifest = None if unverified else checked(source)
    with StoredLog(source, progress) as stored:
        if stored.faults():
            raise StoreError(f"{source}: {'; '.join(stored.faults())}")
        index = stored.recovered.last_index if manifest is None else manifest.index
        if index == 0:
            raise StoreError(f"{source} holds no entry and no snapshot: there is nothing to restore")
        start = max(index, beyond) + RESTORE_STEP
        term = next_term(stored.recovered) + RESTORE_STEP
        if max(start, term) >= UINT_MAX:
            raise StoreError(f"no indices are left behind {start - RESTORE_STEP}: the greatest possible is {UINT_MAX}")
        machine = machine_of(stored.identity.machine)
        identity = Identity(peer, machine.name, cluster_id)
        with new_folder(target) as unfinished, StoreWriter(unfinished, identity) as writer:
            if isinstance(machine, Broadcast):
                first = _log(stored, machine, index, start, writer, progress)
            else:
                first = _state(stored, machine, index, start, writer, manifest, progress)
            last = start + 1
            writer.execute([Append(0, last, (configuration_entry(term, members),)), HardState(0, term, "")])
    return Moved(first, last, term, Configuration(members), tuple(_remarks(stored, index, last, manifest)))


def _state(
    stored: StoredLog,
    machine: StateMachine,
    index: int,
    start: int,
    writer: StoreWriter,
    manifest: Manifest | None,
    progress: Progress,
) -> int:
    """Write the state at ``index`` as a snapshot up to ``start``; return the index behind it."""
    meta, _ = replay(stored, machine, index, progress)
    if manifest is not None:
        manifest.compare(machine.digest())
    if isinstance(machine, KeyValue):
        machine.go_on_behind(start)
    data = b"".join(machine.freeze())
    term = stored.term_at(index)
    writer.install(start, term, snapshot_file(start, term, meta.encode(), data))
    return start + 1


def _log(
    stored: StoredLog, machine: StateMachine, index: int, start: int, writer: StoreWriter, progress: Progress
) -> int:
    """Write the log up to ``index`` so that it ends at ``start``; return the index at which it begins.

    The log itself is the service, so its entries come along, later by as much as is left out. A snapshot stands before
    them: the old one or, where there was none, one of no bytes.
    """
    step = start - index
    snapshot = stored.recovered.snapshot
    covered = 0
    data = memoryview(b"")
    meta = SnapshotMeta(b"", 0, machine.name, machine.level, 0, b"")
    if snapshot is not None:
        covered = snapshot.index
        head = SnapshotHead.decode(stored.snapshot_file())
        data = stored.snapshot_file()[head.data_offset :][: head.data_bytes]
        stated = snapshot.meta.configuration_index
        meta = replace(
            snapshot.meta,
            configuration_index=stated + step if stated else 0,
            ids=later_groups(snapshot.meta.ids, step),
        )
    term = stored.term_at(covered if covered else 1)
    writer.install(covered + step, term, snapshot_file(covered + step, term, meta.encode(), data))
    for first, batch in batches(_up_to(index, counted(stored, progress, covered + 1))):
        writer.execute([Append(0, first + step, batch)])
    return covered + step + 1


def _up_to(last: int, entries: Iterator[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
    for index, entry in entries:
        if index > last:
            return
        yield index, entry


def _remarks(stored: StoredLog, index: int, last: int, manifest: Manifest | None) -> Iterator[str]:
    yield (
        f"this is everything up to entry {index} of the copy; indices and revisions go on at {last}, beyond any that "
        "was given out"
    )
    if manifest is None:
        yield "the copy was not compared with a manifest: nobody can tell whether its end is missing"
    if stored.damage is not None:  # of a kind that is no fault
        yield f"its last write is incomplete, from offset {stored.damage.offset} of {stored.damage.segment} on"

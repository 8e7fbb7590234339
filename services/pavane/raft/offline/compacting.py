"""The state of a peer that is down, as a snapshot in place of the log or as a digest (docs/specs/raft.md 9.1, 17)."""

from collections.abc import Iterable
from pathlib import Path

from pavane.raft.machine import Broadcast, StateMachine, machine_of
from pavane.raft.offline.moving import counted
from pavane.raft.offline.store import Progress, StoredLog, no_progress
from pavane.raft.offline.writing import StoreWriter, pieces_of
from pavane.raft.state.commands import Compact, SnapshotSave
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.dedup import DedupTable
from pavane.raft.storage import StoreError
from pavane.raft.wire.entry import EntryType, entry_data, entry_digest, entry_reqid, entry_term, entry_type
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.snapshot import SnapshotHead, SnapshotMeta, join_groups


def compact(path: Path, index: int | None = None, data: Frame | None = None, progress: Progress = no_progress) -> int:
    """Take a snapshot up to ``index``, by default the last entry known committed; return its index.

    ``data`` is what the application makes of the entries up to there: machine Broadcast needs it, others have their
    own. Raises ``StoreError`` for what cannot be compacted, ``UnknownMachine``, ``OSError``.
    """
    with StoredLog(path, progress) as stored:
        identity, recovered = stored.identity, stored.recovered
        if stored.faults():
            raise StoreError(f"{path}: {'; '.join(stored.faults())}")
        machine = machine_of(identity.machine)
        if (data is not None) != isinstance(machine, Broadcast):
            raise StoreError(f"machine {identity.machine} {'needs' if data is None else 'has'} data of its own")
        covered = recovered.snapshot.index if recovered.snapshot is not None else 0
        index = recovered.commit if index is None else index
        if covered == recovered.commit:
            raise StoreError(f"{path}: nothing to compact, for no entry behind {covered} is known to be committed")
        if not covered < index <= recovered.commit:
            raise StoreError(
                f"no snapshot up to {index}: one can be taken up to an entry from {covered + 1} to {recovered.commit}, "
                "the last one known committed"
            )
        meta, term = replay(stored, machine, index, progress)
    slices: Iterable[Frame] = machine.freeze() if data is None else pieces_of(data)
    with StoreWriter(path, identity) as writer:
        file = writer.storage.snapshots.begin(meta.encode())
        for piece in slices:
            file.add(piece)
        file.finish(index, term)
        writer.execute([SnapshotSave(0, index, term), Compact(0, index + 1)])
    return index


def digest_at(
    stored: StoredLog, index: int | None = None, progress: Progress = no_progress
) -> tuple[int, bytes] | None:
    """Return ``index``, by default of the last entry known committed, and the digest of the machine's state there.

    It is equal at all peers that hold the same (12.1). ``None`` for a machine without state, as Broadcast. Raises
    ``StoreError`` for an index whose state is not here, ``UnknownMachine``.
    """
    recovered = stored.recovered
    covered = recovered.snapshot.index if recovered.snapshot is not None else 0
    index = recovered.commit if index is None else index
    if not covered <= index <= recovered.commit:
        raise StoreError(f"no state at {index}: known are those from {covered}, of the snapshot, to {recovered.commit}")
    digest = state_digest(stored, index, progress)
    return (index, digest) if digest else None


def state_digest(stored: StoredLog, index: int, progress: Progress = no_progress) -> bytes:
    """Return the digest of the machine's state at entry ``index``, which is here; nothing for one without state.

    Raises ``UnknownMachine``.
    """
    machine = machine_of(stored.identity.machine)
    if isinstance(machine, Broadcast):
        return b""
    replay(stored, machine, index, progress)
    return machine.digest()


def replay(stored: StoredLog, machine: StateMachine, index: int, progress: Progress) -> tuple[SnapshotMeta, int]:
    """Bring a new machine to ``index``; return the meta part of its snapshot there, and the term of the entry."""
    table = DedupTable()
    stated, configuration, bare, covered, term = 0, b"", False, 0, 0
    if stored.recovered.snapshot is not None:
        covered, before = stored.recovered.snapshot.index, stored.recovered.snapshot.meta
        stated, configuration, bare = before.configuration_index, before.configuration, before.bare
        table.restore(before.ids, before.floor, before.digests)
        head = SnapshotHead.decode(stored.snapshot_file())
        machine.restore(pieces_of(stored.snapshot_file()[head.data_offset :][: head.data_bytes]), covered)
    for at, entry in counted(stored, progress, covered + 1):
        if at > index:
            break
        term = entry_term(entry)
        table.add(entry_reqid(entry), at, entry_digest(entry))
        if entry_type(entry) == EntryType.STATE:
            machine.apply(at, entry_reqid(entry), entry_data(entry))
        elif entry_type(entry) == EntryType.CONFIG:
            stated, configuration, bare = at, bytes(entry_data(entry)), False
            machine.configuration(at, Configuration.decode(configuration))
    ids, digests = join_groups(table.freeze(index))
    meta = SnapshotMeta(configuration, stated, machine.name, machine.level, table.floor, ids, bare, digests)
    return meta, term

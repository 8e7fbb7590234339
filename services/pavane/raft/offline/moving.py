"""From one program's data folder to the other's while their peers are down (docs/specs/raft.md 13.6)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pavane.raft.config import BROADCAST, REQUEST_ID_MARGIN_S, REQUEST_ID_TTL_S
from pavane.raft.offline.js_folder import STATE, JsFolder, JsState, write_folder
from pavane.raft.offline.store import Progress, StoredLog, no_progress
from pavane.raft.offline.writing import StoreWriter, new_folder, snapshot_file
from pavane.raft.state.commands import RECOVERING_FLOOR, Append, HardState, Note
from pavane.raft.state.configuration import Configuration, needs_resolving
from pavane.raft.state.dedup import DedupTable
from pavane.raft.storage import Identity, StoreError
from pavane.raft.storage.js_files import JsSnapshot
from pavane.raft.storage.recovery import NOTE_COMMIT
from pavane.raft.wire.entry import entry_data, entry_digest, entry_reqid, entry_term, is_configuration
from pavane.raft.wire.snapshot import SnapshotHead, SnapshotMeta, join_groups
from pavane.wire import RemoteProtocolError

LEVEL = 1  # of a snapshot whose program knew no levels
FORGOTTEN_S = REQUEST_ID_TTL_S - REQUEST_ID_MARGIN_S  # the original compacts only what is older (9.1)
BATCH_BYTES = 4 << 20  # entries made durable together: large beside the cost of an fsync, small in memory


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved: the entries ``first … last``, the configuration in force, and what the user should know."""

    first: int
    last: int
    term: int
    configuration: Configuration | None
    remarks: tuple[str, ...] = ()


class Checked:
    """Passes entries on and checks what every log obeys: terms never fall, a CONFIG entry holds a configuration."""

    def __init__(self, entries: Iterable[tuple[int, memoryview]], term: int) -> None:
        self._entries = entries
        self.last_index = 0
        self.term = term
        self.configuration: tuple[int, bytes, Configuration] | None = None

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        for index, entry in self._entries:
            term = entry_term(entry)
            if term < self.term:
                raise StoreError(
                    f"entry {index} has term {term} behind one of term {self.term}: this is no log of Raft"
                )
            self.term = term
            if is_configuration(entry):
                try:
                    stated = Configuration.decode(entry_data(entry))
                except RemoteProtocolError as error:
                    raise StoreError(f"entry {index} is to state a configuration and does not") from error
                self.configuration = index, entry_reqid(entry), stated
            self.last_index = index
            yield index, entry


def import_js(source: Path, target: Path, identity: Identity, now_s: int, progress: Progress = no_progress) -> Moved:
    """Make our data folder ``target`` out of the folder of an original peer; ``now_s`` is the wall clock.

    Nothing is left behind if it fails. Raises ``JsFileError`` and ``StoreError`` for what cannot be taken, ``OSError``.
    """
    if not (source / STATE).is_file():
        raise StoreError(f"{source} lacks {STATE}, without which its peer could vote twice; take the whole folder")
    folder = JsFolder(source)
    state, snapshot = folder.state, folder.snapshot
    meta = _meta(folder, identity.machine, now_s)
    checked = Checked(folder.entries(), snapshot.term)
    total, done = folder.log_bytes(), 0
    with new_folder(target) as unfinished, StoreWriter(unfinished, identity) as writer:
        if snapshot.index:
            writer.install(
                snapshot.index,
                snapshot.term,
                snapshot_file(snapshot.index, snapshot.term, meta.encode(), snapshot.data),
            )
        for first, batch in batches(checked):
            writer.execute([Append(0, first, batch)])
            done += sum(map(len, batch))
            progress(done, total)
        last = max(checked.last_index, snapshot.index)
        term = max(state.term, checked.term)
        vote = (state.vote or "") if term == state.term else ""
        commit = min(state.applied, last)
        writer.execute([Note(0, NOTE_COMMIT, commit), HardState(0, term, vote)])
    effective = Configuration.decode(meta.configuration) if meta.configuration else state.configuration
    if checked.configuration is not None:
        effective = checked.configuration[2]
    return Moved(snapshot.index + 1, last, term, effective, _remarks(folder, checked, meta))


def export_js(source: Path, target: Path, progress: Progress = no_progress) -> Moved:
    """Make a folder ``target`` that an original peer starts from out of our data folder.

    Raises ``StoreError`` for a store that no original peer could go on with, ``OSError``.
    """
    with StoredLog(source, progress) as stored, new_folder(target) as unfinished:
        recovered = stored.recovered
        if stored.identity.machine != BROADCAST:
            raise StoreError(f"{source} is of machine {stored.identity.machine}: a peer of zmq-raft keeps a plain log")
        if recovered.corrupt or recovered.vote_floor == RECOVERING_FLOOR:
            raise StoreError(
                f"{source} lacks what its peer has promised, and an original peer would vote nevertheless; "
                "start it, let the others repair it, and export then"
            )
        checked = Checked(counted(stored, progress), 0)
        state = JsState(term=recovered.term, vote=_vote(stored), applied=recovered.commit)
        if stored.configuration is not None:
            state = _with_configuration(state, stored, *stored.configuration)
        snapshot = JsSnapshot(0, 0, b"")
        if recovered.snapshot is not None:
            head = SnapshotHead.decode(stored.snapshot_file())
            data = stored.snapshot_file()[head.data_offset :][: head.data_bytes]
            snapshot = JsSnapshot(head.index, head.term, data)
        write_folder(unfinished, state, snapshot, checked)
    return Moved(snapshot.index + 1, recovered.last_index, state.term, state.configuration)


def _meta(folder: JsFolder, machine: str, now_s: int) -> SnapshotMeta:
    """Return what our snapshot has to tell and bare data do not: configuration and request ids.

    Files of the log in front of the snapshot are often still there and tell both. What they do not tell comes from the
    state, and ids of files that are gone are refused by their age, as where a leader sends bare data (9.4).
    """
    snapshot, state = folder.snapshot, folder.state
    table, known = DedupTable(), 0
    covered = Checked(folder.covered_entries(), 0)
    for index, entry in covered:
        table.add(entry_reqid(entry), index, entry_digest(entry))
        known += 1
    if known < snapshot.index:
        table.refuse_up_to(now_s - FORGOTTEN_S)
    index, configuration = 0, b""
    if covered.configuration is not None:
        index, _, stated = covered.configuration
        configuration = stated.encode()
    elif state.configuration is not None and (state.configuration_index or 0) <= snapshot.index:
        index, configuration = state.configuration_index or 0, state.configuration.encode()
    ids, digests = join_groups(table.freeze(snapshot.index))
    return SnapshotMeta(configuration, index, machine, LEVEL, table.floor, ids, digests=digests)


def _vote(stored: StoredLog) -> str | None:
    recovered = stored.recovered
    # The original knows no floor: a vote for itself keeps it from giving that of this term to anybody else.
    if not recovered.vote and 0 < recovered.term <= recovered.vote_floor:
        return stored.identity.peer
    return recovered.vote or None


def _with_configuration(state: JsState, stored: StoredLog, index: int, configuration: Configuration) -> JsState:
    names = [url for _, url in configuration.members if needs_resolving(url)]
    if names:
        raise StoreError(f"original peers reach no host names; first give {names[0]} a literal address")
    reqid = next((entry_reqid(entry) for at, entry in stored.entries(index) if at == index > 0), None)
    if configuration.transitional and reqid is None:
        raise StoreError("the members are being changed; let the change end, and export then")
    return replace(state, configuration=configuration, configuration_index=index or None, configuration_reqid=reqid)


def _remarks(folder: JsFolder, checked: Checked, meta: SnapshotMeta) -> tuple[str, ...]:
    state, remarks = folder.state, []
    if folder.torn_bytes:
        remarks.append(f"{folder.torn_bytes} bytes of an unfinished last write of its state were ignored")
    if meta.floor:
        remarks.append(
            "the log in front of its snapshot is gone: updates that clients began before this second and repeat now "
            f"are refused: {datetime.fromtimestamp(meta.floor, UTC):%Y-%m-%d %H:%M:%S} UTC"
        )
    if checked.configuration is None:
        if not meta.configuration:
            remarks.append("it states no configuration: start the peer with the --peers of its first start")
    elif state.configuration not in {None, checked.configuration[2]}:
        remarks.append(f"raft.pers names other members than entry {checked.configuration[0]}; those of the entry count")
    return tuple(remarks)


def counted(stored: StoredLog, progress: Progress, first: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield the entries of a store from ``first`` on and tell how far it is."""
    done = 0
    for index, entry in stored.entries(first):
        done += len(entry)
        progress(done, stored.log_bytes)
        yield index, entry


def batches(entries: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Yield first index and entries of batches of about ``BATCH_BYTES``."""
    first, size, batch = 0, 0, list[bytes]()
    for index, entry in entries:
        if not batch:
            first = index
        batch.append(bytes(entry))
        size += len(entry)
        if size >= BATCH_BYTES:
            yield first, tuple(batch)
            size, batch = 0, []
    if batch:
        yield first, tuple(batch)

"""From the folder of an original zmq-raft peer to ours and back, while the peer is down (docs/specs/raft.md 13.6)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pavane.raft.offline.js_files import JsSnapshot
from pavane.raft.offline.js_folder import JsFolder, JsState, write_folder
from pavane.raft.offline.store import Progress, StoredLog, no_progress
from pavane.raft.offline.writing import StoreWriter, new_folder
from pavane.raft.state.commands import RECOVERING_FLOOR, Append, HardState, Note
from pavane.raft.state.configuration import Configuration, needs_resolving
from pavane.raft.storage import Identity, StoreError
from pavane.raft.storage.recovery import NOTE_COMMIT
from pavane.raft.wire.entry import EntryType, entry_data, entry_reqid, entry_term, entry_type
from pavane.wire import RemoteProtocolError

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
            if entry_type(entry) == EntryType.CONFIG:
                try:
                    stated = Configuration.decode(entry_data(entry))
                except RemoteProtocolError as error:
                    raise StoreError(f"entry {index} is to state a configuration and does not") from error
                self.configuration = index, entry_reqid(entry), stated
            self.last_index = index
            yield index, entry


def import_js(source: Path, target: Path, identity: Identity, progress: Progress = no_progress) -> Moved:
    """Make our data folder ``target`` out of the folder of an original peer.

    Nothing is left behind if it fails. Raises ``JsFileError`` and ``StoreError`` for what cannot be taken, ``OSError``.
    """
    folder = JsFolder(source)
    if folder.snapshot.index:
        raise StoreError(
            f"{source} begins with a snapshot at index {folder.snapshot.index}, which cannot be taken over"
        )
    checked = Checked(folder.entries(), folder.snapshot.term)
    total, done = folder.log_bytes(), 0
    with new_folder(target) as unfinished, StoreWriter(unfinished, identity) as writer:
        for first, batch in _batches(checked):
            writer.execute([Append(0, first, batch)])
            done += sum(map(len, batch))
            progress(done, total)
        state = folder.state
        term = max(state.term, checked.term)
        vote = (state.vote or "") if term == state.term else ""
        commit = min(state.applied, checked.last_index)
        writer.execute([Note(0, NOTE_COMMIT, commit), HardState(0, term, vote)])
    remarks = _remarks(folder, checked)
    effective = checked.configuration[2] if checked.configuration else folder.state.configuration
    return Moved(folder.snapshot.index + 1, checked.last_index, term, effective, remarks)


def export_js(source: Path, target: Path, progress: Progress = no_progress) -> Moved:
    """Make a folder ``target`` that an original peer starts from out of our data folder.

    Raises ``StoreError`` for a store that no original peer could go on with, ``OSError``.
    """
    with StoredLog(source) as stored, new_folder(target) as unfinished:
        recovered = stored.recovered
        if recovered.corrupt or recovered.vote_floor == RECOVERING_FLOOR:
            raise StoreError(
                f"{source} lacks what its peer has promised, and an original peer would vote nevertheless; "
                "start it, let the others repair it, and export then"
            )
        checked = Checked(_counted(stored, progress), 0)
        state = JsState(term=recovered.term, vote=_vote(stored), applied=recovered.commit)
        if stored.configuration is not None:
            index, configuration = stored.configuration
            names = [url for _, url in configuration.members if needs_resolving(url)]
            if names:
                raise StoreError(f"original peers reach no host names; first give {names[0]} a literal address")
            state = replace(state, configuration=configuration, configuration_index=index)
            reqid = next(entry_reqid(entry) for at, entry in stored.entries(index) if at == index)
            state = replace(state, configuration_reqid=reqid)
        write_folder(unfinished, state, JsSnapshot(0, 0, b""), checked)
    return Moved(recovered.first_index, checked.last_index, state.term, state.configuration)


def _vote(stored: StoredLog) -> str | None:
    recovered = stored.recovered
    # The original knows no floor: a vote for itself keeps it from giving that of this term to anybody else.
    if not recovered.vote and 0 < recovered.term <= recovered.vote_floor:
        return stored.identity.peer
    return recovered.vote or None


def _remarks(folder: JsFolder, checked: Checked) -> tuple[str, ...]:
    state, remarks = folder.state, []
    if folder.torn_bytes:
        remarks.append(f"{folder.torn_bytes} bytes of an unfinished last write of its state were ignored")
    if checked.configuration is None:
        remarks.append("its log states no configuration: start the peer with the --peers of its first start")
    elif state.configuration != checked.configuration[2]:
        remarks.append(f"raft.pers names other members than entry {checked.configuration[0]}; those of the entry count")
    return tuple(remarks)


def _counted(stored: StoredLog, progress: Progress) -> Iterator[tuple[int, memoryview]]:
    done = 0
    for index, entry in stored.entries():
        done += len(entry)
        progress(done, stored.log_bytes)
        yield index, entry


def _batches(entries: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
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

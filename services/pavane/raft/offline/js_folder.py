"""The data folder of an original zmq-raft peer on disk, read and written (docs/specs/raft.md 13.6).

The original takes no lock, so whoever reads or writes a folder must know that its peer is down.
"""

import base64
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pavane.raft.offline.writing import mapped
from pavane.raft.state.configuration import Configuration
from pavane.raft.storage.js_files import (
    LOG_DATA_BYTES_MAX,
    JsFileError,
    JsProperties,
    JsSnapshot,
    decode_log,
    decode_properties,
    decode_snapshot,
    encode_log,
    encode_properties,
    encode_snapshot,
    first_of_name,
    log_capacity,
    log_path,
)
from pavane.raft.wire.entry import parse_peers, peers_value
from pavane.raft.wire.frames import REQID_BYTES, Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.replies import is_count
from pavane.wire import RemoteProtocolError

LOG = "log"
SNAPSHOT = "snap"
STATE = "raft.pers"
APPLIED = "state.pers"


@dataclass(frozen=True, slots=True)
class JsState:
    """What ``raft.pers`` and ``state.pers`` say.

    ``configuration`` is None for a peer that never wrote one (its seed list is in its program's settings);
    ``configuration_index`` and ``configuration_reqid`` tell which entry of the log stated it, if one did.
    """

    term: int = 0
    vote: str | None = None
    configuration: Configuration | None = None
    configuration_index: int | None = None
    configuration_reqid: bytes | None = None
    applied: int = 0


class JsFolder:
    """A folder of the original program, read; raises ``JsFileError`` and ``OSError``.

    ``torn_bytes`` of an unfinished last write were ignored, as the original does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        raft, applied = self._properties(STATE), self._properties(APPLIED)
        self.torn_bytes = raft.torn_bytes + applied.torn_bytes
        self.state = _state(raft, applied)
        found = path / SNAPSHOT
        self.snapshot = decode_snapshot(SNAPSHOT, mapped(found)) if found.exists() else JsSnapshot(0, 0, b"")

    @staticmethod
    def is_one(path: Path) -> bool:
        """Say whether ``path`` looks like such a folder."""
        return (path / STATE).is_file() or any((path / LOG).glob("*/*/*/*.rlog"))

    def log_bytes(self) -> int:
        """Return the size of the log's files, to measure progress by."""
        return sum(file.stat().st_size for _, file in self._files())

    def entries(self) -> Iterator[tuple[int, memoryview]]:
        """Yield every entry behind the snapshot with its index; raises ``JsFileError`` where one is missing."""
        following = self.snapshot.index + 1
        for index, entry, name in self._stored():
            if index > following:
                raise JsFileError(
                    name, 0, f"the file begins with index {index}, the one before ends with {following - 1}"
                )
            if index == following:
                yield index, entry
                following += 1

    def covered_entries(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the entries that are still there though the snapshot covers them."""
        for index, entry, _ in self._stored():
            if index > self.snapshot.index:
                return
            yield index, entry

    def _stored(self) -> Iterator[tuple[int, memoryview, str]]:
        for first, file in self._files():
            name = str(file.relative_to(self._path))
            for index, entry in enumerate(decode_log(name, mapped(file), first).entries, first):
                yield index, entry, name

    def _files(self) -> list[tuple[int, Path]]:
        files = ((first_of_name(file.name), file) for file in (self._path / LOG).glob("*/*/*/*"))
        return sorted((first, file) for first, file in files if first is not None)

    def _properties(self, name: str) -> JsProperties:
        path = self._path / name
        return decode_properties(name, path.read_bytes()) if path.exists() else JsProperties()


def write_folder(
    path: Path,
    state: JsState,
    snapshot: JsSnapshot,
    entries: Iterable[tuple[int, Frame]],
    created: datetime | None = None,
) -> None:
    """Write a folder that the original program and its tools read; ``path`` must exist and be empty.

    ``entries`` are without a gap and begin at most one behind the snapshot.
    """
    stamp = (created or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    host = socket.gethostname()
    _write(path / SNAPSHOT, encode_snapshot(snapshot, stamp, host))
    (path / LOG).mkdir()
    first = size = 0
    waiting: list[Frame] = []

    def finish() -> None:
        file = path / LOG / log_path(first)
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, encode_log(first, log_capacity(first), waiting, stamp, host))

    for index, entry in entries:
        if waiting and (len(waiting) == log_capacity(first) or size + len(entry) > LOG_DATA_BYTES_MAX):
            finish()
            size, waiting = 0, []
        if not waiting:
            first = index
        waiting.append(entry)
        size += len(entry)
    if waiting:
        finish()
    _write(path / APPLIED, [encode_properties({"lastApplied": state.applied})])
    _write(path / STATE, [encode_properties(_properties_of(state))])


def _state(raft: JsProperties, applied: JsProperties) -> JsState:
    values = raft.values
    term, vote = values.get("currentTerm", 0), values.get("votedFor")
    index, reqid = values.get("peersIndex"), values.get("peersUpdateRequest")
    last_applied = applied.values.get("lastApplied", 0)
    if not is_count(term) or not (vote is None or isinstance(vote, str)):
        raise JsFileError(STATE, 0, f"term {term!r} with a vote for {vote!r} cannot be")
    if not is_count(last_applied):
        raise JsFileError(APPLIED, 0, f"lastApplied {last_applied!r} cannot be")
    if not (index is None or is_count(index)):
        raise JsFileError(STATE, 0, f"peersIndex {index!r} cannot be")
    return JsState(term, vote, _configuration(values.get("peers")), index, _reqid(reqid), last_applied)


def _reqid(value: Value) -> bytes | None:
    if value is None:
        return None
    try:
        reqid = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        reqid = b""
    if len(reqid) != REQID_BYTES:
        raise JsFileError(STATE, 0, f"peersUpdateRequest {value!r} is no request id in base64")
    return reqid


def _configuration(value: Value) -> Configuration | None:
    if value is None:
        return None
    try:
        if isinstance(value, dict):
            return Configuration(parse_peers(value.get("new")), parse_peers(value.get("old")))
        return Configuration(parse_peers(value))
    except RemoteProtocolError as error:
        raise JsFileError(STATE, 0, f"peers {value!r} is no configuration") from error


def _properties_of(state: JsState) -> dict[str, Value]:
    values: dict[str, Value] = {"currentTerm": state.term, "votedFor": state.vote}
    if state.configuration is not None:
        new, old = state.configuration.new, state.configuration.old
        values["peers"] = peers_value(new) if old is None else {"old": peers_value(old), "new": peers_value(new)}
        reqid = state.configuration_reqid
        values["peersUpdateRequest"] = None if reqid is None else base64.b64encode(reqid).decode()
        values["peersIndex"] = state.configuration_index
    return values


def _write(path: Path, parts: Iterable[Frame]) -> None:
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())

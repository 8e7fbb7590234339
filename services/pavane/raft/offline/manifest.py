"""What a backup says of itself, written when all of it is there (docs/specs/raft.md 13.5)."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pavane.raft.machine import UnknownMachine
from pavane.raft.offline.compacting import state_digest
from pavane.raft.offline.store import Progress, StoredLog, no_progress
from pavane.raft.storage import StoreError
from pavane.raft.storage.identity import NAME as IDENTITY_NAME
from pavane.raft.storage.store import LOG_FOLDER, SNAPSHOT_FOLDER
from pavane.runtime.backups import NAME, check_of, faults_of, files_in
from pavane.wal import DiskFolder
from pavane.wal.files import read_file, replace_file
from pavane.wal.synced import NAME as SYNCED_NAME

__all__ = ["NAME", "Manifest", "checked", "manifest_of", "rebuilt", "seal", "unseal"]

VERSION = 1
PEER = "pavane-backup"  # whose store a backup is, the same in each, so that a later copy goes on with it
FILE = re.compile(rf"{re.escape(IDENTITY_NAME)}|{re.escape(SYNCED_NAME)}|({LOG_FOLDER}|{SNAPSHOT_FOLDER})/[^/.][^/]*")
AGAIN = "run `pavane raft backup` into it again"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds: everything up to entry ``index`` of term ``term``.

    ``state`` is the digest of the machine's state there in hexadecimal, empty where the machine has none or is not
    installed; ``files`` are the bytes and the BLAKE2b-256 of each file by its name.
    """

    machine: str
    index: int
    term: int
    state: str
    files: dict[str, tuple[int, str]]

    def encode(self) -> bytes:
        """Return the file's text; ``check`` in it is a digest of the rest."""
        found = {"version": VERSION, **asdict(self)}
        return json.dumps({**found, "check": check_of(found)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Read it; raises ``StoreError``."""
        try:
            found = json.loads(data)
            if found.pop("check") != check_of(found):
                raise ValueError("it does not match the digest in it")
            version = found.pop("version")
            if version != VERSION:
                raise StoreError(
                    f"{NAME} has format version {version}, this program reads {VERSION}; use the program that wrote it"
                )
            files = {name: (size, check) for name, (size, check) in found.pop("files").items()}
            if not all(map(FILE.fullmatch, files)):  # they become paths
                raise ValueError("it names what is no file of a backup")
            return cls(**found, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{NAME} is damaged; {AGAIN}, or take another copy of it") from error

    def compare(self, state: bytes) -> None:
        """Raise ``StoreError`` if the state at the last entry has another digest than when the backup was made."""
        if self.state not in ("", state.hex()):
            raise StoreError(
                f"the state at entry {self.index} is not that of the backup, though every file is: this program "
                "applies the entries in another way; use the version that made the backup"
            )


def seal(path: Path, index: int) -> Manifest:
    """Read back a copy that is complete up to entry ``index``, make it durable, and write its manifest.

    Raises ``StoreError`` if it does not read back, ``OSError``.
    """
    with StoredLog(path) as stored:
        if stored.faults() or stored.recovered.last_index < index:
            raise StoreError(f"{path} does not read back up to entry {index}: {'; '.join(stored.faults())}; {AGAIN}")
        try:
            state = state_digest(stored, index).hex()
        except UnknownMachine:
            state = ""  # a copy needs no package (12.10)
        manifest = Manifest(stored.identity.machine, index, stored.term_at(index), state, dict(_files(path, sync=True)))
        replace_file(DiskFolder(path), NAME, manifest.encode())
    return manifest


def rebuilt(stored: StoredLog, manifest: Manifest, progress: Progress = no_progress) -> bytes:
    """Return the digest of the state that a backup leads to, nothing for a machine without one.

    Raises ``StoreError`` if it is not that of the manifest, ``UnknownMachine``.
    """
    digest = state_digest(stored, manifest.index, progress)
    manifest.compare(digest)
    return digest


def unseal(path: Path) -> None:
    """Take the manifest away, durably: what it describes is about to change."""
    folder = DiskFolder(path)
    if NAME in folder.names():
        folder.remove(NAME)
        folder.sync()


def manifest_of(path: Path) -> Manifest | None:
    """Return the manifest of a backup, ``None`` for a folder without one; raises ``StoreError`` if it is damaged."""
    data = read_file(DiskFolder(path), NAME)
    return None if data is None else Manifest.decode(data)


def checked(path: Path) -> Manifest:
    """Return the manifest of a backup, each file of which is as it was written.

    Raises ``StoreError`` that says what is wrong with which file, or that there is no manifest, ``OSError``.
    """
    manifest = manifest_of(path)
    if manifest is None:
        raise StoreError(
            f"{path} has no {NAME}, which a backup gets last: the copy was interrupted, or an older version made it, "
            f"or it is no backup; {AGAIN}"
        )
    faults = faults_of(manifest.files, dict(_files(path)))
    if faults:
        raise StoreError(f"{path} is not as it was written: {'; '.join(faults)}; {AGAIN}, or take another copy of it")
    return manifest


def _files(path: Path, *, sync: bool = False) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield name, bytes and digest of each file that the state comes from; ``sync`` first makes them durable."""
    names = [IDENTITY_NAME, SYNCED_NAME]
    for folder in (LOG_FOLDER, SNAPSHOT_FOLDER):
        if (path / folder).is_dir():
            found = (f"{folder}/{file.name}" for file in sorted((path / folder).iterdir()))
            names += filter(FILE.fullmatch, found)  # what else a file system or a desktop put there is none of ours
    yield from files_in(path, names, sync=sync)

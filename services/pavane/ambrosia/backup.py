"""A copy of an instance's files while it runs, and an instance made of one (docs/specs/ambrosia.md 12.5).

The copy is the last checkpoint and all records behind it. No file of them is ever changed but at its end, so the writer
is not disturbed. What is restored has the state of the copy; ``Meta.restored`` makes its coordinator compare each
peer with it (N12), so that no new call is taken for one that was made and lost since.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pavane.ambrosia.errors import FatalError
from pavane.ambrosia.state import OURSELVES, Meta, Progress
from pavane.ambrosia.storage import CHECKPOINT, END, LOG, CheckpointReader, Registry, Replay, Row, file_name
from pavane.ambrosia.tenure import FENCE, LOCK, TERM, read_fence, read_number
from pavane.runtime.backups import (
    DIGEST_BYTES,
    NAME,
    READ_BYTES,
    Copies,
    Manifest,
    faults_of,
    files_in,
    no_progress,
)
from pavane.runtime.backups import Progress as Told
from pavane.wal.files import DiskFolder, replace_file
from pavane.wire import RemoteProtocolError

KIND = "Coordinator"
FILE = re.compile(rf"{CHECKPOINT}\d+(\.info)?|{LOG}\d+")
AGAIN = "make the backup again"


class BackupError(Exception):
    """An instance could not be copied or restored; the message says why."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup holds: all records of ``instance`` before ``next_seq``, with their digest and the checkpoint's."""

    instance: str
    version: int
    next_seq: int
    digest: str
    peers: tuple[str, ...]
    bytes: int


def _check(about: dict[str, Any]) -> None:
    """Raise ``ValueError`` for what a manifest may not say: its name and numbers become paths."""
    name, others = about["instance"], [about["digest"], *about["connections"]]
    plain = name not in ("", ".", "..") and not {"/", "\0"} & {*name}
    numbers = [about[key] for key in ("app_version", "checkpoint", "log", "next_seq")]
    if not plain or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError("it names no instance and numbers of its files")
    if not all(isinstance(each, str) for each in [name, *others]):
        raise ValueError("a name is no text")


decode = partial(Manifest.decode, kind=KIND, file=FILE, error=BackupError, about=_check)
copies: Copies[Manifest] = Copies(decode, FILE, BackupError)


def back_up(source: Path, registry: Path, instance: str, target: Path, progress: Told = no_progress) -> Copied:
    """Copy the files of ``instance`` in ``source`` into ``target``: all that was acknowledged before this began.

    The instance may run. ``target`` is made, or empty. Raises ``BackupError``, ``OSError``.
    """
    if target.exists() and any(target.iterdir()):
        raise BackupError(f"{target} is not empty: give each backup a folder of its own")
    folder = DiskFolder(source)
    row = _row(registry, instance)
    meta = row.meta  # a log gets records only once the metadata name it, so later ones are not needed
    if not meta.last_checkpoint:
        raise BackupError(f"{instance} has not finished its first start: there is nothing to copy yet")
    target.mkdir(parents=True, exist_ok=True)
    logs = [f"{LOG}{number}" for number in range(meta.last_checkpoint, meta.last_log + 1)]
    names = [f"{CHECKPOINT}{meta.last_checkpoint}.info", f"{CHECKPOINT}{meta.last_checkpoint}", *logs]
    sizes = {name: (source / name).stat().st_size for name in names if (source / name).is_file()}
    done, total = 0, sum(sizes.values())
    for name in names:
        if name not in sizes:
            if name.endswith(".info"):
                continue  # those of the original have none
            raise BackupError(f"{source}/{name} is missing; restore it from a copy")
        end = read_number(folder, name + END) if name in logs else None
        progress(done, total)
        _copy(source / name, target / name, sizes[name] if end is None else min(sizes[name], end))
        done += sizes[name]
    _end_with_a_record(target, meta)
    found = dict(files_in(target, sorted(path.name for path in target.iterdir()), sync=True))
    copied = _read(target, instance, meta, sum(size for size, _ in found.values()))
    for name in logs:
        end = read_number(folder, name + END)
        if end is not None and end < found[name][0]:
            raise BackupError(f"{instance} was taken over meanwhile, and {name} counts up to {end} only: {AGAIN}")
    about = {
        "instance": instance,
        "app_version": meta.current_version,
        "checkpoint": meta.last_checkpoint,
        "log": meta.last_log,
        "connections": list(meta.connections),
        "next_seq": copied.next_seq,
        "digest": copied.digest,
    }
    replace_file(DiskFolder(target), NAME, Manifest(KIND, about, found).encode())
    return copied


def verify(folder: Path) -> Copied:
    """Compare a backup with its manifest, and what is read of it with the digest there; raises ``BackupError``."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        text = f"{folder} has no {NAME}, which a backup gets last: the copy was interrupted, or it is no backup"
        raise BackupError(f"{text}; {AGAIN}") from None
    manifest = decode(data)
    there = sorted(path.name for path in folder.iterdir() if FILE.fullmatch(path.name))
    if faults := faults_of(manifest.files, dict(files_in(folder, there))):
        raise BackupError(
            f"{folder} is not as it was written: {'; '.join(faults)}; {AGAIN}, or take another copy of it"
        )
    about = manifest.about
    copied = _read(folder, about["instance"], meta_of(about), sum(size for size, _ in manifest.files.values()))
    if (copied.next_seq, copied.digest) != (about["next_seq"], about["digest"]):
        text = f"{folder} leads to record {copied.next_seq} and digest {copied.digest}"
        raise BackupError(f"{text}, not to {about['next_seq']} and {about['digest']}: use the version that made it")
    return copied


def restore(folder: Path, log: Path, name: str = "", *, replace_files: bool = False) -> Copied:
    """Make the files of an instance below ``log`` out of a backup; it goes on when it is started there.

    ``name`` is that of the backup: the log itself has it, as the address of answers. ``replace_files``: those that the
    instance has there are moved aside; the generation that may write stays the same. Raises ``BackupError`` if the
    backup is damaged or of another instance, and if files are there that are not to be replaced or are in use,
    ``OSError``.
    """
    copied = verify(folder)
    instance = copied.instance
    if name not in ("", instance):
        text = f"this is a backup of {instance}, which cannot go on as {name}: its log has its name in it"
        raise BackupError(f"{text}. Restore it as {instance}, in another namespace if that name is taken")
    target, row = log / f"{instance}_0", log / "registry" / file_name(instance)
    for path in (target, row):
        if path.exists() and not replace_files:
            raise BackupError(f"{path} is there already: replace the files of {instance}, or give another folder")
    unfinished = log / f"restoring-{instance}"
    # A run that was interrupted may have moved the files aside already.
    fence = max(_freed(target), read_fence(DiskFolder(unfinished)) if unfinished.exists() else 0)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    manifest = decode((folder / NAME).read_bytes())
    for each, (size, _) in manifest.files.items():
        _copy(folder / each, unfinished / each, size, sync=True)
    if fence:
        replace_file(DiskFolder(unfinished), FENCE, str(fence).encode())
    DiskFolder(unfinished).sync()
    if target.exists():
        target.rename(log / f"replaced-{instance}-{time.time_ns()}")
    registry = Registry(DiskFolder(log / "registry"))
    former = _row(log / "registry", instance)
    # Peers turn away a lower number: a second restore, or a clock that went back, must not give one.
    meta = replace(meta_of(manifest.about), restored=max(int(time.time()), former.meta.restored + 1))
    # Before the files, which would be begun anew without a row.
    registry.store(instance, Row(meta, log=str(target)), seen=former.version)
    unfinished.rename(target)
    DiskFolder(log).sync()
    return copied


def _freed(target: Path) -> int:
    """Return the generation that may write the files that are to be replaced; raises ``BackupError`` if one does."""
    if not target.exists():
        return 0
    folder = DiskFolder(target)
    try:
        term = read_number(folder, TERM) or 0
        folder.lock(f"{LOCK}.{term}" if term else LOCK).release()
        return read_fence(folder)
    except BlockingIOError as error:
        raise BackupError(f"{target} is in use: end the instance first, then restore") from error
    except FatalError as error:
        raise BackupError(str(error)) from error


def meta_of(about: dict[str, Any]) -> Meta:
    """Return the metadata of an instance that a manifest tells of."""
    return Meta(about["app_version"], about["checkpoint"], about["log"], tuple(about["connections"]))


def place_of(log: Path, instance: str) -> tuple[Path, Path]:
    """Return the folders of an instance's files and of the registry below ``log``; raises ``BackupError``.

    Its files are in the folder of its first version, to which those of all others lead.
    """
    name = re.compile(rf"{re.escape(instance)}_\d+")
    found = [path for path in log.glob("*") if name.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    if not found:
        raise BackupError(f"{log} has no files of an instance {instance}")
    return min(found), log / "registry"


def _row(registry: Path, instance: str) -> Row:
    try:
        return Registry(DiskFolder(registry)).load(instance)
    except FatalError as error:
        raise BackupError(str(error)) from error


def _copy(source: Path, target: Path, size: int, *, sync: bool = False) -> None:
    """Copy the first ``size`` bytes."""
    with source.open("rb") as reading, target.open("wb") as writing:
        while size and (piece := reading.read(min(size, READ_BYTES))):
            size -= writing.write(piece)
        if sync:
            writing.flush()
            os.fsync(writing.fileno())


def _end_with_a_record(folder: Path, meta: Meta) -> None:
    """Take off what the writer was writing just then: nobody has been told of it."""
    with _replayed(folder, meta) as (_, replay):
        while replay.next() is not None:
            pass
        replay.finish()
        os.truncate(folder / f"{LOG}{replay.number}", replay.offset)


def _read(folder: Path, instance: str, meta: Meta, size: int) -> Copied:
    """Read a copy from its checkpoint to its end; raises ``BackupError`` where it is damaged."""
    hasher = blake2b(digest_size=DIGEST_BYTES)
    with _replayed(folder, meta) as (checkpoint, replay):
        head = checkpoint.head
        hasher.update(head.encode())
        for chunk in checkpoint.blob():
            hasher.update(chunk)
        next_seq, peers = head.next_seq, {*meta.connections, *head.inputs, *head.outputs}
        while (record := replay.next()) is not None:
            for part in record.parts():
                hasher.update(part)
            next_seq = record.seq + 1
            peers |= record.inputs.keys()
        replay.finish()
    names = tuple(sorted(peers - {OURSELVES}))
    return Copied(instance, meta.current_version, next_seq, hasher.hexdigest(), names, size)


@contextmanager
def _replayed(folder: Path, meta: Meta) -> Iterator[tuple[CheckpointReader, Replay]]:
    """Read the checkpoint and the records behind it; what is damaged raises ``BackupError``."""
    files = DiskFolder(folder)
    with ExitStack() as stack:
        try:
            checkpoint = CheckpointReader(files, meta.last_checkpoint)
            stack.callback(checkpoint.close)
            replay = Replay(files, meta.last_checkpoint, meta.last_log, Progress.restored(checkpoint.head))
            stack.callback(replay.close)
            yield checkpoint, replay
        except (FatalError, RemoteProtocolError) as error:
            raise BackupError(f"{error}; {AGAIN}") from error

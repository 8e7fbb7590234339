"""A Backup of a RaftCluster: copy it, send the copy, read it back, delete what is old (docs/specs/operator.md 1.10).

What was made stands in the termination log as JSON, or why nothing was.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field

from pavane.pods.settings import store_options
from pavane.raft.backup import BackupError, back_up
from pavane.raft.curve import CurveServer
from pavane.raft.errors import RaftError
from pavane.raft.keys import SERVER_SECRET_KEY, ident_in
from pavane.raft.machine import UnknownMachine
from pavane.raft.offline.manifest import NAME, Manifest, rebuilt
from pavane.raft.offline.remote import backups, clear, download, remove, surplus, upload
from pavane.raft.offline.store import StoredLog
from pavane.raft.storage import StoreError
from pavane.runtime.objects import ObjectStore
from pavane.runtime.process import EXIT_FAILED, EXIT_USAGE, Process, write_termination_log
from pavane.runtime.process import run as run_process
from pavane.runtime.settings import Settings, SettingsError

FAILURES = (BackupError, RaftError, StoreError, OSError, ValueError)


class BackupSettings(Settings):
    """Env of the pod."""

    backup_url: str
    """Below it the backups of the cluster are."""
    backup_name: str
    """Of the folder there that this one gets, and no other Backup. Up to the first dash it names the cluster."""
    backup_keep: int | None = Field(default=None, ge=1)
    backup_store: Path | None = None
    """Folder with options of the store, a file for each."""
    backup_peers: str
    """Urls of members, separated by commas."""
    raft_keys: Path
    raft_secret_file: Path


def run() -> int:
    """Make the backup and return the exit code."""
    try:
        settings = BackupSettings.load()
        options = store_options(settings.backup_store, "PAVANE_BACKUP_STORE")
    except SettingsError as error:
        sys.stderr.write(f"the pod's settings are wrong: {error}\n")
        write_termination_log(str(error))
        return EXIT_USAGE

    async def work(process: Process) -> None:
        try:
            made = await make(settings, options)
        except FAILURES as error:
            process.exit(EXIT_FAILED, str(error))
        else:
            process.exit(0, json.dumps(made))
        await process.ended()

    async def body(process: Process) -> None:
        process.spawn(work(process), name="backup")
        await process.ended()

    return run_process(body, service="pavane-backup")


async def make(settings: BackupSettings, options: Mapping[str, str]) -> dict[str, Any]:
    """Make the backup, or verify the one that an earlier attempt left whole; return what the status tells of it.

    Raises ``FAILURES``. What is old is deleted behind a good one alone; a store that refuses that spoils no backup. One
    that does not read back is deleted, so that the next attempt makes it anew.
    """
    _check_place(settings.backup_url)
    own = ObjectStore(f"{settings.backup_url}/{settings.backup_name}", options, StoreError)
    if NAME not in await own.sizes():
        await clear(own)  # a later copy has other files than an earlier attempt, and `upload` takes those for foreign
        with TemporaryDirectory(prefix="pavane-backup-") as folder:
            await _copied(settings, Path(folder))
            await upload(Path(folder), own)
    try:
        with TemporaryDirectory(prefix="pavane-backup-") as folder:
            manifest = await download(own, Path(folder))
            digest = await asyncio.to_thread(_digest, Path(folder), manifest)
    except StoreError:
        with suppress(StoreError):  # what went wrong first is told
            await clear(own)
        raise
    kept = ""
    if settings.backup_keep is not None:
        try:
            store = ObjectStore(settings.backup_url, options, StoreError)
            await _delete_old(store, settings.backup_name.partition("-")[0], settings.backup_keep)
        except StoreError as error:
            kept = str(error)
    size = sum(size for size, _ in manifest.files.values())
    return {"index": manifest.index, "bytes": size, "digest": digest.hex(), "kept": kept}


def _check_place(url: str) -> None:
    """Refuse a folder that goes with the pod: a backup there would be verified, and gone a moment later."""
    parts, own = urlsplit(url), Path(gettempdir()).resolve()
    if parts.scheme == "file" and Path(unquote(parts.path)).resolve().is_relative_to(own):
        raise StoreError(f"{url} is in the pod's own folder {own}, which is deleted with it: give another URL")


async def _copied(settings: BackupSettings, folder: Path) -> None:
    ident = ident_in(settings.raft_secret_file.read_bytes())
    key = settings.raft_keys / SERVER_SECRET_KEY
    curve = CurveServer.read(key, None) if key.exists() else None
    await back_up(folder, settings.backup_peers.split(","), ident, curve=curve)


def _digest(folder: Path, manifest: Manifest) -> bytes:
    """Return the digest of the state that the copy leads to; nothing where the machine is not installed here."""
    with StoredLog(folder) as stored:
        if stored.faults():
            raise StoreError(f"what was sent does not read back: {'; '.join(stored.faults())}")
        try:
            return rebuilt(stored, manifest)
        except UnknownMachine:
            return b""


async def _delete_old(store: ObjectStore, cluster: str, keep: int) -> None:
    """Delete what is old of a cluster: others may have their backups below the same URL."""
    own = [each for each in await backups(store) if each.name.startswith(f"{cluster}-")]
    for each in reversed(surplus(own, keep)):
        await remove(store, each)

"""A Backup of a RaftCluster: its pod copies it as a learner does (docs/specs/operator.md 1.10)."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pavane.pods.backups import StoreSettings, Told, deliver, run_backup
from pavane.raft.backup import BackupError, back_up
from pavane.raft.curve import CurveServer
from pavane.raft.errors import RaftError
from pavane.raft.keys import SERVER_SECRET_KEY, ident_in
from pavane.raft.machine import UnknownMachine
from pavane.raft.offline.manifest import Manifest, rebuilt
from pavane.raft.offline.remote import copies
from pavane.raft.offline.store import StoredLog
from pavane.raft.storage import StoreError

FAILURES = (BackupError, RaftError, StoreError, OSError, ValueError)


class BackupSettings(StoreSettings):
    """Env of the pod."""

    backup_peers: str
    """Urls of members, separated by commas."""
    raft_keys: Path
    raft_secret_file: Path


def run() -> int:
    """Make the backup and return the exit code."""
    return run_backup(BackupSettings, make, FAILURES)


async def make(settings: BackupSettings, options: Mapping[str, str]) -> Told:
    """Make the backup as ``deliver`` does. Raises ``FAILURES``."""
    return await deliver(copies, settings, options, partial(_copied, settings), _read)


async def _copied(settings: BackupSettings, folder: Path) -> None:
    ident = ident_in(settings.raft_secret_file.read_bytes())
    key = settings.raft_keys / SERVER_SECRET_KEY
    curve = CurveServer.read(key, None) if key.exists() else None
    await back_up(folder, settings.backup_peers.split(","), ident, curve=curve)


async def _read(folder: Path, manifest: Manifest) -> Told:
    digest = await asyncio.to_thread(_digest, folder, manifest)
    return {"index": manifest.index, "digest": digest.hex(), "until": f"entry {manifest.index}"}


def _digest(folder: Path, manifest: Manifest) -> bytes:
    """Return the digest of the state that the copy leads to; nothing where the machine is not installed here."""
    with StoredLog(folder) as stored:
        if stored.faults():
            raise StoreError(f"what was sent does not read back: {'; '.join(stored.faults())}")
        try:
            return rebuilt(stored, manifest)
        except UnknownMachine:
            return b""

"""A Backup of a WaltzCluster: its pod waits until the archive has all, and reads that (docs/specs/operator.md 1.10)."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pavane.pods import immortal_log
from pavane.pods.backups import StoreSettings, Told, deliver, run_backup
from pavane.pods.settings import store_options
from pavane.runtime.backups import Manifest
from pavane.runtime.settings import SettingsError
from pavane.waltz.aio.archive import Archive
from pavane.waltz.backup import back_up, copies, verify
from pavane.waltz.client import WaltzError
from pavane.waltz.errors import ArchiveError

FAILURES = (ArchiveError, WaltzError, SettingsError, OSError, ValueError)


class BackupSettings(StoreSettings):
    """Env of the pod."""

    waltz_client: Path
    """Folder of the Secret with which clients reach the log."""
    archive_url: str
    """Of the log's own folder."""
    archive_store: Path | None = None
    """Folder with options of the archive's store, a file for each."""


def run() -> int:
    """Make the backup and return the exit code."""
    return run_backup(BackupSettings, make, FAILURES)


async def make(settings: BackupSettings, options: Mapping[str, str]) -> Told:
    """Make the backup as ``deliver`` does. Raises ``FAILURES``."""
    given = store_options(settings.archive_store, "PAVANE_ARCHIVE_STORE")
    archive = Archive(settings.archive_url, given, make=False)
    return await deliver(copies, settings, options, partial(_copied, settings, archive), partial(_read, archive))


async def _copied(settings: BackupSettings, archive: Archive, folder: Path) -> None:
    async with immortal_log.client(settings.waltz_client) as log:
        await back_up(log, archive, folder)


async def _read(archive: Archive, _: Path, manifest: Manifest) -> Told:
    ends = await verify(manifest, archive)
    text = f"{ends.transactions} transactions in {len(ends.ends)} partitions"
    return {"index": ends.transactions, "digest": ends.digest, "until": text}

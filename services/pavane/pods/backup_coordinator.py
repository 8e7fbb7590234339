"""A Backup of a Coordinator: its pod reads the volume beside the one that writes (docs/specs/operator.md 1.10)."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pavane.ambrosia.backup import BackupError, back_up, copies, place_of, verify
from pavane.pods.backups import StoreSettings, Told, deliver, run_backup
from pavane.runtime.backups import Manifest

FAILURES = (BackupError, OSError, ValueError)


class BackupSettings(StoreSettings):
    """Env of the pod."""

    ambrosia_log: Path
    """Folder of the resource on its volume."""
    instance: str


def run() -> int:
    """Make the backup and return the exit code."""
    return run_backup(BackupSettings, make, FAILURES)


async def make(settings: BackupSettings, options: Mapping[str, str]) -> Told:
    """Make the backup as ``deliver`` does. Raises ``FAILURES``."""
    return await deliver(copies, settings, options, partial(_copied, settings), _read)


async def _copied(settings: BackupSettings, folder: Path) -> None:
    source, registry = place_of(settings.ambrosia_log, settings.instance)
    await asyncio.to_thread(back_up, source, registry, settings.instance, folder)


async def _read(folder: Path, _: Manifest) -> Told:
    copied = await asyncio.to_thread(verify, folder)
    index = max(0, copied.next_seq - 1)
    return {"index": index, "digest": copied.digest, "until": f"record {index}"}

"""The pod of a Backup, for all kinds: copy, send, read back, delete what is old (docs/specs/operator.md 1.10).

What was made stands in the termination log as JSON, or why nothing was.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import Field

from pavane.pods.settings import store_options
from pavane.runtime.backups import NAME, Copies, Stated, surplus
from pavane.runtime.objects import ObjectStore
from pavane.runtime.process import EXIT_FAILED, EXIT_USAGE, Process, write_termination_log
from pavane.runtime.process import run as run_process
from pavane.runtime.settings import Settings, SettingsError

M = TypeVar("M", bound=Stated)
S = TypeVar("S", bound="StoreSettings")
Told = dict[str, Any]
"""What the status tells of a backup."""


class StoreSettings(Settings):
    """Env of the pod that all kinds have."""

    backup_url: str
    """Below it the backups of the resource are."""
    backup_name: str
    """Of the folder there that this one gets, and no other Backup. Up to the first dash it names the resource."""
    backup_keep: int | None = Field(default=None, ge=1)
    backup_store: Path | None = None
    """Folder with options of the store, a file for each."""


def run_backup(
    settings: type[S], make: Callable[[S, Mapping[str, str]], Awaitable[Told]], failures: tuple[type[Exception], ...]
) -> int:
    """Make the backup and return the exit code; ``make`` gets the options of the store and may raise ``failures``."""
    try:
        found = settings.load()
        options = store_options(found.backup_store, "PAVANE_BACKUP_STORE")
    except SettingsError as error:
        sys.stderr.write(f"the pod's settings are wrong: {error}\n")
        write_termination_log(str(error))
        return EXIT_USAGE

    async def work(process: Process) -> None:
        try:
            made = await make(found, options)
        except failures as error:
            process.exit(EXIT_FAILED, str(error))
        else:
            process.exit(0, json.dumps(made))
        await process.ended()

    async def body(process: Process) -> None:
        process.spawn(work(process), name="backup")
        await process.ended()

    return run_process(body, service="pavane-backup")


async def deliver(
    copies: Copies[M],
    settings: StoreSettings,
    options: Mapping[str, str],
    copied: Callable[[Path], Awaitable[object]],
    read: Callable[[Path, M], Awaitable[Told]],
) -> Told:
    """Make the backup, or verify the one that an earlier attempt left whole; return what the status tells of it.

    ``copied`` writes it into a folder, and ``read`` reads what came back from the store. Raises what these do and the
    error of ``copies``. What is old is deleted behind a good one alone; a store that refuses that spoils no backup. One
    that does not read back is deleted, so that the next attempt makes it anew.
    """
    _check_place(settings.backup_url, copies.error)
    own = ObjectStore(f"{settings.backup_url}/{settings.backup_name}", options, copies.error)
    if NAME not in await own.sizes():
        await copies.clear(own)  # a later copy has other files than an earlier attempt, which would be foreign
        with TemporaryDirectory(prefix="pavane-backup-") as folder:
            await copied(Path(folder))
            await copies.upload(Path(folder), own)
    try:
        with TemporaryDirectory(prefix="pavane-backup-") as folder:
            manifest = await copies.download(own, Path(folder))
            told = await read(Path(folder), manifest)
    except copies.error:
        with suppress(copies.error):  # what went wrong first is told
            await copies.clear(own)
        raise
    kept = ""
    if settings.backup_keep is not None:
        try:
            store = ObjectStore(settings.backup_url, options, copies.error)
            await _delete_old(copies, store, settings.backup_name.partition("-")[0], settings.backup_keep)
        except copies.error as error:
            kept = str(error)
    return {"bytes": sum(size for size, _ in manifest.files.values()), **told, "kept": kept}


def _check_place(url: str, error: type[Exception]) -> None:
    """Refuse a folder that goes with the pod: a backup there would be verified, and gone a moment later."""
    parts, own = urlsplit(url), Path(gettempdir()).resolve()
    if parts.scheme == "file" and Path(unquote(parts.path)).resolve().is_relative_to(own):
        raise error(f"{url} is in the pod's own folder {own}, which is deleted with it: give another URL")


async def _delete_old(copies: Copies[M], store: ObjectStore, resource: str, keep: int) -> None:
    """Delete what is old of a resource: others may have their backups below the same URL."""
    found = [each for each in await copies.backups(store) if each.manifest is not None]  # else of another kind, perhaps
    own = [each for each in found if each.name.startswith(f"{resource}-")]
    for each in reversed(surplus(own, keep)):
        await copies.remove(store, each)

"""``pavane ambrosia backup|backups|verify|restore``: a copy of an immortal (docs/specs/ambrosia.md 12.5)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from pavane.ambrosia.backup import BackupError, Copied, back_up, copies, place_of
from pavane.ambrosia.backup import restore as restoring
from pavane.ambrosia.backup import verify as verifying
from pavane.runtime.backups import Manifest
from pavane_cli import output
from pavane_cli.backups import Keep, Meter, Option, Place, Url, Yes, folder_at, is_url, listed, store_of
from pavane_cli.commands.ambrosia_run import DEFAULT_LOG, Log
from pavane_cli.failures import UserError, as_user_error
from pavane_cli.output import Format, Output

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore


def backup(
    name: Annotated[str, typer.Argument(help="Name of the instance.")],
    place: Annotated[str, typer.Argument(metavar="DIR", help="New folder, or new URL in object storage.")],
    log: Log = DEFAULT_LOG,
    option: Option = None,
) -> None:
    """Copy an immortal, which may run: its last checkpoint and all calls that were acknowledged before this began.

    At a URL it is there once it is whole. The copy is made in a temporary folder before (TMPDIR).
    """
    with _failures(), _target(place) as folder:
        source, registry = place_of(log, name)
        store = _store(place, option, make=True) if is_url(place) else None
        if store is not None:
            asyncio.run(copies.vacant(store))
        copied = back_up(source, registry, name, folder, Meter("copying"))
        if store is not None:
            asyncio.run(copies.upload(folder, store, Meter("sending")))
    _tell(place, copied)


def _whose(manifest: Manifest) -> object:
    return manifest.about["instance"]


def backups(url: Url, keep: Keep = None, yes: Yes = False, option: Option = None, form: Output = Format.TABLE) -> None:
    """List the backups below a URL, the newest first; with --keep delete old ones.

    Whether one is whole is told by names and sizes of its objects; `ambrosia verify` reads them.
    """
    with _failures():
        position = "record", lambda manifest: manifest.about["next_seq"] - 1
        asyncio.run(listed(copies, _store(url, option), position, keep, yes=yes, form=form, whose=_whose))


def verify(place: Place, option: Option = None) -> None:
    """Compare a backup with its manifest, restore it into a scratch folder and read it there; exit code 1 if it is bad.

    `ambrosia replay` also handles what it holds, with the class of the application.
    """
    with (
        _failures(),
        folder_at(copies, place, option) as folder,
        TemporaryDirectory(prefix="pavane-backup-") as scratch,
    ):
        copied = verifying(folder)
        again = _scratch(folder, Path(scratch))
    if again != copied.digest:
        raise UserError(f"{place} is restored with digest {again}, not {copied.digest}: take another copy of it")
    _tell(place, copied)
    output.say(f"digest of the checkpoint and all records: {copied.digest}")
    output.say("good")


def restore(
    place: Place,
    log: Annotated[Path, typer.Option("--log", help="Folder of logs in which the immortal is created.")],
    name: Annotated[str, typer.Option(help="Refuse a backup of any other instance.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Move the files aside that a stopped instance has there.")
    ] = False,
    option: Option = None,
) -> None:
    """Create the files of an immortal from a backup, under its name; start it there, and never the former one again.

    What it handled since the backup is lost. A peer that knows of a call behind the backup goes on with it no more:
    the link is diverged, for good, and calls wait on both sides. So no call takes the place of one that was lost.
    """
    with _failures(), folder_at(copies, place, option) as folder:
        copied = restoring(folder, log, name, replace_files=replace)
    _tell(str(log), copied)
    if copied.peers:
        output.note(f"note: links to {', '.join(copied.peers)} go on only if they know of no later call")


def _scratch(folder: Path, scratch: Path) -> str:
    """Restore a backup, copy what that makes, and return the digest of that."""
    copied = restoring(folder, scratch / "log")
    source, registry = place_of(scratch / "log", copied.instance)
    return back_up(source, registry, copied.instance, scratch / "again").digest


@contextmanager
def _failures() -> Iterator[None]:
    with as_user_error(BackupError, OSError, ValueError):
        yield


def _store(url: str, option: list[str] | None, *, make: bool = False) -> "ObjectStore":
    return store_of(url, option, BackupError, make=make)


@contextmanager
def _target(place: str) -> Iterator[Path]:
    if not is_url(place):
        yield Path(place)
        return
    with TemporaryDirectory(prefix="pavane-backup-") as copy:
        yield Path(copy)


def _tell(place: str, copied: Copied) -> None:
    version = f", version {copied.version}" if copied.version else ""
    output.say(f"{place}: {copied.instance}{version}, all records before {copied.next_seq}, {copied.bytes:,} bytes")

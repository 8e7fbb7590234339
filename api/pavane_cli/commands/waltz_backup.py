"""``pavane waltz backup|backups``: what of an archive leads to now (docs/specs/waltz.md 13.9)."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from pavane.runtime.backups import MANIFEST_BYTES_MAX, NAME, Manifest
from pavane.waltz.aio.archive import Archive
from pavane.waltz.backup import Ends, back_up, copies, decode, ends_of
from pavane.waltz.backup import verify as verifying
from pavane.waltz.client import Waltz
from pavane.waltz.errors import ArchiveError
from pavane_cli import output
from pavane_cli.backups import Keep, Meter, Option, Url, Yes, is_url, listed, store_of
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.output import Format, Output
from pavane_cli.target import run_with
from pavane_cli.waltz_reach import WaltzReach, reaching

if TYPE_CHECKING:
    from pavane.runtime.objects import ObjectStore


@reaching
def backup(
    reach: WaltzReach,
    place: Annotated[str, typer.Argument(metavar="DIR", help="New folder, or new URL in object storage.")],
    archive: Annotated[
        str, typer.Option("--archive", metavar="URL", help="Folder of the log, such as s3://logs/ledger-6ba7b810.")
    ],
    option: Option = None,
) -> None:
    """List what of a log's archive leads to now, once the archive has it, and a digest of it.

    This waits for `spec.archive.delay`. The options count for the archive's store and that of the URL.
    """
    if reach.partition:
        raise UserError("a backup is of all partitions: leave -p out", ExitCode.USAGE)

    async def work(log: Waltz) -> None:
        store = _store(place, option, make=True) if is_url(place) else None
        if store is not None:
            await copies.vacant(store)
        with TemporaryDirectory(prefix="pavane-backup-") as scratch:
            folder = Path(scratch) if store is not None else Path(place)
            if (folder / NAME).exists():
                raise UserError(f"{folder} holds a backup: give each a folder of its own")
            made = await back_up(log, Archive(archive, options_of(option), make=False), folder, Meter("waiting"))
            if store is not None:
                await copies.upload(folder, store)
        tell(place, made)

    with as_user_error(OSError):
        run_with(reach.log(), work)


def _whose(manifest: Manifest) -> object:
    return manifest.about["cluster"]


def backups(url: Url, keep: Keep = None, yes: Yes = False, option: Option = None, form: Output = Format.TABLE) -> None:
    """List the backups below a URL, the newest first; with --keep delete old ones. The archive stays as it is.

    Whether the archive still has what they name `waltz verify` tells.
    """
    with as_user_error(ArchiveError, OSError):
        position = "transactions", lambda manifest: ends_of(manifest.about).transactions
        asyncio.run(listed(copies, _store(url, option), position, keep, yes=yes, form=form, whose=_whose))


def verify_backup(place: str, option: list[str] | None) -> None:
    """Read all that a backup names in the archive, and compare it; raises ``UserError``."""
    with as_user_error(ArchiveError, OSError):
        ends = asyncio.run(checked(place, option))
    tell(place, ends)
    output.say(f"digest of all transactions: {ends.digest}")
    output.say("good")


async def checked(place: str, option: list[str] | None) -> Ends:
    """Return what a backup leads to, all of which is in the archive as it was; raises ``ArchiveError``."""
    manifest = await _manifest(place, option)
    return await verifying(manifest, Archive(ends_of(manifest.about).archive, options_of(option), make=False))


def options_of(option: list[str] | None) -> dict[str, str]:
    """Return options of a store as a map."""
    return dict(text.partition("=")[::2] for text in option or ())


def tell(place: str, ends: Ends) -> None:
    """Print what a backup leads to."""
    output.say(f"{place}: {ends.cluster}, {ends.transactions} transactions in {len(ends.ends)} partitions")


async def _manifest(place: str, option: list[str] | None) -> Manifest:
    if is_url(place):
        with TemporaryDirectory(prefix="pavane-backup-") as scratch:
            return await copies.download(_store(place, option), Path(scratch))
    path = Path(place) / NAME
    if not path.is_file():
        raise ArchiveError(f"{place} has no {NAME}, which a backup gets last: it is no backup, or was interrupted")
    with path.open("rb") as file:
        return decode(file.read(MANIFEST_BYTES_MAX))


def _store(url: str, option: list[str] | None, *, make: bool = False) -> "ObjectStore":
    return store_of(url, option, ArchiveError, make=make)

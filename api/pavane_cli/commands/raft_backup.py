"""``pavane raft backup|restore``: a copy of a running cluster, and a new cluster of it (docs/specs/raft.md 13.5)."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pavane.raft.backup import Backup, BackupError, back_up
from pavane.raft.keys import IDENT_KEY, SERVER_SECRET_KEY
from pavane.raft.offline.remote import copies, upload, vacant
from pavane.raft.offline.restoring import restore as restoring
from pavane.raft.server import StoreError
from pavane.raft.wire.frames import UINT_MAX
from pavane_cli import output
from pavane_cli.backups import Keep, Meter, Option, Place, Url, Yes, folder_at, is_url, listed
from pavane_cli.commands.raft_offline import failures, store_at, tell
from pavane_cli.commands.raft_peer import ClusterId, curve_of, members_of
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.output import Format, Output
from pavane_cli.raft_reach import explained
from pavane_cli.secret import SecretEnv, SecretFile, secret_in


def backup(
    place: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder, an existing one is continued, or a new URL in object storage.")
    ],
    peers: Annotated[str, typer.Option("--peers", metavar="URL,…", help="Peers of the cluster.")],
    secret_file: SecretFile = None,
    secret_env: SecretEnv = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, metavar="DIR", help="Folder with all keys of the cluster (Secret NAME-keys)."
        ),
    ] = None,
    curve_secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Secret CURVE key of the cluster, in Z85.")
    ] = None,
    option: Option = None,
) -> None:
    """Copy a running cluster into a folder or to a URL: everything that was acknowledged before this began.

    At a URL it is there once it is whole. The copy is made in a temporary folder before (TMPDIR).
    """
    if keys is not None:
        in_clear = not (keys / SERVER_SECRET_KEY).exists()
        secret_file = secret_file or keys / IDENT_KEY
        curve_secret_file = curve_secret_file or (None if in_clear else keys / SERVER_SECRET_KEY)
    if (secret_file is None) == (secret_env is None):
        raise UserError("give the cluster secret by one of --secret-file, --secret-env, --keys", ExitCode.USAGE)
    ident, curve = secret_in(secret_file, secret_env), curve_of(curve_secret_file, None)
    urls = [url.strip() for url in peers.split(",")]

    async def work(folder: Path) -> Backup:
        store = store_at(place, option, make=True) if is_url(place) else None
        if store is not None:
            await vacant(store)
        made = await back_up(folder, urls, ident, curve=curve, progress=Meter("copying", unit="entries"))
        if store is not None:
            await upload(folder, store, Meter("sending"))
        return made

    with as_user_error(BackupError, StoreError, OSError, ValueError), explained(), ExitStack() as stack:
        copy = stack.enter_context(TemporaryDirectory(prefix="pavane-backup-")) if is_url(place) else place
        made = asyncio.run(work(Path(copy)))
    output.say(f"{place}: everything up to entry {made.index}, machine {made.machine}")


def backups(
    url: Url,
    keep: Keep = None,
    yes: Yes = False,
    option: Option = None,
    form: Output = Format.TABLE,
) -> None:
    """List the backups below a URL, the newest first; with --keep delete old ones.

    Whether one is whole is told by names and sizes of its objects; `raft verify` reads them.
    """

    async def work() -> None:
        position = "entry", lambda manifest: manifest.index
        await listed(copies, store_at(url, option), position, keep, yes=yes, form=form)

    with failures():
        asyncio.run(work())


def restore(
    place: Place,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Data folder to create.")],
    peer: Annotated[str, typer.Option("--id", metavar="ID", help="Member that gets the folder.")],
    members: Annotated[str, typer.Option("--members", metavar="ID=URL,…", help="All members of the new cluster.")],
    cluster_id: ClusterId = "",
    beyond: Annotated[
        int,
        typer.Option(
            min=0,
            max=UINT_MAX,
            metavar="N",
            help="Greatest revision seen, if DIR was restored before; the same for all members.",
        ),
    ] = 0,
    unverified: Annotated[
        bool,
        typer.Option(
            "--unverified", help="Take a folder without manifest: a survivor's, or a backup of an older version."
        ),
    ] = False,
    option: Option = None,
) -> None:
    """Create the folder of one member of a new cluster from a backup. Use the same backup for each member.

    Its indices and revisions go on far behind those of the backup, so that none is given out a second time.
    """
    with failures(), folder_at(copies, place, option) as folder:
        moved = restoring(
            folder,
            target,
            peer,
            members_of("--members", members),
            cluster_id,
            Meter("reading"),
            beyond=beyond,
            unverified=unverified,
        )
    tell(moved, target)

"""``pavane raft backup|restore``: a copy of a running cluster, and a new cluster of it (docs/specs/raft.md 13.5)."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from pavane.raft.backup import BackupError, back_up
from pavane.raft.keys import IDENT_KEY, SERVER_SECRET_KEY
from pavane.raft.offline.restoring import restore as restoring
from pavane.raft.server import StoreError
from pavane.raft.wire.frames import UINT_MAX
from pavane_cli import output
from pavane_cli.commands.raft_offline import Folder, Meter, failures, tell
from pavane_cli.commands.raft_peer import ClusterId, curve_of, members_of
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.raft_reach import explained
from pavane_cli.secret import SecretEnv, SecretFile, secret_in


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backup; an existing one is continued.")],
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
) -> None:
    """Copy a running cluster into a folder: everything that was acknowledged before this began."""
    if keys is not None:
        in_clear = not (keys / SERVER_SECRET_KEY).exists()
        secret_file = secret_file or keys / IDENT_KEY
        curve_secret_file = curve_secret_file or (None if in_clear else keys / SERVER_SECRET_KEY)
    if (secret_file is None) == (secret_env is None):
        raise UserError("give the cluster secret by one of --secret-file, --secret-env, --keys", ExitCode.USAGE)
    ident, curve = secret_in(secret_file, secret_env), curve_of(curve_secret_file, None)
    urls = [url.strip() for url in peers.split(",")]
    with as_user_error(BackupError, StoreError, OSError, ValueError), explained():
        made = asyncio.run(back_up(folder, urls, ident, curve=curve, progress=Meter("copying", unit="entries")))
    output.say(f"{folder}: everything up to entry {made.index}, machine {made.machine}")


def restore(
    folder: Folder,
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
) -> None:
    """Create the folder of one member of a new cluster from a backup. Use the same backup for each member.

    Its indices and revisions go on far behind those of the backup, so that none is given out a second time.
    """
    with failures():
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

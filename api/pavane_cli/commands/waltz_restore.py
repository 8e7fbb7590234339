"""``pavane waltz restore``."""

from typing import Annotated

import typer

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Waltz
from pavane.waltz.client.restoring import restore as restore_log
from pavane_cli import output
from pavane_cli.commands.waltz_backup import checked
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.target import run_with
from pavane_cli.waltz_reach import WaltzReach, reaching


@reaching
def restore(
    reach: WaltzReach,
    from_: Annotated[
        str, typer.Option("--from", metavar="URL", help="Folder of the former log, such as s3://logs/ledger-6ba7b810.")
    ] = "",
    backup: Annotated[
        str,
        typer.Option(metavar="DIR", help="A backup, folder or URL: all that it leads to, once it was compared."),
    ] = "",
    to_transaction: Annotated[
        list[str] | None,
        typer.Option(metavar="P=N", help="The last transaction of a partition; default: all. More than once."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the store, as in `spec.archive`. More than once."),
    ] = None,
) -> None:
    """Append all that an archive holds to a log that is empty, under the same numbers, in all partitions.

    Nobody else may append meanwhile. One that was interrupted goes on when it is run again. Options of the store that
    are secret are better given in the environment (AWS_SECRET_ACCESS_KEY).
    """
    if bool(from_) == bool(backup) or (backup and to_transaction):
        text = "give --from URL, where you like with --to-transaction, or --backup DIR"
        raise UserError(text, ExitCode.USAGE)
    if reach.partition:
        raise UserError("a restore is of all partitions: give --to-transaction P=N, not -p", ExitCode.USAGE)
    pairs = [(text, *text.partition("=")[::2]) for text in to_transaction or ()]
    for text, partition, last in pairs:
        if not partition.isdecimal() or not last.isdecimal():
            raise UserError(f"--to-transaction: {text!r} does not look like 0=1234", ExitCode.USAGE)
    options = dict(text.partition("=")[::2] for text in option or ())

    async def work(log: Waltz) -> None:
        url, ends = from_, {int(partition): int(last) for _, partition, last in pairs}
        if backup:
            found = await checked(backup, option)
            url, ends = found.archive, {partition: end - 1 for partition, end in found.ends.items()}
        archive = Archive(url, options, make=False)
        async for one in restore_log(log, archive, ends):
            there = f", {one.there} of them were there" if one.there else ""
            output.say(f"partition {one.partition}: {one.end} transactions{there}")

    run_with(reach.log(), work)

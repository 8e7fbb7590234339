"""``pavane waltz verify|dump``: the folder of a storage node that does not run."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane.runtime.backups import NAME as BACKUP_NAME
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage.directory import ForeignDirectory
from pavane.waltz.storage.inspect import InUse, PartitionReport, StoppedFolder
from pavane_cli import output
from pavane_cli.backups import Option, is_url
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output

Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The folder with waltz-storage.ctl.")]
DATA_SHOWN_CHARS = 80


@contextmanager
def _opened(folder: Path) -> Iterator[StoppedFolder]:
    try:
        with StoppedFolder(folder) as stored:
            yield stored
    except ForeignDirectory as error:
        raise UserError(str(error), ExitCode.NOT_FOUND) from error
    except InUse as error:
        raise UserError(str(error), ExitCode.REFUSED) from error
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error}") from error


def verify(
    place: Annotated[
        str, typer.Argument(metavar="DIR", help="The folder with waltz-storage.ctl, or a backup: folder or URL.")
    ],
    option: Option = None,
    form: Output = Format.TABLE,
) -> None:
    """Check all records of a stopped storage node, or all that a backup names in the archive. Changes nothing.

    Exit code 1 if a partition is damaged. An incomplete write at the end, which nobody acknowledged, is not damage.
    Options are those of the store of a backup and of its archive.
    """
    if is_url(place) or (Path(place) / BACKUP_NAME).exists():
        from pavane_cli.commands.waltz_backup import verify_backup  # noqa: PLC0415 - a folder needs no object storage

        verify_backup(place, option)
        return
    if not Path(place).is_dir():
        raise UserError(f"{place} is no folder", ExitCode.USAGE)
    with _opened(Path(place)) as stored:
        reports = list(stored.reports())
        if form.structured:
            output.structured([_document(report) for report in reports], form)
        else:
            output.say(f"storage node of cluster {stored.key}, {len(reports)} of {stored.partitions} partitions")
            heads = ("PARTITION", "TRANSACTIONS", "DATA", "SEGMENTS", "ACKNOWLEDGED", "SESSION", "STATE")
            output.table(heads, [_row(report) for report in reports])
    damaged = [f"partition {report.number}: {report.fault}" for report in reports if report.fault]
    if damaged:
        raise UserError("\n  ".join([*damaged, "empty the folder: the node then gets it from the others again"]))


def dump(
    folder: Folder,
    partition: Annotated[int, typer.Option(min=0, help="Which.")] = 0,
    from_: Annotated[int, typer.Option("--from", min=0, help="The first transaction.")] = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print the transactions of one partition of a stopped storage node; changes nothing."""
    with _opened(folder) as stored:
        if partition >= stored.partitions:
            raise UserError(f"the cluster has partitions 0 to {stored.partitions - 1}, not {partition}", ExitCode.USAGE)
        try:
            for record in stored.records(partition):
                if record.txid < from_:
                    continue
                if form.structured:
                    data = base64.b64encode(record.data).decode()
                    line = {"transaction": record.txid, "header": record.header, "data": data}
                    output.say(json.dumps(line | {"reqid": list(record.reqid)}))
                else:
                    shown = output.printable(record.data[: 4 * DATA_SHOWN_CHARS])[:DATA_SHOWN_CHARS]
                    output.say(f"{record.txid}  header {record.header}  {len(record.data)} bytes  {shown}".rstrip())
        except Damaged as error:
            raise UserError(f"behind this no record is whole: {error}") from error


def _row(report: PartitionReport) -> tuple[Any, ...]:
    transactions = "none" if report.last < report.first else f"{report.first} to {report.last}"
    state = "damaged" if report.fault else "good" if report.available else "good, taken out of use"
    if report.torn_bytes:
        state += f", {report.torn_bytes} bytes of an unfinished write"
    size = f"{report.data_bytes:,} bytes"
    return report.number, transactions, size, report.segments, report.mark, report.session, state


def _document(report: PartitionReport) -> dict[str, Any]:
    return {
        "partition": report.number,
        "first": report.first,
        "last": report.last,
        "dataBytes": report.data_bytes,
        "segments": report.segments,
        "session": report.session,
        "fence": report.fence,
        "acknowledged": report.mark,
        "available": report.available,
        "tornBytes": report.torn_bytes,
        "fault": report.fault,
    }

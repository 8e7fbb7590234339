"""``pavane waltz append|consumers|feed|get|hwm|partitions|trim``."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from pavane.waltz.client import Lock
from pavane_api.waltzlog import service
from pavane_api.waltzlog.schemas import (
    AppendedTransaction,
    LogConsumers,
    LogPartitions,
    LogTransaction,
    Partition,
    TrimmedPartition,
)
from pavane_cli import output
from pavane_cli.data import DataFile, data_of, show
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.plane import StreamLost
from pavane_cli.target import run
from pavane_cli.waltz_reach import WaltzReach, reaching

_LOCK = "as NAME/NUMBER; may be given more than once."


@reaching
def append(
    reach: WaltzReach,
    text: Annotated[str | None, typer.Argument(help="The data; default: standard input.")] = None,
    file: DataFile = None,
    header: Annotated[int, typer.Option(help="A 32-bit number that readers see without the data.")] = 0,
    write: Annotated[
        list[str] | None, typer.Option("--write", metavar="LOCK", help=f"A lock that the transaction writes, {_LOCK}")
    ] = None,
    read: Annotated[
        list[str] | None,
        typer.Option("--read", metavar="LOCK", help=f"A lock that must not have changed since --seen, {_LOCK}"),
    ] = None,
    seen: Annotated[
        int | None,
        typer.Option(min=-1, help="The last transaction that the data is based on; default: the current end."),
    ] = None,
    form: Output = Format.TABLE,
) -> None:
    """Append one transaction and print its number, once it is on the disks of a majority.

    If a lock was written after --seen nothing is written, and the exit code is 7.
    """
    data = data_of(text, file)
    locks = [parse_lock(lock) for lock in write or ()], [parse_lock(lock) for lock in read or ()]

    async def send() -> int:
        if not reach.servers:
            query = [("write", f"{name}/{number}") for name, number in locks[0]]
            query += [("read", f"{name}/{number}") for name, number in locks[1]]
            query += [("header", str(header)), *([("seen", str(seen))] if seen is not None else [])]
            async with reach.rest() as rest:
                return int((await rest.post(f"{reach.transactions}?{urlencode(query)}", data))["transaction"])
        async with reach.log() as log:
            return await log.append(reach.partition, data, header=header, write=locks[0], read=locks[1], seen=seen)

    txid = run(send())
    if form.structured:
        done = AppendedTransaction(partition=reach.partition, transaction=txid)
        output.structured(done.model_dump(mode="json", by_alias=True), form)
    else:
        output.say(str(txid))


@reaching
def feed(
    reach: WaltzReach,
    from_: Annotated[int, typer.Option("--from", min=0, help="The first transaction.")] = 0,
    count: Annotated[int, typer.Option(min=0, help="Stop after this many transactions; 0: never.")] = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print the data of each transaction on a line, and of each further one when it is committed, until Ctrl-C.

    With -o wide number and header come first; with -o json each is an object on a line of its own.
    """

    async def follow() -> None:
        left = count
        async with aclosing(_transactions(reach, from_)) as transactions:
            async for transaction in transactions:
                tell(transaction, form)
                left -= 1
                if left == 0:
                    return

    run(follow())


@reaching
def get(
    reach: WaltzReach,
    transaction: Annotated[int, typer.Argument(min=0, help="Its number.")],
    form: Output = Format.TABLE,
) -> None:
    """Print the data of one transaction."""

    async def fetch() -> LogTransaction:
        if not reach.servers:
            async with reach.rest() as rest:
                return LogTransaction.model_validate(await rest.get(f"{reach.transactions}/{transaction}"))
        async with reach.log() as log:
            return LogTransaction.of(await log.get(reach.partition, transaction))

    found = run(fetch())
    show(base64.b64decode(found.data), found, form)


@reaching
def hwm(reach: WaltzReach) -> None:
    """Print the number of the last transaction; -1 if there is none."""

    async def ask() -> int | None:
        if not reach.servers:
            found = {each.partition: each.high_water_mark for each in await _partitions(reach)}
            if reach.partition not in found:
                raise UserError(f"the log has partitions 0 to {len(found) - 1}, not {reach.partition}", ExitCode.USAGE)
            return found[reach.partition]
        async with reach.log() as log:
            return await log.hwm(reach.partition)

    txid = run(ask())
    if txid is None:
        raise UserError(f"nobody answers for partition {reach.partition} now; ask again", ExitCode.TIME_OUT)
    output.say(str(txid))


@reaching
def partitions(reach: WaltzReach, form: Output = Format.TABLE) -> None:
    """Show the writer and the last transaction of each partition."""

    found = run(_partitions(reach))
    document = LogPartitions(items=found).model_dump(mode="json", by_alias=True)
    rows = [
        (each.partition, each.server or "none", each.generation, each.stage, each.high_water_mark) for each in found
    ]
    output.listing(document, ("PARTITION", "SERVER", "GENERATION", "STAGE", "HWM"), rows, form)


@reaching
def trim(
    reach: WaltzReach,
    before: Annotated[int, typer.Option(min=0, help="The first transaction that is kept.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be given up.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Give up also what consumers still need.")] = False,
    form: Output = Format.TABLE,
) -> None:
    """Give up all transactions of a partition before one, for good: nobody can read them any more."""

    async def ask() -> TrimmedPartition:
        if not reach.servers:
            query = urlencode({"before": before, "dryRun": dry_run, "force": force})
            async with reach.rest() as rest:
                path = f"{reach.partitions}/{reach.partition}/trim?{query}"
                return TrimmedPartition.model_validate(await rest.post(path, b""))
        async with reach.log() as log:
            return await service.trimmed(log, reach.partition, before, dry_run=dry_run, force=force)

    found = run(ask())
    if form.structured:
        output.structured(found.model_dump(mode="json", by_alias=True), form)
        return
    count, verb = found.first - found.former_first, "would begin" if dry_run else "begins"
    output.say(f"partition {found.partition} {verb} with transaction {found.first}: {count} fewer than before")
    for name in found.passed:
        output.say(f"consumer {name} needs some of what {'would be' if dry_run else 'is'} gone")


@reaching
def consumers(
    reach: WaltzReach,
    remove: Annotated[str, typer.Option(metavar="CONSUMER", help="Forget this one, in all partitions.")] = "",
    form: Output = Format.TABLE,
) -> None:
    """Show who reads which partition, how far it is behind, and for how long retention has waited for it.

    What is removed is not waited for any more, and is told so when it returns.
    """

    async def ask() -> LogConsumers:
        if not reach.servers:
            async with reach.rest() as rest:
                if remove:
                    await rest.send("DELETE", f"{reach.path}/consumers/{quote(remove, safe='')}")
                return LogConsumers.model_validate(await rest.get(f"{reach.path}/consumers"))
        async with reach.log() as log:
            if remove:
                await service.forget(log, remove)
            return await service.consumers(log)

    found = run(ask())
    rows = [
        (
            *(one.partition, one.name, one.position, one.lag),
            *(output.span(one.lag_seconds), output.span(one.idle_seconds)),
            "" if one.held_seconds is None else output.span(one.held_seconds) + " (stuck)" * one.stuck,
            one.who,
        )
        for one in found.items
    ]
    titles = "PARTITION", "CONSUMER", "POSITION", "LAG", "BEHIND", "SEEN", "HOLDS", "WHO"
    output.listing(found.model_dump(mode="json", by_alias=True), titles, rows, form)
    if found.unanswered:
        output.note(f"nobody answers for partition {', '.join(map(str, found.unanswered))}: who reads it is not known")


async def _partitions(reach: WaltzReach) -> list[Partition]:
    if not reach.servers:
        async with reach.rest() as rest:
            return LogPartitions.model_validate(await rest.get(reach.partitions)).items
    async with reach.log() as log:
        return (await service.partitions(log)).items


async def _transactions(reach: WaltzReach, start: int) -> AsyncGenerator[LogTransaction, None]:
    """Yield transactions for ever, each once."""
    if reach.servers:
        async with reach.log() as log, aclosing(log.feed(reach.partition, from_=start)) as feed:
            async for transaction in feed:
                yield LogTransaction.of(transaction)
        return
    async with reach.rest() as rest:
        try:
            async with aclosing(rest.follow(lambda: f"{reach.transactions}?watch=true&from={start}")) as events:
                async for _, data in events:
                    found = LogTransaction.model_validate_json(data)
                    start = found.transaction + 1
                    yield found
        except StreamLost as lost:
            words = f"the control plane ended the stream: {lost}; go on with --from {start}"
            raise UserError(words, ExitCode.TIME_OUT) from lost


def parse_lock(text: str) -> Lock:
    """Return the lock ``NAME/NUMBER``; raises ``UserError``."""
    name, slash, number = text.rpartition("/")
    if not slash or not number.removeprefix("-").isdecimal():
        raise UserError(f"{text!r} is no lock: it looks like account/7", ExitCode.USAGE)
    return name, int(number)


def tell(transaction: LogTransaction, form: Format) -> None:
    """Print a transaction on a line: its data, with number and header, or as an object."""
    if form.structured:
        output.say(json.dumps(transaction.model_dump(mode="json", by_alias=True)))
        return
    text = output.printable(base64.b64decode(transaction.data))
    output.say(f"{transaction.transaction}  {transaction.header}  {text}".rstrip() if form is Format.WIDE else text)

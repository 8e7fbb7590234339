"""``pavane waltz find|move``: what stands in a partition, and where who reads it is to begin."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from pavane_api.waltzlog import service
from pavane_api.waltzlog.finding import Sought
from pavane_api.waltzlog.schemas import FoundTransactions, MovedConsumer
from pavane_cli import output
from pavane_cli.backups import confirm
from pavane_cli.commands.waltz_log import tell
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.target import run
from pavane_cli.waltz_reach import WaltzReach, reaching

FOUND_MAX = 1000  # of one step

Step = Callable[[int | None, int | None, int], Awaitable[FoundTransactions]]
"""Looks from a transaction to before another one, for so many, and says how far it came."""


@reaching
def find(
    reach: WaltzReach,
    text: Annotated[str, typer.Option(help="What stands somewhere in the data.")] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="What the data hold as JSON; may be given more than once: all count."),
    ] = None,
    header: Annotated[int | None, typer.Option(help="The number beside the data.")] = None,
    from_: Annotated[int | None, typer.Option("--from", min=0, help="Where to begin; default: the first.")] = None,
    before: Annotated[int | None, typer.Option(min=0, help="Where to end; default: behind the last.")] = None,
    count: Annotated[int, typer.Option(min=0, help="Stop after so many; 0: find all.")] = 0,
    form: Output = Format.TABLE,
) -> None:
    """Look for transactions, and print number, header and data of each.

    A condition is a path in the JSON, and perhaps an operator with a value: '$.customer.id', '$.items[*].price >= 100',
    '$.name = "Ann"'. Standard error says at the end how far it looked.
    """
    asked = [("text", text)] * bool(text) + [("where", each) for each in where or ()]
    asked += [] if header is None else [("header", str(header))]
    try:
        sought = Sought.of(text, where or (), header)
    except ValueError as error:
        raise UserError(str(error), ExitCode.USAGE) from error

    async def look() -> tuple[int, FoundTransactions, int]:
        async with _stepping(reach, sought, asked) as step:
            found = await step(from_, before, min(count or FOUND_MAX, FOUND_MAX))
            first, done = found.looked_from, 0
            while True:
                for each in found.items:
                    tell(each, form if form.structured else Format.WIDE)
                done += len(found.items)
                if found.next_from >= found.end or 0 < count <= done:
                    return first, found, done
                left = count - done if count else FOUND_MAX
                found = await step(found.next_from, found.end, min(left, FOUND_MAX))

    first, last, done = run(look())
    more = f"; to look further: --from {last.next_from}" if last.next_from < last.end else ""
    output.note(f"found {done} of {last.next_from - first} transactions from {first} on{more}")


@reaching
def move(
    reach: WaltzReach,
    consumer: Annotated[str, typer.Option(help="Whose position.")],
    to: Annotated[int, typer.Option(min=0, help="The first transaction that it reads then.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; default: only say what it means.")] = False,
    form: Output = Format.TABLE,
) -> None:
    """Let a consumer of the partition begin at another transaction: it reads some again, or never reads some.

    Stop who runs under its name first: it is told at its next commit, and begins there when it starts anew.
    """

    async def ask() -> MovedConsumer:
        if not reach.servers:
            query = urlencode({"to": to, "dryRun": not yes})
            path = f"{reach.partitions}/{reach.partition}/consumers/{quote(consumer, safe='')}/move?{query}"
            async with reach.rest() as rest:
                return MovedConsumer.model_validate(await rest.post(path, b""))
        async with reach.log() as log:
            return await service.moved(log, reach.partition, consumer, to, dry_run=not yes)

    found = run(ask())
    if form.structured:
        output.structured(found.model_dump(mode="json", by_alias=True), form)
    else:
        output.say(found.sentence(dry_run=not yes))
    confirm(yes)


@asynccontextmanager
async def _stepping(reach: WaltzReach, sought: Sought, asked: list[tuple[str, str]]) -> AsyncIterator[Step]:
    if reach.servers:
        async with reach.log() as log:
            yield partial(service.find, log, reach.partition, sought)
        return
    async with reach.rest() as rest:

        async def step(start: int | None, before: int | None, limit: int) -> FoundTransactions:
            bounds = {"from": start, "before": before, "limit": limit}
            query = urlencode([*asked, *((key, value) for key, value in bounds.items() if value is not None)])
            path = f"{reach.partitions}/{reach.partition}/search?{query}"
            return FoundTransactions.model_validate(await rest.get(path))

        yield step

"""Changes of keys and nodes on standard output."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import typer

from pavane.raft.client import Changes, Reset
from pavane.raft.wire.frames import UINT_MAX
from pavane_api.raftkeys.schemas import ChangesDocument, Key
from pavane_cli import output
from pavane_cli.output import Format

From = Annotated[
    int, typer.Option("--from", metavar="REVISION", min=0, max=UINT_MAX, help="First revision; default: from now on.")
]
Count = Annotated[int, typer.Option("--count", min=0, help="Stop after this many changes; 0: never.")]


async def print_changes(changes: AsyncGenerator[Changes | Reset, None], count: int, form: Format) -> None:
    """Print changes until ``count`` have been printed; 0 = for ever. For programs each is a line of JSON."""
    left = count
    async with aclosing(changes) as stream:
        async for change in stream:
            if isinstance(change, Reset):
                _print_reset(change, form)
                continue
            told = ChangesDocument.of(change)
            if form.structured:
                output.say(json.dumps(told.model_dump(mode="json", by_alias=True, exclude_none=True)))
            else:
                for event in told.events:
                    data = () if event.data is None else (output.printable(event.data),)
                    output.say("  ".join((str(change.revision), event.kind, output.printable(event.key), *data)))
            left -= len(told.events)
            if count and left <= 0:
                return


def _print_reset(reset: Reset, form: Format) -> None:
    """Print that older changes are no longer kept, and all keys that exist now."""
    if form.structured:
        items = [Key.of(item).model_dump(mode="json", by_alias=True) for item in reset.items]
        output.say(json.dumps({"revision": reset.revision, "reset": True, "items": items}))
        return
    output.note(f"changes before revision {reset.revision} are forgotten; what is there now:")
    for item in reset.items:
        output.say(f"{item.mod_revision}  Now  {output.printable(item.key)}  {output.printable(item.value)}")

"""``pavane raft info|append|read``: the log of a cluster (docs/specs/raft.md 17)."""

import base64
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Any

import typer

from pavane.raft.client import RaftClient
from pavane.raft.errors import Code, Refused
from pavane_api.raftlog import service
from pavane_cli import output
from pavane_cli.data import DataFile, data_of
from pavane_cli.entries import words
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.reach import Reach, reaching
from pavane_cli.target import run

PAGE = 500  # entries per request


@reaching
def info(reach: Reach, form: Output = Format.TABLE) -> None:
    """Show leader, term, indices and members."""

    async def read() -> Any:
        if not reach.peers:
            async with reach.rest() as rest:
                return await rest.get(reach.path + "/log")
        async with reach.client() as client:
            return (await service.log_info(client)).model_dump(mode="json", by_alias=True)

    found = run(read())
    if form.structured:
        output.structured(found, form)
        return
    output.say(
        f"leader {found['leader'] or 'none'}  term {found['term']}  commit {found['commitIndex']}  "
        f"applied {found['appliedIndex']}  log {found['firstIndex']}–{found['lastIndex']}"
    )
    output.table(("MEMBER", "URL"), [(peer["id"], peer["url"]) for peer in found["peers"]])


@reaching
def append(
    reach: Reach,
    text: Annotated[str | None, typer.Argument(help="The data; default: standard input.")] = None,
    file: DataFile = None,
    reqid: Annotated[
        str | None, typer.Option(help="Request id, 24 hexadecimal digits; a repetition appends once.")
    ] = None,
) -> None:
    """Append one entry and print its index, once it is on the disks of a majority."""
    data = data_of(text, file)

    async def send() -> Any:
        if not reach.peers:
            async with reach.rest() as rest:
                headers = {"Idempotency-Key": reqid} if reqid else None
                return (await rest.post(reach.path + "/log/entries", data, headers))["index"]
        async with reach.client() as client:
            return await _append(client, data, reqid)

    output.say(str(run(send())))


async def _append(client: RaftClient, data: bytes, request_id: str | None) -> int:
    """Append at the peers themselves."""
    try:
        return await client.update(data, reqid=bytes.fromhex(request_id) if request_id else None)
    except ValueError as error:
        raise UserError(str(error), ExitCode.USAGE) from error
    except Refused as refused:
        if refused.code != Code.BAD_COMMAND:
            raise
        words = "these peers serve keys, so their log takes commands alone: use `pavane raft kv put`"
        raise UserError(words, ExitCode.REFUSED) from refused


@reaching
def read(
    reach: Reach,
    after: Annotated[int, typer.Option(min=0, help="Only entries after this index.")] = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print the data of each entry on a line; with -o wide or json all entries with index, term and type.

    -o wide shows commands of keys and configurations in words.
    """
    run(_read(reach, after, form))


async def _read(reach: Reach, after: int, form: Format) -> None:
    async with aclosing(_entries(reach, after)) as entries:
        if form.structured:
            output.structured([entry async for entry in entries], form)
            return
        async for entry in entries:
            data = base64.b64decode(entry["data"])
            if form is Format.WIDE:
                told = words(entry["type"], data)
                output.say(f"{entry['index']}  {entry['term']}  {entry['type']}  {entry['requestId']}  {told}".rstrip())
            elif entry["type"] == "State":
                output.say(output.printable(data))


async def _entries(reach: Reach, after: int) -> AsyncGenerator[dict[str, Any], None]:
    """Yield all entries behind ``after`` as the REST API shows them."""
    async with AsyncExitStack() as stack:
        rest = None if reach.peers else await stack.enter_async_context(reach.rest())
        client = await stack.enter_async_context(reach.client()) if reach.peers else None
        while True:
            if client is not None:
                page = (await service.entries(client, after, PAGE)).model_dump(mode="json", by_alias=True)
            elif rest is not None:
                page = await rest.get(reach.path + "/log/entries", after=after, limit=PAGE)
            for entry in page["items"]:
                yield entry
            if not page["items"]:
                return
            after = page["nextAfter"]

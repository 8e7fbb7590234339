"""``pavane raft info|append|read|subscribe``: the log of a cluster (docs/specs/raft.md 17)."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import typer

from pavane.raft.client import Entry, RaftClient, Snapshot
from pavane.raft.errors import Code, Refused
from pavane_api.raftlog import service
from pavane_cli import output
from pavane_cli.data import DataFile, data_of
from pavane_cli.entries import words
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.output import Format, Output
from pavane_cli.raft_reach import RaftReach, reaching
from pavane_cli.target import run, run_with

PAGE = 500  # entries per request
POLL_S = 1.0  # between two questions to the control plane for new entries

After = Annotated[int, typer.Option(min=0, help="Only entries after this index.")]


@reaching
def info(reach: RaftReach, form: Output = Format.TABLE) -> None:
    """Show leader, term, indices and members."""
    found = run_with(reach.reading("/log", service.log_info), lambda log_info: log_info())
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
    reach: RaftReach,
    text: Annotated[str | None, typer.Argument(help="The data; default: standard input.")] = None,
    file: DataFile = None,
    reqid: Annotated[
        str | None, typer.Option(help="Request id, 24 hexadecimal digits; repeated, it appends once.")
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
        with as_user_error(ValueError, code=ExitCode.USAGE):
            return await client.update(data, reqid=bytes.fromhex(request_id) if request_id else None)
    except Refused as refused:
        if refused.code != Code.BAD_COMMAND:
            raise
        words = "these peers serve keys, so their log accepts only commands: use `pavane raft kv put`"
        raise UserError(words, ExitCode.REFUSED) from refused


@reaching
def read(reach: RaftReach, after: After = 0, form: Output = Format.TABLE) -> None:
    """Print the data of each entry on a line; with -o wide or json all entries with index, term and type.

    -o wide shows commands of keys and configurations in words.
    """
    run(_read(reach, after, form))


async def _read(reach: RaftReach, after: int, form: Format) -> None:
    async with aclosing(_entries(reach, after)) as entries:
        if form.structured:
            output.structured([entry async for entry in entries], form)
            return
        async for entry in entries:
            _say(entry, form)


@reaching
def subscribe(
    reach: RaftReach,
    after: After = 0,
    count: Annotated[int, typer.Option(min=0, help="Stop after this many entries; 0: never.")] = 0,
    form: Output = Format.TABLE,
) -> None:
    """Print entries as `read` does, and each further one when it is applied, until Ctrl-C.

    With -o json each is an object on a line of its own. With --peers the leader has to publish (`raft peer --pub`);
    where its log no longer goes back so far, the snapshot in front comes first. By NAME the control plane is asked for
    new entries every second.
    """
    run(_subscribe(reach, after, count, form))


async def _subscribe(reach: RaftReach, after: int, count: int, form: Format) -> None:
    left = count
    async with aclosing(_published(reach, after) if reach.peers else _entries(reach, after, follow=True)) as entries:
        async for entry in entries:
            if form in {Format.JSON, Format.YAML}:
                output.say(json.dumps(entry))
            else:
                _say(entry, form)
            left -= 1
            if left == 0:
                return


async def _published(reach: RaftReach, after: int) -> AsyncGenerator[dict[str, Any], None]:
    """Yield entries in the form of the REST API as the leader publishes them, and a snapshot in a like form."""
    async with reach.client() as client, aclosing(client.subscribe(after)) as items:
        async for item in items:
            match item:
                case Entry():
                    yield service.shown(item).model_dump(mode="json", by_alias=True)
                case Snapshot(index, term, data):
                    encoded = base64.b64encode(data).decode()
                    yield {"index": index, "type": "Snapshot", "term": term, "requestId": "", "data": encoded}


def _say(entry: dict[str, Any], form: Format) -> None:
    """Print one entry for people."""
    data = base64.b64decode(entry["data"])
    if form is Format.WIDE:
        told = words(entry["type"], data)
        output.say(f"{entry['index']}  {entry['term']}  {entry['type']}  {entry['requestId']}  {told}".rstrip())
    elif entry["type"] == "Snapshot":
        output.note(f"entries up to {entry['index']} are gone; in their place stands a snapshot of {len(data)} bytes")
    elif entry["type"] == "State":
        output.say(output.printable(data))


async def _entries(reach: RaftReach, after: int, *, follow: bool = False) -> AsyncGenerator[dict[str, Any], None]:
    """Yield all entries behind ``after`` as the REST API shows them; with ``follow`` for ever."""
    async with reach.reading("/log/entries", service.entries) as read_page:
        while True:
            page = await read_page(after=after, limit=PAGE)
            for entry in page["items"]:
                yield entry
            if not page["items"]:
                if not follow:
                    return
                await asyncio.sleep(POLL_S)
            after = page["nextAfter"]

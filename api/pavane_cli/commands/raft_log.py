"""``pavane raft info|append|read``: the log of a RaftCluster through the control plane."""

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.target import Api, Context, Kubeconfig, Namespace, RestClient, Token, Where, control_plane, run

PAGE = 500  # entries per request

Cluster = Annotated[str, typer.Argument(metavar="NAME", help="Name of the RaftCluster.")]


def _path(namespace: str, name: str, rest: str = "") -> str:
    plain = name.removeprefix("raft/").removeprefix("raftcluster/")
    return f"/namespaces/{namespace}/raftclusters/{plain}/log{rest}"


def info(
    name: Cluster,
    form: Output = Format.TABLE,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    api: Api = None,
    token: Token = None,
) -> None:
    """Show leader, term, indices and members."""

    async def read() -> Any:
        async with control_plane(Where(kubeconfig, context), api, token) as rest:
            return await rest.get(_path(namespace, name))

    found = run(read())
    if form in {Format.JSON, Format.YAML}:
        output.structured(found, form)
        return
    output.say(
        f"leader {found['leader'] or 'none'}  term {found['term']}  commit {found['commitIndex']}  "
        f"applied {found['appliedIndex']}  log {found['firstIndex']}–{found['lastIndex']}"
    )
    output.table(("MEMBER", "URL"), [(peer["id"], peer["url"]) for peer in found["peers"]])


def append(
    name: Cluster,
    text: Annotated[str | None, typer.Argument(help="The data; default: standard input.")] = None,
    file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="File that holds the data.")] = None,
    reqid: Annotated[
        str | None, typer.Option(help="Request id, 24 hexadecimal digits; a repetition appends once.")
    ] = None,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    api: Api = None,
    token: Token = None,
) -> None:
    """Append one entry and print its index, once it is on the disks of a majority."""
    if text is not None and file is not None:
        raise UserError("give the data as text or as --file, not both", ExitCode.USAGE)
    data = file.read_bytes() if file else text.encode() if text is not None else sys.stdin.buffer.read()

    async def send() -> Any:
        async with control_plane(Where(kubeconfig, context), api, token) as rest:
            headers = {"Idempotency-Key": reqid} if reqid else None
            return await rest.post(_path(namespace, name, "/entries"), data, headers)

    output.say(str(run(send())["index"]))


def read(
    name: Cluster,
    after: Annotated[int, typer.Option(min=0, help="Only entries after this index.")] = 0,
    form: Output = Format.TABLE,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    api: Api = None,
    token: Token = None,
) -> None:
    """Print the data of each entry on a line; with -o wide or json all entries with index, term and type."""
    run(_read(Where(kubeconfig, context), api, token, _path(namespace, name, "/entries"), after, form))


async def _read(where: Where, api: str | None, token: str | None, path: str, after: int, form: Format) -> None:
    async with control_plane(where, api, token) as rest:
        if form in {Format.JSON, Format.YAML}:
            output.structured([entry async for entry in _entries(rest, path, after)], form)
            return
        async for entry in _entries(rest, path, after):
            data = output.printable(base64.b64decode(entry["data"]))
            if form is Format.WIDE:
                output.say(f"{entry['index']}  {entry['term']}  {entry['type']}  {entry['requestId']}  {data}")
            elif entry["type"] == "State":
                output.say(data)


async def _entries(rest: RestClient, path: str, after: int) -> Any:
    while True:
        page = await rest.get(path, after=after, limit=PAGE)
        for entry in page["items"]:
            yield entry
        if not page["items"]:
            return
        after = page["nextAfter"]

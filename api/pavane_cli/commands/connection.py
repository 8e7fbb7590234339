"""``pavane connection``: what an application needs to reach a RaftCluster or a log (docs/connect.md, docs/waltz.md)."""

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from pavane.application.finding import LOG_VARIABLE, VARIABLE, Connection
from pavane_cli import completing, output
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.gathering import Place, in_place
from pavane_cli.target import KINDS, cluster, parse_reference, run
from pavane_cli.waltz_reach import connection_of
from pavane_operator.kinds.raft import access

JAVA_SESSION_MS = 30_000  # in ZooKeeper; the original's client has no default, and its documentation this number


class Form(StrEnum):
    """How a connection is printed."""

    ENV = "env"
    FILE = "file"
    JAVA = "java"


@in_place
def connection(
    place: Place,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=completing.names, help="A RaftCluster, or waltz/NAME: a log."),
    ],
    form: Annotated[
        Form,
        typer.Option("--output", "-o", help="env: a line for a shell; file: only the JSON; java: properties (a log)."),
    ] = Form.ENV,
    client: Annotated[str, typer.Option("--client", help="Of a log: whose certificate, by clients.rights.")] = "",
) -> None:
    """Print addresses and keys of a RaftCluster or a log for an application; treat it as a password."""
    kind, plain = parse_reference(name if "/" in name else f"raft/{name}")
    log = kind == KINDS["waltz"]
    if not plain or not (log or kind == KINDS["raft"]):
        raise UserError("applications connect to RaftClusters (NAME) and logs (waltz/NAME)", ExitCode.USAGE)
    if form is Form.JAVA:
        text = run(_properties(place, plain)) if log else ""
        if not text:
            raise UserError(
                "clients of the original find a log in ZooKeeper alone: -o java is for a WaltzCluster with "
                "metadata.zookeeper (docs/waltz.md)",
                ExitCode.REFUSED,
            )
        output.say(text)
        return
    found = run(connection_of(place, plain, client)) if log else run(_connection(place, plain))
    text, variable = found.text(), LOG_VARIABLE if log else VARIABLE
    output.say(text if form is Form.FILE else f"export {variable}={shlex.quote(text)}")


async def _properties(place: Place, name: str) -> str:
    """Return what the original's Java client takes; empty for a log that it cannot find."""
    async with cluster(place) as client:
        document = await client.get(KINDS["waltz"], name, place.namespace)
    store = document["spec"]["metadata"].get("zookeeper")
    return store and (
        f"zookeeper.connectString={store['connectString']}\n"
        f"zookeeper.sessionTimeout={JAVA_SESSION_MS}\ncluster.root={store['root']}"
    )


async def _connection(place: Place, name: str) -> Connection:
    async with cluster(place) as client:
        document = await client.get(KINDS["raft"], name, place.namespace)
        with as_user_error(access.NotServing, ValueError, code=ExitCode.REFUSED):
            seeds, keys = await access.way_to(client, document)
    return Connection(name, tuple(seeds), keys.ident, keys.curve)

"""``pavane connection``: what an application needs to reach a RaftCluster (docs/connect.md)."""

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from pavane.application.finding import VARIABLE, Connection
from pavane_cli import completing, output
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.gathering import Place, in_place
from pavane_cli.kinds import plain_name
from pavane_cli.target import KINDS, cluster, run
from pavane_operator.kinds.raft import access


class Form(StrEnum):
    """How a connection is printed."""

    ENV = "env"
    FILE = "file"


@in_place
def connection(
    place: Place,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completing.names, help="A RaftCluster.")],
    form: Annotated[
        Form, typer.Option("--output", "-o", help="env: a line for a shell; file: only the JSON.")
    ] = Form.ENV,
) -> None:
    """Print addresses and keys of a RaftCluster for an application; treat it as a password."""
    found = run(_connection(place, plain_name("raft", name)))
    output.say(found.text() if form is Form.FILE else f"export {VARIABLE}={shlex.quote(found.text())}")


async def _connection(place: Place, name: str) -> Connection:
    async with cluster(place) as client:
        document = await client.get(KINDS["raft"], name, place.namespace)
        try:
            seeds, keys = await access.way_to(client, document)
        except (access.NotServing, ValueError) as error:
            raise UserError(str(error), ExitCode.REFUSED) from error
    return Connection(name, tuple(seeds), keys.ident, keys.curve)

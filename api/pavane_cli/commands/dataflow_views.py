"""``pavane dataflow list|watch|bad-rows``."""

from typing import Annotated, Any

import typer

from pavane.dataflow.ports import SqlError
from pavane.dataflow.sql import parse
from pavane_cli import output
from pavane_cli.commands.resources import changes, condition
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.gathering import Place, in_place
from pavane_cli.options import Api, Token
from pavane_cli.output import Format, Output
from pavane_cli.plane import control_plane
from pavane_cli.target import KINDS, cluster, run, run_with

DATAFLOWS = KINDS["dataflow"]

Name = Annotated[str, typer.Argument(help="Name of the Dataflow.")]


@in_place
def listed(place: Place, form: Output = Format.TABLE) -> None:
    """List the views of all Dataflows."""
    found = run_with(cluster(place), lambda client: client.list_all(DATAFLOWS, place.namespace))
    rows = [row for document in found.items for row in _rows(document)]
    cells = [[row[name] for name in HEADERS] for row in rows]
    output.listing({"items": rows}, [name.upper() for name in HEADERS], cells, form)


HEADERS = ("dataflow", "view", "state", "frontier", "lag", "badRows")


@in_place
def watch(place: Place, name: Name) -> None:
    """Print a line for each change of a Dataflow's views, until Ctrl-C."""

    async def follow() -> None:
        said = ""
        async with cluster(place) as client:
            await client.get(DATAFLOWS, name, place.namespace)
            async with changes(client, DATAFLOWS, place.namespace, name) as seen:
                async for change in seen:
                    line = summary(change.object) if change.type != "DELETED" else f"{name}  gone"
                    if line != said:
                        said = line
                        output.say(line)

    run(follow())


@in_place
def bad_rows(place: Place, name: Name, api: Api = None, token: Token = None, form: Output = Format.TABLE) -> None:
    """List the last rows that the Dataflow's tables could not read: partition, transaction and reason."""

    async def read() -> list[dict[str, Any]]:
        async with cluster(place) as client:
            spec = (await client.get(DATAFLOWS, name, place.namespace))["spec"]
        try:
            tables = {table.name for table in parse(spec["script"]).tables}
        except SqlError as error:
            raise UserError(f"the script of {name} is refused: {error}", ExitCode.REFUSED) from error
        async with control_plane(place, api, token) as rest:
            compute = spec["computeClusterRef"]["name"]
            found = await rest.get(f"/namespaces/{place.namespace}/computeclusters/{compute}/bad-rows")
        return [row for row in found["items"] if row["table"] in tables]

    rows = run(read())
    headers = ("table", "tick", "partition", "transaction", "reason")
    cells = [[str(row[each]) for each in headers] for row in rows]
    output.listing({"items": rows}, [each.upper() for each in headers], cells, form)


def summary(document: dict[str, Any]) -> str:
    """Return one line about a Dataflow: its state, and the frontier of each view."""
    rows = _rows(document)
    views = [f"{row['view']} {'' if row['frontier'] is None else row['frontier']}" for row in rows if row["view"]]
    bad = (document.get("status") or {}).get("badRows")
    return "  ".join([document["metadata"]["name"], rows[0]["state"], *views, *([f"bad rows {bad}"] if bad else [])])


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    status = document.get("status") or {}
    said = condition(document, "UpToDate") or {"reason": "Unseen"}
    views = status.get("views") or [{"name": ""}]
    return [
        {
            "dataflow": document["metadata"]["name"],
            "view": view["name"],
            "state": "Failed" if view.get("failure") else said["reason"],
            "frontier": view.get("frontier"),
            "lag": view.get("lag"),
            "badRows": status.get("badRows"),
        }
        for view in views
    ]

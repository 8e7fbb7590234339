"""``pavane dataflow``: the views of Dataflows."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "list": "dataflow_views:listed",
    "watch": "dataflow_views:watch",
    "bad-rows": "dataflow_views:bad_rows",
}

app = typer.Typer(cls=lazy.group(COMMANDS, "dataflow"), help="Show the views of Dataflows.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Show the views of Dataflows."""

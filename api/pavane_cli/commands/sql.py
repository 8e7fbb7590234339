"""``pavane sql``: views over the log that are kept up to date."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "check": "sql_views:check",
    "run": "sql_views:run_script",
    "replica": "sql_replica:replica",
    "query": "sql_views:query",
    "follow": "sql_views:follow",
}
_HELP = "SQL over the log, kept up to date: check and run a script, query and follow its views."

app = typer.Typer(cls=lazy.group(COMMANDS, "dataflow"), help=_HELP, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """SQL over the log, kept up to date: check and run a script, query and follow its views."""

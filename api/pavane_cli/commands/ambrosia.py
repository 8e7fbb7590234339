"""``pavane ambrosia``: run an immortal on this machine, call it, ask it, replay it (docs/specs/ambrosia.md 18.6)."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "run": "ambrosia_run:run",
    "call": "ambrosia_call:call",
    "query": "ambrosia_call:query",
    "replay": "ambrosia_run:replay",
    "log": "ambrosia_log:log",
    "coordinator": "ambrosia_coordinator:coordinator",
}
_HELP = "Immortals: applications that survive failures, with exactly-once calls."

app = typer.Typer(cls=lazy.group(COMMANDS), help=_HELP, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Immortals: applications that survive failures, with exactly-once calls."""

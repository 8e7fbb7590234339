"""``pavane waltz``: the log of a WaltzCluster."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "append": "waltz_log:append",
    "bench": "waltz_tools:bench",
    "dump": "waltz_offline:dump",
    "feed": "waltz_log:feed",
    "get": "waltz_log:get",
    "hwm": "waltz_log:hwm",
    "partitions": "waltz_log:partitions",
    "recover": "waltz_tools:recover",
    "validate": "waltz_tools:validate",
    "verify": "waltz_offline:verify",
}
_HELP = "The log of a WaltzCluster: append, read and follow transactions."

app = typer.Typer(cls=lazy.group(COMMANDS), help=_HELP, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The log of a WaltzCluster: append, read and follow transactions."""

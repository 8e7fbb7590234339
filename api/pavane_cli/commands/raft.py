"""``pavane raft``: the log of a RaftCluster; a peer or a probe without any platform."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "info": "raft_log:info",
    "append": "raft_log:append",
    "read": "raft_log:read",
    "peer": "raft_peer:peer",
    "probe": "raft_probe:probe",
}

app = typer.Typer(
    cls=lazy.group(COMMANDS),
    help="The log of a RaftCluster; a peer or a probe without any platform.",
    no_args_is_help=True,
)


@app.callback()
def _root() -> None:
    """The log of a RaftCluster; a peer or a probe without any platform."""

"""``pavane raft``: the log of a RaftCluster; a peer or a probe without any platform."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "info": "raft_log:info",
    "append": "raft_log:append",
    "read": "raft_log:read",
    "subscribe": "raft_log:subscribe",
    "members": "raft_members:members",
    "watch": "raft_members:watch",
    "transfer": "raft_members:transfer",
    "config": "raft_members:config",
    "kv": "raft_kv:app",
    "tree": "raft_tree:app",
    "peer": "raft_peer:peer",
    "probe": "raft_probe:probe",
    "backup": "raft_backup:backup",
    "restore": "raft_backup:restore",
    "dump": "raft_offline:dump",
    "verify": "raft_offline:verify",
    "compact": "raft_offline:compact",
    "import-js": "raft_offline:import_js",
    "export-js": "raft_offline:export_js",
    "repair": "raft_offline:repair",
    "recover": "raft_offline:recover",
}

app = typer.Typer(
    cls=lazy.group(COMMANDS),
    help="The log of a RaftCluster; a peer or a probe without a platform.",
    no_args_is_help=True,
)


@app.callback()
def _root() -> None:
    """The log of a RaftCluster; a peer or a probe without a platform."""

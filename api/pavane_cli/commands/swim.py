"""``pavane swim``: a member of a SWIM group, and what one that runs on this machine knows."""

import typer

from pavane_cli import lazy

COMMANDS = {
    "member": "swim_member:member",
    "members": "swim_members:members",
    "watch": "swim_control:watch",
    "ping": "swim_control:ping",
    "join": "swim_control:join",
    "leave": "swim_control:leave",
    "keys": "swim_control:keys",
}
_HELP = "Membership of a SWIM group: run a member, and query one."

app = typer.Typer(cls=lazy.group(COMMANDS), help=_HELP, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Membership of a SWIM group: run a member, and query one."""

"""The ``pavane`` program: one command for users and for what containers run; ``kubectl pavane`` is the same.

A command's module is imported when it is called, so that ``pavane pod`` never loads the API server and
``pavane get`` never loads the operator.
"""

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from pavane_cli.failures import ExitCode, UserError

COMMANDS: dict[str, str] = {
    "up": "local:up",
    "down": "local:down",
    "ps": "local:ps",
    "logs": "local:logs",
    "kill": "local:kill",
    "pause": "local:pause",
    "unpause": "local:unpause",
    "demo": "demo:demo",
    "apply": "resources:apply",
    "delete": "resources:delete",
    "get": "resources:get",
    "describe": "resources:describe",
    "watch": "resources:watch",
    "tree": "tree:tree",
    "rollout": "rollout:app",
    "why": "why:why",
    "raft": "raft:app",
    "trace": "trace:app",
    "operator": "processes:operator",
    "api": "processes:api",
    "pod": "processes:pod",
}
"""Command → module below ``pavane_cli.commands`` and the function or sub-application in it."""


class LazyGroup(TyperGroup):
    """Imports the module of a command when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table, which is the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None for a name that is not in the table."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module_name, _, attribute = place.partition(":")
        part = getattr(importlib.import_module(f"pavane_cli.commands.{module_name}"), attribute)
        if isinstance(part, typer.Typer):
            group = typer.main.get_group(part)
            group.name = cmd_name
            return group
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(cmd_name)(part)
        command = typer.main.get_command(single)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyGroup,
    help="Coordination services on Kubernetes, rolled out by fenced generations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Coordination services on Kubernetes, rolled out by fenced generations."""


def main() -> None:
    """Run the program; a known failure is one line on standard error and its exit code (docs/specs/operator.md 8.1)."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"pavane: {error}\n")
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()

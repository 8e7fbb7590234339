"""Groups of commands whose modules are imported when a command is called.

So ``pavane pod`` never loads the API server, and ``pavane raft peer`` never loads a Kubernetes client.
"""

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from pavane_cli.failures import lacks

EXTRAS = {"member": "services", "operator": "operator", "api": "api", "pod": "services"}
"""The extra that a command needs, where it is not ``local``, which has them all."""

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


def group(commands: dict[str, str], extra: str = "local") -> type[TyperGroup]:
    """Return a group class for ``commands``: name → ``module:attribute`` below ``pavane_cli.commands``.

    The attribute is a function or a ``typer.Typer`` of its own. The order of the table is the order of the help.
    ``extra`` is that of the commands that ``EXTRAS`` does not name.
    """

    class LazyGroup(TyperGroup):
        """Imports the module of a command when the command is asked for."""

        def list_commands(self, ctx: Any) -> list[str]:
            """Return the names in the order of the table."""
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return the command, or None for a name that is not in the table."""
            place = commands.get(cmd_name)
            if place is None:
                return None
            module_name, _, attribute = place.partition(":")
            try:
                part = getattr(importlib.import_module(f"pavane_cli.commands.{module_name}"), attribute)
            except ModuleNotFoundError as error:
                part = _absent(lacks(error, EXTRAS.get(cmd_name, extra)))
            if isinstance(part, typer.Typer):
                command: Any = typer.main.get_group(part)
            else:
                single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
                single.command(
                    cmd_name,
                    cls=getattr(part, "command_class", None),
                    context_settings=getattr(part, "context_settings", None),
                )(part)
                command = typer.main.get_command(single)
            command.name = cmd_name
            return command

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            """Return name, command and its arguments: options given to this group come first, so its own ones win."""
            name, command, rest = super().resolve_command(ctx, args)
            given = [
                text
                for option in self.params
                if option.name and ctx.params.get(option.name) is not None
                for text in (option.opts[0], str(ctx.params[option.name]))
            ]
            if not isinstance(command, TyperGroup):
                return name, command, [*given, *rest]
            # They belong to the command that the group is asked for, if it is.
            named = bool(rest) and not rest[0].startswith("-")
            return name, command, [rest[0], *given, *rest[1:]] if named else rest

    return LazyGroup


def _absent(error: Exception) -> Any:
    """Return a command that raises ``error``: a group can be listed where one of its commands is not installed."""

    def command(context: typer.Context) -> None:
        raise error

    command.__doc__ = str(error)
    command.context_settings = _ANYTHING  # type: ignore[attr-defined]
    return command

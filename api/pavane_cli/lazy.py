"""Groups of commands whose modules are imported when a command is called.

So ``pavane pod`` never loads the API server, and ``pavane raft peer`` never loads a Kubernetes client.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from pavane_cli.examples import EXAMPLES
from pavane_cli.failures import lacks

EXTRAS = {"member": "services", "operator": "operator", "api": "api", "pod": "services"}
"""The extra that a command needs, where it is not ``local``, which has them all."""

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


class Listed(NamedTuple):
    """A command that a group lists without importing it: the group's help takes a tenth of the time then."""

    place: str
    help: str
    """The first paragraph of the command's own help; a test compares them."""
    panel: str | None = None
    """Heading in the group's help, if not the usual one."""


class Group(TyperGroup):
    """Lists its commands under headings, each with the first paragraph of its help.

    It writes plain text: importing rich for it took longer than all else that ``pavane --help`` does.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                paragraph = inspect.cleandoc(command.help or "").partition("\n\n")[0]
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(panel, []).append((name, " ".join(paragraph.split())))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def group(commands: Mapping[str, str | Listed], extra: str = "local") -> type[TyperGroup]:
    """Return a group class for ``commands``: name → ``module:attribute`` below ``pavane_cli.commands``.

    The attribute is a function or a ``typer.Typer`` of its own. The order of the table is the order of the help.
    ``extra`` is that of the commands that ``EXTRAS`` does not name.
    """

    class LazyGroup(Group):
        """Imports the module of a command when the command is asked for."""

        listing = False

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Write the commands, without importing them."""
            self.listing = True
            try:
                super().format_commands(ctx, formatter)
            finally:
                self.listing = False

        def list_commands(self, ctx: Any) -> list[str]:
            """Return the names in the order of the table."""
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return the command, or None for a name that is not in the table."""
            listed = commands.get(cmd_name)
            if listed is None:
                return None
            if self.listing and isinstance(listed, Listed):
                return TyperCommand(cmd_name, callback=None, help=listed.help, rich_help_panel=listed.panel)
            place = listed.place if isinstance(listed, Listed) else listed
            module_name, _, attribute = place.partition(":")
            try:
                part = getattr(importlib.import_module(f"pavane_cli.commands.{module_name}"), attribute)
            except ModuleNotFoundError as error:
                part = _absent(lacks(error, EXTRAS.get(cmd_name, extra)))
            if isinstance(part, typer.Typer):
                part.rich_markup_mode = None
                command: Any = typer.main.get_group(part)
            else:
                single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
                single.command(
                    cmd_name,
                    cls=getattr(part, "command_class", None),
                    context_settings=getattr(part, "context_settings", None),
                )(part)
                command = typer.main.get_command(single)
            command.name = cmd_name
            if ctx is not None:
                _give_examples(command, (*_path(ctx), cmd_name))
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


def _path(ctx: Any) -> tuple[str, ...]:
    """Return the words behind ``pavane`` that lead to the group of a context."""
    return () if ctx.parent is None else (*_path(ctx.parent), ctx.info_name)


def _give_examples(command: Any, path: tuple[str, ...]) -> None:
    """Put the example of a command, or those of a group's commands, below its help."""
    example = EXAMPLES.get(" ".join(path))
    if example is not None:
        command.epilog = f"Example: {example}"
    # A group like this one gives examples itself, when its commands are asked for.
    for name, inner in (getattr(command, "commands", None) or {}).items():
        _give_examples(inner, (*path, name))


def _absent(error: Exception) -> Any:
    """Return a command that raises ``error``: a group can be listed where one of its commands is not installed."""

    def command(context: typer.Context) -> None:
        raise error

    command.__doc__ = str(error)
    command.context_settings = _ANYTHING  # type: ignore[attr-defined]
    return command

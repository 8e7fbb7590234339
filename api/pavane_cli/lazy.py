"""Groups of commands whose modules are imported when a command is called.

So ``pavane pod`` never loads the API server, and ``pavane raft peer`` never loads a Kubernetes client. A group lists
its commands without importing any: its help takes a tenth of the time then.
"""

import functools
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import typer
from typer.core import TyperGroup

from pavane_cli.failures import lacks
from pavane_cli.table import Branch, Command, Table

PACKAGE = "pavane_cli.commands"


class Commands(Mapping[str, Any]):
    """The commands of a group by their names, in the order of the table; each is made when it is asked for."""

    def __init__(self, table: Table, path: tuple[str, ...] = (), extra: str = "local") -> None:
        """``path`` are the words of the group, ``extra`` is what its commands need."""
        self._table = table
        self._path = path
        self._extra = extra
        self.sections: dict[str, dict[str, Branch | Command]] = {}
        for heading, entries in table.items():
            for words, entry in entries.items():
                *group, name = words.split()
                if tuple(group) == path:
                    self.sections.setdefault("Commands" if path else heading, {})[name] = entry

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return (name for section in self.sections.values() for name in section)

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self.sections.values()))

    def __getitem__(self, name: str) -> Any:
        """Import a command; one whose packages are not installed raises when it is called."""
        entry = {name: entry for section in self.sections.values() for name, entry in section.items()}[name]
        path = (*self._path, name)
        if isinstance(entry, Branch):
            inner: Any = Commands(self._table, path, entry.extra)
            return Group(name=name, help=entry.help, commands=inner, no_args_is_help=True, rich_markup_mode=None)
        try:
            function = _function(entry.place)
        except ModuleNotFoundError as error:
            function = _absent(lacks(error, entry.extra or self._extra))
        command = command_of(function, name)
        if entry.example is not None:
            command.epilog = f"Example: {' '.join(('pavane', *path, entry.example))}".rstrip()
        return command


class Group(TyperGroup):
    """A group with ``Commands``.

    It writes plain text: importing rich for it took longer than all else that ``pavane --help`` does.
    """

    commands: Any

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings, each with the first paragraph of its help."""
        for heading, entries in self.commands.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, summary(entry)) for name, entry in entries.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return name, command and its arguments: options of the program come first, so the command's own ones win."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, TyperGroup):
            return name, command, rest
        root = ctx.find_root()
        given = ((option.opts[0], root.params.get(option.name)) for option in root.command.params)
        return name, command, [*(text for pair in given if pair[1] is not None for text in map(str, pair)), *rest]


def summary(entry: Branch | Command) -> str:
    """Return the first paragraph of the help of a group, or of a command, whose module is not imported."""
    text = entry.help if isinstance(entry, Branch) else _docstring(entry.place)
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def _docstring(place: str) -> str:
    """Return the docstring of a function as compiled: to run its module would import all that it needs."""
    module, _, function = place.partition(":")
    return next(str(each.co_consts[0]) for each in _compiled(module) if each.co_name == function)


@functools.cache
def _compiled(module: str) -> list[CodeType]:
    """Return the functions and classes of a module that is not run."""
    spec: Any = importlib.util.find_spec(f"{PACKAGE}.{module}")
    return [each for each in spec.loader.get_code(spec.name).co_consts if isinstance(each, CodeType)]


def _function(place: str) -> Any:
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), function)


def command_of(function: Any, name: str) -> Any:
    """Return the command of a function, which may say its ``command_class`` and its ``context_settings``."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = getattr(function, "context_settings", None)
    app.command(name, cls=getattr(function, "command_class", None), context_settings=settings)(function)
    return typer.main.get_command(app)


def _absent(error: Exception) -> Any:
    """Return a command that raises ``error``: a group can be listed where one of its commands is not installed."""

    def command(context: typer.Context) -> None:
        raise error

    command.__doc__ = str(error)
    command.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[attr-defined]
    return command

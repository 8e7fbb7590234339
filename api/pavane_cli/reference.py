"""Writes docs/cli.md, the reference of the command line, or checks that it is up to date (``--check``)."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from pavane_cli.lazy import summary
from pavane_cli.main import app
from pavane_cli.table import CONTAINERS
from pavane_operator.generated import generate

COMMAND = "make cli-docs"
FOLDER = Path("docs")
FILE = "cli.md"
TYPE = r"^([^-].*) <(str|path|file|dir)>$"
"""An argument of which its name says what it is."""
SHARED = {"namespace", "context", "kubeconfig", "help"}
"""Options that the introduction explains once."""

_TOP = """# The command line

Generated from the commands by `make cli-docs`. `kubectl pavane` is the same program as `pavane`. Every command that
talks to a cluster takes `--namespace`/`-n`, `--context` and `--kubeconfig`, before the command or after it; `--help`
shows the help of a command. [install.md](install.md#the-command-line) explains how it finds the cluster, and the exit
codes.
"""


def document() -> str:
    """Return the whole page."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name="pavane")
    parts = [_TOP]
    for heading, entries in group.commands.sections.items():
        parts.append(f"## {heading}\n")
        for name, entry in entries.items():
            if heading == CONTAINERS:
                parts.append(f"`pavane {name}`: {summary(entry)}\n")
            else:
                parts += _sections(group.get_command(context, name), (name,), context)
    return "\n".join(parts)


def _sections(command: Any, path: tuple[str, ...], parent: Any) -> Iterator[str]:
    if not hasattr(command, "list_commands"):
        yield _section(command, path, parent)
        return
    yield f"### {' '.join(path)}\n\n{_text(command.help)}\n"
    context = command.context_class(command, info_name=path[-1], parent=parent)
    for name in command.list_commands(context):
        yield from _sections(command.get_command(context, name), (*path, name), context)


def _section(command: Any, path: tuple[str, ...], parent: Any) -> str:
    context = command.context_class(command, info_name=path[-1], parent=parent)
    words = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    lines = ["#" * min(3 + len(path) - 1, 5) + f" {' '.join(path)}", "", _text(command.help), ""]
    usage = f"pavane {' '.join(path)} {re.sub(r'[{}]', '', words)}".rstrip()
    example = command.epilog.removeprefix("Example: ")
    lines += ["```sh", usage, *([] if example == usage else [f"# for example: {example}"]), "```", ""]
    shown = [each for each in command.params if each.name not in SHARED and not getattr(each, "hidden", False)]
    records = [each.get_help_record(context) for each in shown]
    rows = [("`" + re.sub(TYPE, r"\1", names) + "`", _text(text)) for names, text in filter(None, records) if text]
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {_cell(names)} | {_cell(text)} |" for names, text in rows), ""]
    return "\n".join(lines)


def _text(text: str | None) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text or ""))


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    """Write or check the file; returns the exit code."""
    return generate(lambda: {FILE: document()}, FOLDER, COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())

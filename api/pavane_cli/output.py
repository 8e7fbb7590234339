"""Tables, JSON, YAML and names on standard output."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

COLUMN_GAP = "   "
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Format(StrEnum):
    """How a command prints."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def structured(self) -> bool:
        """Whether it is for programs: JSON or YAML."""
        return self in {Format.JSON, Format.YAML}


Output = Annotated[Format, typer.Option("--output", "-o", metavar="FORMAT", help=f"How to print: {', '.join(Format)}.")]


def say(text: str = "") -> None:
    """Print one line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def paragraph(text: str, *, indent: int = 0) -> None:
    """Print a long line, on a terminal broken between words; all lines but the first begin ``indent`` columns later."""
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(
            text, columns, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * indent
        )
    say(text)


def program() -> str:
    """Return how the user called this program, so that a command can be printed that works as typed.

    That is ``pavane`` where the shell finds it, else a path like ``.venv/bin/pavane``.
    """
    called = Path(sys.argv[0])
    found = shutil.which("pavane")
    if not called.name.startswith("pavane") or (found and Path(found).resolve() == called.resolve()):
        return "pavane"
    absolute = Path(os.path.abspath(called))  # noqa: PTH100 - a link stays one, for the user has typed it
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def note(text: str) -> None:
    """Print one line of progress on standard error, which never mixes with the output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns as wide as their widest cell.

    On a terminal that is narrower cells are broken between words; a last column that still does not fit stands below
    the others, indented.
    """
    cells = [list(headers), *[["" if cell is None else str(cell) for cell in row] for row in rows]]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines_of(cells, columns):
        say(line)


def lines_of(cells: Sequence[Sequence[str]], columns: int | None) -> Iterator[str]:
    """Yield the lines of a table, the first row of which is its head, for a terminal of so many columns, or of any."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    below = False
    if columns is not None:
        least = [
            max((len(word) for row in cells for word in row[column].split()), default=0)
            for column in range(len(widths))
        ]
        below = sum(least) + len(COLUMN_GAP) * (len(widths) - 1) > columns
        if below:
            widths.pop()
        while sum(widths) + len(COLUMN_GAP) * (len(widths) - 1) > columns:
            widest = max(range(len(widths)), key=lambda column: widths[column] - least[column])
            if widths[widest] <= least[widest]:
                break  # words are never broken
            widths[widest] -= 1
    for row in cells:
        beside = [
            textwrap.wrap(cell, width) or [""] if columns else [cell] for cell, width in zip(row, widths, strict=False)
        ]
        for parts in zip_longest(*beside, fillvalue=""):
            yield COLUMN_GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()
        if below and row[-1]:
            yield f"{COLUMN_GAP}{row[-1]}"


def listing(
    document: Any, headers: Sequence[str], rows: Sequence[Sequence[object]], form: Format, none: str = ""
) -> None:
    """Print ``rows`` as a table, or ``document`` for programs; ``none`` is the note for people if there is no row."""
    if form.structured:
        structured(document, form)
    elif none and not rows:
        note(none)
    else:
        table(headers, rows)


def structured(value: Any, form: Format) -> None:
    """Print ``value`` as JSON or YAML."""
    if form is Format.YAML:
        sys.stdout.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
    else:
        say(json.dumps(value, indent=2, ensure_ascii=False))


def age(since: str | None, now: datetime | None = None) -> str:
    """Return the time since an RFC 3339 time in the short form of kubectl: 45s, 12m, 3h, 8d."""
    return span(((now or datetime.now(UTC)) - datetime.fromisoformat(since)).total_seconds()) if since else ""


def span(duration_s: float) -> str:
    """Return so many seconds in the short form of kubectl."""
    seconds = max(0, round(duration_s))
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 2 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    return f"{seconds // _DAY}d"


def printable(data: bytes) -> str:
    """Return ``data`` as text of one line: unprintable bytes and line breaks escaped."""
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

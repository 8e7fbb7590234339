"""Bytes on the command line: arguments, files, standard input and output."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format

DataFile = Annotated[Path | None, typer.Option("--file", exists=True, dir_okay=False, help="File that holds the data.")]


def data_of(text: str | None, file: Path | None) -> bytes:
    """Return the data of a write: the argument's, the file's, else all of standard input."""
    if text is not None and file is not None:
        raise UserError("give the data as text or as --file, not both", ExitCode.USAGE)
    if file is not None:
        return file.read_bytes()
    return os.fsencode(text) if text is not None else sys.stdin.buffer.read()


def show(data: bytes, described: BaseModel, form: Format) -> None:
    """Print ``data`` as it is, text with a line end, or with ``-o json`` and ``yaml`` what describes it."""
    if form.structured:
        output.structured(described.model_dump(mode="json", by_alias=True), form)
    else:
        sys.stdout.buffer.write(data + b"\n" if _is_text(data) else data)
        sys.stdout.buffer.flush()


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False

"""Writes the description of the REST API to ``api/openapi.json``, or checks that it is up to date (``--check``)."""

import json
import sys
from pathlib import Path
from typing import Any

from pavane_api.app import create_app
from pavane_api.settings import ApiSettings
from pavane_operator.generated import generate

COMMAND = "python -m pavane_api.openapi"
FOLDER = Path("api")
FILE = "openapi.json"
DEPTH = 3
"""Description, its paths or components, the operations of a path or the schemas."""


def document() -> str:
    """Return the description as it is committed: a line per operation and per schema, so that changes can be read."""
    return _lines(create_app(ApiSettings()).openapi(), DEPTH) + "\n"


def _lines(value: Any, depth: int) -> str:
    """Return JSON with line breaks in the outer `depth` levels alone."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    entries = (f"{json.dumps(key)}: {_lines(value[key], depth - 1)}" for key in sorted(value))
    return "{\n" + ",\n".join(entries) + "\n}"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the file; returns the exit code."""
    return generate(lambda: {FILE: document()}, FOLDER, COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())

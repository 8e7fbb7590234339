"""Writes the description of the REST API to ``api/openapi.json``, or checks that it is up to date (``--check``)."""

import json
import sys
from pathlib import Path

from pavane_api.app import create_app
from pavane_api.settings import ApiSettings
from pavane_operator.generated import generate

COMMAND = "python -m pavane_api.openapi"
FOLDER = Path("api")
FILE = "openapi.json"


def document() -> str:
    """Return the description as it is committed."""
    return json.dumps(create_app(ApiSettings()).openapi(), indent=1, sort_keys=True) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the file; returns the exit code."""
    return generate(lambda: {FILE: document()}, FOLDER, COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())

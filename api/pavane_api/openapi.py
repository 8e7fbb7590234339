"""Writes the description of the REST API to ``api/openapi.json``, or checks that it is up to date (``--check``)."""

import json
import sys
from pathlib import Path

from pavane_api.app import create_app
from pavane_api.settings import ApiSettings

PATH = Path(__file__).parents[1] / "openapi.json"


def document() -> str:
    """Return the description as it is committed."""
    return json.dumps(create_app(ApiSettings()).openapi(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the file; returns the exit code."""
    if arguments == ["--check"]:
        if PATH.read_text(encoding="utf-8") == document():
            return 0
        sys.stderr.write(f"{PATH.name} is out of date: run `make openapi`\n")
        return 1
    PATH.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

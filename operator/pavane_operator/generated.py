"""The command line of every generator: write what is generated, or say that a committed file is stale."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def generate(
    render: Callable[[], Mapping[str, str]], folder: Path, command: str, arguments: list[str] | None = None
) -> int:
    """Write the files, or with --check only compare them.

    Args:
        render: Gives path below the folder, and text, of every file.
        folder: Where they are, unless --folder names another place.
        command: What brings stale files up to date, for the error message.
        arguments: Instead of those of the process.

    Returns:
        0, or 1 when --check found a stale or missing file.
    """
    parser = argparse.ArgumentParser(prog=command, description="Write generated files.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is stale")
    parser.add_argument("--folder", type=Path, default=folder, help="where the files are (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    stale = {
        path: text
        for name, text in render().items()
        if not (path := chosen.folder / name).is_file() or path.read_text(encoding="utf-8") != text
    }
    if chosen.check and stale:
        sys.stderr.write(f"stale: {', '.join(map(str, stale))}; run `{command}`\n")
        return 1
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0

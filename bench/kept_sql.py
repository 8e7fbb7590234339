"""`pavane sql` whose state with DuckDB is in a folder, as a pod has it: `python -m bench.kept_sql FOLDER sql run …`."""

import sys
from pathlib import Path

from pavane.dataflow.duckstate import Files
from pavane.dataflow.plain import PlainEngine
from pavane_cli.commands import sql_views
from pavane_cli.main import main

CHECKPOINT_S = 3.0
"""Between two: of many kills some come into one, and most some while after one."""


def run(folder: str) -> None:
    """Run the command line."""
    files = Files(Path(folder), every_s=CHECKPOINT_S)
    sql_views.engine_of = lambda *_: lambda: PlainEngine(files)
    main()


if __name__ == "__main__":
    run(sys.argv.pop(1))

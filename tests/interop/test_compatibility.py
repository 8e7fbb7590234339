"""The table of docs/raft.md says neither more nor less than the tests of this folder prove."""

import importlib
import re
from pathlib import Path

from pavane.raft.wire import requests

PAGE = Path(__file__).parents[2] / "docs" / "raft.md"
PROTOCOL = {
    requests.RequestVote.TYPE,
    requests.AppendEntries.TYPE,
    requests.InstallSnapshot.TYPE,
    requests.RequestConfig.TYPE,
    requests.RequestLogInfo.TYPE,
    requests.RequestUpdate.TYPE,
    requests.ConfigUpdate.TYPE,
    requests.RequestEntries.TYPE,
    requests.RequestBroadcastUrl.TYPE,
}
CELLS = {"yes", "no", "pv", "–"}


def table() -> dict[tuple[str, str], str]:
    """Return the cells by (who → whom, message)."""
    _, begin, rest = PAGE.read_text(encoding="utf-8").partition("| | our client → ours |")
    lines = [line for line in (begin + rest).splitlines() if line.startswith("| ")]
    header, *body = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in lines)
    names = re.compile(r"`| [A-Z]\w+$| broadcast.*")
    return {(pair, names.sub("", row[0])): cell for row in body for pair, cell in zip(header[1:], row[1:], strict=True)}


def proved() -> set[tuple[str, str]]:
    """Return what the marks of all interop tests name."""
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        module = importlib.import_module(f"tests.interop.{path.stem}")
        for test in (value for name, value in vars(module).items() if name.startswith("test_")):
            for mark in getattr(test, "pytestmark", []):
                if mark.name == "proves":
                    pair, *messages = mark.args
                    found |= {(pair, message) for message in messages}
    return found


def test_the_table_says_what_the_tests_prove() -> None:
    cells = table()
    assert set(cells.values()) == CELLS
    claimed = {cell for cell, says in cells.items() if says == "yes"}
    assert claimed == proved()
    assert len({pair for pair, _ in claimed}) == 6


def test_the_table_has_every_message_of_the_protocol() -> None:
    assert {message.split()[0] for _, message in table()} == {type_.decode() for type_ in PROTOCOL} | {"PUB"}

"""Each ``pavane`` command in README and docs is one that the program takes: its words, options and arguments."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Exit
from typer._click.exceptions import BadParameter, MissingParameter  # typer has a click of its own

from tests.cli.test_help import COMMANDS, ROOT

GENERATED = {"cli.md"}  # from the commands
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED)]
LINE = re.compile(r"^(?: {4})?(?:kubectl )?pavane ((?:.*\\\n)*.*)$", re.MULTILINE)
INLINE = re.compile(r"`(?:kubectl )?pavane ([^`\n]+(?:\n[^`\n]+)?)`")
SUBSTITUTED = re.compile(r"\$\([^)]*\)")
GROUPS = {name.rpartition(" ")[0] for name in COMMANDS} | {""}


def written(text: str) -> list[str]:
    """The words of a command, up to where a line goes on with something else; what may be left out counts too."""
    plain = re.sub(r" \[([^]]*)\]", r" \1", SUBSTITUTED.sub("7", text.replace("\\\n", " ")))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="&;>")
    lexer.whitespace_split = True
    words = itertools.takewhile(lambda word: word not in {"&", "&&", ";", ">", "||"}, lexer)
    return ["1" if word == "N" else word for word in words]


def each_of(words: list[str]) -> Iterator[list[str]]:
    """`pause|resume` stands for both."""
    yield from map(list, itertools.product(*(word.split("|") for word in words)))


def check(words: list[str], *, whole: bool) -> None:
    """Raise for what the program would refuse; of what is not whole arguments may be missing."""
    name = next(
        each for end in range(len(words), -1, -1) if (each := " ".join(words[:end])) in COMMANDS.keys() | GROUPS
    )
    rest = words[len(name.split()) :]
    if name in GROUPS:
        assert rest in ([], ["--help"]), f"no such command: {name} {rest[0]}"
        return
    command, parent = COMMANDS[name]
    try:
        command.make_context(name.split()[-1], rest, parent=parent)
    except Exit:  # of a command whose example is its help
        pass
    except BadParameter as error:
        of_a_reader = "does not exist" in error.message  # a file
        if not of_a_reader and (whole or not isinstance(error, MissingParameter)):
            raise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_a_page_is_taken(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found: list[tuple[str, Any]] = [(each, True) for each in LINE.findall(text)]
    found += [(" ".join(each.split()), False) for each in INLINE.findall(text)]
    for command, whole in found:
        if "…" not in command:
            for words in each_of(written(command)):
                check(words, whole=whole)


def test_a_wrong_command_is_noticed() -> None:
    for wrong in ("raft kv put q k v --if-revisoin 3", "rollout redo raft/q", "raft kv get q"):
        with pytest.raises(Exception, match=r"No such option|no such command|Missing"):
            check(written(wrong), whole=True)

"""The known name that an unknown one probably stands for."""

import difflib
from collections.abc import Iterable

NAME_CHARACTERS_MAX = 64
"""Longer ones are not looked for: names that we know are shorter, and the comparison costs the square."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that is spelt most like ``name``, whatever its capitals, or ``None``."""
    if len(name) > NAME_CHARACTERS_MAX:
        return None
    folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), folded, n=1)
    return folded[found[0]] if found else None

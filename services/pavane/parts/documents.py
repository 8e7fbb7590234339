"""JSON from a sender that is not trusted: refused where it is nested deeper than any reader can follow."""

import json
from typing import Any

DEPTH_MAX = 64  # arrays and objects inside each other; readers recurse, and none of them has its whole stack for it


class TooDeep(ValueError):
    """JSON of more than DEPTH_MAX levels."""

    def __init__(self) -> None:
        super().__init__(f"JSON of more than DEPTH_MAX ({DEPTH_MAX}) levels")


def parse(text: str | bytes | bytearray) -> Any:
    """Return what JSON says; raises ``ValueError``, and ``TooDeep`` however much of the stack is in use."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise TooDeep from None
    level, depth = _inside([document]), 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise TooDeep
        level = [each for one in level for each in _inside(one)]
    return document


def _inside(one: Any) -> list[Any]:
    """Return the arrays and objects directly inside of one."""
    return [each for each in (one.values() if isinstance(one, dict) else one) if isinstance(each, (dict, list))]

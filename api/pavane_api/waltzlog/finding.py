"""Which transactions somebody looks for: by their text, by values in their JSON, by their header.

A condition on JSON is a path, and perhaps an operator with a value: ``$.customer.id``, ``$.items[*].price >= 100``,
``$['first name'] = "Ann"``. The paths are those of Spark's ``get_json_object`` without wildcards over names, so each
costs no more than one walk over the document.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from pavane.waltz.client import Transaction

CONDITIONS_MAX = 10  # of a search: each is one more walk over a document
CONDITION_CHARACTERS_MAX = 1000
TEXT_CHARACTERS_MAX = 1000
STEPS_MAX = 32  # of a path
JSON_BYTES_MAX = 1 << 20  # of one transaction: parsed it takes 25 times as much, and nobody is served meanwhile

Step = str | int | None
"""A member by its name, an element by its number, or all elements."""

_STEP = re.compile(
    r"""\.(?P<name>[\w-]+)
      | \[\s*(?P<number>[0-9]{1,9})\s*\]
      | \[\s*(?P<all>\*)\s*\]
      | \[\s*'(?P<single>[^'\\]*)'\s*\]
      | \[\s*(?P<double>"(?:[^"\\]|\\.)*")\s*\]""",
    re.VERBOSE,
)
_COMPARISON = re.compile(r"\s*(?P<sign><=|>=|!=|<|>|=)\s*(?P<value>.*\S)\s*", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


class Condition(NamedTuple):
    """What a JSON document has to hold: something at ``path``, which compares with ``value`` if there is a ``sign``."""

    path: tuple[Step, ...]
    sign: str = ""
    value: str | int | float | bool | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a condition. Raises ``ValueError`` with words for who wrote it."""
        if not text.startswith("$"):
            raise ValueError(f"{text!r} is no condition: it begins with $, as in $.amount >= 100")
        at, path = 1, list[Step]()
        while found := _STEP.match(text, at):
            at = found.end()
            path.append(_step(found))
        if len(path) > STEPS_MAX:
            raise ValueError(f"{text!r} has {len(path)} steps, and a path has at most {STEPS_MAX}")
        if not text[at:].strip():
            return cls(tuple(path))
        compared = _COMPARISON.fullmatch(text, at)
        if compared is None:
            raise ValueError(f"{text!r} is no condition: {text[at:]!r} is neither .name, [0], [*], ['name'] nor = 1")
        sign = compared["sign"]
        try:
            value = json.loads(compared["value"], parse_constant=_refuse)
        except (ValueError, RecursionError):
            value = ()
        if not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(
                f'{compared["value"]!r} is no value to compare with: a number, "text", true, false or null'
            )
        if sign not in ("=", "!=") and (value is None or isinstance(value, bool)):
            raise ValueError(f"{text!r}: {compared['value']} is neither less nor more than anything: use = or !=")
        return cls(tuple(path), sign, value)

    def holds(self, document: Any) -> bool:
        """Return whether any value at the path is as it should be; one of another type is not equal, less or more."""
        found: Iterable[Any] = (document,)
        for step in self.path:
            found = _below(found, step)
        if not self.sign:
            return any(True for _ in found)
        compares, wanted = _OPERATORS[self.sign], _type(self.value)
        if self.sign == "!=":
            return any(_type(each) != wanted or each != self.value for each in found)
        return any(_type(each) == wanted and compares(each, self.value) for each in found)


class Sought(NamedTuple):
    """All of it has to be so; nothing given: every transaction is found."""

    text: bytes = b""
    conditions: tuple[Condition, ...] = ()
    header: int | None = None

    @classmethod
    def of(cls, text: str = "", where: Sequence[str] = (), header: int | None = None) -> Self:
        """Read what somebody typed. Raises ``ValueError``."""
        return cls(text.encode(), tuple(map(Condition.of, where)), header)

    def finds(self, transaction: Transaction) -> bool:
        """Return whether this is one; data that are not JSON, or larger than JSON_BYTES_MAX, hold no condition."""
        if self.header is not None and transaction.header != self.header:
            return False
        if self.text not in transaction.data:
            return False
        if not self.conditions:
            return True
        if len(transaction.data) > JSON_BYTES_MAX:
            return False
        try:
            document = json.loads(str(transaction.data, "utf-8"), parse_constant=_refuse)
        except (ValueError, RecursionError):  # the former also for what is no UTF-8
            return False
        return all(each.holds(document) for each in self.conditions)


def _step(found: re.Match[str]) -> Step:
    if found["number"] is not None:
        return int(found["number"])
    if found["all"] is not None:
        return None
    if found["double"] is not None:
        try:
            return str(json.loads(found["double"]))
        except ValueError as error:
            raise ValueError(f"{found['double']} is no text of JSON: write ['name'], or escape as JSON does") from error
    return found["name"] if found["name"] is not None else found["single"]


def _below(values: Iterable[Any], step: Step) -> Iterator[Any]:
    for value in values:
        if step is None:
            yield from value if isinstance(value, list) else ()
        elif isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                yield value[step]
        elif isinstance(value, dict) and step in value:
            yield value[step]


def _type(value: Any) -> type:
    """Return the type as JSON has it: numbers are of one, and true is no number."""
    return float if type(value) is int else type(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")

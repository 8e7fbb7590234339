"""How large texts may become that a view joins (docs/specs/compute.md 16.3)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from pavane.dataflow.functions import ViewsSql
from pavane.dataflow.ports import ViewError

MADE_BYTES_MAX = 1 << 30
"""Of the rows that one SELECT makes of a batch, where it joins texts: 30 views, each of which doubles what the one
before made, would else be a gigabyte for each byte."""
FACTORS = {"base64": 2, "hex": 2, "quote": 2, "translate": 4, "url_encode": 3}
"""How many times larger functions make a text at most; the times of `repeat` and the text of `replace` are literals."""
OWN = {"bin": 64, "char": 2, "chr": 2, "dayname": 3, "hex": 16, "md5": 32, "monthname": 3, "quote": 2, "sha": 40}
OWN |= {"sha1": 40, "sha2": 64}
"""Bytes that functions make of whatever they are given, or add to it."""
CAST_BYTES = 40
"""What a number or a time is as a text, at most."""
JOINS = ("concat_ws", "overlay")
FILLS = ("lpad", "rpad", "space")
"""Functions that make a text as long as a literal says."""
LETTER_BYTES = 4
LITERALS_BYTES_MAX = 4_096
"""More than a SELECT usually makes of nothing: how many rows there are is looked at before they are made."""
TOO_LARGE = f"the texts that it joins are larger than {MADE_BYTES_MAX >> 20} MiB in one step"


@dataclass(frozen=True, slots=True)
class Growth:
    """How large a SELECT can make a row."""

    texts: Mapping[str, int]
    """Columns that it joins to texts, and how often; of other functions no result is larger than what it is made of, or
    than what is written there."""
    literals_bytes: int

    @property
    def grows(self) -> bool:
        """Whether it makes more than it is given."""
        return bool(self.texts) or self.literals_bytes > LITERALS_BYTES_MAX

    def check(self, made: int) -> None:
        """Raises `ViewError` where it joins texts to so many bytes that the process might not live."""
        if self.grows and max(made, self.literals_bytes) > MADE_BYTES_MAX:
            raise ViewError(TOO_LARGE)


def growth_of(sql: str) -> Growth:
    """Return how large a SELECT in Spark's SQL can make a row."""
    tree = sqlglot.parse_one(sql, dialect=ViewsSql)
    joined, literals = Counter[str](), 0
    for node in tree.walk():
        if isinstance(node, exp.Column) and _joined(node):
            joined[node.name] += _times(node)
        elif isinstance(node, exp.Literal) and node.is_string:
            literals += len(node.name.encode()) * _times(node)
        elif isinstance(node, exp.Cast) and node.is_type("text"):
            literals += CAST_BYTES * _times(node)
        elif isinstance(node, exp.Anonymous):
            filled = LETTER_BYTES * _number(node) if node.name.lower() in FILLS else 0
            literals += (filled + OWN.get(node.name.lower(), 0)) * _times(node)
    return Growth(joined, literals)


def _joined(node: exp.Expr) -> bool:
    """Whether what is made of a value may be larger than it."""
    while (parent := node.parent) is not None:
        node = parent
        if isinstance(node, exp.DPipe | exp.Concat) or _factor(node) > 1 or node.name.lower() in JOINS:
            return True
    return False


def _times(node: exp.Expr) -> int:
    """How often a value may be in what is made of it."""
    times = 1
    while (parent := node.parent) is not None:
        if parent.name.lower() == "concat_ws" and node.arg_key == "expressions" and node.index == 0:
            times *= len(parent.expressions)  # it stands between all others
        node = parent
        times *= _factor(node)
    return times


def _factor(node: exp.Expr) -> int:
    if not isinstance(node, exp.Anonymous):
        return 1
    match node.name.lower():
        case "repeat":
            return _number(node)
        case "replace":
            return max(1, len(node.expressions[-1].name.encode()))
    return FACTORS.get(node.name.lower(), 1)


def _number(node: exp.Anonymous) -> int:
    """The literal that says how often something is there, or how long it becomes."""
    return max(
        (int(each.name) for each in node.expressions if isinstance(each, exp.Literal) and each.is_int), default=1
    )

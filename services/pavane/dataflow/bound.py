"""What expressions become: bound nodes with types, and where they stood (docs/specs/compute.md 14.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from sqlglot import exp

from pavane.dataflow.ports import SqlError

NULL = "NULL"
"""Type of the literal, which every column takes."""
DECIMAL_DIGITS = 38
NUMERIC_TYPES = ("BIGINT", "DOUBLE", "DECIMAL")
_PARAMETERS = re.compile(r"DECIMAL\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class Bound:
    """An expression over the columns of a stage, and its type."""

    node: exp.Expr
    type: str

    def sql(self) -> str:
        """Return it as Spark's SQL."""
        return self.node.sql(dialect="spark")


def starts_of(node: exp.Expr) -> list[int]:
    """Return where parts of a node begin; those of a hint count from its own beginning."""
    parts = node.walk(prune=lambda part: isinstance(part, exp.Hint))
    return [part.meta["start"] for part in parts if "start" in part.meta]


@dataclass(slots=True)
class Places:
    """Where a node stands in the script."""

    text: str
    start: int = 0
    """Where the statement begins: for parts that do not know their place."""

    def refuse(self, node: exp.Expr | None, what: str, instead: str = "") -> NoReturn:
        """Raise `SqlError` at a node, or at the first of its parts that knows its place."""
        start = min(starts_of(node), default=self.start) if node is not None else self.start
        before = self.text[:start]
        raise SqlError(before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1, what, instead)

    def number(self, node: exp.Literal, columns: int) -> int:
        """Return which of the columns of a SELECT a number in ORDER BY or GROUP BY names, from 1."""
        if not 0 < int(node.name) <= columns:
            self.refuse(node, f"there is no column {node.name}: the SELECT makes {columns}")
        return int(node.name)

    @staticmethod
    def stands_for(made: exp.Expr, node: exp.Expr) -> None:
        """Put something in the place of a node, also in what is said of it."""
        starts = starts_of(node)
        if starts:
            made.meta["start"] = min(starts)
        node.replace(made)

    def no_select(self, node: exp.Expr) -> None:
        """Refuse an expression that has a SELECT in it."""
        inner = node.find(exp.Query)
        if inner is not None:
            instead = "Write it in WHERE, or join it in FROM."
            self.refuse(inner, "a SELECT is no part of an expression here", instead)


def is_number(kind: str) -> bool:
    """Whether values of the type can be added."""
    return kind == NULL or kind.startswith(NUMERIC_TYPES)


def decimal_of(kind: str) -> tuple[int, int]:
    """Return precision and scale of a number that is not DOUBLE."""
    found = _PARAMETERS.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found is not None else (19, 0)


def decimal_with(whole: int, scale: int, kinds: Iterable[str]) -> tuple[str, int]:
    """Return the DECIMAL that has these digits, and how many Spark needs: a BIGINT counts as 20 of them, not 19."""
    return f"DECIMAL({whole + scale},{scale})", whole + scale + ("BIGINT" in kinds)


def cast(node: exp.Expr, kind: str) -> exp.Expr:
    """Return a cast. (`exp.cast` takes any two DECIMAL for one type.)"""
    wanted = _type(kind)
    return node if isinstance(node, exp.Cast) and node.to == wanted else exp.Cast(this=node, to=wanted.copy())


@lru_cache(maxsize=256)
def _type(kind: str) -> exp.DataType:
    """Each literal has one, and the parser takes half a millisecond to read it."""
    return exp.DataType.build(kind, dialect="spark")


def as_double(bound: Bound) -> exp.Expr:
    """Return a number as DOUBLE. A decimal says that it is one: DuckDB has to round it as Spark does (`plain`)."""
    return cast(cast(bound.node, bound.type) if bound.type.startswith("DECIMAL") else bound.node, "DOUBLE")

"""How large texts may become that a view joins (docs/specs/compute.md 16.3)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from pavane.dataflow.ports import ViewError

MADE_BYTES_MAX = 1 << 30
"""Of the rows that one SELECT makes of a batch, where it joins texts: 30 views, each of which doubles what the one
before made, would else be a gigabyte for each byte."""
TOO_LARGE = f"the texts that it joins are larger than {MADE_BYTES_MAX >> 20} MiB in one step"


@dataclass(frozen=True, slots=True)
class Growth:
    """How large a SELECT can make a row."""

    texts: Mapping[str, int]
    """Columns that it joins to texts, and how often; of other functions no result is larger than what it is made of."""
    literals_bytes: int

    def check(self, made: int) -> None:
        """Raises `ViewError` where it joins texts to so many bytes that the process might not live."""
        if self.texts and made > MADE_BYTES_MAX:
            raise ViewError(TOO_LARGE)


def growth_of(sql: str) -> Growth:
    """Return how large a SELECT in Spark's SQL can make a row."""
    tree = sqlglot.parse_one(sql, dialect="spark")
    joined = (column.name for column in tree.find_all(exp.Column) if column.find_ancestor(exp.DPipe, exp.Concat))
    literals = (each.name.encode() for each in tree.find_all(exp.Literal) if each.is_string)
    return Growth(Counter(joined), sum(map(len, literals)))

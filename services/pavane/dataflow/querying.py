"""One SELECT over views in Spark's SQL: which views it names, and where what is wrong with it stands."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from pavane.dataflow.evaluating import QueryError
from pavane.dataflow.reading import statements_of

# The parser warns of what it does not know; DuckDB refuses it.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
_QUOTED = re.compile(r'"([^"]+)"|name (\w+)|column (\w+)')


class Query:
    """A SELECT in Spark's SQL. Raises `QueryError`."""

    def __init__(self, sql: str) -> None:
        self._text = sql
        try:
            statements = statements_of(sql, dialect=Spark)
        except (SqlglotError, RecursionError, ValueError) as error:
            raise _unreadable(error) from None
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise QueryError("a query is one SELECT", 1, 1)
        self._select = statements[0]

    def views(self, known: Iterable[str]) -> list[str]:
        """Return the views that it reads. Raises `QueryError` for one that there is not."""
        inner = {each.alias.lower() for each in self._select.find_all(exp.CTE)}
        names = {name.lower(): name for name in known}
        found: dict[str, None] = {}
        for table in self._select.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier):
                raise self._error(f"{table.sql(dialect='spark')} is no view", table)
            name = table.name.lower()
            if name in names and not table.db:
                found[names[name]] = None
            elif name not in inner or table.db:
                raise self._error(
                    f"there is no view {table.sql(dialect='spark')}; "
                    f"views here: {', '.join(sorted(names.values())) or 'none'}",
                    table,
                )
        return list(found)

    def translated(self) -> str:
        """Return it in DuckDB's SQL."""
        return self._select.sql(dialect="duckdb")

    def placed(self, error: QueryError) -> QueryError:
        """Return what DuckDB says of it, at the place of the name that it speaks of."""
        if type(error) is not QueryError or error.line:
            return error
        named = {(a or b or c).lower() for a, b, c in _QUOTED.findall(error.text.partition("Candidate")[0])}
        for node in self._select.walk():
            if isinstance(node, exp.Identifier | exp.Anonymous) and node.name.lower() in named:
                return self._error(error.text, node)
        return error

    def _error(self, text: str, node: exp.Expr) -> QueryError:
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        if not starts:
            return QueryError(text, 1, 1)
        before = self._text[: min(starts)]
        return QueryError(text, before.count("\n") + 1, min(starts) - (before.rfind("\n") + 1) + 1)


def _unreadable(error: Exception) -> QueryError:
    first: dict[str, Any] = (getattr(error, "errors", None) or [{}])[0]
    text = str(first.get("description") or str(error).partition("\n")[0] or "nested too deeply")
    text = text.partition(" but got <")[0].rstrip(".")
    return QueryError(f"this is no SQL: {text}", int(first.get("line") or 1), int(first.get("col") or 1))

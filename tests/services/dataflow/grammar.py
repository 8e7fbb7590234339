"""Random queries over the SQL of views, and random changes of their tables, with values at which engines differ.

A seed gives the same of both for ever. What Spark's batch answers over the tables at a tick a view must be there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from random import Random
from typing import Any

from pavane.dataflow.ports import CLOCK, Engine, Flow, Script, SqlError, Table, ViewError
from pavane.dataflow.rows import Row, canonical, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.oracle import clock

TICKS = 6
EXACT = Context(prec=38)
TRIES = 200
TIMED = 0.2
"""How many of the queries may say `now()`."""
TABLES = """
CREATE TABLE t (id BIGINT, k STRING, c BIGINT, n BIGINT, d DECIMAL(12,2), e DECIMAL(20,6), x DOUBLE, y DOUBLE, day DATE,
  at TIMESTAMP, b BOOLEAN) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE u (k2 STRING, c2 BIGINT, d2 DECIMAL(12,2), x2 DOUBLE, day2 DATE) USING waltz
  OPTIONS (partitions '1', diff 'true');
"""
TEXTS = ("", "a", "ab", "A", " a ", "ß", "İ", "ΑΣ", "é", "e\u0301", "😀", "a%b", "a_b", "\u00a0a", "q'q", "a\nb")
# Sums of doubles depend on their order, unless they are exact: column y. Those of column x meet other functions.
VALUES: dict[str, Sequence[Any]] = {
    "id": range(6),
    "c": (0, 1, -1, 2, 3, 7, 1000),
    "n": (0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63) + 1),
    "d": tuple(map(Decimal, ("0.00", "0.01", "-0.01", "1.50", "2.00", "9999999999.99", "-9999999999.99"))),
    "e": tuple(map(Decimal, ("0.000000", "1.500000", "0.000001", "99999999999999.999999", "-99999999999999.999999"))),
    "x": (0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 1.5, -3.75, 1e308, 5e-324, 2.0**53),
    "y": (0.0, -0.0, 0.5, 1.25, -3.75, 1024.0, math.nan, math.inf),
    "day": tuple(map(date.fromisoformat, ("2024-02-29", "2000-02-29", "1900-02-28", "1970-01-01", "0001-01-01"))),
    "at": tuple(
        datetime.fromisoformat(text).replace(tzinfo=UTC)
        for text in ("2024-02-29T23:59:59.999999", "1969-12-31T23:59:59.999999", "2026-01-01", "9999-12-31")
    ),
    "b": (True, False),
    "k": TEXTS,
}
NAMES = {"k2": "k", "c2": "c", "d2": "d", "x2": "x", "day2": "day"}
LITERALS: dict[str, Sequence[str]] = {
    "N": ("0L", "1L", "2L", "7L", "CAST(NULL AS BIGINT)"),
    "D": ("0.00", "1.50", "2.000", "0.01", "CAST(NULL AS DECIMAL(5,1))"),
    "X": ("0.0D", "1.5D", "1e3", "0.1D", "CAST(NULL AS DOUBLE)"),
    "S": ("''", "'a'", "'q''q'", r"'a\nb'", '"ß"', r"'\u00e9'", "'a' 'b'", "CAST(NULL AS STRING)"),
    "B": ("TRUE", "FALSE", "CAST(NULL AS BOOLEAN)"),
    "T": ("CAST(NULL AS DATE)", "DATE '2024-02-29'", "CAST('1900-03-01' AS DATE)"),
    "M": ("CAST(NULL AS TIMESTAMP)",),
}
"""By type: whole numbers, decimals, doubles, strings, booleans, dates, times."""
INTERVALS = ("'1' HOUR", "'0.000001' SECOND", "2 DAYS", "'3' WEEK", "'700000' DAY", "-1 DAY")
ORDERS = ("<", "<=", ">", ">=")
WALLS = (
    "1970-01-01", "2000-02-29", "2024-02-28T23:00", "2024-02-29", "2024-02-29T23:00", "2024-03-01", "2024-03-01T01:00",
    "2024-03-02T00:00:00.001", "2025-12-31", "2025-12-31T23:00", "2026-01-01", "2026-01-01T00:00:00.001", "2026-01-22",
)  # fmt: skip
"""Times of ticks, at and around the values of columns."""
PATTERNS = ("'a%'", "'%b'", "'_'", "'%'", "''", "'a_b'", "'q''%'", "'%ß%'", '"%\u0301"')
KINDS = "NDXSBTM"
Columns = list[tuple[str, str]]
"""Name and type."""
T_COLUMNS: Columns = [
    ("id", "N"), ("k", "S"), ("c", "N"), ("n", "N"), ("d", "D"), ("e", "D"), ("x", "X"), ("y", "X"), ("day", "T"),
    ("at", "M"), ("b", "B"),
]  # fmt: skip
U_COLUMNS: Columns = [("k2", "S"), ("c2", "N"), ("d2", "D"), ("x2", "X"), ("day2", "T")]


@dataclass(slots=True)
class Query:
    """A query for a view, and the same for Spark's batch, in which the order of equal rows is said."""

    view: str
    batch: str
    walls: tuple[int, ...] = ()
    """The wall time of each tick in ms."""

    def at(self, tick: int) -> str:
        """Return the query over the tables as they are at a tick."""
        now = f"TIMESTAMP '{datetime.fromtimestamp(self.walls[tick - 1] / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"
        return re.sub(r"\b(FROM|JOIN) (t|u)\b", rf"\1 \2_{tick} AS \2", self.batch).replace("now()", now)


@dataclass(slots=True)
class Expressions:
    """Random expressions over some columns."""

    random: Random
    columns: Columns

    def kind(self) -> str:
        """Return a type that a column has."""
        return self.random.choice([each for each in KINDS if any(each == kind for _, kind in self.columns)])

    def kind_of(self, kinds: str) -> str:
        """Return one of these types, that a column has if any of them is."""
        known = [each for each in kinds if any(each == kind for _, kind in self.columns)]
        return self.random.choice(known or kinds)

    def of(self, kind: str, depth: int) -> str:
        """Return one of a type."""
        known = [name for name, each in self.columns if each == kind]
        if depth <= 0 or self.random.random() < 0.25:
            if known and self.random.random() < 0.85:
                return self.random.choice(known)
            return self.random.choice(LITERALS[kind])
        if self.random.random() < 0.25:
            return self._choice(kind, depth - 1)
        made: str = getattr(self, f"_{kind.lower()}")(depth - 1)
        return made

    def small(self, depth: int) -> str:
        """Return a whole number that is not large, so that sums and products of it are none."""
        names = [name for name, _ in self.columns if name.rpartition(".")[2] in ("id", "c", "c2")]
        made: tuple[Callable[[], str], ...] = (
            lambda: self.random.choice([*names, "1L", "2L", "3L"]),
            lambda: f"length({self.of('S', depth - 1)})",
            lambda: f"{self.random.choice(('year', 'month', 'day'))}({self.of(self.random.choice('TM'), depth - 1)})",
        )
        return self.random.choice(made[:1] if depth <= 0 else made)()

    def _choice(self, kind: str, depth: int) -> str:
        one, other, test = self.of(kind, depth), self.of(kind, depth), self.of("B", depth)
        return self.random.choice(
            (
                f"coalesce({one}, {other})",
                f"nullif({one}, {other})",
                f"CASE WHEN {test} THEN {one} ELSE {other} END",
                f"CASE WHEN {test} THEN {one} END",
                f"if({test}, {one}, {other})",
                f"({one})",
            )
        )

    def _n(self, depth: int) -> str:
        one, other = self.small(depth), self.small(depth)
        return self.random.choice(
            (
                f"({one} {self.random.choice('+-*')} {other})", f"{one} % nullif({other}, 0L)", f"(-{one})",
                f"abs({self.of('N', depth)})", f"CAST(CAST({one} AS INT) AS BIGINT)", self.of("N", depth),
            )
        )  # fmt: skip

    def _d(self, depth: int) -> str:
        one = self.of("D", depth)
        return self.random.choice(
            (
                f"({one} {self.random.choice('+-*')} {self.of('D', depth)})", f"({one} * {self.small(depth)})",
                f"(-{one})", f"abs({one})", f"CAST({self.small(depth)} AS DECIMAL(22,2))",
                f"coalesce({one}, {self.small(depth)})",
            )
        )  # fmt: skip

    def _x(self, depth: int) -> str:
        one, other = self.of("X", depth), self.of("X", depth)
        return self.random.choice(
            (
                f"({one} {self.random.choice('+-*')} {other})", f"({one} / nullif({other}, 0.0D))", f"(-{one})",
                f"abs({one})", f"CAST({self.of('D', depth)} AS DOUBLE)", f"CAST({self.of('N', depth)} AS DOUBLE)",
                f"({one} * {self.of('D', depth)})", f"coalesce({one}, {self.of('D', depth)})",
            )
        )  # fmt: skip

    def _s(self, depth: int) -> str:
        one, other = self.of("S", depth), self.of("S", depth)
        return self.random.choice(
            (
                f"upper({one})", f"lower({one})", f"trim({one})", f"concat({one}, {other})", f"({one} || {other})",
                f"substring({one}, {self.random.randrange(1, 3)}, {self.random.randrange(1, 3)})",
                f"substring({one}, 2)", f"CAST({self.of('N', depth)} AS STRING)",
                f"CAST({self.of('T', depth)} AS STRING)",
            )
        )  # fmt: skip

    def _b(self, depth: int) -> str:
        no = self.random.choice(("", "NOT "))
        match self.random.randrange(8):
            case 0:
                return f"({self.of('B', depth)} {self.random.choice(('AND', 'OR'))} {self.of('B', depth)})"
            case 1:
                return f"(NOT {self.of('B', depth)})"
            case 2:
                return f"({self.of(self.kind(), depth)} IS {no}NULL)"
            case 3:
                return f"({self.of('S', depth)} {no}LIKE {self.random.choice(PATTERNS)})"
            case 4:
                kinds = self._alike(3)
                return "({} {}BETWEEN {} AND {})".format(*self._with(no, [self.of(kind, depth) for kind in kinds]))
            case 5:
                one, *others = (self.of(kind, depth) for kind in self._alike(3))
                return f"({one} {no}IN ({', '.join(others)}))"
            case _:
                one, other = (self.of(kind, depth) for kind in self._alike(2))
                return f"({one} {self.random.choice(('=', '<>', '<', '<=', '>', '>=', '<=>'))} {other})"

    @staticmethod
    def _with(no: str, parts: list[str]) -> list[str]:
        return [parts[0], no, *parts[1:]]

    def _alike(self, count: int) -> list[str]:
        """Types that can be compared."""
        kind = self.kind()
        return [self.random.choice("NDX") if kind in "NDX" else kind for _ in range(count)]

    def _t(self, depth: int) -> str:
        return f"CAST({self.of('M', depth)} AS DATE)"

    def _m(self, depth: int) -> str:
        return f"coalesce({self.of('M', depth)}, {self.of('M', depth)})"


@dataclass(slots=True)
class Grammar:
    """Random queries; with `clock` also such that say `now()`."""

    random: Random
    clock: Random | None = None

    def query(self) -> Query:
        """Return a query that a view takes."""
        shape = self.random.random()
        if shape < 0.1:
            one, other = self._selected("nested"), self._selected("nested")
            width = min(len(one[1]), len(other[1]))
            kinds = [kind for _, kind in one[1]][:width]
            both = [self._retyped(text, columns, kinds) for text, columns in (one, other)]
            text = f"{both[0]} {self.random.choice(('UNION', 'UNION ALL', 'INTERSECT', 'EXCEPT'))} {both[1]}"
            return Query(text, text)
        text, columns = self._selected("all")
        if shape < 0.3:
            order = self.random.sample([name for name, _ in columns], self.random.randrange(1, len(columns) + 1))
            terms = [name + self.random.choice(("", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST")) for name in order]
            rest = [f"{name} NULLS FIRST" for name, _ in columns]
            limit = f"LIMIT {self.random.randrange(1, 5)}" + self.random.choice(("", " OFFSET 1"))
            return Query(
                f"{text} ORDER BY {', '.join(terms)} {limit}", f"{text} ORDER BY {', '.join([*terms, *rest])} {limit}"
            )
        return Query(text, text)

    def _retyped(self, text: str, columns: Columns, kinds: list[str]) -> str:
        made = Expressions(self.random, columns)
        # Two sums of decimals have no type in common: they become doubles.
        shown = [f"CAST({made.of('D', 0)} AS DOUBLE)" if kind == "D" else made.of(kind, 1) for kind in kinds]
        return f"SELECT {', '.join(f'{each} AS w{place}' for place, each in enumerate(shown))} FROM ({text}) AS q"

    def _from(self) -> tuple[str, str, Columns]:
        """WITH, FROM, and the columns that can be named."""
        match self.random.randrange(6):
            case 0 | 1:
                return "", "t", T_COLUMNS
            case 2:
                inner, columns = self._selected("nested")
                return "", f"({inner}) AS q", columns
            case 3:
                inner, columns = self._selected("nested")
                return f"WITH w AS ({inner}) ", "w", columns
            case _:
                left = self.random.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
                on = [
                    self.random.choice(("k = k2", "c = c2", "d = d2", "x = x2", "day = day2", "upper(k) = upper(k2)"))
                ]
                if self.random.random() < 0.1:
                    return "", "t CROSS JOIN (SELECT count(*) AS z FROM u) AS q", [*T_COLUMNS, ("z", "N")]
                if self.random.random() < 0.4:
                    on.append(Expressions(self.random, U_COLUMNS)._b(1) if self.random.random() < 0.7 else "c2 = id")
                return "", f"t {left} u ON {' AND '.join(on)}", T_COLUMNS + U_COLUMNS

    def _selected(self, kind: str) -> tuple[str, Columns]:
        """Return a SELECT, and its columns."""
        depth = 2 if kind == "nested" else 3
        if kind == "nested" and self.random.random() < 0.5:
            with_, source, known = "", "t", T_COLUMNS
        else:
            with_, source, known = self._from() if kind == "all" else ("", "u", U_COLUMNS)
        made = Expressions(self.random, known)
        where = f" WHERE {self._where(made)}" if self.random.random() < 0.5 else ""
        if self.clock is not None and self.clock.random() < 0.7:
            where = f"{where.replace(' WHERE ', ' WHERE (', 1)}) AND " if where else " WHERE "
            where += self._timed(Expressions(self.clock, known))
        if self.random.random() < 0.5:
            return self._grouped(made, with_, source, where)
        kinds = [made.kind() for _ in range(self.random.randrange(1, 5))]
        columns = [(f"o{place}", each) for place, each in enumerate(kinds)]
        texts = [f"{made.of(each, depth)} AS {name}" for name, each in columns]
        if self.random.random() < 0.25:
            text, of = self._window(made)
            columns.append(("win", of))
            texts.append(f"{text} AS win")
        shown = ", ".join(texts)
        distinct = self.random.choice(("", "", "DISTINCT "))
        return f"{with_}SELECT {distinct}{shown} FROM {source}{where}", columns

    def _timed(self, made: Expressions) -> str:
        """Return a condition with `now()`."""
        random = made.random

        def moved() -> str:
            return random.choice(("", "", *(f" {sign} INTERVAL {text}" for sign in "+-" for text in INTERVALS)))

        def row() -> str:
            kind = made.kind_of("MT")
            known = [name for name, each in made.columns if each == kind]
            return (
                f"{random.choice(known) if known and random.random() < 0.7 else made.of(kind, 1)}{moved()}"  # few NULL
            )

        match random.randrange(5):
            case 0:
                return f"{row()} BETWEEN now(){moved()} AND now(){moved()}"
            case 1:
                return f"now(){moved()} BETWEEN {row()} AND {row()}"
            case 2:
                return f"now(){moved()} {random.choice(ORDERS)} {row()} AND {row()} {random.choice(ORDERS)} now()"
            case 3:
                return f"now(){moved()} {random.choice(ORDERS)} {row()}"
            case _:
                return f"{row()} {random.choice(ORDERS)} now(){moved()}"

    def _where(self, made: Expressions) -> str:
        if self.random.random() < 0.2:
            name = self.random.choice(("S", "T"))
            return f"{made.of(name, 1)} IN (SELECT {'k2' if name == 'S' else 'day2'} FROM u) AND {made.of('B', 1)}"
        if self.random.random() < 0.3:
            return f"{self._looked_up(made)} {self.random.choice(('AND', 'OR'))} {made.of('B', 1)}"
        return made.of("B", 3)

    def _looked_up(self, made: Expressions) -> str:
        """Return a condition with a SELECT in it, which names columns from around it."""
        inner = "FROM (SELECT k2 AS ki, c2 AS ci, d2 AS di, day2 AS dayi FROM u) AS s"
        equal = f"ki = {made.of('S', 1)}"
        no = self.random.choice(("", "NOT "))
        match self.random.randrange(6):
            case 0:
                return f"{no}EXISTS (SELECT 1 {inner} WHERE {equal})"
            case 1:
                return f"{no}EXISTS (SELECT 1 {inner} WHERE {equal} AND ci <> {made.small(0)})"
            case 2:
                return f"{no}EXISTS (SELECT 1 {inner} WHERE ci > {self.random.randrange(8)}L)"
            case 3:
                where = self.random.choice(("", " WHERE ci > 100L", f" WHERE {equal}", " WHERE ci IS NOT NULL"))
                return f"({made.small(1)} {no}IN (SELECT ci {inner}{where}))"
            case 4:
                return (
                    f"({made.small(1)} > (SELECT {self.random.choice(('max(ci)', 'count(*)'))} {inner} WHERE {equal}))"
                )
            case _:
                return f"({made.of('T', 1)} <= (SELECT {self.random.choice(('max', 'min'))}(dayi) {inner}))"

    def _window(self, made: Expressions) -> tuple[str, str]:
        """Return a window function in which no two rows that differ are equal, and its type."""
        by = f"PARTITION BY {made.of(self.random.choice('SBT'), 1)} " if self.random.random() < 0.8 else ""
        whole = ", ".join(f"{name} {self.random.choice(('DESC', 'ASC'))} NULLS FIRST" for name, _ in made.columns)
        kind = made.kind()
        frame = self.random.choice(("", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING"))
        return self.random.choice(
            (
                (f"row_number() OVER ({by}ORDER BY {whole})", "N"),
                (f"rank() OVER ({by}ORDER BY {made.of(kind, 1)} DESC)", "N"),
                (f"dense_rank() OVER ({by}ORDER BY {made.of(kind, 1)})", "N"),
                (f"lag({made.of(kind, 1)}) OVER ({by}ORDER BY {whole})", kind),
                (f"lead({made.of(kind, 1)}, 2) OVER ({by}ORDER BY {whole})", kind),
                (f"sum({made.small(1)}) OVER ({by}ORDER BY {whole}{frame})", "N"),
                (f"count({made.of(kind, 1)}) OVER ({by}ORDER BY {made.of('S', 1)})", "N"),
                (f"min({made.of(kind, 1)}) OVER ({by}ORDER BY {whole}{frame})", kind),
                (f"max({made.of(kind, 1)}) OVER ({by.rstrip()})", kind),
            )
        )

    def _grouped(self, made: Expressions, with_: str, source: str, where: str) -> tuple[str, Columns]:
        keys = [(f"o{place}", made.kind()) for place in range(self.random.randrange(3))]
        texts = [self._key(made, kind) for _, kind in keys]
        columns = list(keys)
        shown = [f"{text} AS {name}" for text, (name, _) in zip(texts, keys, strict=True)]
        for place in range(self.random.randrange(1, 4)):
            text, kind = self._aggregate(made)
            columns.append((f"a{place}", kind))
            shown.append(f"{text} AS a{place}")
        group = f" GROUP BY {', '.join(texts)}" if texts else ""
        if len(set(texts)) == len(texts) > 0 and self.random.random() < 0.2:
            group = f" GROUP BY {self.random.choice(('ROLLUP', 'CUBE'))}({', '.join(texts)})"
        having = f" HAVING {self._having(made)}" if self.random.random() < 0.3 else ""
        return f"{with_}SELECT {', '.join(shown)} FROM {source}{where}{group}{having}", columns

    def _key(self, made: Expressions, kind: str) -> str:
        """Return an expression of columns: a literal is no key."""
        for _ in range(TRIES):
            text = made.of(kind, 1)
            if any(
                name in text.replace("(", " ").replace(")", " ").replace(",", " ").split() for name, _ in made.columns
            ):
                return text
        return made.columns[0][0]

    def _aggregate(self, made: Expressions) -> tuple[str, str]:
        exact = [name for name, _ in made.columns if name == "y"] or ["1.25D"]
        kind = made.kind()
        return self.random.choice(
            (
                ("count(*)", "N"),
                (f"count({made.of(kind, 2)})", "N"),
                (f"count(DISTINCT {made.of(kind, 1)})", "N"),
                (f"sum({made.small(1)})", "N"),
                (f"sum({exact[0]})", "X"),
                (f"avg({exact[0]})", "X"),
                (f"avg({made.small(1)})", "X"),
                (f"min({made.of(kind, 2)})", kind),
                (f"max({made.of(kind, 2)})", kind),
                (f"sum({made.of('D', 1)})", "D"),
            )
        )

    def _having(self, made: Expressions) -> str:
        return self.random.choice(
            (
                f"count(*) > {self.random.randrange(3)}L",
                f"max({made.of('S', 1)}) NOT LIKE 'a%'",
                f"sum({made.small(0)}) IS NOT NULL",
                f"min({made.of('N', 1)}) NOT BETWEEN 0L AND 2L",
                f"count({made.of('B', 1)}) IN (1L, 3L)",
            )
        )


@dataclass(slots=True)
class Changes:
    """Inserts, updates and deletes of the tables, tick by tick; at times all rows go."""

    random: Random
    tables: Sequence[Table]
    contents: dict[str, Counter[Row]] = field(default_factory=dict)

    def tick(self, time: int) -> dict[str, list[tuple[Row, int, int]]]:
        """Return the updates of the next tick."""
        changes: dict[str, list[tuple[Row, int, int]]] = {}
        for table in self.tables:
            held = self.contents.setdefault(table.name, Counter())
            made = changes[table.name] = []
            gone = list(held.elements()) if self.random.random() < 0.12 else []
            if not gone:
                for _ in range(self.random.randrange(1, 6)):
                    if held and self.random.random() < 0.35:
                        gone.append(self.random.choice(sorted(held.elements(), key=repr)))
                        held[gone[-1]] -= 1
                        held += Counter()
                    if self.random.random() < 0.8:
                        row = tuple(self._value(column.name) for column in table.columns)
                        held[row] += 1
                        made.append((row, time, 1))
            else:
                held.clear()
            self.contents[table.name] = held
            made += [(row, time, -1) for row in gone]
        return changes

    def _value(self, name: str) -> Any:
        if self.random.random() < 0.15:
            return None
        return canonical(self.random.choice(VALUES[NAMES.get(name, name)]))


@dataclass(frozen=True, slots=True)
class Case:
    """What a seed gives: a query, the script of its view, changes and contents of the tables by tick."""

    query: Query
    script: Script
    changes: tuple[dict[str, list[tuple[Row, int, int]]], ...]
    contents: tuple[dict[str, Counter[Row]], ...]


REFUSED = ("digits, DECIMAL has 38", "is no equality between the two tables")
"""Why a query of the grammar may be refused: no other reasons."""


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def case(seed: int) -> Case:
    """Return what a seed gives."""
    random = Random(seed)
    clock = Random(f"{seed} now")  # of its own, so that other seeds stay what they were
    grammar = Grammar(random, clock if clock.random() < TIMED else None)
    walls = sorted(_ms(clock.choice(WALLS)) for _ in range(TICKS))
    for _ in range(TRIES):
        query = grammar.query()
        query.walls = tuple(walls)
        try:
            script = parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS {query.view}")
        except SqlError as error:
            if not any(reason in str(error) for reason in REFUSED):
                raise AssertionError(f"seed {seed}: {query.view}: {error}") from error
            continue
        changes = Changes(random, script.tables)
        made, contents = [], []
        for tick in range(1, TICKS + 1):
            made.append(changes.tick(tick))
            contents.append({name: Counter(rows) for name, rows in changes.contents.items()})
        return Case(query, script, tuple(made), tuple(contents))
    raise AssertionError(f"seed {seed}: no query of {TRIES} is taken")


def played(made: Case, engine: Engine, ends: Sequence[int] = (2, 3, TICKS + 1)) -> list[Counter[Row]] | str:
    """Return what the view is at each tick, its changes brought in steps up to `ends`; or why it stopped."""
    with closing(engine.open(made.script)) as state:
        return _played(made, state.flow(made.script.views[0]), ends)


def _played(made: Case, flow: Flow, ends: Sequence[int]) -> list[Counter[Row]] | str:
    held, found, start = Counter[Row](), list[Counter[Row]](), 1
    for end in ends:
        tables = {
            table.name: table_of(
                [update for tick in range(start, end) for update in made.changes[tick - 1][table.name]],
                arrow_schema(table.columns),
            )
            for table in made.script.tables
        }
        if CLOCK in made.script.views[0].tables:
            tables[CLOCK] = clock([(tick, made.query.walls[tick - 1]) for tick in range(start, end)])
        try:
            out = list(updates_of(flow.step(tables, end)))
        except ViewError as error:
            return str(error)
        for tick in range(start, end):
            for row, time, diff in out:
                if time == tick:
                    held[row] += diff
            found.append(Counter({comparable(row): count for row, count in held.items() if count}))
        start = end
    return found


def comparable(row: Row) -> Row:
    """Return a row whose values equal those of another engine: one NaN, one zero, numbers as long as they need be."""
    return tuple(_comparable(value) for value in row)


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Decimal):
        return value.normalize(EXACT) if not value.is_zero() else Decimal(0)
    return value

"""Rule 3 of maintenance: what is looked at again for each key that changed (docs/specs/compute.md 16.2).

A *moment* is a key and a tick at which it changed, or tick -1: what it was before the step. Statements are DuckDB's SQL
over state tables, which hold rows of partial sums (`deltas`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pavane.dataflow.deltas import DUCKDB, Counts, State, listed, of_keys, same
from pavane.dataflow.plan import Group, OrderBy, Top
from pavane.dataflow.ports import DIFF, TIME, Column, Table

SPARE = 16
"""Rows that a front keeps beyond those that are asked for: so many can be taken back before all are looked at again."""
PLACE = "place in step"
"""Of a row among those of its table that came in the step; no user's column has a blank in its name."""
MACROS = (
    # A double is a whole number of steps of 2^(32 b), with at most 87 bits. What is no number has bins of its own.
    "CREATE TEMP MACRO bin_of(x) AS CASE WHEN isnan(x) THEN 102 WHEN isinf(x) THEN CASE WHEN x > 0 THEN 100 ELSE 101"
    " END WHEN x = 0 THEN 0 ELSE CAST(floor((floor(log2(abs(x))) - 53) / 32) AS INTEGER) END",
    "CREATE TEMP MACRO steps_of(x) AS CASE WHEN bin_of(x) >= 100 THEN 1 ELSE"
    " CAST(x * pow(2, -16 * bin_of(x)) * pow(2, -16 * bin_of(x)) AS HUGEINT) END",
    # Bins as digits of 32 bits, the lowest first, and what is above them: 0, or -1 of a negative number.
    "CREATE TEMP MACRO carried(l) AS list_reduce(list_transform(l, lambda x: {'c': x, 'd': CAST([] AS HUGEINT[])}),"
    " lambda a, x: {'c': (a.c + x.c) >> 32, 'd': list_append(a.d, (a.c + x.c) & 4294967295)},"
    " {'c': CAST(0 AS HUGEINT), 'd': CAST([] AS HUGEINT[])})",
    "CREATE TEMP MACRO digit(d, i) AS CASE WHEN i >= 1 THEN d[i] ELSE 0 END",
)


def moments(keys: Sequence[str], touched: str) -> str:
    """SELECT the moments of a delta."""
    return f"SELECT DISTINCT {listed(keys, 'unnest([CAST(-1 AS BIGINT), t]) AS t')} FROM {touched}"


class Latest(Counts):
    """The last row of each key of a table; a row in which all but the key is NULL deletes it."""

    def __init__(self, table: str, of: Table) -> None:
        super().__init__(table, of.columns, self.ALL)
        names = [column.name for column in of.columns]
        self._keys = [f"c{names.index(name)}" for name in of.key]
        self._rest = [f"c{place}" for place, name in enumerate(names) if name not in of.key]

    def delta(self, source: str, *, times: bool = True) -> str:
        """See `Stage`; rows of one tick take effect in the order of `PLACE`."""
        columns = [f"c{i}" for i in range(len(self._made))]
        keys = listed(self._keys)
        there = " OR ".join(f"{name} IS NOT NULL" for name in self._rest) or "FALSE"
        return (
            # By themselves, as a user's column may be called `t` or `c0`, too.
            f"WITH named AS (SELECT {listed(self._made)}, CAST({TIME} AS BIGINT) AS t, {DUCKDB.quoted(PLACE)} AS place "
            f"FROM {source}), came AS MATERIALIZED (SELECT {listed(columns)}, t FROM named "
            f"QUALIFY row_number() OVER (PARTITION BY {listed(self._keys, 't')} ORDER BY place DESC) = 1), "
            f"was AS (SELECT {listed(columns)}, CAST(-1 AS BIGINT) AS t "
            f"FROM {of_keys(self.table, self._keys, 'came')} GROUP BY ALL HAVING sum(n) > 0), "
            f"spans AS (SELECT *, lead(t) OVER (PARTITION BY {keys} ORDER BY t) AS until "
            f"FROM (SELECT * FROM was UNION ALL SELECT * FROM came)) "
            f"SELECT {listed(columns)}, t, CAST(sum(n) AS BIGINT) AS n FROM ("
            f"SELECT {listed(columns)}, t, 1 AS n FROM spans WHERE t >= 0 AND ({there}) UNION ALL "
            f"SELECT {listed(columns)}, until AS t, -1 AS n FROM spans WHERE until IS NOT NULL AND ({there})"
            ") GROUP BY ALL HAVING sum(n) <> 0"
        )


class Doubles:
    """A sum of doubles by key, exact: rounded once, so it does not depend on the order of rows."""

    def __init__(self, table: str, keys: Sequence[Column], value: Column) -> None:
        self.keys = [f"c{i}" for i in range(len(keys))]
        made = tuple(Column(f"c{i}", key.type) for i, key in enumerate(keys))
        self.state = State(table, (*made, Column("b", "INTEGER")), (("s", "HUGEINT"), ("n", "BIGINT")))
        self._made = [f"{DUCKDB.canonical(key)} AS c{i}" for i, key in enumerate(keys)]
        self._value = DUCKDB.quoted(value.name)

    def delta(self, source: str) -> str:
        """SELECT the partial sums of updates."""
        x = self._value
        made = listed(self._made, f"bin_of({x}) AS b", f"CAST({TIME} AS BIGINT) AS t")
        sums = f"CAST(sum(steps_of({x}) * {DIFF}) AS HUGEINT) AS s, CAST(sum({DIFF}) AS BIGINT) AS n"
        return f"SELECT {made}, {sums} FROM {source} WHERE {x} IS NOT NULL GROUP BY ALL"

    def values(self, delta: str, touched: str) -> str:
        """SELECT the sum at each moment, as `v`."""
        names = listed(self.keys, "b", "s", "n")
        before = f"SELECT {names}, CAST(-1 AS BIGINT) AS t FROM {of_keys(self.state.table, self.keys, touched)}"
        shown = listed([f"m.{key}" for key in self.keys], "m.t", "r.b")
        return self._rounded(
            f"SELECT {shown}, sum(r.s) AS s, sum(r.n) AS n FROM ({moments(self.keys, touched)}) AS m LEFT JOIN "
            f"({before} UNION ALL SELECT {names}, t FROM {delta}) AS r ON {same('m', 'r', self.keys)} AND r.t <= m.t "
            "GROUP BY ALL",
            [*self.keys, "t"],
        )

    def contents(self) -> str:
        """SELECT the sum of each key, as `v`."""
        return self._rounded(f"SELECT * FROM ({self.state.joined()})", self.keys)

    @staticmethod
    def _rounded(source: str, by: Sequence[str]) -> str:
        """The bins of a sum as one double: its first 62 bits, the last of which stands for all that follow."""
        group = f" GROUP BY {listed(by)}" if by else ""
        number = "FILTER (WHERE b < 100 AND n <> 0)"
        binned = (
            f"SELECT {listed(by, f'map(list(b) {number}, list(CAST(s AS HUGEINT)) {number}) AS m')}, "
            f"min(b) {number} AS low, max(b) {number} AS high, "
            + ", ".join(f"coalesce(bool_or(b = {b} AND n <> 0), FALSE) AS {name}"
                        for b, name in ((100, "up"), (101, "down"), (102, "nan")))
            + f" FROM ({source}){group}"
        )  # fmt: skip
        dense = (
            "SELECT *, list_transform(range(low, high + 5), lambda i: coalesce(m[CAST(i AS INTEGER)], 0)) AS l "
            f"FROM ({binned})"
        )
        both = f"SELECT *, carried(l) AS p, carried(list_transform(l, lambda x: -x)) AS q FROM ({dense})"
        digits = f"SELECT *, CASE WHEN p.c < 0 THEN q.d ELSE p.d END AS d FROM ({both})"
        first = "nullif(list_position(list_reverse(list_transform(d, lambda x: x <> 0)), TRUE), 0)"
        placed = f"SELECT *, len(d) - {first} + 1 AS i FROM ({digits})"
        taken = (
            "SELECT *, (d[i] << 64) + (digit(d, i - 1) << 32) + digit(d, i - 2) AS a, length(bin(d[i])) + 2 AS k, "
            f"coalesce(list_sum(d[1:greatest(i - 3, 0)]), 0) > 0 AS more FROM ({placed})"
        )
        sized = (
            "SELECT *, CAST(CAST(a >> k AS UBIGINT) | CAST(more OR (a >> k) << k <> a AS UBIGINT) AS DOUBLE) AS y, "
            f"k + 32 * (low + i - 3) AS e FROM ({taken})"
        )
        value = (
            "CASE WHEN nan OR (up AND down) THEN CAST('NaN' AS DOUBLE) WHEN up THEN CAST('Infinity' AS DOUBLE) "
            "WHEN down THEN CAST('-Infinity' AS DOUBLE) WHEN i IS NULL AND low IS NOT NULL THEN CAST(0 AS DOUBLE) "
            "ELSE CASE WHEN p.c < 0 THEN -1 ELSE 1 END * y * pow(2, e // 2) * pow(2, e - e // 2) END AS v"
        )
        return f"SELECT {listed(by, value)} FROM ({sized})"


@dataclass(frozen=True, slots=True)
class FrontState(State):
    """Rows before others in an order, and by key one row `rest` that says how many are behind them."""

    by: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    order: str = ""
    most: int = 0

    def fronted(self, source: str, most: str) -> str:
        """SELECT rows `most` of each key from a relation of rows, which may have a rest already."""
        window = f"PARTITION BY {listed(self.by, 'rest')} ORDER BY {self.order}"
        ahead = f"coalesce(sum(n) OVER ({window} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)"
        cut = f"SELECT * EXCLUDE (rest), rest OR {ahead} >= {most} AS rest FROM ({source})"
        return f"SELECT {self.columns}, CAST(sum(n) AS BIGINT) AS n FROM ({cut}) GROUP BY ALL"

    @property
    def columns(self) -> str:
        """Key, rows, and whether it is the rest, of which nothing else is known."""
        return listed(self.by, [f"CASE WHEN rest THEN NULL ELSE {each} END AS {each}" for each in self.shown], "rest")

    def joined(self, source: str = "") -> str:
        """See `State`."""
        return self.fronted(f"{self.summed(source or self.table)} HAVING n <> 0", str(self.most))


class Front:
    """The first rows of each key in an order. All are kept; a step looks at the front alone while it is long enough."""

    def __init__(
        self, table: str, keys: Sequence[Column], values: Sequence[Column], order: Sequence[OrderBy], needed: int
    ) -> None:
        self.keys = [f"c{i}" for i in range(len(keys))]
        self.shown = [f"w{i}" for i in range(len(values))]
        made = tuple(Column(f"c{i}", key.type) for i, key in enumerate(keys))
        rows = tuple(Column(f"w{i}", each.type) for i, each in enumerate(values))
        self.state = State(table, (*made, *rows), (("n", "BIGINT"),))
        terms = [
            f"w{each.column} {'DESC' if each.descending else 'ASC'} NULLS {'FIRST' if each.nulls_first else 'LAST'}"
            for each in order
        ]
        self.order = listed(terms, [f"{name} ASC NULLS FIRST" for name in self.shown])
        self.front = FrontState(
            f"{table}_front", (*made, *rows, Column("rest", "BOOLEAN")), (("n", "BIGINT"),),
            tuple(self.keys), tuple(self.shown), self.order, needed + SPARE,
        )  # fmt: skip
        self.needed = needed
        self._made = [f"{DUCKDB.canonical(key)} AS c{i}" for i, key in enumerate(keys)]
        self._made += [f"{DUCKDB.canonical(each)} AS w{i}" for i, each in enumerate(values)]

    def delta(self, source: str, where: str = "TRUE") -> str:
        """SELECT how often each row comes, by tick."""
        return (
            f"SELECT {listed(self._made)}, CAST({TIME} AS BIGINT) AS t, CAST(sum({DIFF}) AS BIGINT) AS n "
            f"FROM {source} WHERE {where} GROUP BY ALL HAVING n <> 0"
        )

    def now(self, delta: str, touched: str) -> str:
        """SELECT the fronts of touched keys before the step (`t` -1), and what of a delta belongs to them or behind."""
        names = listed(self.keys, self.shown)
        base = (
            f"SELECT {names}, CAST(-1 AS BIGINT) AS t, CAST(sum(n) AS BIGINT) AS n, rest "
            f"FROM {of_keys(self.front.table, self.keys, touched)} GROUP BY ALL HAVING sum(n) <> 0"
        )
        every = f"{base} UNION ALL SELECT {names}, t, n, FALSE AS rest FROM {delta}"
        by = f"PARTITION BY {listed(self.keys)} " if self.keys else ""
        return (
            f"SELECT {names}, t, n, rest OR (coalesce(bool_or(rest) OVER ({by}), FALSE) AND "
            "count(*) FILTER (WHERE t < 0 AND NOT rest) OVER "
            f"({by}ORDER BY rest, {self.order} RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) = 0) AS rest "
            f"FROM ({every})"
        )

    def lacking(self, now: str) -> str:
        """SELECT the keys whose front is too short at some moment, though there are more rows."""
        window = f"({'PARTITION BY ' + listed(self.keys) if self.keys else ''} ORDER BY t ROWS UNBOUNDED PRECEDING)"
        sums = (
            f"SELECT {listed(self.keys, 't')}, coalesce(sum(n) FILTER (WHERE NOT rest), 0) AS f, "
            f"coalesce(sum(n) FILTER (WHERE rest), 0) AS r FROM {now} GROUP BY {listed(self.keys, 't')}"
        )
        short = f"sum(f) OVER {window} < {self.needed} AND sum(r) OVER {window} > 0"
        return f"SELECT DISTINCT * FROM (SELECT {listed(self.keys, 'TRUE AS lacks')} FROM ({sums}) QUALIFY {short})"

    def refilled(self, lacking: str, delta: str) -> str:
        """SELECT what makes the fronts of these keys long enough for a delta, whatever it takes back."""
        gone = f"(SELECT coalesce(-sum(n) FILTER (WHERE n < 0), 0) FROM {delta})"
        every = self._every(of_keys(self.state.table, self.keys, lacking))
        return (
            f"{self.front.fronted(every, f'{self.front.most} + {gone}')} UNION ALL "
            f"SELECT {listed(self.keys, self.shown)}, rest, CAST(-sum(n) AS BIGINT) AS n "
            f"FROM {of_keys(self.front.table, self.keys, lacking)} GROUP BY ALL HAVING sum(n) <> 0"
        )

    def built(self) -> str:
        """SELECT the fronts of all keys, where there are none yet."""
        return self.front.fronted(self._every(self.state.table), str(self.front.most))

    def _every(self, source: str) -> str:
        names = listed(self.keys, self.shown, "FALSE AS rest")
        return f"SELECT {names}, CAST(sum(n) AS BIGINT) AS n FROM {source} GROUP BY ALL HAVING sum(n) > 0"

    def kept(self, now: str) -> str:
        """SELECT what a step adds to the fronts."""
        return f"SELECT {self.front.columns}, CAST(sum(n) AS BIGINT) AS n FROM {now} WHERE t >= 0 GROUP BY ALL"


class Extreme(Front):
    """The least or the greatest value of each key."""

    def __init__(self, table: str, keys: Sequence[Column], value: Column, *, greatest: bool) -> None:
        super().__init__(table, keys, (value,), (OrderBy(0, greatest, False),), 1)
        self._found = f"{'max' if greatest else 'min'}(w0) FILTER (WHERE n > 0) AS v"
        self._value = DUCKDB.quoted(value.name)

    def delta(self, source: str, where: str = "") -> str:
        """NULL is none."""
        return super().delta(source, where or f"{self._value} IS NOT NULL")

    def values(self, now: str, touched: str) -> str:
        """SELECT the extreme at each moment, as `v`."""
        shown = listed([f"m.{key}" for key in self.keys], "m.t", "r.w0")
        rows = (
            f"SELECT {shown}, sum(r.n) AS n FROM ({moments(self.keys, touched)}) AS m LEFT JOIN "
            f"(SELECT * FROM {now} WHERE NOT rest) AS r ON {same('m', 'r', self.keys)} AND r.t <= m.t GROUP BY ALL"
        )
        return f"SELECT {listed(self.keys, 't', self._found)} FROM ({rows}) GROUP BY {listed(self.keys, 't')}"

    def contents(self) -> str:
        """SELECT the extreme of each key, as `v`."""
        by = f" GROUP BY {listed(self.keys)}" if self.keys else ""
        return f"SELECT {listed(self.keys, self._found)} FROM ({self.front.joined()}) WHERE NOT rest{by}"


class First(Front):
    """ORDER BY … LIMIT: the rows at some places of an order."""

    def __init__(self, table: str, columns: Sequence[Column], top: Top) -> None:
        super().__init__(table, (), columns, top.order, top.offset + top.limit)
        self._top = top
        self._named = listed([f"w{i} AS {DUCKDB.quoted(each.name)}" for i, each in enumerate(columns)])

    def _taken(self, rows: str, by: str) -> str:
        """SELECT of sorted rows how often each is shown, as `k`."""
        upto = f"sum(n) OVER ({by} ORDER BY {self.order} ROWS UNBOUNDED PRECEDING)"
        end, start = self._top.offset + self._top.limit, self._top.offset
        return (
            f"SELECT *, CAST(least({upto}, {end}) - greatest({upto} - n, {start}) AS BIGINT) AS k FROM ({rows}) "
            "QUALIFY k > 0"
        )

    def out(self, now: str, touched: str) -> str:
        """SELECT the updates that follow from the fronts `now`."""
        ticks = f"SELECT t, lead(t) OVER (ORDER BY t) AS until FROM ({moments((), touched)})"
        rows = (
            f"SELECT m.t, m.until, {listed(self.shown)}, sum(r.n) AS n FROM ({ticks}) AS m JOIN {now} AS r "
            "ON r.t <= m.t AND NOT r.rest GROUP BY ALL HAVING sum(r.n) > 0"
        )
        return (
            f"WITH taken AS MATERIALIZED ({self._taken(rows, 'PARTITION BY t')}) "
            f"SELECT {self._named}, t AS {TIME}, k AS {DIFF} FROM taken WHERE t >= 0 UNION ALL "
            f"SELECT {self._named}, until AS {TIME}, -k AS {DIFF} FROM taken WHERE until IS NOT NULL"
        )

    def contents(self, tick: int) -> str:
        """SELECT what is shown, as updates of a tick."""
        taken = self._taken(f"SELECT * FROM ({self.front.joined()}) WHERE NOT rest", "")
        return f"SELECT {self._named}, {tick} AS {TIME}, k AS {DIFF} FROM ({taken})"


class Again(Counts):
    """All rows of touched keys at each of their moments, for a SELECT that is evaluated over one moment's at a time.

    To that SELECT the number of the moment is the time, and each copy of a row a row.
    """

    def __init__(self, table: str, columns: Sequence[Column], keys: int) -> None:
        super().__init__(table, columns, self.ALL)
        self._keys = [f"c{i}" for i in range(keys)]
        self._names = [f"c{i}" for i in range(len(columns))]

    def rows(self, touched: str, delta: str, at: int | None) -> str:
        """SELECT how rows come, as `n`: those of touched keys before a delta, then the delta; `at` a tick all rows."""
        names = listed(self._names, "n")
        if at is not None:
            return f"SELECT {names}, CAST({at} AS BIGINT) AS t FROM {self.table}"
        before = f"SELECT {names}, CAST(-1 AS BIGINT) AS t FROM {of_keys(self.table, self._keys, touched)}"
        return f"{before} UNION ALL BY NAME SELECT * FROM {delta}"

    def moments(self, rows: str) -> str:
        """SELECT the moments, each with its number `m`, the tick of the next one of its key, and its `size` in rows.

        `upto` adds up what it costs to tell the changes at each: the rows then, and those before.
        """
        by = listed(self._keys)
        came = f"SELECT {by}, t, sum(n) AS n FROM ({rows}) GROUP BY ALL"
        ticks = f"(PARTITION BY {by} ORDER BY t)"
        sized = f"SELECT {by}, t, n, sum(n) OVER {ticks} AS size, lead(t) OVER {ticks} AS until FROM ({came})"
        cost = "CASE WHEN t < 0 THEN 0 ELSE 2 * size - n END"
        placed = f"CAST(row_number() OVER places AS BIGINT) AS m, sum({cost}) OVER places AS upto"
        return f"SELECT *, {placed} FROM ({sized}) WINDOW places AS (ORDER BY {by}, t ROWS UNBOUNDED PRECEDING)"

    @staticmethod
    def pieces(moments: str, most: int) -> str:
        """SELECT the first and the last moment of pieces that cost about so much, and the largest moment of each."""
        return f"SELECT min(m), max(m), max(size) FROM {moments} GROUP BY greatest(upto - 1, 0) // {most} ORDER BY 1"

    @staticmethod
    def piece(moments: str, first: int, last: int) -> str:
        """SELECT some moments, and the one before if it is of the same key: changes are those at these, at no other."""
        shown = f"CASE WHEN m >= {first} AND t >= 0 THEN t END AS since, CASE WHEN m < {last} THEN until END AS until"
        cut = f"SELECT * EXCLUDE (until), {shown} FROM {moments} WHERE m BETWEEN {first - 1} AND {last}"
        return f"(SELECT * FROM ({cut}) WHERE since IS NOT NULL OR until IS NOT NULL)"

    def counted(self, piece: str, rows: str) -> str:
        """SELECT how often each row is there at each moment, as `n`."""
        return (
            f"SELECT m.m, {listed([f'r.{name}' for name in self._names])}, CAST(sum(r.n) AS BIGINT) AS n "
            f"FROM {piece} AS m JOIN ({rows}) AS r "
            f"ON {same('m', 'r', self._keys)} AND r.t <= m.t GROUP BY ALL HAVING sum(r.n) > 0"
        )

    def copies(self, counted: str) -> str:
        """SELECT each copy of rows."""
        return (
            f"SELECT {self._shown}, m AS {TIME}, CAST(1 AS BIGINT) AS {DIFF} "
            f"FROM (SELECT *, unnest(range(n)) FROM ({counted}))"
        )

    def changes(self, found: str, piece: str) -> str:
        """SELECT the updates that follow from what a SELECT made of the copies."""
        taken = f"SELECT * EXCLUDE ({TIME}, {DIFF}), {TIME} AS m FROM {found}"
        both = " UNION ALL ".join(
            f"SELECT f.* EXCLUDE (m), o.{tick} AS {TIME}, CAST({diff} AS BIGINT) AS {DIFF} FROM found AS f "
            f"JOIN {piece} AS o ON f.m = o.m WHERE o.{tick} IS NOT NULL"
            for tick, diff in (("since", 1), ("until", -1))
        )
        return f"WITH found AS MATERIALIZED ({taken}) {both}"


Beside = Doubles | Extreme
"""What is kept of an aggregate beside counts and sums."""


def beside(table: str, group: Group, columns: Sequence[Column]) -> tuple[dict[int, Counts], dict[int, Beside]]:
    """Return what the aggregates of a group need beside `Sums`, by number: values that count once, and the others."""
    keys, once, others = columns[: group.keys], dict[int, Counts](), dict[int, Beside]()
    for number, each in enumerate(group.aggregates):
        if each.argument is None:
            continue
        name, value = f"{table}_{number}", columns[each.argument]
        if each.function == "count_distinct":
            once[number] = Counts(name, (*keys, value), Counts.ONCE)
        elif each.function in ("min", "max"):
            others[number] = Extreme(name, keys, value, greatest=each.function == "max")
        elif each.doubles and not each.function.startswith("count"):
            others[number] = Doubles(name, keys, value)
    return once, others

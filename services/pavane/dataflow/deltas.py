"""Rules 1 and 2 of maintenance: statements over changes and state tables (docs/specs/compute.md 16.3).

A state table holds partial sums by key, several rows of a key among them: who adds writes rows and reads none. What a
key was is the sum of its rows. All statements are DuckDB's SQL; `source`, `delta` name relations with the columns that
are said. None of them depends on when it runs, so every tick is told apart by its number alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pavane.dataflow.plan import Aggregate, Group
from pavane.dataflow.ports import DIFF, TIME, Column

EXACT_DIGITS = 19
"""A decimal with more has two sums, of what is above and below its last 19 digits: 10^19 rows fit in 128 bits."""
MACROS = (
    # Unscaled digits of a decimal as a number, and back. DuckDB's casts would round, or take no more than 38 digits.
    "CREATE TEMP MACRO digits_of(x) AS CAST(replace(CAST(x AS VARCHAR), '.', '') AS HUGEINT)",
    "CREATE TEMP MACRO padded(u, s) AS lpad(CAST(abs(u) AS VARCHAR), CAST(greatest(length(CAST(abs(u) AS VARCHAR)),"
    " s + 1) AS INTEGER), '0')",
    "CREATE TEMP MACRO pointed(u, s) AS CASE WHEN u < 0 THEN '-' ELSE '' END || left(padded(u, s), -s) || '.' ||"
    " right(padded(u, s), s)",
    # An average rounded once: beyond 2^53 of a quotient with 60 bits, the last of which stands for all that follow.
    "CREATE TEMP MACRO shifted(s, n) AS CAST(pow(2, greatest(0, 60 - CAST(floor(log2(CAST(abs(s) // n AS DOUBLE))) AS"
    " INTEGER))) AS HUGEINT)",
    "CREATE TEMP MACRO mean(s, n) AS CASE WHEN abs(s) <= 9007199254740992 THEN CAST(s AS DOUBLE) / CAST(n AS DOUBLE)"
    " ELSE sign(s) * CAST(CAST(abs(s) * shifted(s, n) // n AS UBIGINT)"
    " | CAST(abs(s) * shifted(s, n) % n <> 0 AS UBIGINT) AS DOUBLE) / CAST(shifted(s, n) AS DOUBLE) END",
)
_TYPES = {"STRING": "VARCHAR", "BINARY": "BLOB"}


class Stage(Protocol):
    """A step that remembers. `table` is its state: the key columns, then what is summed up."""

    table: str
    state: State

    def delta(self, source: str) -> str:
        """SELECT the partial sums of updates: the columns of the state, and `t`."""

    def out(self, delta: str, *, single: bool = False) -> str:
        """SELECT the updates that follow from a delta, of a `single` tick or many, which is not in the state yet."""

    def contents(self, tick: int) -> str:
        """SELECT what the state says, as updates of one tick."""


@dataclass(frozen=True, slots=True)
class State:
    """Names, keys and sums of a state table."""

    table: str
    keys: tuple[Column, ...]
    sums: tuple[tuple[str, str], ...]
    """Name and type in DuckDB."""

    @property
    def ddl(self) -> str:
        """Make the table."""
        columns = [f"{quoted(each.name)} {duck_type(each.type)}" for each in self.keys]
        columns += [f"{name} {kind}" for name, kind in self.sums]
        return f"CREATE TABLE {self.table} ({', '.join(columns)})"

    @property
    def key_names(self) -> list[str]:
        """Of the key columns."""
        return [quoted(each.name) for each in self.keys]

    @property
    def names(self) -> str:
        """Of all columns."""
        return ", ".join([*self.key_names, *(name for name, _ in self.sums)])

    def summed(self, source: str, also: str = "") -> str:
        """SELECT the sums of rows of the state's columns by key and `also`."""
        by = [*self.key_names, *([also] if also else [])]
        sums = [f"CAST(sum({name}) AS {kind}) AS {name}" for name, kind in self.sums]
        grouped = f" GROUP BY {', '.join(by)}" if by else ""
        return f"SELECT {', '.join([*by, *sums])} FROM {source}{grouped}"

    def joined(self) -> str:
        """SELECT one row for each key that is there, to take the place of many."""
        found = self.summed(self.table)
        return f"{found} HAVING n <> 0" if self.keys else found

    def stepped(self, delta: str, *, single: bool = False) -> str:
        """SELECT of each key and tick of a delta the sums after it, and as `d_…` what came with it.

        With a `single` tick, which a step near the present has, no sums over time are needed.
        """
        same = " AND ".join(f"s.{name} IS NOT DISTINCT FROM d.{name}" for name in self.key_names)
        before = f"{self.table} AS s SEMI JOIN {delta} AS d ON {same}" if same else f"{self.table} AS s"
        sums = [name for name, _ in self.sums]
        if single:
            old = ", ".join([*(f"s.{name}" for name in [*self.key_names, *sums]), "NULL AS t", *["0"] * len(sums)])
            came = ", ".join([*self.key_names, *sums, "t", *sums])
            names = ", ".join([*self.key_names, *sums, "t", *(f"d_{name}" for name in sums)])
            added = [f"CAST(sum({of}{name}) AS {kind}) AS {of}{name}" for of in ("", "d_") for name, kind in self.sums]
            made = ", ".join([*self.key_names, "CAST(max(t) AS BIGINT) AS t", *added])
            by = f" GROUP BY {', '.join(self.key_names)}" if self.keys else ""
            rows = f"WITH rows({names}) AS (SELECT {old} FROM {before} UNION ALL SELECT {came} FROM {delta})"
            return f"SELECT * FROM ({rows} SELECT {made} FROM rows{by}) WHERE t IS NOT NULL"
        window = f"{'PARTITION BY ' + ', '.join(self.key_names) if self.keys else ''} ORDER BY t"
        run = [f"CAST(sum({n}) OVER w AS {kind}) AS {n}, {n} AS d_{n}" for n, kind in self.sums]
        prior = ", ".join([*(f"s.{name}" for name in self.key_names), "CAST(-1 AS BIGINT) AS t", *sums])
        new = ", ".join([*self.key_names, "t", *sums])
        return (
            f"SELECT * FROM (SELECT {', '.join([*self.key_names, 't', *run])} FROM ("
            f"{self.summed(f'(SELECT {prior} FROM {before} UNION ALL SELECT {new} FROM {delta})', 't')})"
            f" WINDOW w AS ({window} ROWS UNBOUNDED PRECEDING)) WHERE t >= 0"
        )


class Counts:
    """How often each row is there. It lets pass the changes of what `clamp` makes of that number."""

    ALL = "{}"
    ONCE = "CAST({} > 0 AS BIGINT)"
    """DISTINCT."""
    NEVER_LESS = "greatest({}, 0)"
    """A table with `diff`: who takes a row back that is not there takes the next one."""

    def __init__(self, table: str, columns: Sequence[Column], clamp: str) -> None:
        self.table = table
        self.state = State(table, tuple(Column(f"c{i}", c.type) for i, c in enumerate(columns)), (("n", "BIGINT"),))
        self._clamp = clamp
        self._made = [f"{canonical(each)} AS c{i}" for i, each in enumerate(columns)]
        self._shown = ", ".join(f"c{i} AS {quoted(each.name)}" for i, each in enumerate(columns))

    def delta(self, source: str) -> str:
        """See `Stage`."""
        return (
            f"SELECT {', '.join(self._made)}, CAST({TIME} AS BIGINT) AS t, CAST(sum({DIFF}) AS BIGINT) AS n "
            f"FROM {source} GROUP BY ALL HAVING n <> 0"
        )

    def out(self, delta: str, *, single: bool = False) -> str:
        """See `Stage`."""
        if self._clamp == self.ALL:
            return f"SELECT {self._shown}, t AS {TIME}, n AS {DIFF} FROM {delta}"
        change = f"{self._clamp.format('n')} - {self._clamp.format('(n - d_n)')}"
        stepped = self.state.stepped(delta, single=single)
        return (
            f"SELECT * FROM (SELECT {self._shown}, t AS {TIME}, {change} AS {DIFF} FROM ({stepped})) WHERE {DIFF} <> 0"
        )

    def contents(self, tick: int) -> str:
        """See `Stage`."""
        made = (
            f"SELECT {self._shown}, {tick} AS {TIME}, {self._clamp.format('n')} AS {DIFF} FROM ({self.state.joined()})"
        )
        return f"SELECT * FROM ({made}) WHERE {DIFF} > 0"


class Sums:
    """Rows, values and sums of each group. Its changes are rows `c0`, `c1`, …: the keys, then the aggregates.

    Of aggregates that are no sums it has the number of values; what they are comes from `beside`, by their numbers.
    """

    def __init__(self, table: str, group: Group, columns: Sequence[Column]) -> None:
        self.table = table
        self._group = group
        self._columns = columns
        self._keys = tuple(Column(f"c{i}", each.type) for i, each in enumerate(columns[: group.keys]))
        sums: dict[str, str] = {"n": "BIGINT"}
        for number, each in enumerate(group.aggregates):
            if each.argument is not None:
                sums[f"a{number}"] = "BIGINT"
                if self._adds(each):
                    sums |= dict(self._parts(number, each))
        self.state = State(table, self._keys, tuple(sums.items()))

    def _kind(self, each: Aggregate) -> tuple[int, int]:
        """Digits and scale of an argument; (19, 0) = whole numbers."""
        assert each.argument is not None  # noqa: S101 - of whole rows there is no sum
        name, _, rest = self._columns[each.argument].type.partition("(")
        digits, scale = (int(part) for part in rest.rstrip(")").split(",")) if name == "DECIMAL" else (19, 0)
        return digits, scale

    def _parts(self, number: int, each: Aggregate) -> list[tuple[str, str]]:
        digits, scale = self._kind(each)
        if digits > EXACT_DIGITS:
            return [(f"h{number}", "HUGEINT"), (f"s{number}", "HUGEINT")]
        kind = f"DECIMAL(38,{scale})" if self._is_decimal(each) else "HUGEINT"
        return [(f"s{number}", kind)]

    @staticmethod
    def _adds(each: Aggregate) -> bool:
        return each.function in ("sum", "avg") and not each.doubles

    def _is_decimal(self, each: Aggregate) -> bool:
        return each.argument is not None and self._columns[each.argument].type.startswith("DECIMAL")

    @property
    def first(self) -> str:
        """INSERT the group that an aggregate over everything always has."""
        return f"INSERT INTO {self.table} VALUES ({', '.join('0' for _ in self.state.sums)})"

    def delta(self, source: str) -> str:
        """See `Stage`."""
        made = [f"{canonical(each)} AS c{i}" for i, each in enumerate(self._columns[: self._group.keys])]
        made += [f"CAST({TIME} AS BIGINT) AS t", f"CAST(sum({DIFF}) AS BIGINT) AS n"]
        for number, each in enumerate(self._group.aggregates):
            if each.argument is None:
                continue
            value = quoted(self._columns[each.argument].name)
            if each.function == "count_distinct":
                made.append(f"CAST(0 AS BIGINT) AS a{number}")
                continue
            made.append(f"CAST(coalesce(sum({DIFF}) FILTER (WHERE {value} IS NOT NULL), 0) AS BIGINT) AS a{number}")
            if not self._adds(each):
                continue
            ten = 10**EXACT_DIGITS
            if self._kind(each)[0] > EXACT_DIGITS:
                parts = [f"digits_of({value}) // {ten}", f"digits_of({value}) % {ten}"]
            else:
                parts = [value if self._is_decimal(each) else f"CAST({value} AS HUGEINT)"]
            for (name, kind), part in zip(self._parts(number, each), parts, strict=True):
                made.append(f"CAST(coalesce(sum({part} * {DIFF}), 0) AS {kind}) AS {name}")
        by = [f"c{i}" for i in range(self._group.keys)]
        return f"SELECT {', '.join(made)} FROM {source} GROUP BY {', '.join([*by, 't'])}"

    def with_once(self, delta: str, once: Mapping[int, str]) -> str:
        """SELECT a delta and how many values of aggregates, by their numbers, are there that were not."""
        parts = [
            f"SELECT {', '.join([*(f'c{i}' for i in range(self._group.keys)), f'{TIME} AS t'])}, {DIFF} AS a{number} "
            f"FROM {changes}"
            for number, changes in once.items()
        ]
        by = [*self.state.key_names, "t"]
        sums = [f"CAST(coalesce(sum({name}), 0) AS {kind}) AS {name}" for name, kind in self.state.sums]
        every = " UNION ALL BY NAME ".join([f"SELECT * FROM {delta}", *parts])
        return f"SELECT {', '.join([*by, *sums])} FROM ({every}) GROUP BY {', '.join(by)}"

    def out(self, delta: str, beside: Mapping[int, str] | None = None, *, single: bool = False) -> str:
        """See `Stage`; `beside` SELECTs values at each key and tick of the delta and at tick -1, as `v`."""
        both = (("{0}", 1, "v"), ("({0} - d_{0})", -1, "u"))
        there = "WHERE {} <> 0" if self._keys else ""
        names = [each.name for each in self._keys]
        joins = columns = ""
        for number, values in (beside or {}).items():
            by = f"PARTITION BY {', '.join(names)} " if names else ""
            same = " AND ".join(f"s.{n} IS NOT DISTINCT FROM b{number}.{n}" for n in [*names, "t"])
            columns += f", b{number}.v AS v{number}, b{number}.u AS u{number}"
            joins += f" LEFT JOIN (SELECT *, lag(v) OVER ({by}ORDER BY t) AS u FROM ({values})) AS b{number} ON {same}"
        stepped = f"SELECT s.*{columns} FROM ({self.state.stepped(delta, single=single)}) AS s{joins}"
        parts = [
            f"SELECT {self._results(of, value)}, t AS {TIME}, CAST({diff} AS BIGINT) AS {DIFF} FROM stepped "
            + there.format(of.format("n"))
            for of, diff, value in both
        ]
        return f"WITH stepped AS MATERIALIZED ({stepped}) {' UNION ALL '.join(parts)}"

    def contents(self, tick: int, beside: Mapping[int, str] | None = None) -> str:
        """See `Stage`; `beside` SELECTs the value of each key, as `v`."""
        names, joins, columns = [each.name for each in self._keys], "", ""
        for number, values in (beside or {}).items():
            same = " AND ".join(f"s.{n} IS NOT DISTINCT FROM b{number}.{n}" for n in names) or "TRUE"
            columns += f", b{number}.v AS v{number}"
            joins += f" LEFT JOIN ({values}) AS b{number} ON {same}"
        rows = f"SELECT s.*{columns} FROM ({self.state.joined()}) AS s{joins}"
        return f"SELECT {self._results('{}', 'v')}, {tick} AS {TIME}, CAST(1 AS BIGINT) AS {DIFF} FROM ({rows})"

    def _results(self, of: str, beside: str) -> str:
        made = [each.name for each in self._keys]
        for number, each in enumerate(self._group.aggregates):
            count, total = of.format(f"a{number}"), of.format(f"s{number}")
            value = of.format("n") if each.argument is None else count
            if not each.function.startswith("count"):
                found = f"{beside}{number}"
                if each.function == "avg" and each.doubles:
                    found = f"{found} / CAST({count} AS DOUBLE)"
                elif self._adds(each):
                    found = self._total(number, each, of, total, count)
                value = f"CASE WHEN {count} <> 0 THEN {found} END"
            made.append(f"CAST({value} AS {duck_type(each.type)}) AS c{len(self._keys) + number}")
        return ", ".join(made)

    def _total(self, number: int, each: Aggregate, of: str, total: str, count: str) -> str:
        if each.function == "avg":
            return f"mean({total}, {count})"
        digits, scale = self._kind(each)
        if digits <= EXACT_DIGITS:
            return total
        whole = f"{of.format(f'h{number}')} * {10**EXACT_DIGITS} + {total}"
        return f"pointed({whole}, {scale})" if scale else f"CAST({whole} AS VARCHAR)"


def canonical(column: Column) -> str:
    """A key as SQL: there is one zero and one NaN."""
    name = quoted(column.name)
    if column.type == "DOUBLE":
        return (
            f"CASE WHEN {name} = 0 THEN CAST(0 AS DOUBLE) WHEN isnan({name}) THEN CAST('NaN' AS DOUBLE) ELSE {name} END"
        )
    return name


def quoted(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def duck_type(kind: str) -> str:
    """DuckDB's name of one of Spark's types."""
    return _TYPES.get(kind, kind)

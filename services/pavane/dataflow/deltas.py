"""Rules 1 and 2 of maintenance: statements over changes and state tables (docs/specs/compute.md 16.2).

A state table holds partial sums by key, several rows of a key among them: who adds writes rows and reads none. What a
key was is the sum of its rows. Each statement is SQL of both engines, but for what a `Dialect` says; `source`, `delta`,
`prior` name relations with the columns that are said. None of them depends on when it runs, so every tick is told apart
by its number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pavane.dataflow.bound import decimal_of
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
    "CREATE TEMP MACRO exact_mean(s, n) AS CASE WHEN abs(s) <= 9007199254740992 THEN CAST(s AS DOUBLE) / CAST(n AS"
    " DOUBLE) ELSE sign(s) * CAST(CAST(abs(s) * shifted(s, n) // n AS UBIGINT)"
    " | CAST(abs(s) * shifted(s, n) % n <> 0 AS UBIGINT) AS DOUBLE) / CAST(shifted(s, n) AS DOUBLE) END",
)

Sum = tuple[str, str, str]
"""Name, type, and the aggregate over a source as SQL."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one engine says differently."""

    quote: str
    twice: str
    """Makes two rows of one, with 1 and with -1."""
    hashed: str
    """A number by which a key is found; empty: by the key itself."""
    parts: Callable[[str, str, bool], Sequence[Sum]]
    """What is summed up of a value of a type, each part named by a letter; diffs may be known to count rows alone."""
    total: Callable[[str, str], str]
    """The sum as an engine shows it, by the number in the names of its parts and the type of the values."""

    def quoted(self, name: str) -> str:
        """A name as SQL."""
        return f"{self.quote}{name.replace(self.quote, 2 * self.quote)}{self.quote}"

    def canonical(self, column: Column) -> str:
        """A key as SQL: there is one zero and one NaN."""
        name = self.quoted(column.name)
        if column.type != "DOUBLE":
            return name
        zero, nan = "CAST(0 AS DOUBLE)", "CAST('NaN' AS DOUBLE)"
        return f"CASE WHEN {name} = 0 THEN {zero} WHEN isnan({name}) THEN {nan} ELSE {name} END"

    def renamed(self, source: str, columns: Sequence[Column]) -> str:
        """SELECT the columns of a relation by their places: there may be more, for an order."""
        names = [f"c{i} AS {self.quoted(each.name)}" for i, each in enumerate(columns)]
        return f"SELECT {listed(names, TIME, DIFF)} FROM {source}"

    def consolidated(self, source: str, columns: Sequence[Column]) -> str:
        """SELECT rows with the sums of their diffs."""
        made = listed([self.quoted(each.name) for each in columns], f"CAST({TIME} AS BIGINT) AS {TIME}")
        sums = f"CAST(sum({DIFF}) AS BIGINT) AS {DIFF}"
        return f"SELECT {made}, {sums} FROM ({source}) GROUP BY ALL HAVING sum({DIFF}) <> 0"


def _parts(value: str, kind: str, _single: bool) -> Sequence[Sum]:
    digits, scale = decimal_of(kind)
    if digits > EXACT_DIGITS:
        halves = (("h", "//"), ("s", "%"))
        return [(n, "HUGEINT", f"sum(digits_of({value}) {by} {10**EXACT_DIGITS} * {DIFF})") for n, by in halves]
    if kind.startswith("DECIMAL"):
        return [("s", f"DECIMAL(38,{scale})", f"sum({value} * {DIFF})")]
    return [("s", "HUGEINT", f"sum(CAST({value} AS HUGEINT) * {DIFF})")]


def _total(number: str, kind: str) -> str:
    digits, scale = decimal_of(kind)
    if digits <= EXACT_DIGITS:
        return f"s{number}"
    whole = f"h{number} * {10**EXACT_DIGITS} + s{number}"
    return f"pointed({whole}, {scale})" if scale else f"CAST({whole} AS VARCHAR)"


DUCKDB = Dialect('"', "unnest([CAST(1 AS BIGINT), CAST(-1 AS BIGINT)])", "", _parts, _total)


def listed(*names: str | Sequence[str]) -> str:
    """Return names with commas between."""
    return ", ".join(each for some in names for each in ([some] if isinstance(some, str) else some))


def same(one: str, other: str, keys: Sequence[str]) -> str:
    """Return the condition that two relations have equal keys; NULL equals NULL."""
    return " AND ".join(f"{one}.{key} IS NOT DISTINCT FROM {other}.{key}" for key in keys) or "TRUE"


def of_keys(table: str, keys: Sequence[str], touched: str) -> str:
    """FROM the rows of a table whose keys are in a relation."""
    return f"{table} AS s SEMI JOIN {touched} AS d ON {same('s', 'd', keys)}" if keys else f"{table} AS s"


@dataclass(frozen=True, slots=True)
class State:
    """Names, keys and sums of a state table."""

    table: str
    keys: tuple[Column, ...]
    sums: tuple[tuple[str, str], ...]
    """Name and type."""

    @property
    def ddl(self) -> str:
        """Names and types of all columns."""
        return listed([f"{each.name} {each.type}" for each in self.keys], [" ".join(each) for each in self.sums])

    @property
    def key_names(self) -> list[str]:
        """Of the key columns."""
        return [each.name for each in self.keys]

    @property
    def sum_names(self) -> list[str]:
        """Of what is summed up."""
        return [name for name, _ in self.sums]

    @property
    def names(self) -> str:
        """Of all columns."""
        return listed(self.key_names, self.sum_names)

    def row(self, value: str) -> str:
        """SELECT one row with this value in each column."""
        kinds = [*((each.name, each.type) for each in self.keys), *self.sums]
        return f"SELECT {listed([f'CAST({value} AS {kind}) AS {name}' for name, kind in kinds])}"

    def summed(self, source: str) -> str:
        """SELECT the sums of rows of the state's columns by key."""
        sums = [f"CAST(sum({name}) AS {kind}) AS {name}" for name, kind in self.sums]
        grouped = f" GROUP BY {listed(self.key_names)}" if self.keys else ""
        return f"SELECT {listed(self.key_names, sums)} FROM {source}{grouped}"

    def joined(self, source: str = "") -> str:
        """SELECT one row for each key that is there, to take the place of many."""
        return self.summed(source or self.table) + (" HAVING sum(n) <> 0" if self.keys else "")

    def stepped(self, prior: str, delta: str, *, single: bool) -> str:
        """SELECT of each key and tick of a delta the sums after it, and as `p_…` those before it.

        With a `single` tick, which a step near the present has, no sums over time are needed.
        """
        keys, sums = self.key_names, self.sum_names
        if single:
            old = listed(keys, "CAST(NULL AS BIGINT) AS t", sums, [f"{name} AS p_{name}" for name in sums])
            new = listed(keys, "t", sums, [f"CAST(0 AS {kind}) AS p_{name}" for name, kind in self.sums])
            made = [f"CAST(sum({of}{name}) AS {kind}) AS {of}{name}" for of in ("", "p_") for name, kind in self.sums]
            rows = f"SELECT {old} FROM {prior} UNION ALL SELECT {new} FROM {delta}"
            by = f" GROUP BY {listed(keys)}" if keys else ""
            last = listed(keys, "max(t) AS t", made)
            return f"SELECT * FROM (SELECT {last} FROM ({_together(rows)}){by}) WHERE t IS NOT NULL"
        by = listed(keys, "t")
        rows = (
            f"SELECT {listed(keys, 'CAST(-1 AS BIGINT) AS t', sums)} FROM {prior} UNION ALL "
            f"SELECT {by}, {listed(sums)} FROM {delta}"
        )
        made = [f"CAST(sum({name}) AS {kind}) AS {name}" for name, kind in self.sums]
        window = f"{'PARTITION BY ' + listed(keys) if keys else ''} ORDER BY t ROWS BETWEEN UNBOUNDED PRECEDING AND"
        run = [  # a difference of two sums would have a digit too many
            f"coalesce(CAST(sum({name}) OVER ({window} {end}) AS {kind}), 0) AS {of}{name}"
            for name, kind in self.sums
            for of, end in (("", "CURRENT ROW"), ("p_", "1 PRECEDING"))
        ]
        added = f"SELECT {by}, {listed(made)} FROM ({_together(rows)}) GROUP BY {by}"
        return f"SELECT * FROM (SELECT {by}, {listed(run)} FROM ({added})) WHERE t >= 0"


def _together(rows: str) -> str:
    """What Spark evaluates as one task; to DuckDB the hint is a comment."""
    return f"SELECT /*+ REPARTITION(1) */ * FROM ({rows})"


class Stage:
    """A step that remembers: `state` is what it knows, `keys` and `sums` come of its input, `shown` of the state.

    `weight` is how often what is `shown` of a key is there. With `counts` that is all that ever changes of it.
    """

    def __init__(
        self,
        table: str,
        keys: Sequence[tuple[str, str]],
        sums: Sequence[Sum],
        shown: Sequence[str],
        weight: str,
        dialect: Dialect,
        *,
        counts: bool = False,
    ) -> None:
        names = [f"c{i}" for i in range(len(keys))]
        self.table = table
        made = [made for _, made in keys]
        columns = [Column(name, kind) for name, (kind, _) in zip(names, keys, strict=True)]
        if dialect.hashed and keys:
            made, names = [dialect.hashed.format(listed(made)), *made], ["h", *names]
            columns.insert(0, Column("h", "BIGINT"))
        elif dialect.hashed:  # of the one row that there is always
            sums = [("h", "BIGINT", "0"), *sums]
        self.state = State(table, tuple(columns), tuple((name, kind) for name, kind, _ in sums))
        self.weight = weight
        self._made = [f"{each} AS {name}" for each, name in zip(made, names, strict=True)]
        self._sums = [f"CAST({each} AS {kind}) AS {name}" for name, kind, each in sums]
        self._shown = listed(shown)
        self._counts = counts
        self._twice = dialect.twice

    def delta(self, source: str, *, times: bool = True) -> str:
        """SELECT the partial sums of updates: the columns of the state, and `t` unless there are no `times`."""
        by = [*self._made, *([f"CAST({TIME} AS BIGINT) AS t"] if times else [])]
        grouped = f" GROUP BY {listed([str(i + 1) for i in range(len(by))])}" if by else ""
        there = f" HAVING sum({DIFF}) <> 0" if self._counts else ""
        return f"SELECT {listed(by, self._sums)} FROM {source}{grouped}{there}"

    def out(self, delta: str, prior: str = "", *, beside: Mapping[int, str] | None = None, single: bool = False) -> str:
        """SELECT the updates that follow from a delta, of a `single` tick or many, which is not in the state yet.

        `prior` are rows of the state, those of the delta's keys at least. `beside` SELECTs values at each key and tick
        of the delta and at tick -1, as `v`.
        """
        if self.weight == Counts.ALL:
            return self._results(delta, "t", "1")
        state = self.state
        names = state.key_names
        stepped = state.stepped(prior or of_keys(self.table, names, delta), delta, single=single)
        if self._counts:
            change = f"{self.weight.format('n')} - {self.weight.format('p_n')}"
            made = f"SELECT {self._shown}, t AS {TIME}, {change} AS {DIFF} FROM ({stepped})"
            return f"SELECT * FROM ({made}) WHERE {DIFF} <> 0"
        both = [*state.sum_names, *(f"v{number}" for number in beside or {})]
        joins = columns = ""
        for number, values in (beside or {}).items():
            by = f"PARTITION BY {listed(names)} " if names else ""
            columns += f", b{number}.v AS v{number}, b{number}.u AS p_v{number}"
            joins += (
                f" LEFT JOIN (SELECT *, lag(v) OVER ({by}ORDER BY t) AS u FROM ({values})) AS b{number} "
                f"ON {same('s', f'b{number}', [*names, 't'])}"
            )
        twice = f"SELECT s.*{columns}, {self._twice} AS d FROM ({stepped}) AS s{joins}"
        sides = [f"CASE WHEN d = 1 THEN {name} ELSE p_{name} END AS {name}" for name in both]
        return self._results(f"(SELECT {listed(names, 't', 'd', sides)} FROM ({twice}))", "t", "d")

    def contents(self, tick: int, source: str = "", *, beside: Mapping[int, str] | None = None) -> str:
        """SELECT what the state, or a relation with one row of it for each key, says, as updates of one tick.

        `beside` SELECTs the value of each key, as `v`.
        """
        rows, joins, columns = source or f"({self.state.joined()})", "", ""
        for number, values in (beside or {}).items():
            columns += f", b{number}.v AS v{number}"
            joins += f" LEFT JOIN ({values}) AS b{number} ON {same('s', f'b{number}', self.state.key_names)}"
        rows = f"(SELECT s.*{columns} FROM {rows} AS s{joins})" if joins else rows
        return self._results(rows, f"CAST({tick} AS BIGINT)", "1")

    def _results(self, source: str, time: str, diff: str) -> str:
        found = f"SELECT *, {self.weight.format('n')} AS w FROM {source}"
        return f"SELECT {self._shown}, {time} AS {TIME}, {diff} * w AS {DIFF} FROM ({found}) WHERE w <> 0"


class Counts(Stage):
    """How often each row is there. It lets pass the changes of what `weight` makes of that number."""

    ALL = "{}"
    ONCE = "CAST({} > 0 AS BIGINT)"
    """DISTINCT."""
    NEVER_LESS = "greatest({}, 0)"
    """A table with `diff`: who takes a row back that is not there takes the next one."""

    def __init__(self, table: str, columns: Sequence[Column], weight: str, dialect: Dialect = DUCKDB) -> None:
        keys = [(each.type, dialect.canonical(each)) for each in columns]
        shown = [f"c{i} AS {dialect.quoted(each.name)}" for i, each in enumerate(columns)]
        super().__init__(table, keys, [("n", "BIGINT", f"sum({DIFF})")], shown, weight, dialect, counts=True)


class Sums(Stage):
    """Rows, values and sums of each group. Its changes are rows `c0`, `c1`, …: the keys, then the aggregates.

    Of aggregates that are no sums it has the number of values; what they are comes from `beside`, by their numbers.
    `single`: diffs count rows, and are not given by users.
    """

    def __init__(
        self, table: str, group: Group, columns: Sequence[Column], dialect: Dialect = DUCKDB, *, single: bool = False
    ) -> None:
        sums: list[Sum] = [("n", "BIGINT", f"coalesce(sum({DIFF}), 0)")]
        shown = [f"c{i}" for i in range(group.keys)]
        for number, each in enumerate(group.aggregates):
            result = "n"
            if each.argument is not None:
                argument = columns[each.argument]
                value, result = dialect.quoted(argument.name), f"a{number}"
                known = f"coalesce(sum({DIFF}) FILTER (WHERE {value} IS NOT NULL), 0)"
                sums.append((result, "BIGINT", "0" if each.function == "count_distinct" else known))
                if adds(each):
                    parts = dialect.parts(value, argument.type, single)
                    sums += [(f"{letter}{number}", kind, f"coalesce({made}, 0)") for letter, kind, made in parts]
                if not each.function.startswith("count"):
                    found = self._found(number, each, argument, dialect)
                    result = f"CASE WHEN a{number} <> 0 THEN {found} END"
            shown.append(f"CAST({result} AS {each.type}) AS c{len(shown)}")
        keys = [(each.type, dialect.canonical(each)) for each in columns[: group.keys]]
        super().__init__(table, keys, sums, shown, "CAST({} <> 0 AS BIGINT)" if keys else "1", dialect)

    @staticmethod
    def _found(number: int, each: Aggregate, argument: Column, dialect: Dialect) -> str:
        if not adds(each):
            return f"v{number} / CAST(a{number} AS DOUBLE)" if each.function == "avg" else f"v{number}"
        return (
            f"exact_mean(s{number}, a{number})" if each.function == "avg" else dialect.total(str(number), argument.type)
        )


def adds(each: Aggregate) -> bool:
    """Whether it is the sum of its values, or their average, which does not depend on their order."""
    return each.function in ("sum", "avg") and not each.doubles

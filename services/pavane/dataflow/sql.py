"""Scripts: tables of the log and views over them, read and checked without an engine (docs/specs/compute.md 14.1)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from pavane.dataflow.bound import Places
from pavane.dataflow.expressions import column_type
from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import DIFF, TIME, Column, Format, Mode, Script, SqlError, SqlView, Table
from pavane.dataflow.reading import statements_of, tokens_of
from pavane.dataflow.select import Planner
from pavane.dataflow.sources import Plain, Relation
from pavane.dataflow.surface import check_arguments, check_nodes
from pavane.dataflow.temporal import with_clock

SCRIPT_BYTES_MAX = 65_536
TABLES_MAX = 32
VIEWS_MAX = 32
COLUMNS_MAX = 512
PARTITIONS_MAX = 1024
VIEW_FORM = "Write CREATE MATERIALIZED VIEW NAME AS SELECT …."
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
OPTIONS = ("partitions", "format", "mode", "diff", "key")
RAW = {"header": "BIGINT", "data": "BINARY"}
# The parser warns of what it does not know; here that is an error with a place.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
_AFTER_COMMA = {TokenType.FROM, TokenType.R_PAREN, TokenType.SEMICOLON, TokenType.WHERE, TokenType.GROUP_BY}


def parse(text: str) -> Script:
    """Read a script of `CREATE TABLE … USING waltz` and `CREATE MATERIALIZED VIEW`. Raises `SqlError`."""
    if len(text.encode()) > SCRIPT_BYTES_MAX:
        raise SqlError(1, 1, f"the script is longer than {SCRIPT_BYTES_MAX} bytes", "Make several.")
    try:
        return checked(text, _statements(text))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # What the check did not foresee is the script's fault all the same, and ends nothing of others.
        raise SqlError(1, 1, f"it cannot be planned ({type(error).__name__}: {error})", "Please report it.") from error


def checked(text: str, statements: Iterable[tuple[int, exp.Expr]]) -> Script:
    """Return what the statements of a script say; each comes with where it begins. Raises `SqlError`."""
    places = Places(text)
    tables: dict[str, Table] = {}
    views: dict[str, SqlView] = {}
    plain: dict[str, Plain] = {}
    for start, statement in statements:
        places.start = start
        if not isinstance(statement, exp.Create) or statement.kind not in ("TABLE", "VIEW"):
            places.refuse(
                statement,
                "a script has tables and views",
                "Known: CREATE TABLE … USING waltz, CREATE MATERIALIZED VIEW … AS SELECT.",
            )
        check_arguments(with_clock(statement), places)
        name = _name(statement, places)
        if name.lower() in {**tables, **views, **plain}:
            places.refuse(statement.this, f"{name} is created twice")
        if statement.kind == "TABLE":
            tables[name.lower()] = _table(statement, name, places)
        elif statement.args.get("properties") is None:
            plain[name.lower()] = _plain(statement, name, {**tables, **views, **plain}, places)
        else:
            views[name.lower()] = _view(statement, name, {**tables, **views, **plain}, places)
        check_nodes(statement, places)
    if not views:
        raise SqlError(1, 1, "the script has no view", "Add CREATE MATERIALIZED VIEW name AS SELECT ….")
    if len(tables) > TABLES_MAX or len(views) + len(plain) > VIEWS_MAX:
        raise SqlError(1, 1, f"a script has up to {TABLES_MAX} tables and {VIEWS_MAX} views", "Make several.")
    return Script(tuple(tables.values()), tuple(views.values()))


def _statements(text: str) -> list[tuple[int, exp.Expr]]:
    """Parse each statement and say where it begins."""
    try:
        tokens = tokens_of(text)
        for number, token in enumerate(tokens):
            following = tokens[number + 1].token_type if number + 1 < len(tokens) else TokenType.SEMICOLON
            if token.token_type is TokenType.COMMA and following in _AFTER_COMMA:
                raise SqlError(token.line, _start(text, token.start), "nothing follows this comma", "Remove it.")
        starts = [each.start for number, each in enumerate(tokens) if _begins(tokens, number)]
        return list(zip(starts, statements_of(text, tokens), strict=True))
    except ParseError as error:
        first: dict[str, Any] = error.errors[0] if error.errors else {}
        line, column = first.get("line") or 1, first.get("col") or 1
        raise SqlError(line, column, str(first.get("description") or "this is no SQL").rstrip(".").lower()) from None
    except TokenError as error:
        raise SqlError(1, 1, f"this is no SQL: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise SqlError(1, 1, "the script is nested too deeply") from None
    except ValueError as error:
        raise SqlError(1, 1, f"a string is none: {error}") from None


def _begins(tokens: list[Token], number: int) -> bool:
    """Whether a statement begins with this token."""
    first = number == 0 or tokens[number - 1].token_type is TokenType.SEMICOLON
    return first and tokens[number].token_type is not TokenType.SEMICOLON


def _start(text: str, start: int) -> int:
    return start - (text.rfind("\n", 0, start) + 1) + 1


def _name(statement: exp.Create, places: Places) -> str:
    table = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
    if not isinstance(table, exp.Table) or table.args.get("db") or NAME.fullmatch(table.name) is None:
        places.refuse(
            statement.this, f"{statement.this.sql(dialect='spark')} is no name", "Letters, digits and _, 63 at most."
        )
    return str(table.name)


def _table(statement: exp.Create, name: str, places: Places) -> Table:
    properties = statement.args.get("properties")
    options: dict[str, str] = {}
    using = ""
    for part in properties.expressions if properties is not None else ():
        if isinstance(part, exp.FileFormatProperty):
            using = part.name.lower()
        elif isinstance(part, exp.OptionsProperty):
            for option in part.expressions:
                key = option.name.lower()
                if key not in OPTIONS:
                    places.refuse(option, f"{option.name} is no option of a table", f"Known: {', '.join(OPTIONS)}.")
                value = option.args["value"]
                if not isinstance(value, exp.Literal):
                    places.refuse(option, f"option {key} is no literal", "Write a string, as in key 'id'.")
                options[key] = value.name
        else:
            places.refuse(part, f"{part.sql(dialect='spark')} is not supported here")
    if using != "waltz" or statement.expression is not None:
        places.refuse(
            statement.this, f"table {name} is not made of the log", "Write USING waltz OPTIONS (partitions '0-2')."
        )
    form = _word(Format, "format", options.get("format", Format.JSON).lower(), statement, places)
    mode = _word(Mode, "mode", options.get("mode", Mode.PERMISSIVE).upper(), statement, places)
    if not isinstance(statement.this, exp.Schema):
        places.refuse(statement.this, f"table {name} has no columns", "Write their names and types in ( ).")
    columns = _columns(statement.this, places)
    if form is Format.RAW and any(RAW.get(column.name) != column.type for column in columns):
        places.refuse(statement.this, "a raw table has the columns header BIGINT and data BINARY")
    diff = _word(bool, "diff", options.get("diff", "false").lower(), statement, places)
    key = _key(statement, options.get("key"), columns, places)
    if key and (diff or form is Format.RAW):
        places.refuse(statement.this, "a table with a key has neither diff nor the format raw")
    return Table(name, columns, _partitions(statement, options.get("partitions"), places), form, mode, diff, key)


def _key(statement: exp.Create, text: str | None, columns: tuple[Column, ...], places: Places) -> tuple[str, ...]:
    """Read `id` or `region, id`."""
    if text is None:
        return ()
    known = {column.name.lower(): column.name for column in columns}
    named = [part.strip().lower() for part in text.split(",")]
    if len(set(named)) != len(named) or not set(named) < known.keys():
        instead = "Name some of the columns, not all, as in OPTIONS (key 'id')."
        places.refuse(statement.this, f"key '{text}' is no key of the table", instead)
    return tuple(known[name] for name in named)


def _word(kind: Any, option: str, value: str, statement: exp.Create, places: Places) -> Any:
    known = {"true": True, "false": False} if kind is bool else {each.value: each for each in kind}
    if value not in known:
        places.refuse(statement.this, f"{option} '{value}' is not known", f"Known: {', '.join(known)}.")
    return known[value]


def _columns(schema: exp.Schema, places: Places) -> tuple[Column, ...]:
    columns: list[Column] = []
    for part in schema.expressions:
        if not isinstance(part, exp.ColumnDef) or part.args.get("kind") is None:
            places.refuse(part, f"{part.sql(dialect='spark')} is no column", "Write NAME TYPE.")
        if NAME.fullmatch(part.name) is None or part.name.lower() in (TIME, DIFF):
            places.refuse(part, f"{part.name} is no name of a column", "Letters, digits and _, 63 at most.")
        if part.name.lower() in {column.name.lower() for column in columns}:
            places.refuse(part, f"column {part.name} is there twice")
        columns.append(Column(part.name, column_type(part.args["kind"], places)))
    if len(columns) > COLUMNS_MAX:
        places.refuse(schema, f"a table has up to {COLUMNS_MAX} columns")
    return tuple(columns)


def _partitions(statement: exp.Create, text: str | None, places: Places) -> tuple[int, ...]:
    """Read `0-2,5`."""
    found: set[int] = set()
    for part in (text or "").split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", part)
        if ends is None or int(ends[2] or ends[1]) - int(ends[1]) not in range(PARTITIONS_MAX):
            places.refuse(statement.this, f"partitions '{text or ''}' are none", "Write OPTIONS (partitions '0-2,5').")
        found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return tuple(sorted(found))


def _plain(statement: exp.Create, name: str, tables: Mapping[str, Relation], places: Places) -> Plain:
    _, columns, _ = _planned(statement, name, tables, places)
    return Plain(name, columns, statement.expression, tables)


def _view(statement: exp.Create, name: str, tables: Mapping[str, Relation], places: Places) -> SqlView:
    properties = statement.args["properties"]
    if [type(part) for part in properties.expressions] != [exp.MaterializedProperty]:
        places.refuse(statement.this, f"view {name} is not of the known form", VIEW_FORM)
    plan, columns, used = _planned(statement, name, tables, places)
    return SqlView(name, statement.expression.sql(dialect="spark"), columns, used, plan.encode())


def _planned(
    statement: exp.Create, name: str, tables: Mapping[str, Relation], places: Places
) -> tuple[Plan, tuple[Column, ...], tuple[str, ...]]:
    if isinstance(statement.this, exp.Schema) or statement.expression is None:
        places.refuse(statement.this, f"view {name} is not of the known form", VIEW_FORM)
    try:
        return Planner(tables, places).plan(statement.expression.copy())
    except (RecursionError, SqlglotError):  # the parser makes a TokenError of the first
        what = f"view {name} is nested too deeply for an engine to read"
        places.refuse(statement.this, what, "write IN (…) for many OR, or several views")

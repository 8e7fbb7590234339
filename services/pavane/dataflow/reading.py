"""Reads views from their chains: contents at a tick, changes as they come (docs/specs/compute.md 14.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from pavane.dataflow.chain import Chain, columns_of
from pavane.dataflow.entries import decode
from pavane.dataflow.log import Log
from pavane.dataflow.rows import Multiset, Row, updates_of
from pavane.dataflow.types import arrow_schema

POLL_S = 0.05
"""Between two looks at the end of the home partition."""


class QueryError(Exception):
    """A query cannot be answered; the text says what is wrong with it."""


@dataclass(slots=True)
class Reader:
    """One view as its chain tells it, up to the chain's upper."""

    chain: Chain
    changes: list[tuple[Row, int, int]] = field(default_factory=list)
    """Updates that were read and not yet handed out."""

    def at(self, tick: int) -> Multiset:
        """Return the contents at a tick; needs the changes since. Raises `QueryError` where the chain has them not."""
        created = self.chain.created
        if created is None or not created.as_of <= tick < self.chain.upper:
            raise QueryError(
                f"view {self.chain.name} can be read at ticks from {created.as_of if created else 0} to "
                f"{self.chain.upper - 1}, not at {tick}"
            )
        found = Multiset()
        for row, time, diff in self.changes:
            if time <= tick:
                found.add(row, diff)
        return found

    @property
    def schema(self) -> pa.Schema:
        """Columns of the view."""
        assert self.chain.created is not None  # noqa: S101 - a reader is made by its chain's first entry
        return arrow_schema(columns_of(self.chain.created))


class Views:
    """All views that have their chains in one home partition."""

    def __init__(self, log: Log, partition: int) -> None:
        self._log = log
        self._partition = partition
        self._position = 0
        self.readers: dict[str, Reader] = {}

    async def read_on(self, until: Mapping[str, int] | None = None) -> None:
        """Read to the end of the partition, at least until each named chain has this upper."""
        while True:
            end = await self._log.hwm(self._partition) + 1
            async for transaction in self._log.read(self._partition, self._position, end):
                self._position = transaction.id + 1
                entry = decode(transaction.header, transaction.data)
                if entry is None:
                    continue
                reader = self.readers.setdefault(entry.chain, Reader(Chain(entry.chain)))
                updates = reader.chain.take(entry)
                for row, time, diff in updates_of(updates) if updates is not None else ():
                    reader.changes.append((row, time, diff))
            uppers = {name: reader.chain.upper for name, reader in self.readers.items()}
            if all(uppers.get(name, 0) >= upper for name, upper in (until or {}).items()):
                return
            await asyncio.sleep(POLL_S)

    async def follow(self, view: str) -> AsyncGenerator[tuple[list[str], list[tuple[Row, int, int]]], None]:
        """Yield columns and changes of a view whenever its chain grew; its contents come first, as changes."""
        upper = 0
        while True:
            await self.read_on()
            reader = self.readers.get(view)
            if reader is not None and reader.chain.upper > upper:
                upper = reader.chain.upper
                changes, reader.changes = reader.changes, []
                yield reader.schema.names, changes
            await asyncio.sleep(POLL_S)

    def names(self, sql: str) -> tuple[str, ...]:
        """Return the views that a query reads. Raises `QueryError`."""
        return tuple(_tables(_parsed(sql), self.readers))

    def query(self, sql: str, tick: int | None = None) -> tuple[int, pa.Table]:
        """Return the rows of a SELECT in Spark's SQL over the views at a tick, and the tick.

        Without a tick it is the last one at which all views that the query reads are final. Raises `QueryError`.
        """
        select = _parsed(sql)
        if tick is None:
            tick = min((self.readers[name].chain.upper for name in _tables(select, self.readers)), default=1) - 1
        connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        try:
            connection.execute("SET timezone = 'UTC'")
            for name in _tables(select, self.readers):
                reader = self.readers[name]
                connection.register(name, reader.at(tick).table(reader.schema))
            return tick, connection.sql(select.sql(dialect="duckdb")).to_arrow_table()
        except duckdb.Error as error:
            raise QueryError(str(error).partition("\n")[0]) from error
        finally:
            connection.close()


def _parsed(sql: str) -> exp.Query:
    try:
        statements = [each for each in sqlglot.parse(sql, dialect="spark") if each is not None]
    except (SqlglotError, RecursionError) as error:
        raise QueryError(f"this is no SQL: {str(error).partition(chr(10))[0]}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise QueryError("a query is one SELECT")
    return statements[0]


def _tables(select: exp.Query, readers: Mapping[str, Reader]) -> list[str]:
    """Return the views that a query names. Raises `QueryError` for one that there is not."""
    inner = {each.alias.lower() for each in select.find_all(exp.CTE)}
    known = {name.lower(): name for name in readers}
    found = []
    for table in select.find_all(exp.Table):
        name = table.name.lower()
        if name in known and not table.db:
            found.append(known[name])
        elif name not in inner or table.db:
            raise QueryError(
                f"there is no view {table.sql(dialect='spark')}; views here: {', '.join(sorted(readers)) or 'none'}"
            )
    return found

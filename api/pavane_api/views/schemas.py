"""Views, queries and rows as the REST API shows them."""

from typing import Any

from pydantic import Field

from pavane_api.documents import StrictDocument

SQL_CHARACTERS_MAX = 65_536
AFTER = r"^[0-9]{1,4}:[0-9]{1,18}(,[0-9]{1,4}:[0-9]{1,18}){0,63}$"
TICK_MAX = (1 << 63) - 1


class ViewColumn(StrictDocument):
    """A column of a view or of an answer."""

    name: str
    """Its name."""
    type: str
    """Of a view its SQL type, of an answer that of Arrow."""


class ViewInfo(StrictDocument):
    """A view, and how far it is."""

    name: str
    """Its name."""
    script: str | None
    """The script that has it; null where the script is refused now and the view is of an earlier one."""
    sql: str | None
    """Its SELECT."""
    columns: list[ViewColumn]
    """Its columns."""
    tick: int | None
    """The last tick at which it is final; null while it is not built yet."""
    frontier: int | None
    """The first tick at which it is not final."""
    lag_ticks: int | None
    """How many ticks it lacks."""
    lag_ms: int | None
    """For how long it has lacked them, in ms; 0 when it lacks none."""
    failure: str | None
    """Why it stays as it is, as the pod says; null where nothing failed, and while no pod answers."""


class ViewInfos(StrictDocument):
    """All views of a ComputeCluster."""

    tick: int
    """The last tick there is, 0 before the first."""
    bad_rows: int | None
    """How many rows could not be read; null while no pod answers."""
    items: list[ViewInfo]
    """In the order of scripts and views."""


class QueryRequest(StrictDocument):
    """A query."""

    sql: str = Field(min_length=1, max_length=SQL_CHARACTERS_MAX)
    """One SELECT over views, in Spark's SQL."""
    after: str | None = Field(default=None, pattern=AFTER)
    """Wait until these transactions count, `PARTITION:TRANSACTION,…`: read what you wrote."""
    as_of: int | None = Field(default=None, ge=0, le=TICK_MAX)
    """Read at this tick instead of the last one."""


class QueryAnswer(StrictDocument):
    """The rows of a query, all of one tick."""

    tick: int
    """The tick at which they are right."""
    stale_ms: int | None
    """For how long, at most, the views had lacked rows of their tables then, in ms; null where the log did not say."""
    columns: list[ViewColumn]
    """Their columns."""
    rows: list[dict[str, Any]]
    """Values by name; decimal fractions, dates and binaries are strings."""


class BadRowInfo(StrictDocument):
    """A row that could not be read."""

    table: str
    """Whose it is."""
    script: str | None
    """The script that has the table; null where it is one of an earlier script."""
    tick: int
    """The tick at which it came."""
    partition: int
    """Its partition."""
    transaction: int
    """Its transaction."""
    reason: str
    """What is wrong with it."""


class BadRows(StrictDocument):
    """Rows that could not be read since the tables begin."""

    count: int
    """All of them."""
    items: list[BadRowInfo]
    """The last ones, oldest first."""

"""Spans in SQLite: one thread writes and reads; age, number and bytes bound what is kept, in the order of arrival.

A trace as shown is more than the spans of its id: programs that share only a protocol id link to the same derived
context, so their spans are found by links (``TraceStore.trace``).
"""

import functools
import heapq
import json
import math
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from pavane_api.database import Database
from pavane_api.traces.schemas import Span, SpanLink, Trace, TraceSummary

TRACE_SPANS_MAX = 2000  # spans that one answer holds
LINK_HOPS_MAX = 8  # how far links are followed from the trace asked for
CLOCK_AHEAD_NS = 60 * 10**9  # by which the clock of a sender may be ahead of ours
PRUNE_EVERY_SPANS = 1000  # the size is looked at after so many insertions
PRUNE_EVERY_BYTES = 8 << 20  # or after so many bytes
SPARE = 10  # a full store is emptied by this part of it
ROW_BYTES = 300  # of a span beside its texts, in the table and its indices
LINK_BYTES = 250  # of a link, in the table and its index
QUERY_S_MAX = 2.0  # for one answer: spans can be linked so that reading them would take minutes
PROGRESS_STEPS = 10_000  # of SQLite's machine between two looks at the clock; about a millisecond
NAMESPACES_MAX = 16  # that one trace may name and still be shown to somebody who sees only some

_FORMAT = 2
"""Of the tables below; a file with another one is made anew, for its spans are kept for hours only."""
_SCHEMA = """
CREATE TABLE span (
  trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_span_id TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
  service TEXT NOT NULL, instance TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
  error TEXT NOT NULL, attributes TEXT NOT NULL, namespace TEXT NOT NULL, arrived_ns INTEGER NOT NULL,
  bytes INTEGER NOT NULL, id INTEGER PRIMARY KEY AUTOINCREMENT, UNIQUE (trace_id, span_id));
CREATE INDEX span_root ON span (parent_span_id, start_ns);
CREATE INDEX span_namespace ON span (trace_id, namespace);
CREATE INDEX span_bytes ON span (bytes);
CREATE TABLE link (
  trace_id TEXT NOT NULL, span_id TEXT NOT NULL, to_trace_id TEXT NOT NULL, to_span_id TEXT NOT NULL,
  PRIMARY KEY (trace_id, span_id, to_trace_id, to_span_id)) WITHOUT ROWID;
CREATE INDEX link_target ON link (to_trace_id, trace_id, span_id);
"""

STORED = tuple(name for name in Span.model_fields if name != "links")
"""Fields of a span in the order of the first columns."""

Result = TypeVar("Result")
SpanKey = tuple[str, str]  # trace id, span id


class TooConnected(Exception):
    """So many spans are linked to each other that no answer was found within ``QUERY_S_MAX``."""


class TraceStore(Database):
    """Spans by trace, for ``retention_s`` seconds and at most ``spans_max`` of them, of ``bytes_max`` bytes in all.

    What arrived first goes first, whatever time it says of itself.

    ``path`` is the database file.
    """

    what = "traces"

    def __init__(self, path: Path, *, retention_s: float, spans_max: int, bytes_max: int = 1 << 30) -> None:
        super().__init__(path, form=_FORMAT, tables=_SCHEMA)
        self._retention_ns = int(retention_s * 1e9)
        self._spans_max = spans_max
        self._bytes_max = bytes_max
        self._inserted = 0
        self._inserted_bytes = 0
        self._held: tuple[int, float] | None = None
        """How many spans and bytes there are, or more: one that was replaced counts twice. None: not counted yet."""

    async def add(self, spans: Sequence[Span], *, now_ns: int) -> None:
        """Store ``spans``; a span that is stored already is replaced. ``now_ns`` is when they arrived.

        Spans of the future are dropped, beyond CLOCK_AHEAD_NS: they would be the newest for ever.
        """
        kept = [span for span in spans if 0 <= span.start_ns <= span.end_ns <= now_ns + CLOCK_AHEAD_NS]
        await self._run(self._add, kept, now_ns)

    async def recent(
        self,
        *,
        limit: int,
        service: str = "",
        name: str = "",
        min_duration_ns: int = 0,
        errors_only: bool = False,
        parts: bool = False,
        namespace: str | None = None,
    ) -> list[TraceSummary]:
        """Return the ``limit`` newest traces whose root span fits the filters, newest first.

        With ``namespace`` those that name it and no other one. Where parts cannot be told from others in time, they are
        in it too. Raises ``TooConnected``.

        Unless ``parts``, without those that another one shows by its links: the root span links to a span of another
        trace, or to a context to which another trace has a CLIENT or PRODUCER span linked, or a span that began before.
        """
        read = functools.partial(self._recent, limit, service, name, min_duration_ns, errors_only, namespace=namespace)
        try:
            return await self._run(self._bounded, functools.partial(read, parts=parts))
        except TooConnected:
            if parts:
                raise
            return await self._run(self._bounded, functools.partial(read, parts=True))

    async def namespaces(self, trace_id: str) -> frozenset[str]:
        """Return what the spans of a trace name as their namespace; at most ``NAMESPACES_MAX`` and one."""
        return await self._run(self._namespaces, trace_id)

    async def trace(self, trace_id: str, namespaces: Collection[str] | None = None) -> Trace | None:
        """Return the spans of ``trace_id`` and those that links connect to it, or None if there is no such trace.

        Connected are the spans that link to a span of the trace, or to the same context as one of its spans, with
        their descendants; and so on from these descendants, LINK_HOPS_MAX times. The other links of a span that came
        in by a link are not followed: a batch links to many requests that have nothing to do with each other.

        Given ``namespaces``, of the connected traces only those that name one of them and no other. Raises
        ``TooConnected``.
        """
        return await self._run(self._bounded, functools.partial(self._trace, trace_id, namespaces))

    def _bounded(self, read: Callable[[], Result]) -> Result:
        """Read, for ``QUERY_S_MAX`` at most."""
        database, ends = self._database, time.monotonic() + QUERY_S_MAX
        database.set_progress_handler(lambda: time.monotonic() > ends, PROGRESS_STEPS)
        try:
            return read()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            raise TooConnected from error
        finally:
            database.set_progress_handler(None, 0)

    def _add(self, spans: Sequence[Span], now_ns: int) -> None:
        database = self._database
        attributes = [json.dumps(span.attributes) for span in spans]
        sizes = [_bytes(span, text) for span, text in zip(spans, attributes, strict=True)]
        held, self._held = self._held, None  # what is undone must be counted again
        with database:
            database.executemany(
                "INSERT OR REPLACE INTO span VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,NULL)",
                [
                    (
                        span.trace_id,
                        span.span_id,
                        span.parent_span_id,
                        span.name,
                        span.kind,
                        span.service,
                        span.instance,
                        span.start_ns,
                        span.end_ns,
                        span.error,
                        text,
                        span.namespace,
                        now_ns,
                        size,
                    )
                    for span, text, size in zip(spans, attributes, sizes, strict=True)
                ],
            )
            database.executemany(
                "INSERT OR IGNORE INTO link VALUES (?,?,?,?)",
                [(span.trace_id, span.span_id, link.trace_id, link.span_id) for span in spans for link in span.links],
            )
            self._inserted += len(spans)
            self._inserted_bytes += sum(sizes)
            if self._inserted >= PRUNE_EVERY_SPANS or self._inserted_bytes >= PRUNE_EVERY_BYTES:
                if held is not None:
                    held = held[0] + self._inserted, held[1] + self._inserted_bytes
                self._inserted = self._inserted_bytes = 0
                held = self._prune(database, now_ns, held)
        self._held = held

    def _prune(self, database: sqlite3.Connection, now_ns: int, held: tuple[int, float] | None) -> tuple[int, float]:
        """Drop what is too old or too much of what is ``held``; return what is left."""
        oldest, spans_max, bytes_max = now_ns - self._retention_ns, self._spans_max, self._bytes_max
        number, size = held or (math.inf, math.inf)
        if number > spans_max or size > bytes_max:
            number, size = database.execute("SELECT COUNT(*), TOTAL(bytes) FROM span").fetchone()
            if number > spans_max or size > bytes_max:
                # Counting reads all of them: not again before a tenth is new.
                spans_max, bytes_max = spans_max - spans_max // SPARE, bytes_max - bytes_max // SPARE
        last = 0
        for key, arrived_ns, taken in database.execute("SELECT id, arrived_ns, bytes FROM span ORDER BY id"):
            if arrived_ns >= oldest and number <= spans_max and size <= bytes_max:
                break
            last, number, size = key, number - 1, size - taken
        if not last:
            return int(number), size
        gone = "SELECT trace_id, span_id FROM span WHERE id <= ?"
        database.execute(f"DELETE FROM link WHERE (trace_id, span_id) IN ({gone})", (last,))  # noqa: S608 - no input
        database.execute("DELETE FROM span WHERE id <= ?", (last,))
        return int(number), size

    def _namespaces(self, trace_id: str) -> frozenset[str]:
        rows = self._database.execute(
            "SELECT DISTINCT namespace FROM span WHERE trace_id = ? AND namespace != '' LIMIT ?",
            (trace_id, NAMESPACES_MAX + 1),
        )
        return frozenset(namespace for (namespace,) in rows)

    def _recent(
        self,
        limit: int,
        service: str,
        name: str,
        min_duration_ns: int,
        errors_only: bool,
        *,
        parts: bool,
        namespace: str | None,
    ) -> list[TraceSummary]:
        rows = self._database.execute(
            """
            SELECT root.trace_id, root.name, root.service, root.start_ns,
                   MAX(s.end_ns) - MIN(s.start_ns) AS duration, COUNT(*), SUM(s.error != '') AS errors
            FROM span AS root JOIN span AS s ON s.trace_id = root.trace_id
            WHERE root.parent_span_id = '' AND (? = '' OR root.service = ?) AND (? = '' OR instr(root.name, ?) > 0)
                AND (? IS NULL OR (
                    EXISTS (SELECT 1 FROM span AS own WHERE own.trace_id = root.trace_id AND own.namespace = ?)
                    AND NOT EXISTS (SELECT 1 FROM span AS own
                        WHERE own.trace_id = root.trace_id AND own.namespace NOT IN ('', ?))))
                AND (? OR NOT (
                    EXISTS (SELECT 1 FROM link AS own JOIN span AS sender
                        ON sender.trace_id = own.to_trace_id AND sender.span_id = own.to_span_id
                        WHERE own.trace_id = root.trace_id AND own.span_id = root.span_id
                        AND sender.trace_id != own.trace_id)
                    OR EXISTS (SELECT 1 FROM link AS own JOIN link AS other ON other.to_trace_id = own.to_trace_id
                        JOIN span AS sender ON sender.trace_id = other.trace_id AND sender.span_id = other.span_id
                        WHERE own.trace_id = root.trace_id AND own.span_id = root.span_id
                        AND sender.trace_id != own.trace_id
                        AND (sender.kind IN ('CLIENT', 'PRODUCER') OR sender.start_ns < root.start_ns))))
            GROUP BY root.trace_id, root.span_id HAVING duration >= ? AND (NOT ? OR errors > 0)
            ORDER BY root.start_ns DESC LIMIT ?
            """,
            (service, service, name, name, *[namespace] * 3, parts, min_duration_ns, errors_only, limit),
        )
        names = ("trace_id", "name", "service", "start_ns", "duration_ns", "spans", "errors")
        return [TraceSummary.model_validate(dict(zip(names, row, strict=True))) for row in rows]

    def _trace(self, trace_id: str, namespaces: Collection[str] | None) -> Trace | None:
        database = self._database
        found = set(database.execute("SELECT trace_id, span_id FROM span WHERE trace_id = ?", (trace_id,)))
        if not found:
            return None
        frontier: set[SpanKey] = set(found)
        for _ in range(LINK_HOPS_MAX):
            came_in = self._seen(self._linking(frontier) - found, namespaces)
            if not came_in or len(found) > TRACE_SPANS_MAX:
                break
            frontier = self._descendants(came_in) - found
            found |= came_in | frontier
        rows = database.execute(
            "SELECT start_ns, end_ns, span_id, trace_id FROM span WHERE trace_id IN (SELECT value FROM json_each(?))",
            (_traces_of(found),),
        )
        first = heapq.nsmallest(TRACE_SPANS_MAX, (row for row in rows if (row[3], row[2]) in found))
        spans = [self._span(trace_id, span_id) for _, _, span_id, trace_id in first]
        return Trace(trace_id=trace_id, spans=spans, truncated=len(found) > len(spans))

    def _seen(self, spans: set[SpanKey], namespaces: Collection[str] | None) -> set[SpanKey]:
        """Those of ``spans`` whose traces name some of ``namespaces``, and no other; of None all."""
        if namespaces is None:
            return spans
        named = {trace_id: self._namespaces(trace_id) for trace_id in {trace_id for trace_id, _ in spans}}
        shown = {trace_id for trace_id, found in named.items() if found and found <= set(namespaces)}
        return {key for key in spans if key[0] in shown}

    def _linking(self, spans: set[SpanKey]) -> set[SpanKey]:
        """Spans that link to a trace of ``spans``, or to the same context as one of ``spans``."""
        targets = {trace_id for trace_id, _ in spans}
        rows = self._database.execute(
            "SELECT trace_id, span_id, to_trace_id FROM link WHERE trace_id IN (SELECT value FROM json_each(?))",
            (_traces_of(spans),),
        )
        targets |= {to_trace_id for own_trace, own_span, to_trace_id in rows if (own_trace, own_span) in spans}
        return set(
            self._database.execute(
                "SELECT trace_id, span_id FROM link WHERE to_trace_id IN (SELECT value FROM json_each(?))",
                (json.dumps(sorted(targets)),),
            )
        )

    def _descendants(self, spans: set[SpanKey]) -> set[SpanKey]:
        children: dict[SpanKey, list[SpanKey]] = {}
        rows = self._database.execute(
            "SELECT trace_id, span_id, parent_span_id FROM span WHERE trace_id IN (SELECT value FROM json_each(?))",
            (_traces_of(spans),),
        )
        for trace_id, span_id, parent in rows:
            children.setdefault((trace_id, parent), []).append((trace_id, span_id))
        found: set[SpanKey] = set()
        waiting = list(spans)
        while waiting:
            for child in children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found

    def _span(self, trace_id: str, span_id: str) -> Span:
        key = (trace_id, span_id)
        row = self._database.execute("SELECT * FROM span WHERE (trace_id, span_id) = (?, ?)", key).fetchone()
        fields = dict(zip(STORED, row, strict=False)) | {"attributes": json.loads(row[STORED.index("attributes")])}
        targets = self._database.execute(
            "SELECT to_trace_id, to_span_id FROM link WHERE (trace_id, span_id) = (?, ?)", key
        )
        return Span(**fields, links=[SpanLink(trace_id=one, span_id=other) for one, other in targets])


def _bytes(span: Span, attributes: str) -> int:
    """About what a span takes on the disk."""
    texts = len(span.name) + len(span.service) + len(span.instance) + len(span.error) + len(attributes)
    return ROW_BYTES + texts + LINK_BYTES * len(span.links)


def _traces_of(spans: set[SpanKey]) -> str:
    """Return the ids of the spans' traces as one SQL parameter, for ``json_each``."""
    return json.dumps(sorted({trace_id for trace_id, _ in spans}))

"""Spans in SQLite: one thread writes and reads, age and number bound what is kept.

A trace as shown is more than the spans of its id: programs that share only a protocol id link to the same derived
context, so their spans are found by links (``TraceStore.trace``).
"""

import asyncio
import functools
import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from pavane_api.traces.schemas import Span, SpanLink, Trace, TraceSummary

TRACE_SPANS_MAX = 2000  # spans that one answer holds
LINK_HOPS_MAX = 8  # how far links are followed from the trace asked for
CLOCK_AHEAD_NS = 60 * 10**9  # by which the clock of a sender may be ahead of ours
PRUNE_EVERY_SPANS = 1000  # the size is looked at after so many insertions

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS span (
  trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_span_id TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
  service TEXT NOT NULL, instance TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
  error TEXT NOT NULL, attributes TEXT NOT NULL, PRIMARY KEY (trace_id, span_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS span_start ON span (start_ns);
CREATE INDEX IF NOT EXISTS span_root ON span (parent_span_id, start_ns);
CREATE TABLE IF NOT EXISTS link (
  trace_id TEXT NOT NULL, span_id TEXT NOT NULL, to_trace_id TEXT NOT NULL, to_span_id TEXT NOT NULL,
  PRIMARY KEY (trace_id, span_id, to_trace_id, to_span_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS link_target ON link (to_trace_id, trace_id, span_id);
"""

P = ParamSpec("P")
Result = TypeVar("Result")
SpanKey = tuple[str, str]  # trace id, span id


class TraceStore:
    """Spans by trace, for ``retention_s`` seconds and at most ``spans_max`` of them.

    ``path`` is the database file. All methods may be called from one event loop; the work is done on a thread of the
    store's own, in the order of the calls.
    """

    def __init__(self, path: Path, *, retention_s: float, spans_max: int) -> None:
        self._path = path
        self._retention_ns = int(retention_s * 1e9)
        self._spans_max = spans_max
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trace-store")
        self._database: sqlite3.Connection | None = None
        self._inserted = 0

    async def open(self) -> None:
        """Open or create the database; raises ``sqlite3.Error`` when the file cannot be used."""
        await self._run(self._open)

    async def close(self) -> None:
        """Finish what was begun and close the file."""
        await self._run(self._close)
        self._thread.shutdown()

    async def add(self, spans: Sequence[Span], *, now_ns: int) -> None:
        """Store ``spans``; a span that is stored already is replaced. ``now_ns`` decides what is too old to keep.

        Spans of the future are dropped, beyond CLOCK_AHEAD_NS: they would outlive all others.
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
    ) -> list[TraceSummary]:
        """Return the ``limit`` newest traces whose root span fits the filters, newest first.

        Unless ``parts``, without those that another one shows by its links: the root span links to a span of another
        trace, or to a context to which another trace has a CLIENT or PRODUCER span linked, or a span that began before.
        """
        return await self._run(self._recent, limit, service, name, min_duration_ns, errors_only, parts)

    async def trace(self, trace_id: str) -> Trace | None:
        """Return the spans of ``trace_id`` and those that links connect to it, or None if there is no such trace.

        Connected are the spans that link to a span of the trace, or to the same context as one of its spans, with
        their descendants; and so on from these descendants, LINK_HOPS_MAX times. The other links of a span that came
        in by a link are not followed: a batch links to many requests that have nothing to do with each other.
        """
        return await self._run(self._trace, trace_id)

    async def _run(self, function: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
        call = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)  # what spans tell is not for every user of the machine
        self._database = sqlite3.connect(self._path, check_same_thread=False)
        self._database.executescript(_SCHEMA)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def _open_database(self) -> sqlite3.Connection:
        if self._database is None:
            raise RuntimeError("the trace store is not open")
        return self._database

    def _add(self, spans: Sequence[Span], now_ns: int) -> None:
        database = self._open_database
        with database:
            database.executemany(
                "INSERT OR REPLACE INTO span VALUES (?,?,?,?,?,?,?,?,?,?,?)",
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
                        json.dumps(span.attributes),
                    )
                    for span in spans
                ],
            )
            database.executemany(
                "INSERT OR IGNORE INTO link VALUES (?,?,?,?)",
                [(span.trace_id, span.span_id, link.trace_id, link.span_id) for span in spans for link in span.links],
            )
            self._inserted += len(spans)
            if self._inserted >= PRUNE_EVERY_SPANS:
                self._inserted = 0
                self._prune(database, now_ns)

    def _prune(self, database: sqlite3.Connection, now_ns: int) -> None:
        oldest = now_ns - self._retention_ns
        beyond = database.execute(
            "SELECT start_ns FROM span ORDER BY start_ns DESC LIMIT 1 OFFSET ?", (self._spans_max,)
        ).fetchone()
        if beyond is not None:
            oldest = max(oldest, beyond[0] + 1)
        database.execute(
            "DELETE FROM link WHERE (trace_id, span_id) IN (SELECT trace_id, span_id FROM span WHERE start_ns < ?)",
            (oldest,),
        )
        database.execute("DELETE FROM span WHERE start_ns < ?", (oldest,))

    def _recent(
        self, limit: int, service: str, name: str, min_duration_ns: int, errors_only: bool, parts: bool
    ) -> list[TraceSummary]:
        rows = self._open_database.execute(
            """
            SELECT root.trace_id, root.name, root.service, root.start_ns,
                   MAX(s.end_ns) - MIN(s.start_ns) AS duration, COUNT(*), SUM(s.error != '') AS errors
            FROM span AS root JOIN span AS s ON s.trace_id = root.trace_id
            WHERE root.parent_span_id = '' AND (? = '' OR root.service = ?) AND (? = '' OR instr(root.name, ?) > 0)
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
            (service, service, name, name, parts, min_duration_ns, errors_only, limit),
        )
        names = ("trace_id", "name", "service", "start_ns", "duration_ns", "spans", "errors")
        return [TraceSummary.model_validate(dict(zip(names, row, strict=True))) for row in rows]

    def _trace(self, trace_id: str) -> Trace | None:
        database = self._open_database
        found = set(database.execute("SELECT trace_id, span_id FROM span WHERE trace_id = ?", (trace_id,)))
        if not found:
            return None
        frontier: set[SpanKey] = set(found)
        for _ in range(LINK_HOPS_MAX):
            came_in = self._linking(frontier) - found
            if not came_in or len(found) > TRACE_SPANS_MAX:
                break
            frontier = self._descendants(came_in) - found
            found |= came_in | frontier
        kept = sorted(self._spans(found), key=lambda span: (span.start_ns, span.end_ns, span.span_id))
        return Trace(trace_id=trace_id, spans=kept[:TRACE_SPANS_MAX], truncated=len(kept) > TRACE_SPANS_MAX)

    def _linking(self, spans: set[SpanKey]) -> set[SpanKey]:
        """Spans that link to a trace of ``spans``, or to the same context as one of ``spans``."""
        targets = {trace_id for trace_id, _ in spans}
        rows = self._open_database.execute(
            "SELECT trace_id, span_id, to_trace_id FROM link WHERE trace_id IN (SELECT value FROM json_each(?))",
            (_traces_of(spans),),
        )
        targets |= {to_trace_id for own_trace, own_span, to_trace_id in rows if (own_trace, own_span) in spans}
        return set(
            self._open_database.execute(
                "SELECT trace_id, span_id FROM link WHERE to_trace_id IN (SELECT value FROM json_each(?))",
                (json.dumps(sorted(targets)),),
            )
        )

    def _descendants(self, spans: set[SpanKey]) -> set[SpanKey]:
        children: dict[SpanKey, list[SpanKey]] = {}
        rows = self._open_database.execute(
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

    def _spans(self, keys: set[SpanKey]) -> Iterable[Span]:
        traces = _traces_of(keys)
        links: dict[SpanKey, list[SpanLink]] = {}
        for trace_id, span_id, to_trace_id, to_span_id in self._open_database.execute(
            "SELECT * FROM link WHERE trace_id IN (SELECT value FROM json_each(?))", (traces,)
        ):
            links.setdefault((trace_id, span_id), []).append(SpanLink(trace_id=to_trace_id, span_id=to_span_id))
        for row in self._open_database.execute(
            "SELECT * FROM span WHERE trace_id IN (SELECT value FROM json_each(?))", (traces,)
        ):
            key = (row[0], row[1])
            if key in keys:
                fields = dict(zip(Span.model_fields, row, strict=False))
                fields["attributes"] = json.loads(row[10])
                yield Span.model_validate({**fields, "links": links.get(key, [])})


def _traces_of(spans: set[SpanKey]) -> str:
    """Return the ids of the spans' traces as one SQL parameter, for ``json_each``."""
    return json.dumps(sorted({trace_id for trace_id, _ in spans}))

"""What the views of a ComputeCluster are, at a tick, and from one tick to the next."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import httpx2
import pyarrow as pa

from pavane.dataflow.evaluating import QueryError, QueryTooLarge, QueryTooSlow
from pavane.dataflow.ports import DIFF, Script, SqlError, SqlView
from pavane.dataflow.querying import Query
from pavane.dataflow.rows import plain, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.views import POLL_S, ViewReader
from pavane.runtime.asking import ask
from pavane.runtime.ops import OPS_PORT
from pavane_api.control import Control
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_api.problems import (
    BadRequest,
    FieldProblem,
    Invalid,
    NotFound,
    Problem,
    SqlRefused,
    TooLarge,
    TooLate,
    Unavailable,
)
from pavane_api.services_http import address_of
from pavane_api.views.kept import Kept
from pavane_api.views.schemas import BadRowInfo, BadRows, QueryRequest, ViewColumn, ViewInfo, ViewInfos

AFTER_S = 20.0  # until a transaction counts; callers wait 30 s for an answer
POD_S = 2.0
PIECE_ROWS = 1000  # of an event
PROGRESS_S = 1.0  # between two events that say only that time went on


class Cluster:
    """What a ComputeCluster's spec says of its views."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.log = str(spec["waltzClusterRef"]["name"])
        self.ticks, self.views_in = int(spec["partitions"]["ticks"]), int(spec["partitions"]["views"])
        self.views: dict[str, tuple[str, SqlView]] = {}
        self.scripts: dict[str, str] = {}
        """By table."""
        self.partitions: set[int] = set()
        self.refused = False
        """A script is: the views of the one before it are kept."""
        for name, text in spec["scripts"].items():
            try:
                script = _parsed(text)
            except SqlError:
                self.refused = True
                continue
            self.views |= {view.name: (name, view) for view in script.views}
            self.scripts |= {table.name: name for table in script.tables}
            self.partitions |= {partition for table in script.tables for partition in table.partitions}

    def readers(self, kept: Kept) -> dict[str, ViewReader]:
        """The views that may be read now."""
        return {name: reader for name, reader in kept.readers.items() if self.refused or name in self.views}


@lru_cache(maxsize=256)
def _parsed(text: str) -> Script:
    return parse(text)


async def cluster_of(control: Control, namespace: str, name: str) -> Cluster:
    """Return a ComputeCluster. Raises ``kube.NotFound``."""
    spec = (await control.kube.get(COMPUTE_CLUSTERS, name, namespace))["spec"]
    return await asyncio.to_thread(Cluster, spec)  # it reads scripts


@asynccontextmanager
async def views_of(control: Control, namespace: str, name: str) -> AsyncIterator[tuple[Cluster, Kept]]:
    """Give the views of a ComputeCluster, read to their end, until the context ends."""
    cluster = await cluster_of(control, namespace, name)
    async with control.views.of(namespace, name, cluster.log, cluster.ticks, cluster.views_in) as kept:
        await kept.look()
        yield cluster, kept


async def listed(control: Control, namespace: str, name: str) -> ViewInfos:
    """Return all views and how far they are."""
    async with views_of(control, namespace, name) as (cluster, kept):
        said = await _of_pod(control, namespace, name) or {}
        failures = {each["name"]: each["failure"] for each in said.get("views", ())}
        readers, now_ms = cluster.readers(kept), time.time_ns() // 1_000_000
        last = kept.last.tick if kept.last is not None else 0
        items = []
        for view in dict.fromkeys((*cluster.views, *readers)):
            script, defined = cluster.views.get(view, (None, None))
            reader = readers.get(view)
            created = reader.created if reader is not None else None
            columns = (
                [(c.name, c.type) for c in defined.columns] if defined is not None else created and created.columns
            )
            items.append(
                ViewInfo(
                    name=view,
                    script=script,
                    sql=defined.sql if defined is not None else None,
                    columns=[ViewColumn(name=n, type=t) for n, t in columns or ()],
                    tick=reader.tick if reader is not None else None,
                    frontier=reader.chain.upper if reader is not None else None,
                    lag_ticks=max(0, last - reader.tick) if reader is not None else None,
                    lag_ms=kept.lag_ms(reader.tick, now_ms) if reader is not None else None,
                    failure=failures.get(view),
                )
            )
        return ViewInfos(tick=last, bad_rows=said.get("badRows"), items=items)


@dataclass(frozen=True, slots=True)
class Answered:
    """The rows of a query, and how old they are."""

    tick: int
    stale_ms: int | None
    rows: pa.Table


async def answered(control: Control, namespace: str, name: str, asked: QueryRequest) -> Answered:
    """Answer a query. Raises problems."""
    try:
        query = await asyncio.to_thread(Query, asked.sql)
        async with views_of(control, namespace, name) as (cluster, kept), control.queries.admitted(namespace) as answer:
            names = query.views({*cluster.views, *cluster.readers(kept)})
            least = await _including(cluster, kept, asked.after) if asked.after is not None else 0
            async with asyncio.timeout(AFTER_S):
                while missing := [n for n in names if n not in cluster.readers(kept)]:
                    await _later(kept)
                while (tick := kept.views.tick_of(names)) < least:
                    await _later(kept)
            tick = tick if asked.as_of is None else asked.as_of
            contents = {each: _at(kept, each, tick) for each in names}
            stale_ms = await kept.stale_ms(tick, cluster.partitions, time.time_ns() // 1_000_000)
            return Answered(tick, stale_ms, await answer(query, partial(kept.views.tables, contents)))
    except TimeoutError as error:
        if missing:
            raise Unavailable(
                f"View {missing[0]} is not built yet: ask again.", headers={"Retry-After": "1"}
            ) from error
        raise TooLate(f"The views are at tick {tick}, and are to be at {least}.") from error
    except QueryTooLarge as error:
        raise TooLarge(f"{error.text}.") from error
    except QueryTooSlow as error:
        raise TooLate(f"{error.text}.") from error
    except QueryError as error:
        place = {"line": error.line, "column": error.column} if error.line else {}
        raise SqlRefused(f"{error}.", errors=[FieldProblem(pointer="sql", detail=error.text, **place)]) from error


async def _later(kept: Kept) -> None:
    await asyncio.sleep(POLL_S)
    await kept.look()


def _at(kept: Kept, view: str, tick: int) -> Any:
    try:
        return kept.views.readers[view].at(tick)
    except QueryError as error:
        detail = f"{error.text}; earlier ticks are read by `pavane sql query LOG … --as-of`"
        raise Invalid(f"{detail}.", errors=[FieldProblem(pointer="asOf", detail=error.text)]) from error


async def _including(cluster: Cluster, kept: Kept, after: str) -> int:
    """Wait for a tick that includes these transactions, and return it."""
    wanted = {int(p): int(x) for p, _, x in (part.partition(":") for part in after.split(","))}
    strange = sorted(set(wanted) - cluster.partitions)
    if strange:
        raise BadRequest(f"No table of the ComputeCluster reads partition {strange[0]}.")
    try:
        async with asyncio.timeout(AFTER_S):
            while True:
                last = kept.last
                if last is not None and all(last.next.get(p, 0) > x for p, x in wanted.items()):
                    return last.tick
                await _later(kept)
    except TimeoutError as error:
        raise TooLate(f"No tick includes {after} yet.") from error


async def changes(
    control: Control, namespace: str, name: str, view: str, after: int | None
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield a view's rows and each change as events, for ever, or the changes behind the tick ``after``.

    An error ends it with ``event: error``.
    """
    clock = asyncio.get_running_loop().time
    said, tick = clock(), after
    try:
        async with views_of(control, namespace, name) as (_, kept):
            while True:
                reader = kept.readers.get(view)
                if reader is not None and (tick is None or not reader.since <= tick <= reader.tick):
                    if tick is not None:
                        text = f"changes are known from tick {reader.since} to {reader.tick}, not from {tick} on"
                        yield {"event": "reset", "data_str": json.dumps({"tick": reader.tick, "reason": text})}
                    tick, said = reader.tick, clock()
                    async for event in _snapshot(kept, view, reader):
                        yield event
                elif reader is not None and tick is not None and reader.tick > tick:
                    upto, table, names = reader.tick, reader.after(tick), reader.schema.names
                    for at, updates in groupby(updates_of(table), key=lambda update: update[1]):
                        for event in _pieces("changes", at, [(row, diff) for row, _, diff in updates], names):
                            yield event
                        said = clock()
                    if not table.num_rows and clock() - said >= PROGRESS_S:
                        said = clock()
                        yield {"event": "progress", "id": str(upto), "data_str": json.dumps({"tick": upto})}
                    tick = upto
                await _later(kept)
    except Problem as problem:
        yield {"event": "error", "data_str": problem.detail}


async def _snapshot(kept: Kept, view: str, reader: ViewReader) -> AsyncIterator[dict[str, Any]]:
    contents = reader.at(reader.tick)
    table = await asyncio.to_thread(kept.views.rows, view, contents)
    rows = [(tuple(row.values())[:-1], row[DIFF]) for row in table.to_pylist()]
    for event in _pieces("snapshot", contents.tick, rows, contents.schema.names):
        yield event


def _pieces(event: str, tick: int, rows: list[tuple[Any, int]], names: list[str]) -> list[dict[str, Any]]:
    """Return rows as events; only the last one has an id: who comes back with it has all of the tick."""
    found = []
    for start in range(0, len(rows) or 1, PIECE_ROWS):
        complete = start + PIECE_ROWS >= len(rows)
        shown = [
            {"diff": diff, "row": {name: plain(value) for name, value in zip(names, row, strict=True)}}
            for row, diff in rows[start : start + PIECE_ROWS]
        ]
        document = {"tick": tick, "complete": complete, "changes": shown}
        found.append({"event": event, "data_str": json.dumps(document, ensure_ascii=False, allow_nan=False)})
        if complete:
            found[-1]["id"] = str(tick)
    return found


async def check_view(control: Control, namespace: str, name: str, view: str) -> None:
    """Raise ``NotFound`` for a view that there is not, and the problems of reading the log."""
    async with views_of(control, namespace, name) as (cluster, kept):
        if view not in cluster.views and view not in cluster.readers(kept):
            known = ", ".join(sorted({*cluster.views, *cluster.readers(kept)})) or "none"
            raise NotFound(f"There is no view {view}; views of ComputeCluster {name}: {known}.")


async def bad_rows(control: Control, namespace: str, name: str) -> BadRows:
    """Return the rows that could not be read, as the pod says. Raises ``Unavailable`` while none answers."""
    cluster = await cluster_of(control, namespace, name)
    said = await _of_pod(control, namespace, name)
    if said is None:
        text = f"No pod answers. `pavane why compute/{name}` says what the ComputeCluster waits for."
        raise Unavailable(text, headers={"Retry-After": "1"})
    items = [BadRowInfo(**each, script=cluster.scripts.get(each["table"])) for each in said["lastBadRows"]]
    return BadRows(count=said["badRows"], items=items)


async def _of_pod(control: Control, namespace: str, name: str) -> dict[str, Any] | None:
    """Return what the pod that writes the views says of them, None where none answers."""
    try:
        async with asyncio.timeout(POD_S):
            address = await address_of(namespace, name)
            answer = await ask(control.pods, "GET", f"http://{address}:{OPS_PORT}/views", within_s=POD_S)
        return answer.document()
    except (OSError, httpx2.HTTPError, ValueError):
        return None

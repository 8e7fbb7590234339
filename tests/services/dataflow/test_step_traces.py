"""A step of a view is linked to the appends that it counts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from pavane.compute.core.replica import ReplicaCore
from pavane.dataflow.controlling import Controller
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.replica import ReplicaEngine
from pavane.dataflow.sql import parse
from pavane.dataflow.tracing import LINKS_MAX, Tracing
from pavane.waltz.client import Transaction as Committed
from pavane.waltz.client import Waltz
from pavane.waltz.wire.fields import ReqId
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.waltz.running import running_log
from tests.services.waltz.test_waltz_tracing import Spans, context_of, linked, switched_on

DATA, TICKS, VIEWS = 0, 1, 2
SCRIPT = """
CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW total AS SELECT sum(x) AS s FROM t;
CREATE MATERIALIZED VIEW many AS SELECT count(*) AS n FROM t;
"""


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return switched_on(monkeypatch)


def said(span: ReadableSpan) -> tuple[str, int]:
    assert span.attributes is not None
    assert (span.kind, span.parent) == (SpanKind.CONSUMER, None)
    return str(span.attributes["pavane.dataflow.view"]), int(str(span.attributes["pavane.dataflow.tick"]))


async def test_each_view_says_at_which_tick_it_counts_an_append(tmp_path: Path, spans: Spans) -> None:
    async with running_log(tmp_path, partitions=3) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            clocks, place = Clocks(lambda: 0, monotonic, lambda: uuid4().hex), Place(TICKS, VIEWS)
            keeper = Keeper(client, [parse(SCRIPT)], place, PlainEngine, 0.01, clocks, 1, Tracing(client.cluster))
            keeper.allowed.set()
            keeping = asyncio.create_task(keeper.run(lambda _: None, lambda _: None))
            try:
                ticks = [await tick_of_append(client, spans, number) for number in (1, 2, 0)]  # 0 changes no sum
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})
    assert ticks[0] < ticks[1] < ticks[2]
    assert len(spans("dataflow/step")) == 6


async def test_each_of_two_replicas_says_at_which_tick_its_views_count_an_append(tmp_path: Path, spans: Spans) -> None:
    ports, place = free_ports(2), Place(TICKS, VIEWS)
    dialled = {f"r{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
    async with running_log(tmp_path, partitions=3) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            clocks = Clocks(lambda: 0, monotonic, lambda: uuid4().hex)
            controller = Controller(client, [parse(SCRIPT)], place, dialled, 0.02, clocks, 1)
            controller.allowed.set()
            async with AsyncExitStack() as stack:
                for port in ports:
                    await stack.enter_async_context(served(client, place, port, clocks))
                leading = asyncio.create_task(controller.run(lambda _: None, lambda _: None))
                try:
                    ticks = [await tick_of_append(client, spans, number, each_view=2) for number in (1, 2)]
                finally:
                    leading.cancel()
                    await asyncio.wait({leading})
    assert ticks[0] < ticks[1]
    assert len(spans("dataflow/step")) == 8


@asynccontextmanager
async def served(log: Waltz, place: Place, port: int, clocks: Clocks) -> AsyncIterator[None]:
    """A replica that traces its steps."""
    engine = ReplicaEngine(ReplicaCore(1), log, place, PlainEngine, 0.02, clocks, Tracing(log.cluster))
    serving = asyncio.create_task(engine.serve(lambda *_: None, host="127.0.0.1", port=port, listening=lambda _: None))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def tick_of_append(client: Waltz, spans: Spans, number: int, each_view: int = 1) -> int:
    """Append, and return the tick at which both views say, so many times each, that they count it."""
    with trace.get_tracer("caller").start_as_current_span("caller"):
        txid = await client.append(DATA, b'{"x": %d}' % number)
    context = context_of(client.cluster, (await client.get(DATA, txid)).reqid)
    await eventually(lambda: len(linked(spans("dataflow/step"), to=context)) == 2 * each_view)
    found = [said(each) for each in linked(spans("dataflow/step"), to=context)]
    (tick,) = {tick for _, tick in found}
    assert sorted(view for view, _ in found) == ["many"] * each_view + ["total"] * each_view
    return tick


def test_a_step_of_a_busy_log_is_linked_to_each_append(spans: Spans) -> None:
    tracing = Tracing("ledger")
    appends = [Committed(txid, 0, b"", ReqId(7, 1, DATA, txid)) for txid in range(LINKS_MAX + 1)]
    tracing.began()
    tracing.took(appends[:100])
    tracing.took(appends[100:])
    tracing.brought("total", 5, changed=True)
    tracing.written("total", 6)
    (step,) = spans("dataflow/step")
    linked_to = [link.context.trace_id for link in step.links]
    assert linked_to == [context_of("ledger", each.reqid) for each in appends[:LINKS_MAX]]

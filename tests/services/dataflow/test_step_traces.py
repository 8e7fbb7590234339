"""A step of a view is linked to the appends that it counts."""

import asyncio
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.sql import parse
from pavane.dataflow.tracing import LINKS_MAX, Tracing
from pavane.waltz.client import Transaction as Committed
from pavane.waltz.client import Waltz
from pavane.waltz.wire.fields import ReqId
from tests.services.eventually import eventually
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


async def tick_of_append(client: Waltz, spans: Spans, number: int) -> int:
    """Append, and return the tick at which both views say that they count it."""
    with trace.get_tracer("caller").start_as_current_span("caller"):
        txid = await client.append(DATA, b'{"x": %d}' % number)
    context = context_of(client.cluster, (await client.get(DATA, txid)).reqid)
    await eventually(lambda: len(linked(spans("dataflow/step"), to=context)) == 2)
    found = dict(map(said, linked(spans("dataflow/step"), to=context)))
    assert found.keys() == {"many", "total"}
    assert found["many"] == found["total"]
    return found["many"]


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

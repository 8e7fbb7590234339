"""Spans of a log: one view over client, owner, storage nodes and reader, and not a byte more on the wire (15)."""

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, StatusCode

from pavane.telemetry import Derivation, framed
from pavane.telemetry.sdk import LinkedSampler
from pavane.waltz.aio import stream
from pavane.waltz.aio.stream import Stream
from pavane.waltz.client import Conflict, Waltz
from pavane.waltz.tracing import LINKS_MAX, OPEN_APPENDS_MAX, Tracing
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from tests.services.eventually import eventually
from tests.services.waltz.running import Log, RawClient, running_log

Spans: TypeAlias = Callable[[str], list[ReadableSpan]]


def switched_on(patch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> Spans:
    """Switch tracing on and return a look-up of finished spans by name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    patch.setattr(trace, "_TRACER_PROVIDER", provider)
    return lambda name: [span for span in exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return switched_on(monkeypatch)


def linked(spans: list[ReadableSpan], *, to: int) -> list[ReadableSpan]:
    return [span for span in spans if to in {link.context.trace_id for link in span.links}]


def value(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes[f"pavane.waltz.{name}"]


def context_of(cluster: str, reqid: ReqId) -> int:
    mark = (reqid.seq * 40503 + reqid.client * 30011) % 65536
    ids = framed(struct.pack(">4i", *reqid))
    return Derivation("waltz", cluster).link(ids, mark.to_bytes(2, "big")).context.trace_id


async def address(log: Log) -> str:
    await log.settled()
    return f"127.0.0.1:{log.servers[0].port}"


async def test_an_append_is_linked_from_its_caller_to_three_disks_and_the_reader(tmp_path: Path, spans: Spans) -> None:
    async with running_log(tmp_path) as log, Waltz([await address(log)]) as client:
        with trace.get_tracer("caller").start_as_current_span("caller") as caller:
            txid = await client.append(0, b"data")
        feed = client.feed(0)
        transaction = await anext(feed)
        await feed.aclose()
        wanted = context_of("ledger", transaction.reqid)
        await eventually(lambda: len(linked(spans("waltz/store"), to=wanted)) == 3)
    assert transaction.id == txid
    client_span, server_span = sorted(linked(spans("waltz/append"), to=wanted), key=lambda span: span.kind.name)
    assert (client_span.kind, server_span.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
    assert client_span.parent == caller.get_span_context()
    assert server_span.parent is None
    (read,) = linked(spans("waltz/feed"), to=wanted)
    stored = linked(spans("waltz/store"), to=wanted)
    assert {span.kind for span in (read, *stored)} == {SpanKind.CONSUMER}
    assert all(span.parent is None for span in (read, *stored))
    for span in (client_span, server_span, read, *stored):
        assert value(span, "partition") == 0
        assert value(span, "transaction_id") == txid
        assert [link.attributes for link in span.links] == [{"pavane.trace.derived": True}]
    assert value(client_span, "reqid") == value(server_span, "reqid") == ":".join(map(str, transaction.reqid))
    assert (client_span.start_time or 0) <= (server_span.start_time or 0)
    assert (server_span.end_time or 0) <= (client_span.end_time or 0)
    [recovery] = spans("waltz/recover")
    assert value(recovery, "partition") == 0


async def test_a_refused_append_is_an_error_on_both_sides(tmp_path: Path, spans: Spans) -> None:
    async with running_log(tmp_path) as log, Waltz([await address(log)]) as client:
        await client.append(0, b"first", write=[("account", 1)])
        with pytest.raises(Conflict):
            await client.append(0, b"second", write=[("account", 1)], seen=-1)
    failed = [span for span in spans("waltz/append") if span.status.status_code is StatusCode.ERROR]
    assert {span.kind for span in failed} == {SpanKind.CLIENT, SpanKind.SERVER}
    (context,) = {link.context.trace_id for span in failed for link in span.links}
    assert linked(spans("waltz/store"), to=context) == []


async def test_nothing_is_recorded_for_a_caller_that_is_not_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = switched_on(monkeypatch, LinkedSampler(TraceIdRatioBased(0.0)))
    async with running_log(tmp_path) as log, Waltz([await address(log)]) as client:
        await client.append(0, b"data")
        feed = client.feed(0)
        await anext(feed)
        await feed.aclose()
    assert [spans(name) for name in ("waltz/append", "waltz/store", "waltz/feed")] == [[], [], []]


async def test_all_ends_take_the_same_part_of_the_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = switched_on(monkeypatch, LinkedSampler(TraceIdRatioBased(0.3)))
    appends = 100
    async with running_log(tmp_path) as log, Waltz([await address(log)]) as client:
        await asyncio.gather(*(client.append(0, b"%d" % number) for number in range(appends)))
        feed = client.feed(0)
        for _ in range(appends):
            await anext(feed)
        await feed.aclose()

        def contexts(name: str, kind: SpanKind) -> set[int]:
            return {link.context.trace_id for span in spans(name) if span.kind is kind for link in span.links}

        taken = contexts("waltz/append", SpanKind.CLIENT)
        await eventually(lambda: contexts("waltz/store", SpanKind.CONSUMER) == taken)
    assert 0 < len(taken) < appends
    assert contexts("waltz/append", SpanKind.SERVER) == taken
    assert contexts("waltz/feed", SpanKind.CONSUMER) == taken


def test_a_hundredth_of_any_appends_is_taken_and_hardly_more_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = switched_on(monkeypatch, LinkedSampler(ParentBasedTraceIdRatio(0.01)))
    asked = 0
    sampled = Derivation.sampled

    def ask(made: Derivation, ids: bytes, mark: bytes) -> Link | None:
        nonlocal asked
        asked += 1
        return sampled(made, ids, mark)

    monkeypatch.setattr(Derivation, "sampled", ask)
    tracing = Tracing("ledger")
    one_client = [ReqId(7, 1, 0, number) for number in range(10_000)]
    many_clients = [ReqId(number, 1, 0, 0) for number in range(10_000)]
    for reqids in (one_client, many_clients):
        before = len(spans("waltz/append"))
        for reqid in reqids:
            tracing.arrived(reqid)
            tracing.committed(0, [Record.of(0, reqid, 0, b"")])
        assert 90 <= len(spans("waltz/append")) - before <= 110
    assert asked <= 240


def test_the_context_of_an_append_never_changes() -> None:
    assert Tracing("ledger").link(ReqId(1, 2, 3, 4)).context.trace_id == 0x0910AC37FFD8DDD5EE170475A5EC4240


async def conversation(folder: Path, patch: pytest.MonkeyPatch) -> list[bytes]:
    """Return every byte that each connection got while clients of all versions append and read."""
    heard: dict[Stream, bytearray] = {}
    take = Stream.buffer_updated

    def buffer_updated(self: Stream, nbytes: int) -> None:
        heard.setdefault(self, bytearray()).extend(self.get_buffer(nbytes)[:nbytes])
        take(self, nbytes)

    with patch.context() as recording:
        recording.setattr(Stream, "buffer_updated", buffer_updated)
        recording.setattr(stream, "KEEP_ALIVE_S", 3600)
        # One storage node: of three, the order in which they answer would show in the bytes.
        async with running_log(folder, nodes=1) as log:
            await log.settled()
            for version in range(6):
                client = await RawClient.connect(log.servers[0].port, (version,), client=version + 1)
                mounted = await client.mount(version - 1)
                client.append(b"of version %d" % version, version - 1)
                client.send(m.FlushRequest(client.reqid()))
                await client.next(m.FlushResponse)
                if version == 5:
                    client.send(m.FeedBatchRequest(mounted, -1, 6, 1000, 0, -1, 0))
                    await client.next(m.FeedBatch)
                else:
                    client.send(m.FeedRequest(mounted, version - 1))
                    await client.next(m.FeedData)
                client.hang_up("done")
    return [bytes(raw) for raw in heard.values()]


async def test_the_wire_is_the_same_with_tracing_on_and_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = await conversation(tmp_path / "off", monkeypatch)
    spans = switched_on(monkeypatch)
    assert await conversation(tmp_path / "on", monkeypatch) == silent
    assert len(silent) == 2 * 6 + 2  # both ends of six clients and of one storage link
    assert len(spans("waltz/append")) == len(spans("waltz/store")) == 6


def test_a_large_batch_has_a_limited_number_of_links(spans: Spans) -> None:
    tracing = Tracing("ledger")
    records = [Record.of(number, ReqId(1, 1, 0, number), 0, b"") for number in range(LINKS_MAX + 1)]
    tracing.stored(0, 1, records)
    tracing.fed(0, 1, LINKS_MAX, [record.reqid for record in records])
    assert [len(span.links) for name in ("waltz/store", "waltz/feed") for span in spans(name)] == [LINKS_MAX] * 2


def test_appends_that_are_never_decided_are_forgotten(spans: Spans) -> None:
    tracing = Tracing("ledger")
    for number in range(OPEN_APPENDS_MAX + 1):
        tracing.arrived(ReqId(1, 1, 0, number))
    tracing.committed(0, [Record.of(number, ReqId(1, 1, 0, number), 0, b"") for number in (0, 1)])
    assert [value(span, "transaction_id") for span in spans("waltz/append")] == [1]

"""Spans of immortals in one process: what is linked, what stays silent, and not a byte more on the wire (19)."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from pavane.ambrosia import Immortal, RemoteError, aio, method, server
from pavane.ambrosia.client.serving import Handle, serve
from pavane.ambrosia.effects import Effect, ToBinding, ToStream
from pavane.ambrosia.tracing import LINKS_MAX, CoordinatorTracing
from pavane.ambrosia.wire.messages import CALL_TYPES, Call, Return, RpcKind, RpcType, batch, incoming, read_frames
from pavane.telemetry import derived
from pavane.telemetry.sdk import LinkedSampler
from tests.services.ambrosia.test_server import options, running
from tests.services.eventually import eventually

Spans = Callable[[str], list[ReadableSpan]]


class Shop(Immortal):
    """Orders from another shop."""

    taken: int = 0

    @method
    def take(self, count: int) -> int:
        """Hand goods out."""
        if count < 1:
            raise ValueError("nothing to take")
        self.taken += count
        return self.taken

    @method
    async def order(self, shop: str, count: int) -> int:
        """Get goods from another shop."""
        return await self.call(Shop.take, shop, count)

    @method
    def reorder(self, shop: str, count: int) -> None:
        """Order without waiting for it."""
        self.start(Shop.order, shop, count)


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


def traces_of(span: ReadableSpan) -> set[int]:
    return {link.context.trace_id for link in span.links}


def value(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes[f"pavane.ambrosia.{name}"]


def call_context(caller: str, callee: str, number: int) -> int:
    ids = (caller.encode(), callee.encode(), number.to_bytes(8, "little", signed=True))
    return derived("ambrosia", "", *ids).trace_id


@asynccontextmanager
async def shops(folder: Path) -> AsyncIterator[tuple[Handle[Shop], Handle[Shop]]]:
    """Two shops, each with its coordinator, on real sockets and files."""
    async with AsyncExitStack() as stack:
        handles = []
        for name in ("east", "west"):
            given = options(folder, name)
            await stack.enter_async_context(running(given))
            shop = serve(Shop, name=name, rp=given.receive_port, sp=given.send_port)
            handles.append(await stack.enter_async_context(shop))
        yield handles[0], handles[1]


async def test_a_call_is_linked_from_its_caller_over_both_coordinators_and_back(tmp_path: Path, spans: Spans) -> None:
    async with shops(tmp_path) as (east, _):
        with trace.get_tracer("caller").start_as_current_span("caller") as caller:
            assert await east.call(Shop.order, "west", 3) == 3
    (request,) = spans("ambrosia/request")
    order, take = sorted(spans("ambrosia/handle"), key=lambda span: span.start_time or 0)
    (call,) = spans("ambrosia/call")
    wanted = call_context("east", "west", 1)
    assert request.parent == caller.get_span_context()
    assert (order.parent, traces_of(order)) == (None, traces_of(request))
    assert call.parent == order.context
    assert [traces_of(span) for span in (call, take)] == [{wanted}] * 2
    assert take.parent is None
    for name in ("ambrosia/send", "ambrosia/log"):  # the call, and its answer
        found = spans(name)
        assert {value(span, "instance") for span in found} == {"east", "west"}
        assert all(traces_of(span) == {wanted} and span.parent is None for span in found)
    assert [span.kind for span in (request, order, call, take)] == [
        SpanKind.CLIENT,
        SpanKind.SERVER,
        SpanKind.CLIENT,
        SpanKind.SERVER,
    ]


async def test_what_a_handler_raises_is_an_error_on_the_whole_way(tmp_path: Path, spans: Spans) -> None:
    async with shops(tmp_path) as (east, _):
        with pytest.raises(RemoteError):
            await east.call(Shop.order, "west", 0)
    for name, count in (("ambrosia/request", 1), ("ambrosia/handle", 2), ("ambrosia/call", 1)):
        assert [span.status.status_code for span in spans(name)] == [StatusCode.ERROR] * count


async def test_a_flow_that_a_handler_starts_is_its_child(tmp_path: Path, spans: Spans) -> None:
    async with shops(tmp_path) as (east, west):
        await east.call(Shop.reorder, "west", 2)
        await eventually(lambda: len(spans("ambrosia/handle")) == 3)
        assert await west.call(Shop.take, 1) == 3
    started, flow, *_ = sorted(spans("ambrosia/handle"), key=lambda span: span.start_time or 0)
    assert flow.parent == started.context
    assert spans("ambrosia/call")[0].parent == flow.context


async def test_a_request_that_is_not_sampled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = switched_on(monkeypatch, LinkedSampler(TraceIdRatioBased(0.0)))
    async with shops(tmp_path) as (east, _):
        assert await east.call(Shop.order, "west", 3) == 3
    for name in ("request", "handle", "call", "send", "log"):
        assert spans(f"ambrosia/{name}") == []


async def conversation(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Return what coordinators write to applications, and the calls and answers that they write to each other."""
    written: dict[str, list[bytes]] = {}
    execute = aio.CoordinatorRunner._execute

    def recorded(self: aio.CoordinatorRunner, effect: Effect) -> None:
        name = self.core.settings.name
        match effect:
            case ToBinding(data):
                written.setdefault(f"{name} to its application", []).append(data)
            case ToStream(stream, data):
                kept = [message.raw for message in read_frames(data) if message.type in CALL_TYPES]
                written.setdefault(f"{name} to {self.core.links.peer(stream)}", []).extend(kept)
        execute(self, effect)

    with patch.context() as recording:
        recording.setattr(aio.CoordinatorRunner, "_execute", recorded)
        recording.setattr(server, "new_committer", lambda: 16)
        recording.setattr(secrets, "token_hex", lambda _: "life")
        async with shops(folder) as (east, west):
            for count in (1, 2):
                await east.call(Shop.order, "west", count)
                await west.call(Shop.order, "east", count)
    return written


async def test_the_wire_is_the_same_with_tracing_on_and_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = await conversation(tmp_path / "off", monkeypatch)
    spans = switched_on(monkeypatch)
    assert await conversation(tmp_path / "on", monkeypatch) == silent
    assert len(silent) == 4
    assert len(spans("ambrosia/call")) == 4


def test_links_are_bounded_and_malformed_messages_are_left_to_their_receiver(spans: Spans) -> None:
    tracing = CoordinatorTracing("west")
    calls = [incoming(Call(1, RpcType.ASYNC, b"", "east", number)) for number in range(LINKS_MAX + 1)]
    tracing.logged(batch(calls), 1)
    tracing.logged(incoming(Call(1, RpcType.FORK)) + incoming(Return(RpcKind.VOID, "north", 7)), 1)
    tracing.logged(incoming(Call(1, RpcType.FORK)), 1)
    tracing.logged(bytes.fromhex("0600ff"), 1)
    many, answer = spans("ambrosia/log")
    assert len(many.links) == LINKS_MAX
    assert traces_of(answer) == {call_context("west", "north", 7)}

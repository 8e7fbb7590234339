"""Spans of joins: joiner and acker link to one context, and not a byte more is sent (docs/specs/swim.md 14)."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pavane.swim.config import Config
from pavane.swim.member import SwimMember
from pavane.telemetry import derived
from tests.services.eventually import eventually


async def join(group: str) -> tuple[int, int, dict[str, int]]:
    """Let one member join another; returns the joiner's id and generation, and the JoinReqs' bytes."""
    config = Config(group=group)
    async with (
        SwimMember(config, ("127.0.0.1", 0)) as seed,
        SwimMember(config, ("127.0.0.1", 0), [str(seed.bound)]) as member,
    ):
        await member.joined()
        await eventually(lambda: len(seed.members()) == 2)
        return member.info.id, member.info.gen, dict(member.traffic.sent_bytes)


async def test_joiner_and_acker_link_to_the_context_of_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, without = await join("prod")
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    node, gen, sent = await join("prod")
    spans: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        spans.setdefault(span.name, []).append(span)
    admitted = [span for span in spans["swim/admit"] if span.attributes and span.attributes["pavane.swim.id"] == node]
    joined = [span for span in spans["swim/join"] if span.attributes and span.attributes["pavane.swim.id"] == node]
    context = derived("swim", "prod", node.to_bytes(4, "little"), gen.to_bytes(4, "little"))
    assert len(admitted) == len(joined) == 1
    for span in (*admitted, *joined):
        assert [link.context.trace_id for link in span.links] == [context.trace_id]
        assert span.start_time is not None
        assert span.end_time is not None
    assert sent["JoinReq"] == without["JoinReq"]

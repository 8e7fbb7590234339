"""Spans of a member (docs/specs/swim.md 14), made from the core's events; costs nothing while tracing is off.

A JoinReq carries no trace context. The joiner and the member that admits it link their spans to the context derived
from group, id and generation, which both know, so that one view joins them.
"""

from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import ProxyTracerProvider, SpanKind

from pavane.swim.core.outputs import Event, Happened, Own
from pavane.swim.wire.values import NodeId
from pavane.telemetry import derived, link


class Tracing:
    """Turns events of a member of ``group`` into spans; nothing while no tracer provider is installed."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._on = not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
        self._tracer = trace.get_tracer("pavane.swim")
        self._dialing_since_ns = 0

    def event(self, event: Event, own: NodeId) -> None:
        """Record a join of ours, or one that we granted; ``own`` is our id and generation after the event."""
        if not self._on:
            return
        if event.kind is Happened.ADMITTED and event.member is not None:
            self._record("swim/admit", SpanKind.SERVER, NodeId(event.member.id, event.member.gen), time_ns())
        elif event.kind is Happened.OWN_STATE and event.text == Own.DIALING:
            self._dialing_since_ns = time_ns()
        elif event.kind is Happened.OWN_STATE and event.text == Own.MEMBER:
            self._record("swim/join", SpanKind.CLIENT, own, self._dialing_since_ns)

    def _record(self, name: str, kind: SpanKind, joiner: NodeId, since_ns: int) -> None:
        ids = (joiner.id.to_bytes(4, "little"), joiner.gen.to_bytes(4, "little"))
        span = self._tracer.start_span(
            name,
            context=Context(),
            kind=kind,
            links=[link(derived("swim", self._group, *ids))],
            start_time=since_ns,
            attributes={"pavane.swim.id": joiner.id, "pavane.swim.gen": joiner.gen},
        )
        span.end()

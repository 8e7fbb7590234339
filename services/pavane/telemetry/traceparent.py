"""W3C trace contexts as text: gRPC metadata, a field per stage command, the annotation ``pavane.dev/traceparent``."""

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"  # key of the header, of the metadata and of the command field

_propagator = TraceContextTextMapPropagator()


def current_traceparent() -> str:
    """Return the context of the current span as a ``traceparent``; empty when no span is recorded."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(TRACEPARENT, "")


def parse_traceparent(text: str) -> SpanContext | None:
    """Return the span context that ``text`` names, or ``None`` when it is empty or malformed (never an error)."""
    context = get_current_span(_propagator.extract({TRACEPARENT: text})).get_span_context()
    return context if context.is_valid else None


def remote_parent(text: str) -> Context:
    """Return a context whose spans become children of the span that ``text`` names; without parent if it names none."""
    return _propagator.extract({TRACEPARENT: text}, Context())

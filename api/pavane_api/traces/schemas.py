"""Spans and traces as the REST API shows them."""

from pydantic import BaseModel, Field


class SpanLink(BaseModel):
    """A link of a span to a context of another trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""


class Span(BaseModel):
    """One finished span."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    parent_span_id: str = ""
    """16 hexadecimal digits; empty at the root of a trace."""
    name: str
    """What was done, for example ``raft/RequestUpdate``."""
    kind: str
    """INTERNAL, SERVER, CLIENT, PRODUCER or CONSUMER."""
    service: str
    """Name of the program, ``service.name`` of its resource."""
    instance: str = ""
    """The pod or process, ``service.instance.id`` of its resource."""
    start_ns: int
    """Start, nanoseconds since 1970."""
    end_ns: int
    """End, nanoseconds since 1970."""
    error: str = ""
    """Description of the failure; empty when it succeeded."""
    attributes: dict[str, str | int | float | bool | list[str]] = Field(default_factory=dict)
    """Attributes by name."""
    namespace: str = ""
    """The namespace that it is about; empty where it names none."""
    links: list[SpanLink] = Field(default_factory=list)
    """Links to other contexts."""


class TraceSummary(BaseModel):
    """One line of the list of traces."""

    trace_id: str
    """32 hexadecimal digits."""
    name: str
    """Name of the root span."""
    service: str
    """Program of the root span."""
    start_ns: int
    """Start of the root span, nanoseconds since 1970."""
    duration_ns: int
    """From the start of the first to the end of the last span of this trace id."""
    spans: int
    """Spans of this trace id that are stored."""
    errors: int
    """How many of them failed."""


class TraceList(BaseModel):
    """The newest traces, newest first."""

    items: list[TraceSummary]
    """At most ``limit`` of them."""


class Trace(BaseModel):
    """A trace with everything that is connected to it by links."""

    trace_id: str
    """The trace asked for."""
    spans: list[Span]
    """By start time; spans of other trace ids are those that links connect."""
    truncated: bool
    """More spans were connected than one answer holds."""

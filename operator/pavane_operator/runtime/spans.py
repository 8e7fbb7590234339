"""Spans of a reconcile: one per run that does something, with a child per action (docs/specs/operator.md 5.13)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import k8s_attributes
from opentelemetry.trace import Link, Span, StatusCode

from pavane.telemetry import parse_traceparent
from pavane_operator.kube.resources import Object

TRACEPARENT_ANNOTATION = "pavane.dev/traceparent"
OBJECT_ATTRIBUTE = "pavane.object"
GENERATION_ATTRIBUTE = "pavane.generation"
ROW_ATTRIBUTE = "pavane.operator.row"

_tracer = trace.get_tracer("pavane_operator")


class RunSpan:
    """The span `reconcile <Kind>`, begun with the first action: most runs only look and leave no span."""

    def __init__(self, kind: str, body: Object) -> None:
        self._kind = kind
        self._body = body
        self._began_ns = time.time_ns()
        self._span: Span | None = None

    @property
    def begun(self) -> bool:
        """Whether the run did something."""
        return self._span is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_back: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        if isinstance(error, Exception):
            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, str(error))
        self._span.end()

    @contextmanager
    def action(self, row: str, action: object) -> Iterator[None]:
        """A child span around one action, or around the write of a status."""
        parent = trace.set_span_in_context(self._begin())
        with _tracer.start_as_current_span(type(action).__name__, context=parent, attributes={ROW_ATTRIBUTE: row}):
            yield

    def _begin(self) -> Span:
        if self._span is None:
            metadata = self._body["metadata"]
            cause = parse_traceparent(str((metadata.get("annotations") or {}).get(TRACEPARENT_ANNOTATION, "")))
            self._span = _tracer.start_span(
                f"reconcile {self._kind}",
                links=[Link(cause)] if cause is not None else None,
                start_time=self._began_ns,
                attributes={
                    k8s_attributes.K8S_NAMESPACE_NAME: metadata["namespace"],
                    OBJECT_ATTRIBUTE: metadata["name"],
                    GENERATION_ATTRIBUTE: int(metadata.get("generation") or 0),
                },
            )
        return self._span

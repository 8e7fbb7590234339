"""Sets up the OpenTelemetry SDK, which no other module imports at its head; imported only when spans are exported."""

import contextlib
import gc
import logging
import math
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from pavane.runtime.garbage import freeze
from pavane.telemetry.derived import DERIVED_ATTRIBUTE
from pavane.telemetry.room import SPANS_MAX, Room

EXPORT_TIMEOUT_SECONDS = 3.0  # of one batch with its repetitions; a longer wait would only fill the queue
EXPORT_DELAY_MS = 1000  # spans of a finished request are on the screen within two seconds; a request costs 1.5 ms
FILE_VARIABLE = "PAVANE_OTLP_TOKEN_FILE"  # of a token, read for each batch: whoever wrote it renews it
TOLD_S = 60.0  # between two lines of the log that spans are dropped

_logger = logging.getLogger(__name__)


def provide(service_name: str, attributes: Mapping[str, str | int]) -> TracerProvider:
    """Install the process's tracer provider with an OTLP/HTTP exporter and return it."""
    own = Resource.create({"service.name": service_name, **attributes})
    provider = TracerProvider(resource=_Resource(own.merge(OTELResourceDetector().detect())), shutdown_on_exit=False)
    provider.sampler = LinkedSampler(provider.sampler)
    room = Room()
    provider.add_span_processor(_Processor(_Exporter(_Session(), room), room))
    trace.set_tracer_provider(provider)
    # The modules of the SDK stay for good: no collection need look at them again.
    gc.collect()
    freeze()
    return provider


class _Resource(Resource):
    """The resource of all spans. The exporter hashes it for each of them, and that takes a text of all attributes."""

    def __init__(self, made: Resource) -> None:
        super().__init__(made.attributes, made.schema_url)
        self._hash = super().__hash__()

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash


class _Session(requests.Session):
    """The connections of the exporter; ``errors`` are those of its calls since somebody has taken them."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []
        if path := os.environ.get(FILE_VARIABLE):
            self.auth = _Bearer(path)

    def request(self, *given: Any, **more: Any) -> requests.Response:
        """See ``requests.Session``."""
        try:
            return super().request(*given, **more)
        except Exception as error:
            self.errors.append(error)
            raise


class _Processor(BatchSpanProcessor):
    """Drops the spans for which there is no room. So the queue of the SDK, which only counts them, never overflows."""

    def __init__(self, exporter: "_Exporter", room: Room) -> None:
        super().__init__(exporter, max_queue_size=SPANS_MAX, schedule_delay_millis=EXPORT_DELAY_MS)
        self._room = room
        self._dropped = 0
        self._tell_at = -math.inf

    def on_end(self, span: ReadableSpan) -> None:
        """See ``SpanProcessor``."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._room.take(span):
            super().on_end(span)
            return
        self._dropped += 1
        if (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + TOLD_S
            _logger.warning(
                "%d spans dropped so far: the collector is away or too slow; look there, or sample fewer",
                self._dropped,
            )


class _Exporter(OTLPSpanExporter):
    """Keeps nothing of a batch that could not be sent.

    An error refers to the frames that it came through, these to the spans, and one of them to the error. In a process
    that leaves what it keeps out of collections (``freeze_survivors``) such a circle would stay for an hour, and while
    a collector is away or slow another one comes every few seconds.
    """

    def __init__(self, session: _Session, room: Room) -> None:
        super().__init__(timeout=EXPORT_TIMEOUT_SECONDS, session=session)
        self._errors = session.errors
        self._room = room

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See ``SpanExporter``."""
        try:
            return super().export(spans)
        finally:
            self._room.give_back(spans)
            while self._errors:
                error: BaseException | None = self._errors.pop()
                while error is not None:
                    traceback.clear_frames(error.__traceback__)
                    error = error.with_traceback(None).__context__


class _Bearer(requests.auth.AuthBase):
    """Adds the token of a file, unless a header of the environment says who is calling."""

    def __init__(self, path: str) -> None:
        self._file = Path(path)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        # A file that cannot be read: whoever takes the spans says what is missing.
        with contextlib.suppress(OSError):
            request.headers.setdefault("Authorization", f"Bearer {self._file.read_text(encoding='ascii').strip()}")
        return request


class LinkedSampler(Sampler):
    """Judges a span without parent by the derived traces that it links to, so that both ends of a message decide alike.

    ``by`` is the sampler that the environment names. A span for many messages is recorded if one of them is.
    """

    def __init__(self, by: Sampler) -> None:
        self.by = by

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Return the judgement of the sampler in the environment, about another trace id where there is one."""
        ids = [trace_id]
        if not trace.get_current_span(parent_context).get_span_context().is_valid:
            ids = [one.context.trace_id for one in links or () if DERIVED_ATTRIBUTE in (one.attributes or ())] or ids
        for one in ids:
            result = self.by.should_sample(parent_context, one, name, kind, attributes, links, trace_state)
            if result.decision is Decision.RECORD_AND_SAMPLE:
                break
        return result

    def get_description(self) -> str:
        """Return what tracing tools show."""
        return f"LinkedSampler{{{self.by.get_description()}}}"

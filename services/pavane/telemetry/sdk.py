"""The only module that imports the OpenTelemetry SDK; itself imported only when spans are exported."""

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

EXPORT_TIMEOUT_SECONDS = 3.0  # of one batch with its repetitions; a longer wait would only fill the queue
EXPORT_DELAY_MS = 500  # spans of a finished request are on the screen within a second
SPAN_QUEUE_MAX = 8192  # a few seconds of a busy pod; beyond, spans are dropped, never the work they describe


def provide(service_name: str, attributes: Mapping[str, str | int]) -> TracerProvider:
    """Install the process's tracer provider with an OTLP/HTTP exporter and return it."""
    own = Resource.create({"service.name": service_name, **attributes})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(
            OTLPSpanExporter(timeout=EXPORT_TIMEOUT_SECONDS),
            max_queue_size=SPAN_QUEUE_MAX,
            schedule_delay_millis=EXPORT_DELAY_MS,
        )
    )
    trace.set_tracer_provider(provider)
    return provider

"""Sets up the export of spans, once per process.

Whether and where spans go is decided by the standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES`` …); without an endpoint the SDK is not even imported and a span
costs next to nothing.
"""

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SHUTDOWN_SECONDS_MAX = 1.0  # a collector that does not answer must not hold up the end of a process

_logger = logging.getLogger(__name__)
_provider: "TracerProvider | None" = None


def configure(service_name: str, attributes: Mapping[str, str | int] | None = None) -> bool:
    """Export the spans of this process by OTLP over HTTP; returns whether it does.

    ``service_name`` and ``attributes`` become resource attributes; what the standard variables name goes before them.
    Without an endpoint in the environment, or without the extra ``otel`` (one warning says so), nothing is exported
    and nothing else changes. A second call in one process has no effect.
    """
    global _provider  # noqa: PLW0603 - OpenTelemetry's provider is global as well
    if _provider is not None:
        return True
    if not any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return False
    try:
        from pavane.telemetry.sdk import provide  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        _logger.warning("spans are not exported: %s (install the extra: pip install 'pavane[otel]')", error)
        return False
    _provider = provide(service_name, attributes or {})
    return True


def shutdown() -> None:
    """Send what is queued and stop exporting; blocks for at most ``SHUTDOWN_SECONDS_MAX``. For the end of a process."""
    global _provider  # noqa: PLW0603
    if _provider is None:
        return
    ending = threading.Thread(target=_provider.shutdown, name="telemetry-shutdown", daemon=True)
    _provider = None
    ending.start()
    ending.join(SHUTDOWN_SECONDS_MAX)

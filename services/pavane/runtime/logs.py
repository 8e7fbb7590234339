"""Logs of a process: one JSON object per line on standard error, with the ids of the span it belongs to."""

import logging
import sys
import time

import structlog
from opentelemetry.trace import get_current_span
from structlog.typing import EventDict, WrappedLogger

EXPORT_LOG_SECONDS = 60.0  # between two complaints about a collector that does not answer


def configure_logs(level: str = "INFO") -> None:
    """Send everything that this process logs, by structlog or the standard library, to standard error as JSON."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace_ids,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_RareExportFailures())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _add_trace_ids(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    context = get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


class _RareExportFailures(logging.Filter):
    """Lets one complaint of the span exporter per minute through: a collector may be away for hours."""

    def __init__(self) -> None:
        super().__init__()
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("opentelemetry."):
            return True
        now = time.monotonic()
        if now - self._last < EXPORT_LOG_SECONDS:
            return False
        self._last = now
        return True

"""OpenTelemetry, configured once per process; contexts derived from protocol ids."""

from pavane.telemetry.configure import configure, shutdown
from pavane.telemetry.derived import DERIVED_ATTRIBUTE, Derivation, derived, framed, link
from pavane.telemetry.finished import FinishedSpans
from pavane.telemetry.traceparent import TRACEPARENT, current_traceparent, parse_traceparent, remote_parent

__all__ = [
    "DERIVED_ATTRIBUTE",
    "TRACEPARENT",
    "Derivation",
    "FinishedSpans",
    "configure",
    "current_traceparent",
    "derived",
    "framed",
    "link",
    "parse_traceparent",
    "remote_parent",
    "shutdown",
]

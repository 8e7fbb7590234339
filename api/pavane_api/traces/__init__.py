"""Traces: an OTLP/HTTP receiver, a bounded store, and what a reader sees as one trace (handbook, OpenTelemetry)."""

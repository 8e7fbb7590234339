"""OpenTelemetry, configured once per process; contexts derived from protocol ids."""

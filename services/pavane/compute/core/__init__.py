"""The two ends of the compute protocol without I/O."""

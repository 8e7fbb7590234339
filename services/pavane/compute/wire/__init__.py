"""Messages of the compute protocol as frozen classes (docs/specs/compute.md 5); nothing above sees protobuf."""

"""The staged life of a pod over the compute protocol, both ends (docs/specs/compute.md 2, 6)."""

"""Generated gRPC modules and their source (docs/specs/compute.md 5)."""

"""The controllers of the local cluster (docs/specs/operator.md 6.7)."""

"""A kubelet that runs containers as processes (docs/specs/operator.md 6.8)."""

"""A cluster on one machine: Kubernetes-shaped API and pods as processes (docs/specs/operator.md 6)."""

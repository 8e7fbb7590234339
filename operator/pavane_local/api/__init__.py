"""The Kubernetes-shaped API server of the local cluster (`docs/specs/operator.md` 6.1–6.6)."""

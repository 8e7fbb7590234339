"""RaftCluster: rendered objects and promotion (docs/specs/operator.md 3.1, 4)."""

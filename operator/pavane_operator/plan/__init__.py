"""The rollout planner: a pure function over its table (docs/specs/operator.md 2)."""

"""kopf shell: one task per resource, observe, plan, execute (docs/specs/operator.md 5)."""

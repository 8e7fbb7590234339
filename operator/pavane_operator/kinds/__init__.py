"""One folder per kind: a renderer and a promotion behind one port (docs/specs/operator.md 3)."""

"""Dataflow: scripts that ComputeClusters keep; a kind without pods (docs/specs/operator.md 1.8)."""

from pavane_operator.kinds.dataflow.keeping import Dataflows

keeper = Dataflows

__all__ = ["keeper"]

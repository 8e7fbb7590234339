"""Names and ports of what belongs to a ComputeCluster (docs/specs/operator.md 4.1, 4.2)."""

from pavane_operator.crds.computecluster import DEFINITION, ComputeClusterSpec
from pavane_operator.objects.names import Names

NAMES = Names(DEFINITION.name, "replica")
EXECUTORS = Names(f"{DEFINITION.name}-executors", "executor")
"""Of pods that Spark makes. Their labels name another kind: they have no stages, and no generation waits for them."""


def target(spec: ComputeClusterSpec) -> str:
    """The WaltzCluster, as the runtime names it."""
    return f"WaltzCluster/{spec.waltz_cluster_ref.name}"

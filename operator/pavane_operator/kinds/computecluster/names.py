"""Names and ports of what belongs to a ComputeCluster (docs/specs/operator.md 4.1, 4.2)."""

from pavane_operator.crds.computecluster import DEFINITION, ComputeClusterSpec
from pavane_operator.objects.names import Names

NAMES = Names(DEFINITION.name, "replica")


def target(spec: ComputeClusterSpec) -> str:
    """The WaltzCluster, as the runtime names it."""
    return f"WaltzCluster/{spec.waltz_cluster_ref.name}"

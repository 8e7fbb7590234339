"""Names and ports of what belongs to a ComputeCluster (docs/specs/operator.md 4.1, 4.2)."""

from pavane.pods.compute_settings import REPLICA_PORT
from pavane_operator.crds.computecluster import DEFINITION, ComputeClusterSpec
from pavane_operator.objects.names import Names
from pavane_operator.objects.pods import Port

CONTROLLER = Names(DEFINITION.name, "controller")
"""The pod that the operator leads: it computes the views, or leads those that do."""
REPLICAS = Names(DEFINITION.name, "replica")
COMPUTE_PORT = Port("compute", REPLICA_PORT)
EXECUTORS = Names(f"{DEFINITION.name}-executors", "executor")
"""Of pods that Spark makes. Their labels name another kind: they have no stages, and no generation waits for them."""


def replica_addresses(name: str, namespace: str, generation: int, count: int) -> dict[str, str]:
    """`host:port` of the replicas of a generation, by name."""
    host = REPLICAS.headless_host(name, namespace, generation)
    pods = [REPLICAS.pod(name, generation, ordinal) for ordinal in range(count)]
    return {pod: f"{pod}.{host}:{REPLICA_PORT}" for pod in pods}


def target(spec: ComputeClusterSpec) -> str:
    """The WaltzCluster, as the runtime names it."""
    return f"WaltzCluster/{spec.waltz_cluster_ref.name}"

"""The custom resources that this API serves, as the Kubernetes client names them: all that are defined."""

from pavane_operator.crds.definitions import definition_of
from pavane_operator.kube.resources import Resource, custom


def _named(kind: str) -> Resource:
    return custom(kind, definition_of(kind).plural)


RAFT_CLUSTERS = _named("RaftCluster")
SWIM_GROUPS = _named("SwimGroup")
WALTZ_CLUSTERS = _named("WaltzCluster")
COORDINATORS = _named("Coordinator")
COMPUTE_CLUSTERS = _named("ComputeCluster")
DATAFLOWS = _named("Dataflow")

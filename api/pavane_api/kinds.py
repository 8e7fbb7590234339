"""The custom resources that this API serves: all that are defined."""

from pavane_operator.crds import raftcluster, swimgroup
from pavane_operator.kube.resources import custom

RAFT_CLUSTERS = custom(raftcluster.KIND, raftcluster.PLURAL)
"""RaftClusters, as the Kubernetes client names them."""
SWIM_GROUPS = custom(swimgroup.KIND, swimgroup.PLURAL)
"""SwimGroups."""

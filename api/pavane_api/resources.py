"""The custom resources that this API serves."""

from pavane_operator.crds.raftcluster import KIND, PLURAL
from pavane_operator.kube.resources import custom

RAFT_CLUSTERS = custom(KIND, PLURAL)
"""RaftClusters, as the Kubernetes client names them."""

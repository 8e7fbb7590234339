"""Names of the kinds for the command line: their models, of which the operator and the control plane have these, take a
third of a second to import."""

NAMES = (
    ("compute", "ComputeCluster", "computeclusters"),
    ("coord", "Coordinator", "coordinators"),
    ("raft", "RaftCluster", "raftclusters"),
    ("swim", "SwimGroup", "swimgroups"),
    ("waltz", "WaltzCluster", "waltzclusters"),
)
"""Short name, kind and plural, as in ``crds.definitions.KINDS``, which a test compares."""

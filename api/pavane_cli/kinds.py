"""Names of the kinds for the command line: their models, of which the operator and the control plane have these, take a
third of a second to import."""

NAMES = (
    ("compute", "ComputeCluster", "computeclusters"),
    ("coord", "Coordinator", "coordinators"),
    ("df", "Dataflow", "dataflows"),
    ("raft", "RaftCluster", "raftclusters"),
    ("swim", "SwimGroup", "swimgroups"),
    ("waltz", "WaltzCluster", "waltzclusters"),
)
"""Short name, kind and plural, as in ``crds.definitions.all_kinds``, which a test compares."""
PODLESS = frozenset({"Dataflow"})
"""Those without pods of their own, as in ``crds.definitions.PODLESS``."""

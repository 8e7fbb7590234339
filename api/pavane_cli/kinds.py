"""Names of the kinds for the command line: their models, of which the operator and the control plane have these, take a
third of a second to import."""

NAMES = (
    ("bk", "Backup", "backups"),
    ("compute", "ComputeCluster", "computeclusters"),
    ("coord", "Coordinator", "coordinators"),
    ("df", "Dataflow", "dataflows"),
    ("raft", "RaftCluster", "raftclusters"),
    ("swim", "SwimGroup", "swimgroups"),
    ("waltz", "WaltzCluster", "waltzclusters"),
)
"""Short name, kind and plural, as in ``crds.definitions.all_kinds``, which a test compares."""
PODLESS = frozenset({"Backup", "Dataflow"})
"""Those without pods of their own, as in ``crds.definitions.PODLESS``."""


def plain_name(kind: str, text: str) -> str:
    """Return NAME of ``NAME`` or ``KIND/NAME``, where a command is about one kind (its short name) and takes both."""
    long = next(long for short, long, _ in NAMES if short == kind)
    return text.removeprefix(f"{kind}/").removeprefix(f"{long.lower()}/")

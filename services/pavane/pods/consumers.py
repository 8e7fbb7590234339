"""The names of what Pavane runs itself among the consumers of a log (docs/specs/waltz.md 13.7)."""


def of_views(resource: str) -> str:
    """Return that of a ComputeCluster."""
    return f"computecluster.{resource}"


def of_immortal(owner: str) -> str:
    """Return that of a Coordinator; ``owner`` is its name in the partition."""
    return f"coordinator.{owner}"

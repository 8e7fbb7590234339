"""RaftCluster: rendered objects and promotion (docs/specs/operator.md 3.1, 4)."""

from pavane_operator.crds.raftcluster import DEFINITION
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft.promotion import BOOTSTRAP_STEPS, STEPS, RaftPromotion
from pavane_operator.kinds.raft.render import RaftRenderer
from pavane_operator.plan.port import Kind


def kind(defaults: RenderDefaults) -> Kind:
    """All that RaftCluster brings."""
    return Kind(
        definition=DEFINITION,
        steps=STEPS,
        bootstrap_steps=BOOTSTRAP_STEPS,
        renderer=RaftRenderer(defaults),
        promotion=RaftPromotion,
    )

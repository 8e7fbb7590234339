"""RaftCluster: rendered objects and promotion (docs/specs/operator.md 3.1, 4)."""

from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.port import Kind
from pavane_operator.kinds.raft import names
from pavane_operator.kinds.raft.promotion import BOOTSTRAP_STEPS, STEPS, RaftPromotion
from pavane_operator.kinds.raft.render import RaftRenderer

STAGE_KIND = "raft"
"""`CreateInstance.kind` of its pods (docs/specs/compute.md 6)."""


def kind(defaults: RenderDefaults) -> Kind:
    """All that RaftCluster brings."""
    return Kind(
        name=names.KIND,
        plural=names.PLURAL,
        spec_model=RaftClusterSpec,
        status_model=RaftClusterStatus,
        steps=STEPS,
        bootstrap_steps=BOOTSTRAP_STEPS,
        renderer=RaftRenderer(defaults),
        promotion=RaftPromotion,
        stage_kind=STAGE_KIND,
    )

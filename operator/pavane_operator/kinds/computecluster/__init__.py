"""ComputeCluster: rendered objects and promotion (docs/specs/operator.md 3.5, 4)."""

from pavane_operator.crds.computecluster import DEFINITION
from pavane_operator.kinds.computecluster.names import REPLICAS
from pavane_operator.kinds.computecluster.promotion import ComputePromotion, leave
from pavane_operator.kinds.computecluster.render import ComputeRenderer
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.fenced import BOOTSTRAP_STEPS, STEPS
from pavane_operator.plan.port import Kind


def kind(defaults: RenderDefaults) -> Kind:
    """All that ComputeCluster brings."""
    return Kind(
        definition=DEFINITION,
        steps=STEPS,
        bootstrap_steps=BOOTSTRAP_STEPS,
        renderer=ComputeRenderer(defaults),
        promotion=ComputePromotion,
        followers=frozenset({REPLICAS.role}),
        leave=leave,
    )

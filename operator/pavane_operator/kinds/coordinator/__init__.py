"""Coordinator: rendered objects and promotion (docs/specs/operator.md 3.4, 4)."""

from pavane_operator.crds.coordinator import DEFINITION
from pavane_operator.kinds.coordinator.promotion import STEPS, CoordinatorPromotion, leave
from pavane_operator.kinds.coordinator.render import CoordinatorRenderer
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.fenced import BOOTSTRAP_STEPS
from pavane_operator.plan.port import Kind


def kind(defaults: RenderDefaults) -> Kind:
    """All that Coordinator brings."""
    return Kind(
        definition=DEFINITION,
        steps=STEPS,
        bootstrap_steps=BOOTSTRAP_STEPS,
        renderer=CoordinatorRenderer(defaults),
        promotion=CoordinatorPromotion,
        leave=leave,
        trusts_others=True,
    )

"""SwimGroup: rendered objects and promotion (docs/specs/operator.md 3.2, 4)."""

from pavane_operator.crds.swimgroup import DEFINITION
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.swim.promotion import BOOTSTRAP_STEPS, STEPS, SwimPromotion
from pavane_operator.kinds.swim.render import SwimRenderer
from pavane_operator.plan.port import Kind

PARTINGS = 4
"""A quarter of the old members leaves at a time (docs/specs/swim.md 16.4)."""


def kind(defaults: RenderDefaults) -> Kind:
    """All that SwimGroup brings."""
    return Kind(
        definition=DEFINITION,
        steps=STEPS,
        bootstrap_steps=BOOTSTRAP_STEPS,
        renderer=SwimRenderer(defaults),
        promotion=SwimPromotion,
        partings=PARTINGS,
    )

"""WaltzCluster: rendered objects and promotion (docs/specs/operator.md 3.3, 4)."""

from pavane_operator.crds.waltzcluster import DEFINITION
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.waltz.absent import settled
from pavane_operator.kinds.waltz.promotion import BOOTSTRAP_STEPS, STEPS, WaltzPromotion
from pavane_operator.kinds.waltz.render import WaltzRenderer, clients
from pavane_operator.plan.port import Kind


def kind(defaults: RenderDefaults) -> Kind:
    """All that WaltzCluster brings."""
    return Kind(
        definition=DEFINITION,
        steps=STEPS,
        bootstrap_steps=BOOTSTRAP_STEPS,
        renderer=WaltzRenderer(defaults),
        clients=clients,
        settled=settled,
        promotion=WaltzPromotion,
    )

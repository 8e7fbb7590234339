"""A Coordinator's fence is on its volume (docs/specs/operator.md 3.4)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.coordinator import CoordinatorSpec
from pavane_operator.kinds.fenced import ALLOW_WRITES, FencedPromotion
from pavane_operator.plan.model import Pod, Resource
from pavane_operator.plan.port import PromotionStep

STEPS = (PromotionStep(ALLOW_WRITES, irreversible=True, allow_writes=True, serves=True),)
"""A takeover is a matter of a tenth of a second, in which callers are refused and come again."""


class CoordinatorPromotion(FencedPromotion):
    """Implements `pavane_operator.plan.port.Promotion` for one resource."""

    working = "takes calls"

    def own_status(self, resource: Resource, primary: Pod | None) -> dict[str, Any]:
        """Return under which name others call it, and which pod leads."""
        spec = resource.spec
        assert isinstance(spec, CoordinatorSpec)  # noqa: S101 - parsed by the kind's model
        return {"instance": spec.instance_name or resource.name, "primary": primary.name if primary else None}

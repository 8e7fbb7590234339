"""A ComputeCluster's fence is in the log (docs/specs/operator.md 3.5)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.computecluster import ComputeClusterSpec
from pavane_operator.kinds.fenced import FencedPromotion
from pavane_operator.plan.model import Pod, Resource


class ComputePromotion(FencedPromotion):
    """Implements `pavane_operator.kinds.port.Promotion` for one resource."""

    working = "writes views"

    def own_status(self, resource: Resource, primary: Pod | None) -> dict[str, Any]:
        """Return which log it is."""
        spec = resource.spec
        assert isinstance(spec, ComputeClusterSpec)  # noqa: S101 - parsed by the kind's model
        return {"log": spec.waltz_cluster_ref.name}

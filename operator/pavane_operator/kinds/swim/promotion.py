"""How a generation of a SwimGroup gets the right to write (docs/specs/operator.md 3.2).

Both steps are the planner's: an object that names the generation, and AllowWrites to its pods. What is left for here is
to ask the members who is there.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

import httpx2

from pavane.wire.stages import Stage
from pavane_operator.kinds.swim.facts import ACTIVATE, ALLOW_WRITES, facts
from pavane_operator.kinds.swim.members import Table, ask
from pavane_operator.kube import pods_http
from pavane_operator.plan.model import Facts, Observed, Resource
from pavane_operator.plan.port import PromotionStep

STEPS = (
    PromotionStep(ACTIVATE, irreversible=True, rendered=True),
    PromotionStep(ALLOW_WRITES, allow_writes=True),
)
BOOTSTRAP_STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True),)
ASKED_MAX = 5
"""Members whose tables are compared in one look: each tells the whole group, up to a thousand entries."""
ASK_TIMEOUT_S = 0.5
"""Per pod: one that takes longer counts as silent in this look."""


class SwimPromotion:
    """Implements `pavane_operator.plan.port.Promotion` for one resource."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self._http: httpx2.AsyncClient | None = None

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Ask some of the members at the same time; one that does not answer in time counts as absent."""
        return facts(resource, observed, await self._tables(observed))

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """There is no step that the planner does not take itself."""
        raise ValueError(f"SwimGroup has no step {name} of its own")

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Nothing to take back: a member that is stopped leaves the group by itself."""

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _tables(self, observed: Observed) -> list[Table]:
        """The tables of full members, else of observers, of the newest generation first."""
        found = [pod for pod in observed.pods if pod.address and pod.stage and not pod.deleting]
        stages = [pod.stage.stage for pod in found if pod.stage is not None]
        if not stages or max(stages) < Stage.READ_ONLY:
            return []
        best = [pod for pod in found if pod.stage is not None and pod.stage.stage is max(stages)]
        best.sort(key=lambda pod: (-pod.generation, pod.name))
        if self._http is None:
            self._http = pods_http()
        spread = best[:: max(len(best) // ASKED_MAX, 1)][:ASKED_MAX]
        http = self._http
        answers = await asyncio.gather(*(ask(http, pod.address or "", ASK_TIMEOUT_S) for pod in spread))
        return [table for table in answers if table is not None]

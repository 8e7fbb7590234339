"""SwimGroups whose operator is killed: members that others run never hear that anybody is dead (7.5)."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from pavane.swim.core.outputs import Happened
from pavane_operator.kube.resources import SECRETS, Object, custom
from tests.operator.killing import NAME, Run, Scenario, born, is_idle_and_current, scenarios
from tests.operator.operator_cluster import condition
from tests.services.swim.foreign import foreigners

SWIM_GROUPS = custom("SwimGroup", "swimgroups")
FOREIGN = 2
KEYS = "mine"


@dataclass
class SwimRun(Run):
    """A SwimGroup of two members that joins a group of two others."""

    type = SWIM_GROUPS
    defaults: ClassVar[Mapping[str, Any]] = {"replicas": 2, "keyringSecretRef": {"name": KEYS}}
    given = frozenset({f"secrets/{KEYS}"})

    def members(self, status: Object) -> Any:
        return status.get("members")

    def rests(self, status: Object) -> bool:
        alive = self.spec["replicas"] + FOREIGN
        known = {"alive": alive, "suspect": 0, "dead": 0, "foreign": FOREIGN}
        return self.members(status) == known and condition(status, "MembershipConverged") == ("True", "DigestsAgree")

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Others are there first, and stay; to the end they hear of members that join and leave, and of no death."""
        key = secrets.token_hex(32)
        data = {"keyring": base64.b64encode(f"{key}\n".encode()).decode()}
        await self.kube.create(SECRETS, {"metadata": {"name": KEYS}, "data": data}, self.namespace)
        async with foreigners(f"{self.namespace}/{NAME}", key, FOREIGN) as others:
            self.spec = {"seeds": [others.seed]}
            yield
            while any(len(table) > FOREIGN for table in await others.tables()):
                await asyncio.sleep(0.03)
            assert all(others.heard(Happened.JOINED))
            assert not any(others.heard(Happened.DEAD)), f"{self.namespace}: somebody was declared dead"


async def _scaled(run: Run) -> None:
    await run.until(lambda body: is_idle_and_current(body.get("status") or {}) and run.rests(body["status"]), "scaled")


SCENARIOS: dict[str, Scenario] = {
    **scenarios(SwimRun),
    "scale-up": Scenario(SwimRun, born, lambda run: run.apply(replicas=4), _scaled),
    "scale-down": Scenario(SwimRun, born, lambda run: run.apply(replicas=1), _scaled),
}

"""RaftClusters whose operator is killed: every acknowledged entry stands in the log exactly once (7.5, I5)."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pavane.raft.client import RaftClient
from pavane.raft.errors import RaftError
from pavane_operator.kinds.raft.access import raft_client
from pavane_operator.kube.resources import Object
from tests.operator.killing import Run, Scenario, born, is_idle_and_current, scenarios, way_back
from tests.operator.operator_cluster import RAFT_CLUSTERS


@dataclass
class RaftRun(Run):
    """A RaftCluster of one member, to which somebody writes."""

    type = RAFT_CLUSTERS
    defaults: ClassVar[Mapping[str, Any]] = {"stateMachine": "Broadcast", "replicas": 1}
    acknowledged: list[bytes] = field(default_factory=list)

    def members(self, status: Object) -> Any:
        return (status.get("configuration") or {}).get("old")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RaftClient]:
        body = await self.body()
        assert body is not None
        hosts = self.local.folder / "hosts" / self.namespace

        def resolve(host: str) -> list[str]:
            lines = [line.split() for line in hosts.read_text().splitlines()]
            return [words[0] for words in lines if host in words[1:]] or [host]

        async with await raft_client(self.kube, body, resolve) as client:
            yield client

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Write all the time; at the end each acknowledged entry stands in the log exactly once (I5)."""
        async with self.client() as client:

            async def write() -> None:
                for number in itertools.count():
                    data = b"%d" % number
                    with contextlib.suppress(RaftError):
                        await client.update(data, timeout_s=20.0)
                        self.acknowledged.append(data)
                    await asyncio.sleep(0.02)

            writer = asyncio.create_task(write())
            try:
                yield
            finally:
                writer.cancel()
                await asyncio.wait({writer})
        async with self.client() as client:
            self.acknowledged.append(b"the end")
            await client.update(b"the end")
            stored = Counter([bytes(entry.data) async for entry in client.entries() if entry.type == 0])
        lost = [data for data in self.acknowledged if stored[data] == 0]
        doubled = [data for data, count in stored.items() if count > 1]
        assert (lost, doubled) == ([], []), f"{self.namespace}: lost {lost}, doubled {doubled}"


async def _scaled(run: Run) -> None:
    def check(body: Object) -> bool:
        status = body.get("status") or {}
        members = (status.get("configuration") or {}).get("old") or ()
        return is_idle_and_current(status) and len(members) == status.get("replicas") == 3

    await run.until(check, "scaled to 3")


SCENARIOS: dict[str, Scenario] = {
    **scenarios(RaftRun),
    "scale": Scenario(RaftRun, born, lambda run: run.apply(replicas=3), _scaled),
}
WAY_BACK = way_back(RaftRun)

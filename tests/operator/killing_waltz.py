"""WaltzClusters whose operator is killed: every acknowledged append stands in the log once, in its place (7.5)."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Waltz, trusting
from pavane_operator.kube.resources import SECRETS, SERVICES, Object, Resource, custom
from tests.operator.killing import NAME, Run, Scenario, is_idle_and_current, scenarios, way_back
from tests.operator.operator_cluster import FAST, RAFT_CLUSTERS, condition

WALTZ_CLUSTERS = custom("WaltzCluster", "waltzclusters")
META = "meta"
PARTITIONS = 2
PATIENCE_S = 110.0
LOCK = ("all", 0)


@dataclass
class WaltzRun(Run):
    """A WaltzCluster of one server and three storage nodes, to which somebody writes."""

    type = WALTZ_CLUSTERS
    defaults: ClassVar[Mapping[str, Any]] = {
        "partitions": PARTITIONS,
        "servers": {"replicas": 1},
        "storage": {"nodes": 3, "size": "64Mi"},
        "metadata": {"raftClusterRef": {"name": META}},
    }
    acknowledged: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def members(self, status: Object) -> Any:
        return status.get("writable")

    def rests(self, status: Object) -> bool:
        # The last one is told only while a storage node answers within half a second.
        healthy = [condition(status, name) for name in ("LogHealthy", "WritesAllowed", "VolumesHaveRoom")]
        return all(one is not None and one[0] == "True" for one in healthy)

    def judges(self, resource: Resource, body: Object) -> bool:
        """Neither the registry, nor the Service of the storage nodes, which belong to no generation."""
        name = body["metadata"].get("name", "")
        return not name.startswith((META, f"data-{META}")) and (resource, name) != (SERVICES, f"{NAME}-storage")

    def only_what_stays(self, body: Object, names: set[str]) -> bool:
        """Of the log: the registry's objects are not its own, and volumes belong to no generation."""
        own = {name for name in names if not name.partition("/")[2].startswith((META, f"data-{META}"))}
        volumes = {name for name in own if name.startswith("persistentvolumeclaims/")}
        if not body:
            return own == volumes
        status = body.get("status") or {}
        return condition(status, "Reconciling") is None and self.rests(status)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """The registry is there first, and goes last."""
        before = os.environ.get(HOSTS_FILE_VARIABLE, "")
        os.environ[HOSTS_FILE_VARIABLE] = str(self.local.folder / "hosts" / self.namespace)
        spec = {"stateMachine": "Tree", "replicas": 1, "storage": {"size": "64Mi"}, "rollout": FAST}
        body = {"metadata": {"name": META}, "spec": spec}
        await self.kube.apply(RAFT_CLUSTERS, body, self.namespace, manager="test")
        await self._until_registry(lambda found: is_idle_and_current((found or {}).get("status") or {}))
        try:
            yield
        finally:
            os.environ[HOSTS_FILE_VARIABLE] = before
        await self.kube.delete(RAFT_CLUSTERS, META, self.namespace)
        await self._until_registry(lambda found: found is None)

    async def _until_registry(self, check: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not check(await self.kube.get_or_none(RAFT_CLUSTERS, META, self.namespace)):
                await asyncio.sleep(0.03)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Waltz]:
        data = (await self.kube.get(SECRETS, f"{NAME}-client", self.namespace))["data"]
        servers, *files = (base64.b64decode(data[key]).decode() for key in ("servers", "ca.crt", "tls.crt", "tls.key"))
        async with Waltz(servers.split(), tls=trusting(*files), patience=PATIENCE_S) as log:
            yield log

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Append what has to get the very next number; at the end the log is what was acknowledged."""
        stop = asyncio.Event()
        async with self.client() as log:

            async def write(partition: int) -> None:
                async with log.view(partition, lambda _: None) as view:
                    while not stop.is_set():
                        txid = await view.transact(lambda: b"%d" % (view.hwm + 1), write=[LOCK])
                        assert txid is not None
                        self.acknowledged[partition].append(txid)
                        await asyncio.sleep(0.02)

            writers = [asyncio.create_task(write(partition)) for partition in range(PARTITIONS)]
            try:
                yield
            finally:
                stop.set()
                await asyncio.gather(*writers)
            for partition, acknowledged in enumerate(self.acknowledged):
                found = {tx.id: tx.data async for tx in log.read(partition, 0, 1 << 40)}
                assert found == {txid: b"%d" % txid for txid in acknowledged}, f"{self.namespace}: {partition}"


SCENARIOS: dict[str, Scenario] = {
    name: scenario for name, scenario in scenarios(WaltzRun).items() if name in ("bootstrap", "roll", "abort")
}
"""Not suspend: the writers would lose their patience, and an append its outcome, before the log is back."""
WAY_BACK = way_back(WaltzRun)

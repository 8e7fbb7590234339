"""A ComputeCluster: views of a log, exact under kills and while generations change (docs/compute.md)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e.cluster import QUICK, RaftTest, can_switch_back
from e2e.targets import Capability
from e2e.waiting import READY_S, eventually
from pavane.pods.waltz_settings import SERVER_PORT
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Waltz, trusting
from pavane_api.kinds import COMPUTE_CLUSTERS, DATAFLOWS, RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import Refused, undo
from pavane_cli.commands.resources import is_current
from pavane_operator.kube.resources import PODS, SECRETS
from tests.services.dataflow.recomputed import revenue, wrong_ticks

# The clients of the tests are in their own process.
pytestmark = pytest.mark.needs(Capability.DIRECT)

SCRIPT = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT) USING waltz OPTIONS (partitions '0-1');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, {what} AS n, sum(cents) AS total FROM orders GROUP BY customer;
"""
TICKS, VIEWS = 2, 3
MORE = 40
"""Orders that are waited for after each disturbance."""
PATIENCE_S = 90.0
TEST_S = 300.0


class ViewsTest(RaftTest):
    """One namespace of a platform, the log and the views in it."""

    async def apply_script(self, what: str = "count(*)", script: str = SCRIPT) -> None:
        spec = {"computeClusterRef": {"name": "main"}, "script": script.format(what=what)}
        body = {"metadata": {"name": "revenue"}, "spec": spec}
        await self.kube.apply(DATAFLOWS, body, self.namespace, manager="e2e", strict=True)

    async def until_dataflow(self, kind: str, reason: str, message: str = "") -> Any:
        """Wait until a condition of the Dataflow says this, and return its status."""

        async def says() -> Any:
            status = (await self.kube.get(DATAFLOWS, "revenue", self.namespace)).get("status") or {}
            found = [each for each in status.get("conditions") or () if each["type"] == kind]
            return status if found and found[0]["reason"] == reason and message in found[0]["message"] else None

        return await eventually(says, f"the Dataflow says {reason}")

    async def until_bad_row(self, log: Waltz) -> None:
        """Append a row that cannot be read, and wait until the command lists it alone."""
        txid = await log.append(1, b"no JSON")

        async def listed() -> bool:
            words = ("dataflow", "bad-rows", "revenue", "-o", "json", "-n", self.namespace)
            done = await asyncio.to_thread(self.platform.run, *words)
            rows = json.loads(done.stdout)["items"]
            found = [(row["table"], row["partition"], row["transaction"], row["reason"]) for row in rows]
            return found == [("orders", 1, txid, "Expecting value: line 1 column 1 (char 0)")]

        await eventually(listed, "the bad row is listed")

    async def start(self, script: str = SCRIPT, timeout_s: float = READY_S, **more: Any) -> None:
        """Apply all at once, as a user does, and wait until the views are written."""
        meta = {"stateMachine": "Tree", "replicas": 3, "storage": {"size": "64Mi"}, **QUICK}
        log = {
            "partitions": 4,
            "servers": {"replicas": 2},
            "storage": {"nodes": 3, "size": "64Mi"},
            "metadata": {"raftClusterRef": {"name": "meta"}, "sessionTimeout": "3s"},
            **QUICK,
        }
        compute = {
            "waltzClusterRef": {"name": "ledger"},
            "partitions": {"ticks": TICKS, "views": VIEWS},
            "interval": "100ms",
            **QUICK,
            **more,
        }
        await self.apply_script(script=script)
        for kind, name, spec in (
            (COMPUTE_CLUSTERS, "main", compute), (RAFT_CLUSTERS, "meta", meta), (WALTZ_CLUSTERS, "ledger", log),
        ):  # fmt: skip
            body = {"metadata": {"name": name}, "spec": spec}
            await self.kube.apply(kind, body, self.namespace, manager="e2e", strict=True)
        await self.until_current("main", generation=1, timeout_s=timeout_s)

    async def rolls_out(self, orders: Orders) -> None:
        """Assert that another script is generation 2, which takes over while orders come."""
        await self.apply_script("count(DISTINCT id)")
        await orders.more()
        document = await self.until_current("main", generation=2)
        assert document["status"]["history"][0]["result"] == "Promoted"
        assert document["status"]["history"][0]["writeGapMs"] > 0
        await orders.more()

    @contextlib.asynccontextmanager
    async def client_of_log(self) -> AsyncIterator[Waltz]:
        """Lend a client of the log, whose servers this process and its commands reach meanwhile."""
        data = (await self.kube.get(SECRETS, "ledger-client", self.namespace))["data"]
        names = ("servers", "ca.crt", "tls.crt", "tls.key")
        servers, *files = (base64.b64decode(data[name]).decode() for name in names)
        labels = "app.kubernetes.io/instance=ledger,app.kubernetes.io/component=server"
        named = {}
        for pod in (await self.kube.list_all(PODS, self.namespace, labels=labels)).items:
            name, of = pod["metadata"]["name"], pod["spec"]["subdomain"]
            named[name] = [f"{name}.{of}.{self.namespace}.svc", f"ledger.{self.namespace}.svc"]
        with (
            self.platform.naming(self.namespace, named, SERVER_PORT) as hosts,
            pytest.MonkeyPatch.context() as environment,
        ):
            environment.setenv(HOSTS_FILE_VARIABLE, str(hosts))
            async with Waltz(servers.split(), tls=trusting(*files), patience=PATIENCE_S) as log:
                yield log

    async def are_exact(self, log: Waltz, appended: int) -> None:
        """Assert that a query counts all orders, and that the view was right at every tick."""
        words = ["SELECT sum(n) AS n FROM revenue", "-o", "json", "-n", self.namespace]
        for partition in (0, 1):
            after = f"{partition}:{await log.hwm(partition)}"
            query = ("sql", "query", "compute/main", *words, "--after", after)
            done = await asyncio.to_thread(self.platform.run, *query)
        assert json.loads(done.stdout)["rows"] == [{"n": appended}]
        ticks, wrong = await wrong_ticks(log, (0, 1), TICKS, VIEWS, {"revenue": revenue})
        assert ticks > 20
        assert wrong == []

    async def until_again(self, pod: str, timeout_s: float = READY_S) -> None:
        """Wait until a killed pod runs and is ready again."""

        async def ready() -> bool:
            status = (await self.kube.get(PODS, pod, self.namespace)).get("status") or {}
            return any(one["restartCount"] and one["ready"] for one in status.get("containerStatuses") or ())

        await eventually(ready, f"{pod} is ready again", timeout_s)


@dataclass
class Orders:
    """Appends orders all the time, in turn to both partitions."""

    log: Waltz
    note: str = ""
    pause_s: float = 0.01
    appended: int = 0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self) -> None:
        while not self.stopped.is_set():
            number = self.appended
            order = {"id": number, "customer": f"c{number % 3}", "cents": number % 97, "note": self.note}
            await self.log.append(number % 2, json.dumps(order).encode())
            self.appended += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), self.pause_s)

    async def more(self) -> None:
        before = self.appended

        async def enough() -> bool:
            return self.appended >= before + MORE

        await eventually(enough, "orders are appended")


@pytest.mark.timeout(TEST_S)
@pytest.mark.kinds
async def test_views_are_exact_under_kills_and_while_generations_change(raft: RaftTest) -> None:
    views = ViewsTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start()
    async with views.client_of_log() as log:
        orders = Orders(log)
        writing = asyncio.create_task(orders.write())
        try:
            await orders.more()
            views.kill("main-controller-g1-0")
            await orders.more()
            await views.until_again("main-controller-g1-0")
            # A script that is refused rolls nothing out, and says where it is wrong.
            await views.apply_script("cuont(*)")
            await views.until_dataflow("Ready", "InvalidScript", "line 3, column")
            await views.rolls_out(orders)
        finally:
            orders.stopped.set()
            await writing
        await views.are_exact(log, orders.appended)
        assert await views.stateful_sets("main") == ["main-controller-g2"]
        await views.until_bad_row(log)
        status = await views.until_dataflow("UpToDate", "UpToDate")
        assert [view["name"] for view in status["views"]] == ["revenue"]
    # A deleted Dataflow takes its views along; the ComputeCluster goes on with none.
    await views.kube.delete(DATAFLOWS, "revenue", views.namespace)
    await views.until_current("main", generation=3)
    assert "scripts" not in (await views.kube.get(COMPUTE_CLUSTERS, "main", views.namespace))["spec"]


@pytest.mark.timeout(TEST_S)
@pytest.mark.needs(Capability.EMBEDDED)  # elsewhere the chart gives the operator its token, which tests/charts see
async def test_a_gate_of_another_resource_asks_a_view(raft: RaftTest) -> None:
    views = ViewsTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start()
    gate = {"name": "orders", "for": "0s", "sql": {"compute": "main", "query": "SELECT sum(n) FROM revenue", "min": 2}}
    rollout = {**QUICK["rollout"], "bake": "1h", "gates": [gate]}
    await raft.apply(replicas=1, rollout=rollout)
    await raft.until_current(generation=1)
    await raft.apply(replicas=1, rollout={**rollout, "restart": "1"})

    def said(document: Any) -> str:
        [gate] = document["status"]["rollout"].get("gates") or [{"verdict": "", "message": ""}]
        return f"{gate['verdict']}: {gate.get('message', '')}"

    async with views.client_of_log() as log:
        # A sum over no rows is NULL, which says nothing.
        await raft.until(lambda item: "Inconclusive: ComputeCluster main answered with NULL" in said(item), "it waits")
        for number in range(2):
            await log.append(0, json.dumps({"id": number, "customer": "ann", "cents": 1}).encode())
        document = await raft.until(lambda item: can_switch_back(item) and "Passed" in said(item), "it bakes")
        assert document["status"]["activeGeneration"] == 2


@pytest.mark.timeout(TEST_S)
async def test_views_go_back_to_the_generation_that_stands_by_and_stay_exact(raft: RaftTest) -> None:
    views = ViewsTest(raft.platform, raft.kube, raft.namespace, COMPUTE_CLUSTERS)
    await views.start(rollout={**QUICK["rollout"], "bake": "1h"}, replicas=1)
    async with views.client_of_log() as log:
        orders = Orders(log)
        writing = asyncio.create_task(orders.write())
        try:
            await orders.more()
            views.platform.run("rollout", "restart", "compute/main", "-n", views.namespace)
            await views.until(can_switch_back, "generation 1 follows", name="main")
            await orders.more()
            views.kill("main-controller-g1-0")
            await views.until_again("main-controller-g1-0")

            async def undone() -> bool:
                try:
                    await undo(views.kube, views.type, views.namespace, "main")
                except Refused:
                    return False
                return True

            await eventually(undone, "the pod that was killed follows again")
            document: dict[str, Any] = await views.until(
                lambda item: is_current(item) and item["status"]["activeGeneration"] == 1,
                "generation 1 serves again",
                name="main",
            )
            results = [(each["generation"], each["result"]) for each in document["status"]["history"]]
            assert results == [(1, "Promoted"), (2, "RolledBack")]
            assert document["status"]["history"][0]["writeGapMs"] > 0
            views.kill("main-controller-g1-0")  # it goes on without being told that the right to write is its own
            await orders.more()
            await views.until_again("main-controller-g1-0")
        finally:
            orders.stopped.set()
            await writing
        await views.are_exact(log, orders.appended)
    assert await views.stateful_sets("main") == ["main-controller-g1", "main-replica-g1"]

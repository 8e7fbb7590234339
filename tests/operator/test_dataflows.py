"""Dataflows hand their scripts to ComputeClusters and say how far their views are (docs/specs/operator.md 1.8)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane_local.platform import LocalSettings, local_cluster
from pavane_operator.crds.dataflow import DataflowStatus
from pavane_operator.kinds.dataflow.handing import MANAGER, handing, missing, status
from pavane_operator.kinds.dataflow.keeping import COMPUTE_CLUSTERS, DATAFLOWS, Dataflows
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.podless import Around, Members
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import PODS, Resource
from pavane_operator.plan.model import GENERATION_LABEL
from pavane_operator.runtime.cache import Cache

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TABLE = "CREATE TABLE orders (id BIGINT) USING waltz OPTIONS (partitions '{partition}');"


def script(view: str, what: str = "id", partition: int = 0) -> str:
    return f"{TABLE.format(partition=partition)} CREATE MATERIALIZED VIEW {view} AS SELECT {what} FROM orders;"


def dataflow(name: str, text: str, created: int = 0, **held: Any) -> dict[str, Any]:
    metadata = {"name": name, "generation": 3, "creationTimestamp": f"2026-01-01T00:00:{created:02}Z"}
    return {"metadata": metadata, "spec": {"computeClusterRef": {"name": "main"}, "script": text}, **held}


def cluster(scripts: dict[str, str], brought: tuple[str, ...] = (), settled: bool = True) -> dict[str, Any]:
    fields: dict[str, Any] = {"f:spec": {"f:scripts": {f"f:{name}": {} for name in brought}}}
    condition = {"type": "UpToDate", "status": "True" if settled else "False", "observedGeneration": 7, "reason": "r"}
    return {
        "metadata": {"name": "main", "generation": 7, "managedFields": [{"manager": MANAGER, "fieldsV1": fields}]},
        "spec": {"partitions": {"ticks": 2, "views": 3}, "scripts": scripts},
        "status": {"conditions": [condition]},
    }


def test_scripts_that_are_right_are_handed_over_and_the_older_dataflow_keeps_its_view() -> None:
    flows = [
        dataflow("late", script("a"), created=9),
        dataflow("early", script("a"), created=1),
        dataflow("typo", script("b", "cuont(id)")),
        dataflow("ticks", script("c", partition=2)),
        dataflow("mine", script("d")),
        dataflow("beside", script("own")),
    ]
    result = handing(cluster({"mine": script("own")}), flows)
    assert result.scripts == {"early": script("a")}
    verdicts = {name: (each.accepted, each.reason) for name, each in result.verdicts.items()}
    assert verdicts["early"] == (True, "Accepted")
    assert verdicts["mine"] == (False, "NameTaken")
    assert {verdicts[name] for name in ("late", "typo", "ticks", "beside")} == {(False, "InvalidScript")}
    assert "line 1, column" in result.verdicts["typo"].message
    assert result.verdicts["late"].message == "the view a is in script early as well"
    assert "partitions.ticks" in result.verdicts["ticks"].message


def test_a_script_that_is_refused_leaves_the_earlier_one_in_place() -> None:
    before = script("a")
    body = dataflow("flow", script("a", "cuont(id)"))
    result = handing(cluster({"flow": before}, brought=("flow",)), [body])
    assert result.scripts == {"flow": before}
    said = {"tick": 9, "views": [{"name": "a", "upper": 10, "failure": None, "badRows": {}}]}
    told = status(body, result.verdicts["flow"], cluster({"flow": before}), said, NOW)
    assert [(each.type, each.status.value, each.reason) for each in told.conditions] == [
        ("Ready", "False", "InvalidScript"), ("UpToDate", "False", "InvalidScript"),
    ]  # fmt: skip
    assert told.views[0].frontier == 10


def test_the_status_says_what_the_views_lack() -> None:
    text = f"{script('a')} CREATE MATERIALIZED VIEW b AS SELECT id FROM orders;"
    body = dataflow("flow", text)
    verdict = handing(cluster({}), [body]).verdicts["flow"]

    def told(compute: dict[str, Any] | None, said: dict[str, Any] | None) -> tuple[str, str, DataflowStatus]:
        found = status(body, verdict if compute else missing("main"), compute, said, NOW)
        return found.conditions[1].status.value, found.conditions[1].reason, found

    def views(upper: int, failure: str | None = None) -> dict[str, Any]:
        bad = {"orders": 2}
        rows = [{"name": n, "upper": upper, "failure": failure, "badRows": bad} for n in ("a", "b")]
        return {"tick": 40, "views": [*rows, {"name": "others", "upper": 1, "failure": "x", "badRows": {"orders": 5}}]}

    assert told(None, None)[:2] == ("False", "ComputeClusterMissing")
    assert told(cluster({}), None)[:2] == ("False", "RollingOut")
    assert told(cluster({"flow": text}, settled=False), views(41))[:2] == ("False", "RollingOut")
    assert told(cluster({"flow": text}), None)[:2] == ("False", "NoPod")
    assert told(cluster({"flow": text}), {"tick": 0, "views": []})[:2] == ("False", "NotHydrated")
    assert told(cluster({"flow": text}), views(20))[:2] == ("False", "Lagging")
    assert told(cluster({"flow": text}), views(20, "a sum is out of range"))[:2] == ("False", "ViewFailed")
    truth, reason, found = told(cluster({"flow": text}), views(41))
    assert (truth, reason, found.bad_rows, found.observed_generation) == ("True", "UpToDate", 2, 3)
    assert [(view.name, view.frontier, view.lag) for view in found.views] == [("a", 41, 0), ("b", 41, 0)]
    assert (found.views[0].columns[0].name, found.views[0].columns[0].type) == ("id", "BIGINT")
    # A condition that did not change keeps its time; without a pod the last known progress stays.
    again = status({**body, "status": found.dump()}, verdict, cluster({"flow": text}), None, datetime.now(UTC))
    assert again.conditions[0].last_transition_time == NOW
    assert (again.views[0].frontier, again.bad_rows) == (41, 2)


def around(kube: KubeClient, http: httpx2.AsyncClient, members: Members) -> Around:
    return Around(
        kube, http, members, lambda: NOW, RenderDefaults("image", "1", None, b"", "system"), lambda _: (), print
    )


@pytest.fixture
async def kube(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with (
        local_cluster(LocalSettings(folder=tmp_path, platform_pods=False)) as local,
        await KubeClient.connect(Target(local.kubeconfig)) as client,
    ):
        yield client


async def test_a_pod_that_says_what_no_view_says_keeps_nobody_elses_dataflows_from_being_looked_after(
    kube: KubeClient,
) -> None:
    """The first of two ComputeClusters has such a pod; without a bound the operator's task ended, and with it all."""
    address = {"metadata": {"labels": {GENERATION_LABEL: ""}}, "status": {"podIP": "127.64.0.9"}}
    strange = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"views": [{"upper": []}]}))
    async with httpx2.AsyncClient(transport=strange) as http:

        def members(_: str, __: str, name: str) -> list[tuple[Resource, dict[str, Any]]]:
            return [(PODS, address)] if name == "first" else []

        dataflows = Dataflows(around(kube, http, members))
        spec = {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": 2, "views": 3}}
        for name in ("first", "second"):
            body = {"metadata": {"name": name}, "spec": spec}
            await kube.apply(COMPUTE_CLUSTERS, body, "default", manager="user")
            made = dataflow(f"of-{name}", script(name))
            made["spec"]["computeClusterRef"]["name"] = name
            await kube.create(DATAFLOWS, made, "default")
        await dataflows.look()
        held = (await kube.get(DATAFLOWS, "of-second", "default"))["status"]["conditions"]
        assert [each["reason"] for each in held if each["type"] == "Ready"] == ["Accepted"]
        assert "status" not in await kube.get(DATAFLOWS, "of-first", "default")


async def test_a_server_gets_the_scripts_and_a_deleted_dataflow_takes_its_own_along(kube: KubeClient) -> None:
    async def scripts() -> dict[str, str]:
        found: dict[str, str] = (await kube.get(COMPUTE_CLUSTERS, "main", "default"))["spec"].get("scripts") or {}
        return found

    async def reason(name: str) -> str:
        held = (await kube.get(DATAFLOWS, name, "default"))["status"]["conditions"]
        return str(next(each["reason"] for each in held if each["type"] == "Ready"))

    async with httpx2.AsyncClient() as http:
        dataflows = Dataflows(around(kube, http, Cache().members))
        for name, text in (("one", script("a")), ("two", script("b")), ("mine", script("c"))):
            await kube.create(DATAFLOWS, dataflow(name, text), "default")
        await dataflows.look()
        assert await reason("one") == "ComputeClusterMissing"
        spec = {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": 2, "views": 3}}
        body = {"metadata": {"name": "main"}, "spec": {**spec, "scripts": {"mine": script("own")}}}
        await kube.apply(COMPUTE_CLUSTERS, body, "default", manager="user")
        await dataflows.look()
        assert await scripts() == {"mine": script("own"), "one": script("a"), "two": script("b")}
        assert [await reason(name) for name in ("one", "two", "mine")] == ["Accepted", "Accepted", "NameTaken"]
        await kube.apply(COMPUTE_CLUSTERS, body, "default", manager="user")  # takes nobody else's script away
        await kube.patch(DATAFLOWS, "one", {"spec": {"script": script("aa")}}, "default")
        await kube.delete(DATAFLOWS, "two", "default")
        await dataflows.look()
        assert await scripts() == {"mine": script("own"), "one": script("aa")}
        await kube.delete(DATAFLOWS, "one", "default")
        await dataflows.look()
        assert await scripts() == {"mine": script("own")}

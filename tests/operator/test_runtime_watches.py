"""What no watch has told is seen all the same, and an operator that ends stops its own work first (5.2, 5.12)."""

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import kopf
import pytest

from pavane.runtime.process import Process
from pavane_local.api.cluster import DEFINITIONS, Cluster
from pavane_operator.crds.definitions import definitions
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.registry import kinds
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import BUILT_IN, SECRETS, STATEFUL_SETS, Object, Resource, custom
from pavane_operator.plan.model import FINALIZER, Settings
from pavane_operator.runtime import operator as operator_module
from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.events import EventRecorder
from pavane_operator.runtime.main import OperatorProcess
from pavane_operator.runtime.metrics import Metrics
from pavane_operator.runtime.operator import Operator
from pavane_operator.runtime.reconcile import Shared
from pavane_operator.runtime.settings import OperatorSettings
from pavane_operator.runtime.streams import Epochs
from tests.local.api_server import Server, a_server
from tests.services.eventually import eventually

RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")
NAMESPACE = "default"
KINDS = kinds(
    RenderDefaults(
        image="pavane:local",
        version="0",
        otlp_endpoint=None,
        otlp_audience=None,
        secret_key=b"k" * 32,
        platform_namespace="pavane-system",
    )
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with a_server(tmp_path) as running:
        for definition in definitions():
            await running.cluster.create(DEFINITIONS, copy.deepcopy(definition))
        await running.cluster.create("namespaces", {"metadata": {"name": "pavane-system"}})
        yield running


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(Target(server.api.kubeconfig)) as client:
        yield client


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def unwatched(kube: KubeClient, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Operator]:
    """An operator whose watches tell nothing at all."""
    monkeypatch.setattr(operator_module, "COMPARE_FIRST_S", 0.05)
    monkeypatch.setattr(operator_module, "COMPARE_S", 0.05)
    async with httpx2.AsyncClient() as http:
        rng = random.Random(1)
        shared = Shared(
            kube=kube,
            http=http,
            cache=Cache(),
            epochs=Epochs(1),
            events=EventRecorder(kube, "test", rng),
            rng=rng,
            settings=Settings(),
            now=lambda: datetime.now(UTC),
            metrics=metrics,
        )
        operator = Operator(KINDS, shared)
        comparing = asyncio.create_task(operator.compare())
        yield operator
        comparing.cancel()
        await asyncio.wait({comparing})
        await operator.close()


def stored(cluster: Cluster) -> Object:
    return cluster.find("raftclusters.pavane.dev", NAMESPACE, "log") or {}


def observed(cluster: Cluster) -> int | None:
    return (stored(cluster).get("status") or {}).get("observedGeneration")


async def test_a_resource_is_looked_after_although_no_watch_told_of_it(
    server: Server, kube: KubeClient, unwatched: Operator, metrics: Metrics
) -> None:
    body: dict[str, Any] = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    await kube.create(RAFT_CLUSTERS, body, NAMESPACE)
    await eventually(lambda: observed(server.cluster) == 1)
    assert FINALIZER in stored(server.cluster)["metadata"]["finalizers"]

    await kube.patch(RAFT_CLUSTERS, "log", {"spec": {"rollout": {"deadline": "1h"}}}, NAMESPACE, manager="user")
    await eventually(lambda: observed(server.cluster) == 2)

    await kube.delete(RAFT_CLUSTERS, "log", NAMESPACE)
    await eventually(lambda: stored(server.cluster) == {})
    await eventually(lambda: len(unwatched.keepers) == 0)
    assert metrics.missed_events["RaftCluster"] >= 2


async def test_nobody_asks_for_what_the_watches_bring(
    server: Server, kube: KubeClient, unwatched: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    get_or_none = kube.get_or_none

    async def noted(resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        asked.append(name)
        return await get_or_none(resource, name, namespace)

    monkeypatch.setattr(kube, "get_or_none", noted)
    body: dict[str, Any] = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    await kube.create(RAFT_CLUSTERS, body, NAMESPACE)
    await eventually(lambda: server.cluster.find("statefulsets.apps", NAMESPACE, "log-server-g1") is not None)
    assert "log-keys" in asked  # before it was made it might have been a user's
    assert [name for name in asked if name != "log-keys"] == ["log"]  # at the beginning; nothing on the way is read
    asked.clear()
    for reconciler in unwatched._reconcilers.values():
        reconciler.forget_references()
    await kube.patch(RAFT_CLUSTERS, "log", {"spec": {"rollout": {"deadline": "1h"}}}, NAMESPACE, manager="user")
    await eventually(lambda: observed(server.cluster) == 2)
    assert "log-keys" not in asked


async def test_a_plan_that_only_makes_objects_leaves_the_status_to_the_next_one(
    server: Server, kube: KubeClient, unwatched: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    apply, apply_status = kube.apply, kube.apply_status

    async def applied(resource: Resource, intent: Object, namespace: str | None = None, **more: Any) -> Object:
        written.append(f"{resource.plural}/{intent['metadata']['name']}")
        return await apply(resource, intent, namespace, **more)

    async def told(resource: Resource, intent: Object, namespace: str | None = None, **more: Any) -> Object:
        written.append("status")
        return await apply_status(resource, intent, namespace, **more)

    monkeypatch.setattr(kube, "apply", applied)
    monkeypatch.setattr(kube, "apply_status", told)
    body: dict[str, Any] = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    await kube.create(RAFT_CLUSTERS, body, NAMESPACE)
    made = "statefulsets/log-server-g1"
    await eventually(lambda: made in written and "status" in written[written.index(made) :])
    before = written[: written.index(made)]
    assert before.count("status") == 1, written  # the claim of the number


async def test_the_status_follows_although_somebody_takes_away_what_is_made(
    server: Server, kube: KubeClient, unwatched: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, cache, taken = kube.apply, unwatched._shared.cache, 0

    async def taken_away(resource: Resource, intent: Object, namespace: str | None = None, **more: Any) -> Object:
        nonlocal taken
        body = await apply(resource, intent, namespace, **more)
        if resource == STATEFUL_SETS:
            taken += 1
            await kube.delete(resource, body["metadata"]["name"], namespace)
            cache.seen(resource, body, deleted=True)  # the watch may be faster than the answer
        return body

    monkeypatch.setattr(kube, "apply", taken_away)
    body: dict[str, Any] = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    await kube.create(RAFT_CLUSTERS, body, NAMESPACE)
    await eventually(lambda: taken > 1)
    await kube.patch(RAFT_CLUSTERS, "log", {"spec": {"rollout": {"deadline": "1h"}}}, NAMESPACE, manager="user")
    await eventually(lambda: observed(server.cluster) == 2)


async def test_a_child_whose_end_no_watch_told_does_not_hold_up_the_end_of_its_resource(
    server: Server, kube: KubeClient, unwatched: Operator
) -> None:
    """So it is when a child goes between the first lists of an operator and the begin of its watches."""
    body: dict[str, Any] = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    await kube.create(RAFT_CLUSTERS, body, NAMESPACE)
    await eventually(lambda: observed(server.cluster) == 1)
    await eventually(lambda: server.cluster.find("statefulsets.apps", NAMESPACE, "log-server-g1"))
    (child,) = (await kube.list(STATEFUL_SETS, NAMESPACE)).items
    metadata = {**child["metadata"], "name": "log-server-g9", "uid": "a-ghost"}
    unwatched.child_seen(STATEFUL_SETS, {**child, "metadata": metadata}, deleted=False)
    await kube.delete(RAFT_CLUSTERS, "log", NAMESPACE)
    await eventually(lambda: stored(server.cluster) == {})


async def test_a_resource_whose_end_no_watch_told_is_forgotten(unwatched: Operator) -> None:
    metadata = {"name": "log", "namespace": NAMESPACE, "uid": "gone", "resourceVersion": "1", "generation": 1}
    spec = {"stateMachine": "Broadcast", "replicas": 1}
    unwatched.resource_seen(RAFT_CLUSTERS, {"kind": "RaftCluster", "metadata": metadata, "spec": spec}, deleted=False)
    assert len(unwatched.keepers) == 1
    await eventually(lambda: len(unwatched.keepers) == 0)


async def test_keepers_have_ended_when_the_watches_are_stopped(
    server: Server, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kopf waits five seconds for tasks that it finds at its end and does not know."""
    found: list[set[str]] = []
    run_tasks = kopf.run_tasks

    async def noting(tasks: Collection[asyncio.Task[Any]], *, ignored: Collection[asyncio.Task[Any]]) -> None:
        running = asyncio.create_task(run_tasks(tasks, ignored=ignored))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            found.append({task.get_name() for task in asyncio.all_tasks()})
            running.cancel()
            await asyncio.wait({running})
            raise

    monkeypatch.setattr(kopf, "run_tasks", noting)
    monkeypatch.setenv("KUBECONFIG", str(server.api.kubeconfig))
    body: dict[str, Any] = {"metadata": {"name": "log"}, "spec": {"stateMachine": "Broadcast", "replicas": 1}}
    uid = (await kube.create(RAFT_CLUSTERS, body, NAMESPACE))["metadata"]["uid"]
    process = Process()
    living = asyncio.create_task(OperatorProcess(OperatorSettings(health_port=0), process).live())
    await eventually(lambda: observed(server.cluster) == 1)
    assert f"keeper {uid}" in {task.get_name() for task in asyncio.all_tasks()}
    process.exit(0)
    await living
    await process.cancel_tasks()
    (left,) = found
    assert not {name for name in left if name.startswith(("keeper", "stage", "step"))}


async def test_of_what_belongs_to_others_only_metadata_of_secrets_are_fetched(
    server: Server, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have hundreds of Secrets and ConfigMaps of 1 MiB; and what is watched is heard."""
    monkeypatch.setattr(operator_module, "COMPARE_FIRST_S", 3600.0)
    monkeypatch.setenv("KUBECONFIG", str(server.api.kubeconfig))
    asked: set[str] = set()
    cluster, chosen, watch = server.cluster, server.cluster.chosen, server.cluster.watch
    kinds_of_others = {each.plural for each in BUILT_IN}

    def noting_list(resource: Any, namespace: str | None, **selectors: str) -> Any:
        if resource.plural in kinds_of_others and not selectors["labels"]:
            asked.add(f"list {resource.plural}")
        return chosen(resource, namespace, **selectors)

    def noting_watch(key: str, namespace: str | None = None, since: int | None = None, **selectors: str) -> Any:
        if key.partition(".")[0] in kinds_of_others and not selectors.get("labels"):
            asked.add(f"watch {key}")
        return watch(key, namespace, since, **selectors)

    monkeypatch.setattr(cluster, "chosen", noting_list)
    monkeypatch.setattr(cluster, "watch", noting_watch)
    process = Process()
    living = asyncio.create_task(OperatorProcess(OperatorSettings(health_port=0), process).live())

    def made() -> str:
        found = cluster.find("statefulsets.apps", NAMESPACE, "log-server-g1")
        return str(found["metadata"]["uid"]) if found is not None else ""

    try:
        spec: dict[str, Any] = {"stateMachine": "Broadcast", "replicas": 1}
        spec["secretRef"] = {"name": "ident", "key": "secret"}
        await kube.create(RAFT_CLUSTERS, {"metadata": {"name": "log"}, "spec": spec}, NAMESPACE)
        await eventually(lambda: "ReferenceNotReady" in str(stored(cluster).get("status")))
        await kube.create(SECRETS, {"metadata": {"name": "ident"}, "stringData": {"secret": "one"}}, NAMESPACE)
        await eventually(made)
        first = made()
        await kube.delete(STATEFUL_SETS, "log-server-g1", NAMESPACE)
        await eventually(lambda: made() not in ("", first))
    finally:
        process.exit(0)
        await living
        await process.cancel_tasks()
    assert {each for each in asked if "leases" not in each and "definitions" not in each} == {"watch secrets"}

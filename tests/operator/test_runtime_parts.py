"""The parts of the operator's runtime by themselves: cache, keepers, events, Lease, steps, executor."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import CONFIG_MAPS, EVENTS, PODS, Object
from pavane_operator.plan.model import Facts, MarkResource, Observed, Resource
from pavane_operator.runtime import keepers as keepers_module
from pavane_operator.runtime import spans as spans_module
from pavane_operator.runtime.cache import TOMBSTONES_MAX, Cache
from pavane_operator.runtime.events import AGGREGATION, EventRecorder
from pavane_operator.runtime.keepers import Keepers
from pavane_operator.runtime.metrics import Metrics
from pavane_operator.runtime.operator import COMPARE_MAX_S, COMPARE_S, compare_delay_s
from pavane_operator.runtime.steps import StepRunner
from tests.local.api_server import a_server, config_map
from tests.services.eventually import eventually

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def a_client(folder: Path) -> AsyncIterator[KubeClient]:
    async with a_server(folder) as server, await KubeClient.connect(Target(server.api.kubeconfig)) as kube:
        yield kube


@pytest.fixture
async def kube(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with a_client(tmp_path) as client:
        yield client


# ---- cache


def body(uid: str = "u1", version: str = "1", name: str = "a", instance: str = "log") -> Object:
    labels = {"app.kubernetes.io/name": "raftcluster", "app.kubernetes.io/instance": instance}
    return {
        "metadata": {"uid": uid, "resourceVersion": version, "name": name, "namespace": "data", "labels": labels},
    }


def members(cache: Cache, instance: str = "log") -> list[str]:
    return [one["metadata"]["uid"] for _, one in cache.members("RaftCluster", "data", instance)]


def test_an_older_state_never_replaces_a_newer_one() -> None:
    cache = Cache()
    assert cache.seen(CONFIG_MAPS, body(version="9"))
    assert not cache.seen(CONFIG_MAPS, body(version="10") | {"metadata": body(version="8")["metadata"]})
    assert not cache.seen(CONFIG_MAPS, body(version="9"))
    assert cache.seen(CONFIG_MAPS, body(version="10"))
    known = cache.get("u1")
    assert known is not None
    assert known["metadata"]["resourceVersion"] == "10"


def test_a_late_answer_does_not_revive_what_is_deleted() -> None:
    cache = Cache()
    cache.seen(CONFIG_MAPS, body())
    assert cache.seen(CONFIG_MAPS, body(version="2"), deleted=True)
    assert not cache.seen(CONFIG_MAPS, body(version="3"))
    assert cache.get("u1") is None
    assert members(cache) == []


def test_the_memory_of_deleted_objects_is_bounded() -> None:
    cache = Cache()
    for number in range(TOMBSTONES_MAX + 1):
        cache.seen(CONFIG_MAPS, body(uid=f"u{number}"), deleted=True)
    assert not cache.seen(CONFIG_MAPS, body(uid=f"u{TOMBSTONES_MAX}"))
    assert cache.seen(CONFIG_MAPS, body(uid="u0"))


def test_objects_belong_to_the_resource_that_their_labels_name() -> None:
    cache = Cache()
    cache.seen(PODS, body("u1", instance="log"))
    cache.seen(PODS, body("u2", instance="other"))
    cache.seen(CONFIG_MAPS, {"metadata": {"uid": "u3", "resourceVersion": "1", "name": "b", "namespace": "data"}})
    assert (members(cache), members(cache, "other")) == (["u1"], ["u2"])


def test_of_a_pod_only_what_is_read_is_kept() -> None:
    cache = Cache()
    spec = {"nodeName": "n1", "containers": [{"name": "server", "image": "pavane"}], "volumes": [{"name": "data"}]}
    pod = body() | {"spec": spec, "status": {"podIP": "10.0.0.1"}}
    pod["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    cache.seen(PODS, pod)
    cache.seen(CONFIG_MAPS, body("u2") | {"spec": spec})
    known, whole = cache.get("u1"), cache.get("u2")
    assert known is not None
    assert whole is not None
    assert (known["spec"], known["status"]) == ({"nodeName": "n1"}, {"podIP": "10.0.0.1"})
    assert "managedFields" not in known["metadata"]
    assert whole["spec"] == spec
    assert pod["spec"] == spec  # what was given stays as it was


def test_looks_at_everything_are_the_rarer_the_more_there_is_but_not_without_end() -> None:
    assert compare_delay_s(100) == COMPARE_S
    assert compare_delay_s(14_000) == pytest.approx(140.0)
    assert compare_delay_s(10_000_000) == COMPARE_MAX_S


def test_what_a_complete_list_lacks_is_gone() -> None:
    cache = Cache()
    cache.seen(PODS, body("u1"))
    cache.seen(PODS, body("u2"))
    known = cache.of_type(PODS, "data")
    cache.seen(PODS, body("u4"))  # told by a watch while the list was on its way
    news = cache.listed(PODS, known, [body("u2", version="5"), body("u3")])
    assert [(one["metadata"]["uid"], gone) for one, gone in news] == [("u2", False), ("u3", False), ("u1", True)]
    assert members(cache) == ["u2", "u3", "u4"]
    assert not cache.seen(PODS, body("u1", version="9")), "a late answer revives nothing"
    assert cache.of_type(PODS, "elsewhere") == []


# ---- keepers


class Work:
    """Counts reconciles and lets tests hold them."""

    def __init__(self, *, answers: list[Any] | None = None) -> None:
        self.runs: list[str] = []
        self.alive = {"a"}
        self.ended: list[str] = []
        self.answers = answers or []
        self.open = asyncio.Event()
        self.open.set()
        self.running = 0
        self.at_once = 0
        self.metrics = Metrics()

    async def reconcile(self, uid: str) -> float | None:
        self.runs.append(uid)
        self.running += 1
        self.at_once = max(self.at_once, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def end(self, uid: str) -> None:
        self.ended.append(uid)

    def keepers(self) -> Keepers:
        return Keepers(self.reconcile, self.alive.__contains__, random.Random(1), self.end, self.metrics)


async def test_a_burst_of_wakes_is_one_run_and_a_wake_meanwhile_is_another() -> None:
    work = Work()
    work.open.clear()
    keepers = work.keepers()
    keepers.wake("a", "child")
    await eventually(lambda: work.runs == ["a"])
    for _ in range(100):
        keepers.wake("a", "child")
    work.open.set()
    await eventually(lambda: len(work.runs) == 2)
    await keepers.close()
    assert work.runs == ["a", "a"]
    assert work.at_once == 1
    assert work.metrics.wakeups == {"child": 101}
    assert work.metrics.queue_seconds.count[()] == 2


async def test_resources_are_kept_at_the_same_time() -> None:
    work = Work()
    work.alive = {"a", "b"}
    work.open.clear()
    keepers = work.keepers()
    keepers.wake("a", "child")
    keepers.wake("b", "child")
    await eventually(lambda: work.at_once == 2)
    await keepers.close()


async def test_no_more_run_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers_module, "RECONCILES_OPEN_MAX", 2)
    work = Work()
    work.alive = {"a", "b", "c"}
    work.open.clear()
    keepers = work.keepers()
    for uid in work.alive:
        keepers.wake(uid, "child")
    await eventually(lambda: work.running == 2)
    work.open.set()
    await eventually(lambda: set(work.runs) == {"a", "b", "c"})
    await keepers.close()
    assert work.at_once == 2


async def test_an_error_ends_no_keeper() -> None:
    work = Work(answers=[RuntimeError("no"), RuntimeError("no"), None])
    keepers = work.keepers()
    keepers.wake("a", "child")
    await eventually(lambda: len(work.runs) == 3)
    await keepers.close()
    assert work.ended == ["a"]


async def test_a_run_that_hangs_is_ended_and_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers_module, "RECONCILE_TIMEOUT_S", 0.05)
    work = Work()
    work.open.clear()
    keepers = work.keepers()
    keepers.wake("a", "child")
    await eventually(lambda: len(work.runs) == 2)
    await keepers.close()
    assert work.at_once == 1


async def test_it_runs_again_after_the_time_that_it_asked_for() -> None:
    work = Work(answers=[0.01])
    keepers = work.keepers()
    keepers.wake("a", "child")
    await eventually(lambda: len(work.runs) == 2)
    await keepers.close()
    assert work.metrics.wakeups["timer"] == 1


async def test_a_keeper_ends_with_its_resource_and_cleans_up() -> None:
    work = Work()
    keepers = work.keepers()
    keepers.wake("a", "child")
    await eventually(lambda: work.runs)
    work.alive.clear()
    keepers.wake("a", "child")
    await eventually(lambda: work.ended == ["a"])
    assert len(keepers) == 0
    keepers.wake("a", "child")
    assert len(keepers) == 0


async def test_after_the_end_nothing_is_started() -> None:
    work = Work()
    keepers = work.keepers()
    await keepers.close()
    keepers.wake("a", "child")
    assert len(keepers) == 0


# ---- events


async def regarding(kube: KubeClient) -> Object:
    return await kube.create(CONFIG_MAPS, config_map("thing"), "default")


async def posted(kube: KubeClient) -> list[tuple[str, str, int]]:
    """(reason, note, count) of all events."""
    items = (await kube.list(EVENTS, "default")).items
    return sorted((item["reason"], item["note"], (item.get("series") or {}).get("count", 1)) for item in items)


async def test_the_same_again_is_counted_and_of_errors_the_first_stands_for_all(kube: KubeClient) -> None:
    recorder = EventRecorder(kube, "here", random.Random(1))
    thing = await regarding(kube)
    for note in ("first", "second", "third"):
        await recorder.post(thing, "Warning", "ReconcileFailed", note, NOW)
    for note in ("read-only", "read-only", "caught up"):
        await recorder.post(thing, "Normal", "StageReached", note, NOW)
    assert await posted(kube) == [
        ("ReconcileFailed", "first", 3),
        ("StageReached", "caught up", 1),
        ("StageReached", "read-only", 2),
    ]


async def test_after_ten_minutes_it_is_another_event(kube: KubeClient) -> None:
    recorder = EventRecorder(kube, "here", random.Random(1))
    thing = await regarding(kube)
    await recorder.post(thing, "Warning", "ReconcileFailed", "one", NOW)
    await recorder.post(thing, "Warning", "ReconcileFailed", "two", NOW + AGGREGATION)
    assert await posted(kube) == [("ReconcileFailed", "one", 1), ("ReconcileFailed", "two", 1)]


async def test_events_are_listed_in_the_order_in_which_they_happened(kube: KubeClient) -> None:
    recorder = EventRecorder(kube, "here", random.Random(1))
    thing = await regarding(kube)
    notes = [str(number) for number in range(20)]
    for number, note in enumerate(notes):
        await recorder.post(thing, "Normal", "StageReached", note, NOW + timedelta(milliseconds=number))
    assert [item["note"] for item in (await kube.list(EVENTS, "default")).items] == notes


async def test_what_happens_is_told_in_the_log_once(kube: KubeClient) -> None:
    recorder = EventRecorder(kube, "here", random.Random(1))
    thing = await regarding(kube)
    with structlog.testing.capture_logs() as told:
        for _ in range(2):
            await recorder.post(thing, "Warning", "RolloutAborted", "generation 2 is given up", NOW)
    about = {"kind": thing["kind"], "namespace": "default", "name": thing["metadata"]["name"]}
    assert told == [{"event": "generation 2 is given up", "log_level": "warning", "reason": "RolloutAborted", **about}]


async def test_an_event_that_the_server_dropped_begins_anew(kube: KubeClient) -> None:
    recorder = EventRecorder(kube, "here", random.Random(1))
    thing = await regarding(kube)
    await recorder.post(thing, "Warning", "ReconcileFailed", "one", NOW)
    for item in (await kube.list(EVENTS, "default")).items:
        await kube.delete(EVENTS, item["metadata"]["name"], "default")
    await recorder.post(thing, "Warning", "ReconcileFailed", "lost", NOW)
    await recorder.post(thing, "Warning", "ReconcileFailed", "two", NOW)
    assert await posted(kube) == [("ReconcileFailed", "two", 1)]


async def test_a_note_is_cut_to_what_the_api_takes(kube: KubeClient) -> None:
    recorder = EventRecorder(kube, "here", random.Random(1))
    await recorder.post(await regarding(kube), "Normal", "Promoted", "ä" * 2000, NOW)
    ((_, note, _),) = await posted(kube)
    assert len(note.encode()) <= 1000


async def test_an_event_that_cannot_be_posted_is_no_failure(tmp_path: Path) -> None:
    async with a_client(tmp_path) as kube:
        thing = await regarding(kube)
        recorder = EventRecorder(kube, "here", random.Random(1))
        thing["metadata"]["namespace"] = "nowhere"
        await recorder.post(thing, "Normal", "Promoted", "x", NOW)
        assert await posted(kube) == []


# ---- spans


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans_module, "_tracer", provider.get_tracer("test"))
    return exporter


def reconciled(annotations: dict[str, str]) -> Object:
    return {"metadata": {"name": "log", "namespace": "data", "generation": 4, "annotations": annotations}}


def test_a_run_that_does_something_is_a_span_with_a_child_per_action(exported: InMemorySpanExporter) -> None:
    cause = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with spans_module.RunSpan("RaftCluster", reconciled({"pavane.dev/traceparent": cause})) as run:
        with run.action("B7", MarkResource(1)):
            pass
        with run.action("D1", MarkResource(1)):
            pass
    first, second, parent = exported.get_finished_spans()
    assert parent.name == "reconcile RaftCluster"
    assert (first.name, second.name) == ("MarkResource", "MarkResource")
    assert first.parent is not None
    assert first.parent.span_id == parent.context.span_id
    assert f"{parent.links[0].context.trace_id:032x}" == cause.split("-")[1]
    assert dict(parent.attributes or {}) == {
        "k8s.namespace.name": "data",
        "pavane.object": "log",
        "pavane.generation": 4,
    }


def test_a_run_that_only_looks_leaves_no_span(exported: InMemorySpanExporter) -> None:
    with spans_module.RunSpan("RaftCluster", reconciled({})):
        pass
    assert exported.get_finished_spans() == ()


def test_a_failed_run_says_so(exported: InMemorySpanExporter) -> None:
    with (
        pytest.raises(ValueError, match="no"),
        spans_module.RunSpan("RaftCluster", reconciled({"pavane.dev/traceparent": "nonsense"})) as run,
        run.action("D1", MarkResource(1)),
    ):
        raise ValueError("no")
    parent = exported.get_finished_spans()[-1]
    assert parent.status.status_code is StatusCode.ERROR
    assert not parent.links


# ---- steps


class OneStep:
    """A promotion whose step does what the test says."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.calls = 0

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        return Facts()

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        return

    async def close(self) -> None:
        return


def a_resource() -> Resource:
    spec = RaftClusterSpec.model_validate({"stateMachine": "Broadcast"})
    return Resource("RaftCluster", "log", "data", "uid", "1", 1, spec, None)


async def test_a_step_that_fails_is_told_and_put_off_longer_each_time() -> None:
    promotion = OneStep(ConnectionError("refused"), ConnectionError("refused"), None)
    woken = asyncio.Event()
    steps = StepRunner(promotion, lambda: NOW, random.Random(1), woken.set)
    delays: list[timedelta] = []
    for _ in range(3):
        steps.start("ChangeMembers", a_resource(), Observed(fresh=True), NOW)
        await woken.wait()
        woken.clear()
        assert steps.call is not None
        assert not steps.call.running
        assert steps.call.retry_at is not None
        delays.append(steps.call.retry_at - NOW)
        if len(delays) < 3:
            assert steps.call.message == "refused"
    assert steps.call is not None
    assert steps.call.message == ""
    assert timedelta(0) < delays[2] < delays[1]
    await steps.close()


async def test_a_step_is_called_once_at_a_time() -> None:
    promotion = OneStep(None)
    woken = asyncio.Event()
    steps = StepRunner(promotion, lambda: NOW, random.Random(1), woken.set)
    for _ in range(3):
        steps.start("ChangeMembers", a_resource(), Observed(fresh=True), NOW)
    assert steps.call is not None
    assert steps.call.running
    await woken.wait()
    assert promotion.calls == 1
    await steps.close()


def test_an_object_is_found_by_its_name_until_it_goes() -> None:
    cache = Cache()
    first = body(version="1")
    place = (CONFIG_MAPS, first["metadata"].get("namespace", ""), first["metadata"]["name"])
    assert cache.named(*place) is None
    cache.seen(CONFIG_MAPS, first)
    assert cache.named(*place) is not None
    cache.seen(CONFIG_MAPS, first, deleted=True)
    assert cache.named(*place) is None

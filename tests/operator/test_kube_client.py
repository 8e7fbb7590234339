"""The Kubernetes client against the embedded API server (docs/specs/operator.md 5.1, 5.4)."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pavane_operator.kube import (
    AlreadyExists,
    BadRequest,
    Change,
    Conflict,
    ConnectError,
    Forbidden,
    Gone,
    Invalid,
    KubeClient,
    NotFound,
    Target,
    Unauthorized,
    Unavailable,
)
from pavane_operator.kube.client import CALL_TIMEOUT_S
from pavane_operator.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, Object, Resource
from tests.local.api_server import Server, a_server, config_map, pod, widget

THREADS_MAX = 32
"""As many threads as an event loop has by default."""
WIDGETS = Resource("test.dev", "v1", "widgets", "Widget")


@dataclass
class Both:
    """A server, and a client of it with the admin token."""

    server: Server
    kube: KubeClient

    def as_user(self, token: str) -> Target:
        return Target(kubeconfig=self.server.api.kubeconfig, token=token)


@pytest.fixture(params=["library", "light"])
async def both(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    """Each of the two transports: what one can, the other can."""
    async with (
        a_server(tmp_path) as server,
        await KubeClient.connect(Target(server.api.kubeconfig), brief=request.param == "light") as kube,
    ):
        yield Both(server, kube)


async def create_widgets(kube: KubeClient, *names: str, labels: dict[str, str] | None = None) -> list[Object]:
    bodies = [widget(name) for name in names]
    for body in bodies:
        body["metadata"]["labels"] = labels or {}
    return [await kube.create(WIDGETS, body, "default") for body in bodies]


async def test_a_call_waits_for_no_thread_of_somebody_else(both: Both) -> None:
    loop, free = asyncio.get_running_loop(), threading.Event()
    busy = [loop.run_in_executor(None, free.wait) for _ in range(THREADS_MAX)]
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S / 2):
            assert await both.kube.list_all(WIDGETS)
    finally:
        free.set()
        await asyncio.gather(*busy)


async def test_an_object_is_created_read_and_deleted(both: Both) -> None:
    created = await both.kube.create(WIDGETS, widget(), "default")
    assert await both.kube.get(WIDGETS, "a", "default") == created
    await both.kube.delete(WIDGETS, "a", "default")
    assert await both.kube.get_or_none(WIDGETS, "a", "default") is None


async def test_what_stands_there_counts_for_a_create_if_absent(both: Both) -> None:
    first = await both.kube.create_if_absent(CONFIG_MAPS, config_map(), "default")
    second = await both.kube.create_if_absent(CONFIG_MAPS, {**config_map(), "data": {"a": "2"}}, "default")
    assert second == first
    with pytest.raises(AlreadyExists):
        await both.kube.create(CONFIG_MAPS, config_map(), "default")


async def test_items_of_a_list_say_what_they_are(both: Both) -> None:
    await create_widgets(both.kube, "a", "b")
    page = await both.kube.list(WIDGETS, "default")
    assert [(item["apiVersion"], item["kind"]) for item in page.items] == [("test.dev/v1", "Widget")] * 2


async def test_lists_are_paged_and_selected(both: Both) -> None:
    await create_widgets(both.kube, "a", "b", "c", labels={"side": "left"})
    await create_widgets(both.kube, "d", labels={"side": "right"})
    first = await both.kube.list(WIDGETS, "default", labels="side=left", limit=2)
    assert [item["metadata"]["name"] for item in first.items] == ["a", "b"]
    rest = await both.kube.list(WIDGETS, "default", labels="side=left", limit=2, page=first.next_page)
    assert [item["metadata"]["name"] for item in rest.items] == ["c"]
    assert rest.next_page is None
    named = await both.kube.list_all(WIDGETS, fields="metadata.name=d")
    assert [item["metadata"]["name"] for item in named.items] == ["d"]


async def test_a_watch_begins_after_the_version_of_a_list_and_misses_nothing(both: Both) -> None:
    await create_widgets(both.kube, "a")
    listed = await both.kube.list(WIDGETS, "default")
    await create_widgets(both.kube, "b")
    await both.kube.patch(WIDGETS, "b", {"spec": {"replicas": 5}}, "default")
    await both.kube.delete(WIDGETS, "a", "default")
    changes = both.kube.watch(WIDGETS, "default", resource_version=listed.resource_version)
    seen = [await anext(changes) for _ in range(3)]
    await changes.aclose()
    told = [(change.type, change.object["metadata"]["name"]) for change in seen]
    assert told == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]


async def test_a_watch_delivers_at_once(both: Both) -> None:
    changes = both.kube.watch(WIDGETS, "default")
    first: asyncio.Future[Change] = asyncio.ensure_future(anext(changes))
    await create_widgets(both.kube, "a")
    async with asyncio.timeout(5):
        assert (await first).object["metadata"]["name"] == "a"
    await changes.aclose()


async def test_a_watch_ends_when_the_server_ends_it(both: Both) -> None:
    await create_widgets(both.kube, "a")
    changes = [change async for change in both.kube.watch(WIDGETS, "default", timeout_s=1)]
    assert changes[0].object["metadata"]["name"] == "a"
    assert {change.type for change in changes[1:]} <= {"BOOKMARK"}


async def test_a_watch_from_a_version_that_never_was_is_gone(both: Both) -> None:
    with pytest.raises(Gone):
        await anext(both.kube.watch(WIDGETS, "default", resource_version="999999999"))


async def test_an_apply_is_the_complete_intent_of_its_manager(both: Both) -> None:
    intent = {"metadata": {"name": "a"}, "spec": {"size": "1Gi", "replicas": 5, "mode": "A"}}
    await both.kube.apply(WIDGETS, intent, "default")
    smaller = {"metadata": {"name": "a"}, "spec": {"size": "1Gi", "replicas": 5}}
    applied = await both.kube.apply(WIDGETS, smaller, "default")
    assert "mode" not in applied["spec"]


async def test_only_the_operator_takes_fields_away_from_others(both: Both) -> None:
    def intent(replicas: int) -> Object:
        return {"metadata": {"name": "a"}, "spec": {"size": "1Gi", "replicas": replicas}}

    await both.kube.apply(WIDGETS, intent(3), "default", manager="pavane-cli")
    with pytest.raises(Conflict) as refused:
        await both.kube.apply(WIDGETS, intent(5), "default", manager="pavane-api")
    assert [cause.field for cause in refused.value.causes] == [".spec.replicas"]
    assert (await both.kube.apply(WIDGETS, intent(7), "default"))["spec"]["replicas"] == 7


async def test_a_status_applied_on_an_old_version_loses(both: Both) -> None:
    created = await both.kube.create(WIDGETS, widget(), "default")
    old = created["metadata"]["resourceVersion"]
    await both.kube.patch(WIDGETS, "a", {"spec": {"replicas": 5}}, "default")
    status = {"metadata": {"name": "a", "resourceVersion": old}, "status": {"replicas": 1}}
    with pytest.raises(Conflict):
        await both.kube.apply_status(WIDGETS, status, "default")
    fresh = await both.kube.get(WIDGETS, "a", "default")
    status["metadata"]["resourceVersion"] = fresh["metadata"]["resourceVersion"]
    assert (await both.kube.apply_status(WIDGETS, status, "default"))["status"] == {"replicas": 1}


async def test_the_status_of_what_is_gone_is_not_found(both: Both) -> None:
    with pytest.raises(NotFound):
        await both.kube.apply_status(WIDGETS, {"metadata": {"name": "a"}, "status": {"replicas": 1}}, "default")


async def test_an_apply_with_the_uid_of_another_object_makes_none(both: Both) -> None:
    intent = {"metadata": {"name": "a", "uid": "00000000-0000-0000-0000-000000000000", "finalizers": ["test.dev/x"]}}
    with pytest.raises((Conflict, NotFound, Invalid)):
        await both.kube.apply(WIDGETS, intent, "default")
    assert await both.kube.get_or_none(WIDGETS, "a", "default") is None


async def test_a_deletion_hits_only_what_was_read(both: Both) -> None:
    read = (await both.kube.create(CONFIG_MAPS, config_map(), "default"))["metadata"]
    await both.kube.patch(CONFIG_MAPS, "a", {"data": {"a": "2"}}, "default")
    with pytest.raises(Conflict):
        await both.kube.delete(CONFIG_MAPS, "a", "default", uid=read["uid"], resource_version=read["resourceVersion"])
    with pytest.raises(Conflict):
        await both.kube.delete(CONFIG_MAPS, "a", "default", uid="00000000-0000-0000-0000-000000000000")
    await both.kube.delete(CONFIG_MAPS, "a", "default", uid=read["uid"])
    await both.kube.delete(CONFIG_MAPS, "a", "default", uid=read["uid"])


async def test_a_patch_is_a_merge_or_a_list_of_operations(both: Both) -> None:
    await both.kube.create(CONFIG_MAPS, config_map(), "default")
    await both.kube.patch(CONFIG_MAPS, "a", {"data": {"b": "2"}}, "default")
    patched = await both.kube.patch(CONFIG_MAPS, "a", [{"op": "remove", "path": "/data/a"}], "default")
    assert patched["data"] == {"b": "2"}


async def test_an_invalid_object_names_its_fields(both: Both) -> None:
    with pytest.raises(Invalid) as refused:
        await both.kube.create(WIDGETS, widget(replicas=11), "default")
    assert refused.value.causes[0].field == "spec.replicas"
    assert "spec.replicas" in refused.value.message


async def test_unknown_fields_of_an_apply_are_refused(both: Both) -> None:
    intent = widget(colour="red")
    for strict in (True, False):  # an apply has to be typed before anything could be pruned
        with pytest.raises(Invalid, match="colour"):
            await both.kube.apply(WIDGETS, intent, "default", manager="pavane-cli", strict=strict)


async def test_logs_come_as_they_are(both: Both) -> None:
    await both.kube.create(PODS, pod(), "default")
    pieces = [piece async for piece in both.kube.pod_logs("a", "default", tail_lines=2)]
    assert b"".join(pieces) == b"a 1\na 2\n"
    with pytest.raises(BadRequest, match="not valid"):
        await anext(both.kube.pod_logs("a", "default", container="other"))


async def test_a_token_is_reviewed_with_its_audience(both: Both) -> None:
    admin = yaml.safe_load(both.server.api.kubeconfig.read_text())["users"][0]["user"]["token"]
    identity = await both.kube.token_review(admin, ["pavane-api"])
    assert identity is not None
    assert await both.kube.access_review(identity, "delete", WIDGETS, namespace="default", name="a")
    assert await both.kube.token_review("guessed", ["pavane-api"]) is None


async def test_an_unknown_token_is_unauthorized(both: Both) -> None:
    async with await KubeClient.connect(both.as_user("guessed")) as stranger:
        with pytest.raises((Unauthorized, Forbidden)):
            await stranger.get(NAMESPACES, "default")


async def test_an_object_needs_its_namespace(both: Both) -> None:
    with pytest.raises(ValueError, match="namespace"):
        await both.kube.get(PODS, "a")


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server:
        target = Target(server.api.kubeconfig)
    async with await KubeClient.connect(target) as kube:
        with pytest.raises(Unavailable, match="no answer from the API server"):
            await kube.get(NAMESPACES, "default")


async def test_a_missing_kubeconfig_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="pavane up"):
        await KubeClient.connect(Target(tmp_path / "nothing"))


async def test_an_unknown_context_says_what_to_do(both: Both) -> None:
    with pytest.raises(ConnectError, match="--context"):
        await KubeClient.connect(Target(both.server.api.kubeconfig, context="elsewhere"))

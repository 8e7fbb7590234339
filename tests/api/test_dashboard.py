"""The page at ``/``, and the one stream that feeds it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from playwright.async_api import expect

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.traces.endpoints import OTLP_TYPE
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.kube import Identity, KubeClient, Resource
from pavane_operator.kube.resources import NAMESPACES
from tests.api.browser import SHOWN_MS, opened
from tests.api.plane import Plane, plane, raft_cluster
from tests.requires import requires
from tests.services.cutting import cuttable

LONGEST_S = 40


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as running:
        yield running


@asynccontextmanager
async def stream(here: Plane, token: str | None = None) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    headers = {"Authorization": f"Bearer {token or here.token}"}
    async with asyncio.timeout(LONGEST_S), here.http.stream("GET", "/api/v1/resources", headers=headers) as response:
        response.raise_for_status()
        yield _events(response)


async def _events(response: httpx2.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


async def test_a_page_that_follows_the_stream_shows_every_change(here: Plane) -> None:
    await here.kube.create(RAFT_CLUSTERS, raft_cluster("first"), "default")
    async with stream(here) as events:
        snapshots: dict[str, dict[str, Any]] = {}
        while len(snapshots) < len(all_kinds()):
            name, data = await anext(events)
            assert name == "snapshot"
            snapshots[data["plural"]] = data
        assert {data["kind"] for data in snapshots.values()} == {kind.name for kind in all_kinds()}
        (item,) = snapshots["raftclusters"]["items"]
        assert (item["metadata"]["name"], item["kind"], "managedFields" in item["metadata"]) == (
            "first",
            "RaftCluster",
            False,
        )
        await here.kube.create(RAFT_CLUSTERS, raft_cluster("second"), "default")
        name, data = await anext(events)
        assert (name, data["plural"], data["object"]["metadata"]["name"]) == ("added", "raftclusters", "second")
        await here.kube.delete(RAFT_CLUSTERS, "second", "default")
        while name != "deleted":  # finalizers may change it first
            name, data = await anext(events)
        assert data["object"]["metadata"]["name"] == "second"


async def test_who_may_list_nothing_is_refused(here: Plane) -> None:
    token = await here.service_account_token("nobody")
    answer = await here.http.get("/api/v1/resources", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403
    assert "may not list" in answer.json()["detail"]
    assert (await here.http.get("/api/v1/resources", headers={"Authorization": "Bearer no"})).status_code == 401


def trace_in(namespace: str) -> bytes:
    """One span about a namespace, as a program exports it."""
    request = ExportTraceServiceRequest()
    of_program = request.resource_spans.add()
    attribute = of_program.resource.attributes.add(key="k8s.namespace.name")
    attribute.value.string_value = namespace
    now = time.time_ns()
    of_program.scope_spans.add().spans.add(
        trace_id=namespace[:1].encode() * 16,
        span_id=b"12345678",
        name=f"about {namespace}",
        start_time_unix_nano=now,
        end_time_unix_nano=now,
    )
    return request.SerializeToString()


@pytest.mark.timeout(180)
async def test_who_sees_one_namespace_names_it_and_is_shown_what_is_there(
    here: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires("chromium")
    ask = KubeClient.access_review

    async def review(self: KubeClient, caller: Identity, verb: str, resource: Resource, **where: Any) -> bool:
        """As RBAC answers of a Role in one namespace, which the embedded server has not."""
        if caller.user.endswith(":reader"):
            return verb in ("get", "list", "watch") and where["namespace"] == "team"
        return await ask(self, caller, verb, resource, **where)

    monkeypatch.setattr(KubeClient, "access_review", review)
    for namespace in ("team", "others"):
        await here.kube.create(NAMESPACES, {"metadata": {"name": namespace}})
        await here.kube.create(RAFT_CLUSTERS, raft_cluster(f"of-{namespace}"), namespace)
        said = await here.http.post("/v1/traces", content=trace_in(namespace), headers={"Content-Type": OTLP_TYPE})
        assert said.is_success, said.text
    token = await here.service_account_token("reader")
    async with opened(here, token) as page:
        await expect(page.get_by_role("alert")).to_contain_text("may not list", timeout=SHOWN_MS)
        for wrong in ("others", "team"):
            await page.get_by_label("Namespace").fill(wrong)
            await page.keyboard.press("Enter")
            if wrong == "others":
                await expect(page.get_by_role("alert")).to_contain_text("in namespace others", timeout=SHOWN_MS)
        await expect(page.get_by_role("link", name="of-team")).to_be_visible(timeout=SHOWN_MS)
        await expect(page.get_by_role("link", name="of-others")).to_have_count(0)
        await page.get_by_role("link", name="Traces", exact=True).click()
        await expect(page.get_by_role("link", name="about team")).to_be_visible(timeout=SHOWN_MS)
        await expect(page.locator("tbody tr")).to_have_count(1)
        await expect(page.get_by_role("alert")).to_have_count(0)
        await page.reload()  # the tab keeps it
        await page.get_by_role("link", name="Resources").click()
        await expect(page.get_by_role("link", name="of-team")).to_be_visible(timeout=SHOWN_MS)
        await page.get_by_role("button", name="Namespace team").click()
        await page.get_by_label("Namespace").fill("")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("may not list", timeout=SHOWN_MS)


@pytest.mark.timeout(180)
async def test_a_page_whose_connections_went_silent_follows_anew(here: Plane) -> None:
    requires("chromium")
    port = here.http.base_url.port
    assert port is not None
    await here.kube.create(RAFT_CLUSTERS, raft_cluster("first"), "default")
    async with cuttable(port) as way, opened(here, at=f"http://127.0.0.1:{way.port}") as page:
        await expect(page.get_by_role("link", name="first")).to_be_visible(timeout=SHOWN_MS)
        way.silence()
        await here.kube.create(RAFT_CLUSTERS, raft_cluster("second"), "default")
        await expect(page.get_by_role("link", name="second")).to_be_visible(timeout=SHOWN_MS)


async def test_the_page_loads_nothing_from_elsewhere_and_needs_no_token(here: Plane) -> None:
    async with httpx2.AsyncClient(base_url=here.http.base_url, trust_env=False, timeout=LONGEST_S) as stranger:
        page = await stranger.get("/")
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        loaded = [part.split('"')[1] for part in page.text.split(" src=")[1:] + page.text.split(" href=")[1:]]
        assert len(loaded) == 3
        for path in loaded:
            assert path.startswith("/dashboard/")
            file = await stranger.get(path)
            assert (file.status_code, file.headers["x-content-type-options"]) == (200, "nosniff")
        assert (await stranger.get("/dashboard/../openapi.py")).status_code == 404


ATTACK = (
    """'"><img src=x onerror="window.ran = 1"><script>window.ran = 2</script><a href="javascript:window.ran = 3">"""
)


async def test_what_strangers_wrote_is_text_to_the_page(here: Plane) -> None:
    """Whatever a pod, an application or a caller can put into a name, an attribute or a message; and into a link."""
    requires("chromium")
    request = ExportTraceServiceRequest()
    of_program = request.resource_spans.add()
    of_program.resource.attributes.add(key="service.name").value.string_value = ATTACK
    span = of_program.scope_spans.add().spans.add(trace_id=b"x" * 16, span_id=b"y" * 8, name=ATTACK, kind=1)
    span.start_time_unix_nano = time.time_ns()
    span.end_time_unix_nano = span.start_time_unix_nano + 1000
    span.attributes.add(key=ATTACK).value.string_value = ATTACK
    span.events.add(name=ATTACK, time_unix_nano=span.start_time_unix_nano)
    span.status.message = ATTACK
    headers = {"Content-Type": OTLP_TYPE}
    assert (await here.http.post("/v1/traces", content=request.SerializeToString(), headers=headers)).is_success
    await here.kube.create(RAFT_CLUSTERS, raft_cluster("first"), "default")
    blocker = {"reason": "NoLeader", "message": ATTACK, "since": "2026-01-01T00:00:00Z"}
    status = {"rollout": {"state": "Initializing", "message": ATTACK, "blockers": [blocker]}}
    await here.kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": "first"}, "status": status}, "default")
    async with opened(here) as page:
        told: list[str] = []
        page.on("console", lambda message: told.append(message.text))
        for place in ("", "raftclusters/default/first", "traces", f"traces/{(b'x' * 16).hex()}"):
            await page.goto(f"{here.http.base_url}#/{place}")
            await expect(page.get_by_text(ATTACK).first).to_be_visible(timeout=SHOWN_MS)
        await page.locator(".span", has_text=ATTACK).click()
        await expect(page.get_by_role("region", name="Attributes, table")).to_contain_text(ATTACK)
        for place in (f"traces/{quote(ATTACK)}", f"raftclusters/default/{quote(ATTACK)}"):
            await page.goto(f"{here.http.base_url}#/{place}")
            await expect(page.get_by_text("img src=x").first).to_be_visible(timeout=SHOWN_MS)
        assert await page.locator("img[src=x], a[href^=javascript]").count() == 0
        assert await page.evaluate("window.ran") is None
        assert not [text for text in told if "Content Security Policy" in text]

"""The page at ``/``, and the one stream that feeds it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_operator.crds.definitions import all_kinds
from tests.api.plane import Plane, plane, raft_cluster

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


async def test_the_page_loads_nothing_from_elsewhere_and_needs_no_token(here: Plane) -> None:
    async with httpx2.AsyncClient(base_url=here.http.base_url, trust_env=False) as stranger:
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

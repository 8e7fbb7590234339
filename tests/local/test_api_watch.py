"""Watches: every change, in order, filtered, and ended in the ways clients expect (docs/specs/operator.md 6.2)."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pavane_local import store as store_module
from pavane_local.api import app
from pavane_local.api.cluster import Cluster
from pavane_local.api.errors import ApiError
from tests.local.api_server import (
    WIDGET_PATH,
    WIDGETS,
    FixedLogs,
    Server,
    a_cluster,
    a_server,
    config_map,
    running_api,
    widget,
)

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with a_server(tmp_path) as running:
        yield running


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(tmp_path) as running:
        yield running


@asynccontextmanager
async def watching(server: Server, path: str, **params: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    headers = params.pop("headers", {})
    async with server.http.stream("GET", path, params={"watch": "1", **params}, headers=headers) as answer:
        assert answer.status_code == 200

        async def events() -> AsyncIterator[dict[str, Any]]:
            async for line in answer.aiter_lines():
                yield json.loads(line)

        yield events()


async def test_a_watch_shows_what_is_there_and_then_every_change(server: Server) -> None:
    await server.cluster.create("configmaps", config_map("old"))
    async with watching(server, MAPS) as events:
        first = await anext(events)
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "old")
        await server.cluster.create("configmaps", config_map("new"))
        await server.cluster.patch("configmaps", "default", "new", {"data": {"b": "2"}})
        await server.cluster.delete("configmaps", "default", "new")
        seen = [await anext(events) for _ in range(3)]
        assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
        assert versions == sorted(set(versions))
        assert seen[2]["object"]["data"] == {"a": "1", "b": "2"}


async def test_a_watch_goes_on_after_a_resourceversion_also_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "port").write_text(str(random.randrange(20_000, 30_000)))  # 6443 is also others', in parallel.
    async with a_server(tmp_path) as server:
        await server.cluster.create("configmaps", config_map("a"))
        version = (await server.http.get(MAPS)).json()["metadata"]["resourceVersion"]
        await server.cluster.create("configmaps", config_map("b"))
        url = str(server.http.base_url)
    async with a_server(tmp_path) as server:
        assert str(server.http.base_url) == url  # The port is kept while it is free.
        async with watching(server, MAPS, resourceVersion=version) as events:
            await server.cluster.create("configmaps", config_map("c"))
            assert [(await anext(events))["object"]["metadata"]["name"] for _ in range(2)] == ["b", "c"]


async def test_objects_that_enter_or_leave_a_selector_are_added_or_deleted(server: Server) -> None:
    await server.cluster.create("configmaps", config_map("a"))
    version = server.cluster.store.resource_version
    for label in ("x", "x", "y", "x"):
        patch = {"metadata": {"labels": {"l": label}}, "data": {"n": str(server.cluster.store.resource_version)}}
        await server.cluster.patch("configmaps", "default", "a", patch)
    await server.cluster.create("configmaps", config_map("other"))
    await server.cluster.delete("configmaps", "default", "a")
    async with watching(server, MAPS, labelSelector="l=x", resourceVersion=version) as events:
        assert [(await anext(events))["type"] for _ in range(5)] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]


async def test_a_watch_by_name_and_namespace_sees_nothing_else(server: Server) -> None:
    await server.cluster.create("namespaces", {"metadata": {"name": "other"}})
    everywhere = watching(server, "/api/v1/configmaps", fieldSelector="metadata.name=b")
    async with everywhere as named, watching(server, MAPS) as here:
        elsewhere = config_map("b")
        elsewhere["metadata"]["namespace"] = "other"
        await server.cluster.create("configmaps", elsewhere)
        await server.cluster.create("configmaps", config_map("a"))
        await server.cluster.create("configmaps", config_map("b"))
        assert [(await anext(named))["object"]["metadata"]["namespace"] for _ in range(2)] == ["other", "default"]
        assert [(await anext(here))["object"]["metadata"]["name"] for _ in range(2)] == ["a", "b"]


async def test_a_watch_ends_at_its_timeout_with_a_bookmark(server: Server) -> None:
    version = server.cluster.store.resource_version
    params = {"timeoutSeconds": 1, "allowWatchBookmarks": "true", "resourceVersion": version}
    async with watching(server, MAPS, **params) as events:
        found = [event async for event in events]
    assert [event["type"] for event in found] == ["BOOKMARK"]
    assert found[0]["object"]["metadata"] == {"resourceVersion": str(version)}
    assert found[0]["object"]["kind"] == "ConfigMap"


async def test_bookmarks_follow_what_was_seen(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BOOKMARK_SECONDS", 0.05)
    async with watching(server, MAPS, allowWatchBookmarks="true") as events:
        await server.cluster.create(WIDGETS, widget())
        version = str(server.cluster.store.resource_version)
        async for event in events:
            assert event["type"] == "BOOKMARK"
            if event["object"]["metadata"]["resourceVersion"] == version:
                break


async def test_a_version_that_is_too_old_is_an_error_event(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY_EVENTS", 2)
    for number in range(4):
        await server.cluster.create("configmaps", config_map(f"m{number}"))
    async with watching(server, MAPS, resourceVersion=1) as events:
        found = [event async for event in events]
    assert [(event["type"], event["object"]["code"]) for event in found] == [("ERROR", 410)]


async def test_streaming_lists_are_refused_so_that_clients_fall_back(server: Server) -> None:
    params = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    assert (await server.http.get(MAPS, params=params)).status_code == 422


async def test_watches_come_as_tables_too(server: Server) -> None:
    await server.cluster.create(WIDGETS, widget())
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with watching(server, WIDGET_PATH, headers=accept) as events:
        assert (await anext(events))["object"]["rows"][0]["cells"] == ["a", 3, None, None, "0s"]
        await server.cluster.patch(WIDGETS, "default", "a", {"spec": {"replicas": 5}})
        assert (await anext(events))["object"]["rows"][0]["cells"][1] == 5


async def test_a_slow_watcher_is_told_to_list_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PENDING_EVENTS", 2)
    with cluster.watch("configmaps", since=cluster.store.resource_version) as events:
        for number in range(4):
            await cluster.create("configmaps", config_map(f"m{number}"))
        assert [(await anext(events)).object["metadata"]["name"] for _ in range(2)] == ["m0", "m1"]
        with pytest.raises(ApiError) as refusal:
            await anext(events)
        assert refusal.value.code == 410


async def test_a_client_that_goes_away_leaves_nothing_behind(server: Server) -> None:
    async with watching(server, MAPS) as events:
        await server.cluster.create("configmaps", config_map())
        await anext(events)
    watches = server.cluster.store._watches
    async with asyncio.timeout(20):
        while watches:
            await asyncio.sleep(0.01)


async def test_a_stopping_server_ends_its_watches(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster, running_api(cluster, tmp_path) as (api, http):
        async with api.running(FixedLogs().stream) as url:
            stream = await http.send(http.build_request("GET", f"{url}{MAPS}?watch=1"), stream=True)
            await cluster.create("configmaps", config_map())
            lines = stream.aiter_lines()
            assert '"ADDED"' in await anext(lines)
        assert [line async for line in lines] == []


async def test_who_asks_for_a_websocket_gets_an_answer_that_ends_and_watches_over_http(server: Server) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    answer = await server.http.get(WIDGET_PATH, params={"watch": "1"}, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"")

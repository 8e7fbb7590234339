import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane_api.kinds import RAFT_CLUSTERS
from tests.api.plane import BASE, created, plane, raft_cluster

NO_JSON = ("application/yaml", "text/plain", "application/json-patch+json", "application/x-www-form-urlencoded")


async def test_a_resource_is_created_read_changed_and_deleted(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        first = await created(api)
        etag = first.headers["ETag"]
        assert first.json()["spec"]["rollout"]["retireDelay"] == "30s"  # the server's default

        read = await api.http.get(f"{BASE}/q")
        assert (read.status_code, read.headers["ETag"]) == (200, etag)

        changed = await api.http.patch(
            f"{BASE}/q", json={"spec": {"rollout": {"retireDelay": "5s"}}}, headers={"If-Match": etag}
        )
        assert changed.status_code == 200, changed.text
        assert changed.json()["spec"]["rollout"]["retireDelay"] == "5s"

        replaced = await api.http.put(
            f"{BASE}/q", json=raft_cluster(image="pavane:2"), headers={"If-Match": changed.headers["ETag"]}
        )
        assert replaced.status_code == 200, replaced.text
        assert replaced.json()["spec"]["image"] == "pavane:2"

        gone = await api.http.delete(f"{BASE}/q", headers={"If-Match": "*"})
        assert gone.status_code == 202
        assert (await api.http.get(f"{BASE}/q")).status_code == 404


async def test_a_body_of_another_type_is_refused_by_its_type(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        body = b'[{"op": "remove", "path": "/spec"}]'
        calls = (("PUT", f"{BASE}/q"), ("PATCH", f"{BASE}/q"), ("POST", f"{BASE}/q/rollout/restart"))
        for sent in NO_JSON:
            for method, path in calls:
                headers = {"Content-Type": sent, "If-Match": "*"}
                refused = await api.http.request(method, path, content=body, headers=headers)
                assert refused.status_code == 415, (method, sent, refused.text)
                assert "Send the body as one of application/json" in refused.json()["detail"]
        headers = {"Content-Type": "application/json", "If-Match": "*"}
        wrong = await api.http.put(f"{BASE}/q", content=b"[]", headers=headers)
        assert wrong.status_code == 422


async def test_a_new_status_spoils_no_write_and_is_news_to_a_reader(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        etag = (await created(api)).headers["ETag"]
        same = await api.http.get(f"{BASE}/q", headers={"If-None-Match": etag})
        assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", etag)
        body = {"metadata": {"name": "q"}, "status": {"observedGeneration": 1}}
        await api.kube.apply_status(RAFT_CLUSTERS, body, "default")
        news = await api.http.get(f"{BASE}/q", headers={"If-None-Match": etag})
        assert (news.status_code, news.json()["status"]["observedGeneration"]) == (200, 1)
        changed = await api.http.patch(f"{BASE}/q", json={"spec": {"image": "b"}}, headers={"If-Match": etag})
        assert changed.status_code == 200, changed.text
        assert (await api.http.delete(f"{BASE}/q", headers={"If-Match": etag})).status_code == 412


async def test_preconditions_protect_what_others_wrote(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        etag = (await created(api)).headers["ETag"]
        await api.http.patch(f"{BASE}/q", json={"spec": {"image": "a"}}, headers={"If-Match": "*"})
        calls: list[tuple[str, dict[str, Any]]] = [
            ("PUT", {"json": raft_cluster()}),
            ("PATCH", {"json": {"spec": {"image": "b"}}}),
            ("DELETE", {}),
        ]
        for method, body in calls:
            missing = await api.http.request(method, f"{BASE}/q", **body)
            assert (missing.status_code, missing.json()["type"]) == (
                428,
                "https://pavane.dev/problems/precondition-required",
            )
            stale = await api.http.request(method, f"{BASE}/q", headers={"If-Match": etag}, **body)
            assert stale.status_code == 412, (method, stale.text)
            assert "Read it again" in stale.json()["detail"]
        again = await api.http.put(f"{BASE}/q", json=raft_cluster(), headers={"If-None-Match": "*"})
        assert again.status_code == 412
        assert (await api.http.get(f"{BASE}/q")).json()["spec"]["image"] == "a"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": 2}, "spec.replicas"),
        ({"replicas": "three"}, "spec.replicas"),
        ({"stateMachine": "Tape"}, "spec.stateMachine"),
        ({"electionTimeout": {"min": "10ms"}}, "spec.electionTimeout"),
        ({"electionTimeout": {"min": "200ms", "max": "250ms"}}, "spec.electionTimeout"),
        ({"rollout": {"deadline": "soon"}}, "spec.rollout.deadline"),
    ],
)
async def test_an_invalid_resource_is_refused_with_the_field(tmp_path: Path, spec: dict[str, Any], field: str) -> None:
    async with plane(tmp_path) as api:
        answer = await api.http.put(f"{BASE}/q", json=raft_cluster(**spec), headers={"If-None-Match": "*"})
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert field in [item["pointer"] for item in answer.json()["errors"]]
        assert (await api.http.get(f"{BASE}/q")).status_code == 404


async def test_a_misspelt_field_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        wrong = raft_cluster(replicaz=3, rollout={"retireDelai": "1s"})
        answer = await api.http.put(f"{BASE}/q", json=wrong, headers={"If-None-Match": "*"})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"] == [
            {"pointer": "spec.replicaz", "detail": "there is no such field; did you mean spec.replicas?"},
            {
                "pointer": "spec.rollout.retireDelai",
                "detail": "there is no such field; did you mean spec.rollout.retireDelay?",
            },
        ]
        assert answer.json()["detail"].startswith("RaftCluster q: spec.replicaz: there is no such field; did you mean")
        await created(api)
        answer = await api.http.patch(f"{BASE}/q", json={"spec": {"xyz": 1}}, headers={"If-Match": "*"})
        assert (answer.status_code, answer.json()["detail"]) == (422, "RaftCluster q: spec.xyz: there is no such field")


async def test_a_misspelt_field_beside_the_spec_is_not_left_out(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        etag = (await created(api)).headers["ETag"]
        wrong = {"spce": {}, "metadata": {"lables": {"a": "b"}}}
        for method, body in (("PUT", raft_cluster() | wrong), ("PATCH", wrong)):
            answer = await api.http.request(method, f"{BASE}/q", json=body, headers={"If-Match": "*"})
            assert answer.status_code == 400, answer.text
            assert [(error["pointer"], error["detail"]) for error in answer.json()["errors"]] == [
                ("spce", "there is no such field; did you mean spec?"),
                ("metadata.lables", "there is no such field; did you mean metadata.labels?"),
            ]
        found = await api.http.get(f"{BASE}/q")
        assert found.headers["ETag"] == etag
        same = await api.http.put(f"{BASE}/q", json=found.json(), headers={"If-Match": etag})  # all that was read
        assert same.status_code == 200, same.text
        refused = await api.http.patch(f"{BASE}/q", json={"status": {}}, headers={"If-Match": "*"})
        assert (refused.status_code, refused.json()["detail"]) == (
            400,
            "A patch changes metadata and spec, not status.",
        )


async def test_lists_are_paged_and_selected(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        for name in ("a", "b", "c"):
            await created(api, name)
        first = (await api.http.get(BASE, params={"limit": 2})).json()
        assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
        second = (await api.http.get(BASE, params={"limit": 2, "continue": first["continue"]})).json()
        assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
        assert "continue" not in second
        one = (await api.http.get("/api/v1/raftclusters", params={"fieldSelector": "metadata.name=b"})).json()
        assert [item["metadata"]["name"] for item in one["items"]] == ["b"]


async def test_a_watch_delivers_changes_and_resumes(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api, "a")
        events = await _events(api.http, {}, 1)
        assert [(event["event"], event["data"]["metadata"]["name"]) for event in events] == [("added", "a")]
        reading = asyncio.create_task(_events(api.http, {"Last-Event-ID": events[0]["id"]}, 2))
        await created(api, "b")
        await api.http.delete(f"{BASE}/a", headers={"If-Match": "*"})
        seen = [(event["event"], event["data"]["metadata"]["name"]) for event in await reading]
        assert seen == [("added", "b"), ("deleted", "a")]


async def _events(http: httpx2.AsyncClient, headers: dict[str, str], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with http.stream("GET", BASE, params={"watch": "true"}, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        event: dict[str, Any] = {}
        async for line in answer.aiter_lines():
            if not line and event:
                found.append(event)
                event = {}
                if len(found) == count:
                    return found
            key, _, value = line.partition(": ")
            if key:
                event[key] = json.loads(value) if key == "data" else value
    raise AssertionError("the stream ended early")


async def test_nobody_comes_in_without_a_token_of_the_cluster(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        for headers in (
            {"Authorization": ""},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {api.token}"},
        ):
            answer = await api.http.get(BASE, headers=headers)
            assert (answer.status_code, answer.json()["title"]) == (401, "Not authenticated"), headers
            assert answer.headers["WWW-Authenticate"].startswith("Bearer"), headers


async def test_a_token_without_rights_is_refused(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        token = await api.service_account_token("stranger")
        answer = await api.http.get(BASE, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403
        assert "may not list raftclusters in namespace default" in answer.json()["detail"]


@pytest.mark.parametrize("wrong", [{"kind": "SwimGroup"}, {"apiVersion": "pavane.dev/v2"}])
async def test_a_document_of_another_kind_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    async with plane(tmp_path) as api:
        other = await api.http.put(f"{BASE}/q", json={**raft_cluster(), **wrong}, headers={"If-None-Match": "*"})
        assert other.status_code == 400, other.text
        await created(api)
        changed = await api.http.patch(f"{BASE}/q", json=wrong, headers={"If-Match": "*"})
        assert changed.status_code == 400, changed.text


async def test_a_name_that_a_url_resolves_leads_nowhere_else(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        for name in ("%2E", "%2E%2E"):
            for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"spec": {}})):
                answer = await api.http.request(method, f"{BASE}/{name}", json=body, headers={"If-Match": "*"})
                assert (answer.status_code, answer.json()["title"]) == (404, "Not found"), (method, name)
        assert (await api.http.get("/api/v1/namespaces/%2e%2e/raftclusters")).status_code == 404


async def test_what_the_path_cannot_mean_is_refused(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        other = await api.http.put(f"{BASE}/q", json=raft_cluster("p"), headers={"If-None-Match": "*"})
        assert (other.status_code, "metadata.name" in other.json()["detail"]) == (400, True)
        unknown = await api.http.get("/api/v1/nothing")
        assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/problem+json")
        assert "/api/v1/nothing" in unknown.json()["detail"]
        status = await api.http.patch(f"{BASE}/q", json={"status": {}}, headers={"If-Match": "*"})
        assert status.status_code == 400


async def test_of_a_stranger_no_body_is_read(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        url = httpx2.URL(str(api.http.base_url))
        reader, writer = await asyncio.open_connection(url.host, url.port)
        # Eleven megabytes are promised, and a beginning of JSON comes: who waits for the rest, or parses, has lost.
        head = f"PUT {BASE}/q HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 11000000\r\n"
        writer.write(f"{head}Authorization: Bearer of-nobody\r\n\r\n{{".encode())
        async with asyncio.timeout(30):
            answer = await reader.readuntil(b"\r\n")
        writer.close()
        assert answer == b"HTTP/1.1 401 Unauthorized\r\n"
        for headers in ({}, {"Authorization": "Bearer of-nobody"}):
            async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False) as stranger:
                refused = await stranger.put(f"{BASE}/q", content=b"{", headers={"Content-Type": "application/json"})
            assert (refused.status_code, refused.json()["title"]) == (401, "Not authenticated")
            assert "WWW-Authenticate" in refused.headers


async def test_a_wrong_method_is_told_all_right_ones(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        answer = await api.http.post(f"{BASE}/q")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "DELETE, GET, PATCH, PUT")

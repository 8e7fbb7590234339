"""Keys, the tree, leases and watches over REST, with a real peer behind the control plane (docs/specs/raft.md 12)."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from pavane.raft import aio
from pavane.raft.client import RaftClient
from pavane.raft.core.barrier import Barriers
from pavane.raft.machines import limits
from pavane_api.app import create_app
from pavane_api.bodies import BODY_BYTES_MAX
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.settings import ApiSettings
from pavane_operator.kube import KubeClient, Target
from tests.api.plane import ANSWER_S, BASE, IDENT, Plane, plane, served, serving

Q = f"{BASE}/q"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def api(tmp_path: Path, stack: AsyncExitStack, request: pytest.FixtureRequest) -> Plane:
    """A control plane with RaftCluster q, of machine Tree unless a test is marked otherwise."""
    api = await stack.enter_async_context(plane(tmp_path))
    await stack.enter_async_context(served(api, tmp_path, getattr(request, "param", "Tree")))
    return api


def machine(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("api", [name], indirect=True)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def events(api: Plane, path: str, headers: dict[str, str] | None = None) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a stream that are no comments, as field → value."""
    async with api.http.stream("GET", path, headers=headers, timeout=20) as answer:
        assert answer.status_code == 200
        event: dict[str, Any] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
            elif "event" in event:
                yield event
                event = {}


async def changes(api: Plane, path: str, count: int, headers: dict[str, str] | None = None) -> list[Any]:
    """Return (id, kind, key, data) of the first events that tell of changes."""
    found: list[Any] = []
    async with aclosing(events(api, path, headers)) as stream:
        async for event in stream:
            assert event["event"] in {"changes", "progress"}, event
            found += [
                (int(event["id"]), one["kind"], base64.b64decode(one["key"]), one.get("data"))
                for one in json.loads(event["data"])["events"]
            ]
            if len(found) >= count:
                break
    return found


async def test_a_value_is_put_read_and_deleted_as_it_is(api: Plane) -> None:
    value = bytes(range(256))
    put = await api.http.put(f"{Q}/keys/app/colour", content=value)
    assert put.status_code == 200, put.text
    assert put.headers["ETag"] == f'"{put.json()["revision"]}"'

    read = await api.http.get(f"{Q}/keys/app/colour")
    assert (read.content, read.headers["content-type"]) == (value, "application/octet-stream")
    assert read.headers["ETag"] == put.headers["ETag"]

    deleted = await api.http.delete(f"{Q}/keys/app/colour")
    assert deleted.json()["deleted"] is True
    assert deleted.json()["revision"] > put.json()["revision"]
    gone = await api.http.get(f"{Q}/keys/app/colour")
    assert (gone.status_code, gone.json()["detail"]) == (404, "There is no key app/colour.")
    assert (await api.http.delete(f"{Q}/keys/app/colour")).json()["deleted"] is False


async def test_headers_are_conditions(api: Plane) -> None:
    once = {"If-None-Match": "*"}
    created = await api.http.put(f"{Q}/keys/a", content=b"1", headers=once)
    again = await api.http.put(f"{Q}/keys/a", content=b"2", headers=once)
    assert (created.status_code, again.status_code) == (200, 412)
    assert again.json()["detail"] == f"The key a is at {created.json()['revision']}. Read it again."
    tag = {"If-Match": created.headers["ETag"]}
    assert (await api.http.put(f"{Q}/keys/a", content=b"3", headers=tag)).status_code == 200
    assert (await api.http.put(f"{Q}/keys/a", content=b"4", headers=tag)).status_code == 412
    assert (await api.http.delete(f"{Q}/keys/a", headers=tag)).status_code == 412
    assert (await api.http.get(f"{Q}/keys/a")).content == b"3"
    missing = await api.http.put(f"{Q}/keys/b", content=b"1", headers={"If-Match": "*"})
    assert (missing.status_code, missing.json()["detail"]) == (412, "The key b is not there. Read it again.")
    assert (await api.http.delete(f"{Q}/keys/a", headers={"If-Match": "*"})).status_code == 200
    for wrong in ({"If-Match": "red"}, {"If-Match": "9" * 5000}, {"If-None-Match": '"5"'}):
        assert (await api.http.put(f"{Q}/keys/a", content=b"5", headers=wrong)).status_code == 400


async def test_a_repetition_takes_effect_once_and_is_told_the_same(api: Plane) -> None:
    transaction = {"then": [{"op": "Create", "path": b64(b"/w_"), "sequential": True}]}
    first = await api.http.post(f"{Q}/txn", json=transaction)
    header = {"Idempotency-Key": first.json()["requestId"]}
    assert (await api.http.post(f"{Q}/txn", json=transaction, headers=header)).json() == first.json()
    assert (await api.http.get(f"{Q}/tree/", params={"children": True})).json()["children"] == [b64(b"w_0000000000")]
    put = await api.http.put(f"{Q}/keys/a", content=b"1", headers={"If-None-Match": "*"})
    repeated = await api.http.put(
        f"{Q}/keys/a", content=b"1", headers={"If-None-Match": "*", "Idempotency-Key": put.json()["requestId"]}
    )
    assert repeated.json() == put.json()

    granted = {"Idempotency-Key": (await api.http.post(f"{Q}/txn", json={})).json()["requestId"]}
    for answer in (
        await api.http.delete(f"{Q}/keys/a", headers={"Idempotency-Key": put.json()["requestId"]}),
        await api.http.post(f"{Q}/leases", json={"ttlMs": 5000}, headers=granted),
    ):
        assert (answer.status_code, "another request" in answer.text) == (422, True), answer.text
    assert (await api.http.get(f"{Q}/keys/a")).content == b"1"


async def test_a_repetition_beside_the_first_request_is_told_to_wait(api: Plane) -> None:
    first = await api.http.put(f"{Q}/keys/a", content=b"1")
    again = {"Idempotency-Key": f"{first.json()['requestId'][:8]}{'0' * 16}"}
    answers = await asyncio.gather(*(api.http.put(f"{Q}/keys/a", content=b"2", headers=again) for _ in range(8)))
    told = {answer.status_code: answer for answer in answers}
    assert set(told) == {200, 409}
    assert "under way" in told[409].json()["detail"]
    assert (await api.http.put(f"{Q}/keys/a", content=b"2", headers=again)).json() == told[200].json()


async def test_numbers_that_no_revision_can_have_are_refused(api: Plane) -> None:
    beyond = 1 << 64
    put = {"op": "Put", "key": b64(b"k"), "value": "", "lease": beyond}
    for answer in (
        await api.http.put(f"{Q}/keys/a?lease={beyond}", content=b""),
        await api.http.get(f"{Q}/keys?watch=true&from={beyond}"),
        await api.http.get(f"{Q}/log/entries?after={beyond}"),
        await api.http.delete(f"{Q}/leases/{beyond}"),
        await api.http.post(f"{Q}/leases/{beyond}/renewals"),
        await api.http.post(f"{Q}/leases", json={"ttlMs": beyond}),
        await api.http.post(f"{Q}/txn", json={"then": [put]}),
        await api.http.post(f"{Q}/txn", json={"then": [{"op": "Check", "path": b64(b"/"), "version": beyond}]}),
        await api.http.post(f"{Q}/txn", json={"compare": [{"target": "Version", "key": b64(b"k"), "number": beyond}]}),
    ):
        assert (answer.status_code, "less than or equal" in answer.text) == (422, True), answer.text


async def test_a_body_that_nobody_needs_is_not_read(api: Plane) -> None:
    answer = await api.http.post(f"{Q}/txn", content=b" " * (BODY_BYTES_MAX + 1), headers={"Authorization": ""})
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (401, "unauthenticated")


async def test_a_key_may_hold_any_bytes(api: Plane) -> None:
    for key in (b"\xff\x00", b"a//b", b"..", b"a b+c%", "grün".encode(), b"x" * limits.KEY_BYTES_MAX):
        quoted = "".join(f"%{byte:02X}" for byte in key)
        assert (await api.http.put(f"{Q}/keys/{quoted}", content=key)).status_code == 200
        assert (await api.http.get(f"{Q}/keys/{quoted}")).content == key
        for query in (f"prefix={quoted}", f"start={quoted}&limit=1"):
            listed = (await api.http.get(f"{Q}/keys?{query}")).json()["items"]
            assert [item["key"] for item in listed] == [b64(key)]
        assert b64(key) not in (await api.http.get(f"{Q}/keys?end={quoted}")).text


async def test_lists_are_of_ranges_in_order(api: Plane) -> None:
    for key in ("a", "b/1", "b/2", "c"):
        await api.http.put(f"{Q}/keys/{key}", content=key.encode())

    async def keys(**query: Any) -> list[bytes]:
        answer = await api.http.get(f"{Q}/keys", params=query)
        assert answer.status_code == 200, answer.text
        return [base64.b64decode(item["key"]) for item in answer.json()["items"]]

    assert await keys() == [b"a", b"b/1", b"b/2", b"c"]
    assert await keys(prefix="b/") == [b"b/1", b"b/2"]
    assert await keys(start="b/2") == [b"b/2", b"c"]
    assert await keys(end="b/2") == [b"a", b"b/1"]
    assert await keys(descending=True, limit=2) == [b"c", b"b/2"]
    page = (await api.http.get(f"{Q}/keys", params={"limit": 3, "keysOnly": True})).json()
    assert (page["more"], {item["value"] for item in page["items"]}) == (True, {""})
    counted = (await api.http.get(f"{Q}/keys", params={"prefix": "b/", "countOnly": True})).json()
    assert (counted["count"], counted["items"]) == (2, [])
    assert (await api.http.get(f"{Q}/keys", params={"prefix": "a", "start": "b"})).status_code == 400
    assert (await api.http.get(f"{Q}/keys", params={"limit": 1001})).status_code == 422


@pytest.mark.parametrize("order", [{}, {"descending": True}])
@pytest.mark.parametrize("span", [{}, {"prefix": "b/"}, {"start": "b/", "end": "c"}, {"start": "b/1"}])
async def test_a_long_list_is_read_by_pages(api: Plane, order: dict[str, Any], span: dict[str, Any]) -> None:
    for key in ("a", "b/1", "b/2", "b/3", "b/ä?&", "c"):
        await api.http.put(f"{Q}/keys/{quote(key, safe='/')}", content=b"v")
    whole = (await api.http.get(f"{Q}/keys", params={**order, **span})).json()
    assert (whole["more"], "continue" in whole) == (False, False)
    found: list[Any] = []
    query: dict[str, Any] = {**order, **span, "limit": 2}
    while True:
        answer = await api.http.get(f"{Q}/keys", params=query)
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        if not answer.json()["more"]:
            break
        query["continue"] = answer.json()["continue"]
    assert "continue" in query
    assert found == whole["items"]
    for wrong in ("_", "a b", "ä", b64(b"a"), b64(b"d")):
        refused = await api.http.get(f"{Q}/keys", params={"prefix": "b/", "continue": wrong})
        assert refused.status_code == 400, (wrong, refused.text)


async def test_a_transaction_carries_out_one_branch(api: Plane) -> None:
    body = {
        "compare": [
            {"target": "CreateRevision", "key": b64(b"k"), "number": 0},
            {"target": "Value", "relation": "Less", "key": b64(b"k"), "value": b64(b"z")},
            {"target": "DataVersion", "key": b64(b"/n"), "number": -1},
        ],
        "then": [
            {"op": "Put", "key": b64(b"k"), "value": b64(b"v")},
            {"op": "Create", "path": b64(b"/n"), "data": b64(b"d")},
            {"op": "Range", "start": b64(b"k")},
            {"op": "Range", "start": "", "end": b64(b"\x00"), "countOnly": True},
            {"op": "Get", "path": b64(b"/n")},
            {"op": "Children", "path": b64(b"/")},
        ],
        "else": [
            {"op": "DeleteRange", "start": "", "end": b64(b"l")},
            {"op": "Delete", "key": b64(b"other")},
            {"op": "Check", "path": b64(b"/n"), "version": 0},
            {"op": "Set", "path": b64(b"/n"), "data": b64(b"e"), "version": 0},
            {"op": "Get", "path": b64(b"/m")},
        ],
    }
    first = (await api.http.post(f"{Q}/txn", json=body)).json()
    assert first["succeeded"] is True
    put, create, read, count, node, children = first["results"]
    assert (put, create, count) == ({"version": 1}, {"path": b64(b"/n")}, {"count": 1})
    assert [(item["key"], item["value"]) for item in read["items"]] == [(b64(b"k"), b64(b"v"))]
    assert (node["node"]["data"], node["node"]["children"]) == (b64(b"d"), 0)
    assert children == {"children": [b64(b"n")], "cversion": 1}

    second = (await api.http.post(f"{Q}/txn", json=body)).json()
    assert second["succeeded"] is False
    assert second["results"] == [{"deleted": 1}, {"deleted": 0}, {}, {"version": 1}, {}]


async def test_what_a_transaction_lacks_is_told(api: Plane) -> None:
    for body, status, words in (
        ({"compare": [{"target": "Value", "key": b64(b"k"), "number": 3}]}, 400, "needs value"),
        ({"then": [{"op": "Put", "key": "", "value": ""}]}, 400, "empty key"),
        ({"then": [{"op": "Jump"}]}, 422, "then"),
        ({"then": [{"op": "Put", "key": "a", "value": "%"}]}, 422, "base64"),
        ({"then": [{"op": "Put", "key": b64(b"k"), "value": "", "lease": 77}]}, 404, "NO_LEASE 77"),
        ({"then": [{"op": "Set", "path": b64(b"/x"), "data": ""}]}, 404, "create it first"),
        ({"then": [{"op": "Create", "path": b64(b"/a")}, {"op": "Create", "path": b64(b"/a/b/c")}]}, 404, "/a/b"),
    ):
        answer = await api.http.post(f"{Q}/txn", json=body)
        assert answer.status_code == status, answer.text
        assert words in answer.text
    assert (await api.http.get(f"{Q}/tree/a")).status_code == 404


async def test_a_watch_tells_every_change_and_goes_on_where_it_was_broken(api: Plane) -> None:
    first = (await api.http.put(f"{Q}/keys/a/1", content=b"1")).json()["revision"]
    await api.http.put(f"{Q}/keys/b", content=b"not watched")
    third = (await api.http.delete(f"{Q}/keys/a/1")).json()["revision"]
    watched = f"{Q}/keys?prefix=a/&watch=true"
    expected = [(first, "Put", b"a/1", b64(b"1")), (third, "Delete", b"a/1", None)]
    assert await changes(api, f"{watched}&from=1", 2) == expected
    assert await changes(api, watched, 1, {"Last-Event-ID": str(first)}) == expected[1:]

    async with aclosing(events(api, watched)) as stream:
        begun = await anext(stream)  # from now on: the first event tells the revision
        assert (begun["event"], int(begun["id"]) >= third) == ("progress", True)
        put = (await api.http.put(f"{Q}/keys/a/2", content=b"2")).json()["revision"]
        async for event in stream:
            if event["event"] == "changes":
                break
        assert int(event["id"]) == put


async def test_a_watch_from_before_what_is_known_ends_and_says_so(api: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 2)
    for _ in range(5):
        await api.http.put(f"{Q}/keys/a", content=b"1")
    async with aclosing(events(api, f"{Q}/keys?watch=true&from=1")) as stream:
        ended = [event["event"] async for event in stream]
    assert ended == ["expired"]


async def test_the_tree_is_read_and_watched(api: Plane) -> None:
    body = {
        "then": [
            {"op": "Create", "path": b64(b"/w")},
            {"op": "Create", "path": b64(b"/w/a"), "data": b64(b"1")},
        ]
    }
    made = (await api.http.post(f"{Q}/txn", json=body)).json()["revision"]
    node = (await api.http.get(f"{Q}/tree/w/a")).json()["node"]
    assert (node["data"], node["version"], node["createRevision"]) == (b64(b"1"), 0, made)
    children = (await api.http.get(f"{Q}/tree/w?children=true")).json()
    assert (children["children"], children["cversion"]) == ([b64(b"a")], 1)
    assert (await api.http.get(f"{Q}/tree/none")).status_code == 404
    assert (await api.http.get(f"{Q}/tree/none?children=true")).status_code == 404
    assert (await api.http.get(f"{Q}/tree/w/")).status_code == 400  # no path of a node ends so
    found = await changes(api, f"{Q}/tree/w?watch=true&scope=Subtree&from={made}", 3)
    assert [(kind, key) for _, kind, key, _ in found] == [
        ("Created", b"/w"),
        ("Created", b"/w/a"),
        ("Children", b"/w"),
    ]
    only = await changes(api, f"{Q}/tree/w?watch=true&scope=Node&from={made}", 1)
    assert [(kind, key) for _, kind, key, _ in only] == [("Created", b"/w")]


async def test_a_key_goes_with_its_lease(api: Plane) -> None:
    granted = await api.http.post(f"{Q}/leases", json={"ttlMs": 60_000, "holder": "me"})
    assert granted.status_code == 201, granted.text
    lease = granted.json()["lease"]
    assert (await api.http.put(f"{Q}/keys/l?lease={lease}", content=b"")).status_code == 200
    renewed = await api.http.post(f"{Q}/leases/{lease}/renewals")
    assert (renewed.status_code, renewed.json()) == (200, {"lease": lease, "ttlMs": 60_000})
    assert (await api.http.delete(f"{Q}/leases/{lease}")).status_code == 204
    assert (await api.http.get(f"{Q}/keys/l")).status_code == 404
    for answer in (
        await api.http.delete(f"{Q}/leases/{lease}"),
        await api.http.post(f"{Q}/leases/{lease}/renewals"),
    ):
        assert (answer.status_code, answer.json()["type"]) == (410, "https://pavane.dev/problems/lease-ended")
    assert (await api.http.put(f"{Q}/keys/l?lease={lease}", content=b"")).status_code == 404
    assert (await api.http.post(f"{Q}/leases", json={"ttlMs": 1})).json()["ttlMs"] == limits.LEASE_TTL_MIN_MS


async def test_a_value_beyond_the_limit_is_refused(api: Plane) -> None:
    largest = bytes(limits.VALUE_BYTES_MAX)
    assert (await api.http.put(f"{Q}/keys/a", content=largest)).status_code == 200
    assert (await api.http.put(f"{Q}/keys/a", content=largest + b"x")).status_code == 413
    assert len((await api.http.get(f"{Q}/keys/a")).content) == len(largest)
    assert (await api.http.put(f"{Q}/keys/{'x' * (limits.KEY_BYTES_MAX + 1)}", content=b"")).status_code == 413
    assert (await api.http.put(f"{Q}/keys/", content=b"")).status_code == 400


@machine("Tree")
async def test_entries_cannot_be_appended_to_a_log_of_commands(api: Plane) -> None:
    answer = await api.http.post(f"{Q}/log/entries", content=b"hello")
    assert answer.status_code == 409
    assert "pavane raft kv put" in answer.json()["detail"]
    await api.http.put(f"{Q}/keys/a", content=b"1")
    assert "State" in {entry["type"] for entry in (await api.http.get(f"{Q}/log/entries")).json()["items"]}


@machine("Broadcast")
async def test_a_plain_log_has_no_keys(api: Plane) -> None:
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "keys", {}),
        ("GET", "keys?watch=true", {}),
        ("GET", "keys/a", {}),
        ("PUT", "keys/a", {"content": b"1"}),
        ("DELETE", "keys/a", {}),
        ("POST", "txn", {"json": {}}),
        ("POST", "leases", {"json": {"ttlMs": 1000}}),
        ("GET", "tree/a", {}),
    ]
    for method, path, body in calls:
        answer = await api.http.request(method, f"{Q}/{path}", **body)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "conflict"), path
        assert "stateMachine" in answer.json()["detail"]
    assert (await api.http.post(f"{Q}/log/entries", content=b"hello")).status_code == 201


@machine("KeyValue")
async def test_keys_without_a_tree(api: Plane) -> None:
    assert (await api.http.put(f"{Q}/keys/a", content=b"1")).status_code == 200
    create = {"then": [{"op": "Create", "path": b64(b"/a")}]}
    for answer in (
        await api.http.get(f"{Q}/tree/a"),
        await api.http.get(f"{Q}/tree/a?watch=true"),
        await api.http.post(f"{Q}/txn", json=create),
    ):
        assert (answer.status_code, "stateMachine: Tree" in answer.json()["detail"]) == (409, True)


async def test_keys_need_the_rights_of_their_cluster(api: Plane) -> None:
    token = await api.service_account_token("nobody")
    headers = {"Authorization": f"Bearer {token}"}
    for method, path in (("GET", "keys"), ("GET", "keys/a"), ("PUT", "keys/a"), ("GET", "tree/"), ("POST", "leases")):
        body: dict[str, Any] = {"json": {"ttlMs": 1000}} if path == "leases" else {}
        answer = await api.http.request(method, f"{Q}/{path}", headers=headers, **body)
        assert answer.status_code == 403, (path, answer.text)
    async with httpx2.AsyncClient(base_url=str(api.http.base_url), trust_env=False) as stranger:
        assert (await stranger.get(f"{Q}/keys")).status_code == 401


async def test_a_client_that_slept_through_a_promotion_finds_the_new_members(api: Plane, tmp_path: Path) -> None:
    await api.http.put(f"{Q}/keys/a", content=b"1")
    async with served(api, tmp_path, "Tree", "next") as server:
        later = (await api.kube.get(RAFT_CLUSTERS, "next", "default"))["status"]["endpoints"]
        status = {"metadata": {"name": "q"}, "status": {"endpoints": later}}
        await api.kube.apply_status(RAFT_CLUSTERS, status, "default")
        assert (await api.http.put(f"{Q}/keys/b", content=b"2")).status_code == 200
        async with RaftClient([server.bound], IDENT.encode()) as client:
            assert (await client.kv.get(b"b")) is not None


async def test_a_stale_read_asks_one_peer(api: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.http.put(f"{Q}/keys/a", content=b"1")
    await api.http.post(f"{Q}/txn", json={"then": [{"op": "Create", "path": b64(b"/n")}]})

    async def refused(*_: object) -> None:
        raise AssertionError("a barrier was asked for")

    monkeypatch.setattr(Barriers, "wait", refused)  # what every linearizable read waits for
    assert (await api.http.get(f"{Q}/keys/a?stale=true")).content == b"1"
    assert len((await api.http.get(f"{Q}/keys?stale=true")).json()["items"]) == 1
    found = (await api.http.get(f"{Q}/tree/n?stale=true")).json()
    assert found["node"]["data"] == ""
    for path in ("keys/a?", "keys?", "tree/n?"):
        seen = f"{Q}/{path}stale=true&minRevision="
        assert (await api.http.get(f"{seen}{found['revision']}")).status_code == 200
        behind = await api.http.get(f"{seen}{found['revision'] + 1}")
        assert (behind.status_code, "Retry-After" in behind.headers) == (503, True)


async def test_a_misspelt_condition_is_refused_and_writes_nothing(api: Plane) -> None:
    put = {"op": "Put", "key": b64(b"k"), "value": b64(b"v")}
    for body in (
        {"comapre": [{"target": "Version", "key": b64(b"k"), "number": 9}], "then": [put]},
        {"then": [{**put, "laese": 3}]},
        {"compare": [{"target": "Version", "kee": b64(b"k"), "number": 0}], "then": [put]},
    ):
        assert (await api.http.post(f"{Q}/txn", json=body)).status_code == 422
    assert (await api.http.post(f"{Q}/leases", json={"ttlMs": 1000, "hodler": "me"})).status_code == 422
    assert (await api.http.get(f"{Q}/keys/k")).status_code == 404


async def test_a_key_of_idempotency_is_of_one_request(api: Plane) -> None:
    used = {"Idempotency-Key": f"{int(time.time()):08x}{'ab' * 8}"}
    first = await api.http.put(f"{Q}/keys/a", content=b"1", headers=used)
    assert first.status_code == 200
    assert (await api.http.put(f"{Q}/keys/a", content=b"1", headers=used)).json() == first.json()
    for other in (
        await api.http.put(f"{Q}/keys/a", content=b"2", headers=used),
        await api.http.put(f"{Q}/keys/b", content=b"1", headers=used),
        await api.http.delete(f"{Q}/keys/a", headers=used),
    ):
        assert (other.status_code, "came with another request" in other.json()["detail"]) == (422, True)
    assert (await api.http.get(f"{Q}/keys/a")).content == b"1"
    assert (await api.http.get(f"{Q}/keys/b")).status_code == 404


async def test_so_it_is_at_every_replica_of_the_control_plane_and_after_its_restart(api: Plane, tmp_path: Path) -> None:
    used = {"Idempotency-Key": f"{int(time.time()):08x}{'cd' * 8}"}
    first = await api.http.put(f"{Q}/keys/a", content=b"1", headers=used)
    app = create_app(ApiSettings(data=tmp_path / "other"), lambda: KubeClient.connect(Target(api.local.kubeconfig)))
    async with (
        serving(app) as url,
        httpx2.AsyncClient(base_url=url, headers=api.http.headers, trust_env=False, timeout=ANSWER_S) as http,
    ):
        other = await http.put(f"{Q}/keys/b", content=b"2", headers=used)
        lease = await http.post(f"{Q}/leases", json={"ttlMs": 5000}, headers=used)
        again = await http.put(f"{Q}/keys/a", content=b"1", headers=used)
    for answer in (other, lease):
        assert (answer.status_code, "came with another request" in answer.json()["detail"]) == (422, True)
    assert again.json() == first.json()
    assert (await api.http.get(f"{Q}/keys/b")).status_code == 404


async def test_writes_go_on_when_the_clock_of_a_peer_is_set(api: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await api.http.put(f"{Q}/keys/a", content=b"1")).status_code == 200
    for off_s in (-30 * 60, 20 * 60, 0):
        now = SimpleNamespace(**{**vars(time), "time_ns": lambda off_s=off_s: time.time_ns() + off_s * 10**9})
        monkeypatch.setattr(aio, "time", now)
        put = await api.http.put(f"{Q}/keys/a", content=b"%d" % off_s)
        txn = await api.http.post(f"{Q}/txn", json={"then": [{"op": "Delete", "key": b64(b"b")}]})
        lease = await api.http.post(f"{Q}/leases", json={"ttlMs": 5000})
        assert [answer.status_code for answer in (put, txn, lease)] == [200, 200, 201], lease.text
        assert (await api.http.get(f"{Q}/keys/a")).content == b"%d" % off_s

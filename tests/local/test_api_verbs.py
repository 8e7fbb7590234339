"""The verbs over HTTP, as clients of a Kubernetes API server know them (docs/specs/operator.md 6.1, 6.2, 6.5)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pavane_local.api.app import YAML_BYTES
from pavane_local.api.cluster import DEFINITIONS, Cluster, DeleteOptions
from pavane_local.api.errors import ApiError
from pavane_local.store import Object
from tests.local.api_server import WIDGET_PATH, WIDGETS, Server, a_cluster, a_server, config_map, pod, widget

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with a_server(tmp_path) as running:
        yield running


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(tmp_path) as running:
        yield running


async def test_a_created_object_gets_what_the_server_gives(server: Server) -> None:
    answer = await server.http.post(WIDGET_PATH, json=widget() | {"status": {"replicas": 7}})
    assert answer.status_code == 201
    metadata = answer.json()["metadata"]
    assert metadata["generation"] == 1
    assert metadata["creationTimestamp"] == "2030-01-01T00:00:00Z"
    assert len(metadata["uid"]) == 36
    assert "status" not in answer.json()
    assert (await server.http.get(f"{WIDGET_PATH}/a")).json() == answer.json()


@pytest.mark.parametrize(
    ("path", "body", "code", "reason"),
    [
        (MAPS, config_map("here"), 409, "AlreadyExists"),
        ("/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "a"}}, 404, "NotFound"),
        ("/api/v1/namespaces/leaving/configmaps", {"metadata": {"name": "a"}}, 403, "Forbidden"),
        (MAPS, {"metadata": {"name": "A_b"}}, 422, "Invalid"),
        (MAPS, {"metadata": {}}, 422, "Invalid"),
        (MAPS, {"metadata": {"generateName": "a"}}, 422, "Invalid"),
        (MAPS, {"metadata": {"name": "a", "namespace": "other"}}, 400, "BadRequest"),
        (MAPS, {"kind": "Secret", "metadata": {"name": "a"}}, 400, "BadRequest"),
        (MAPS, {"metadata": "text"}, 400, "BadRequest"),
        (PODS, {"metadata": {"name": "a"}, "spec": "text"}, 422, "Invalid"),
        (PODS, pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), 422, "Invalid"),
        (PODS, {"metadata": {"name": "a"}, "spec": {}}, 422, "Invalid"),
        (f"{PODS}/a/exec", {}, 501, "NotImplemented"),
        (f"{PODS}/a/eviction", {}, 501, "NotImplemented"),
        ("/apis/apps/v1/namespaces/default/deployments", {}, 404, "NotFound"),
    ],
)
async def test_a_wrong_create_is_refused_with_its_reason(
    server: Server, path: str, body: Object, code: int, reason: str
) -> None:
    await server.cluster.create("configmaps", config_map("here"))
    await server.cluster.create("namespaces", {"metadata": {"name": "leaving"}})
    await server.cluster.delete("namespaces", "", "leaving")
    answer = await server.http.post(path, json=body)
    assert (answer.status_code, answer.json()["reason"], answer.json()["kind"]) == (code, reason, "Status")


async def test_what_is_not_served_names_the_page_that_tells_so(server: Server) -> None:
    answer = await server.http.get("/apis/batch/v1/jobs")
    assert answer.status_code == 404
    assert "docs/limitations.md" in answer.headers["Warning"]


@pytest.mark.parametrize(
    ("headers", "content", "code"),
    [
        ({"Content-Type": "application/json"}, b"{", 400),
        ({"Content-Type": "application/json"}, b"[]", 400),
        ({"Content-Type": "application/json"}, b'{"a":"' + b"x" * (3 << 20) + b'"}', 413),
        ({"Content-Type": "application/vnd.kubernetes.protobuf"}, b"k8s", 415),
        ({"Authorization": "Bearer wrong"}, b"{}", 401),
        ({"Authorization": ""}, b"{}", 401),
    ],
)
async def test_unreadable_requests_are_refused(
    server: Server, headers: dict[str, str], content: bytes, code: int
) -> None:
    answer = await server.http.post(MAPS, content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (code, code)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"{MAPS}/a", {"preconditions": 5}),
        ("DELETE", f"{MAPS}/a", {"gracePeriodSeconds": "x"}),
        ("DELETE", f"{MAPS}/a?dryRun=Some", {}),
        ("GET", f"{MAPS}?limit=-1", {}),
        ("GET", f"{MAPS}?watch=1&resourceVersion=x", {}),
        ("POST", f"{MAPS}?dryRun=Some", {}),
        ("POST", f"{MAPS}?fieldValidation=Warn", {}),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": [1]}),
    ],
)
async def test_odd_options_are_refused(server: Server, method: str, path: str, body: Object) -> None:
    await server.cluster.create("configmaps", config_map())
    assert (await server.http.request(method, path, json=body)).status_code == 400
    assert server.cluster.find("configmaps", "default", "a")


async def test_yaml_is_read(server: Server) -> None:
    headers = {"Content-Type": "application/yaml"}
    answer = await server.http.post(MAPS, content=b"metadata: {name: y}\ndata: {a: b}\n", headers=headers)
    assert answer.json()["data"] == {"a": "b"}


async def test_yaml_that_stands_for_much_more_is_refused(server: Server) -> None:
    layers = [b"a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    layers += [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)]
    bomb = b"metadata: {name: y}\ndata: {a: b}\n" + b"\n".join(layers)
    answer = await server.http.post(MAPS, content=bomb, headers={"Content-Type": "application/yaml"})
    assert (answer.status_code, server.cluster.list("configmaps")) == (400, [])
    assert "it has an alias (*name)" in answer.json()["message"]


async def test_others_are_answered_while_much_yaml_is_read(server: Server) -> None:
    much = b"metadata: {name: y}\ndata:\n" + b"".join(b"  k%d: [a, b, {c: d}]\n" % number for number in range(1500))
    headers = {"Content-Type": "application/yaml"}
    reading = asyncio.create_task(server.http.post(MAPS, content=much, headers=headers, timeout=60))
    answered = 0
    while not reading.done():
        assert (await server.http.get(MAPS)).status_code == 200
        answered += 1
    assert (await reading).status_code == 422
    assert answered > 3
    answer = await server.http.post(MAPS, content=b"#" * (YAML_BYTES + 1), headers=headers)
    assert answer.status_code == 413
    assert "as JSON" in answer.json()["message"]


async def test_a_dry_run_checks_and_stores_nothing(server: Server) -> None:
    for name, code in (("a", 201), ("A", 422)):
        answer = await server.http.post(MAPS, params={"dryRun": "All"}, json={"metadata": {"name": name}})
        assert answer.status_code == code
    assert server.cluster.list("configmaps") == []
    await server.cluster.create("configmaps", config_map())
    assert (await server.http.delete(f"{MAPS}/a", params={"dryRun": "All"})).status_code == 200
    assert server.cluster.find("configmaps", "default", "a")


async def test_unknown_fields_are_pruned_or_refused(server: Server) -> None:
    body = widget(colour="red")
    strict = await server.http.post(WIDGET_PATH, params={"fieldValidation": "Strict"}, json=body)
    assert strict.status_code == 400
    assert 'unknown field "spec.colour"' in strict.json()["message"]
    ignored = await server.http.post(WIDGET_PATH, params={"fieldValidation": "Ignore"}, json=body)
    assert ignored.status_code == 201
    assert "colour" not in ignored.json()["spec"]


async def test_status_changes_by_its_own_path_alone(cluster: Cluster) -> None:
    created = await cluster.create(WIDGETS, widget())
    changed = await cluster.update(WIDGETS, created | {"status": {"replicas": 1}, "spec": {"size": "2Gi"}})
    assert "status" not in changed
    assert changed["metadata"]["generation"] == 2
    body = changed | {"status": {"replicas": 2}, "spec": {"size": "9Gi"}}
    status = await cluster.update(WIDGETS, body, subresource="status")
    assert (status["status"], status["spec"]["size"]) == ({"replicas": 2}, "2Gi")
    assert status["metadata"]["generation"] == 2
    again = await cluster.patch(WIDGETS, "default", "a", {"status": {"replicas": 9}})
    assert again["status"] == {"replicas": 2}


async def test_a_stale_update_is_refused_and_none_gets_lost(server: Server) -> None:
    created = await server.cluster.create(WIDGETS, widget())
    await server.cluster.patch(WIDGETS, "default", "a", {"spec": {"mode": "A"}})
    answer = await server.http.put(f"{WIDGET_PATH}/a", json=created)
    assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
    del created["metadata"]["resourceVersion"]
    answer = await server.http.put(f"{WIDGET_PATH}/a", json=created)
    assert answer.status_code == 422
    assert "metadata.resourceVersion: Invalid value: 0x0" in answer.json()["message"]
    assert (await server.http.put(f"{WIDGET_PATH}/none", json=widget("none"))).status_code == 422


async def test_a_write_without_effect_makes_no_event(cluster: Cluster) -> None:
    created = await cluster.create(WIDGETS, widget())
    await cluster.update(WIDGETS, created)
    same = await cluster.patch(WIDGETS, "default", "a", {"spec": {"size": "1Gi"}})
    assert same["metadata"] == created["metadata"]
    assert cluster.store.resource_version == int(created["metadata"]["resourceVersion"])


async def test_immutable_metadata_stays(cluster: Cluster) -> None:
    created = await cluster.create("configmaps", config_map())
    forged = {"uid": created["metadata"]["uid"], "creationTimestamp": "1999-01-01T00:00:00Z", "deletionTimestamp": "x"}
    changed = await cluster.patch("configmaps", "default", "a", {"metadata": forged, "data": {"b": "2"}})
    assert changed["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]
    assert "deletionTimestamp" not in changed["metadata"]
    with pytest.raises(ApiError, match="has been modified"):
        await cluster.patch("configmaps", "default", "a", {"metadata": {"uid": "another"}})


async def test_finalizers_hold_a_deleted_object(server: Server) -> None:
    await server.cluster.create("configmaps", config_map(finalizers=["a.dev/x"]))
    answer = await server.http.delete(f"{MAPS}/a")
    assert answer.json()["metadata"]["deletionTimestamp"] == "2030-01-01T00:00:00Z"
    added = {"metadata": {"finalizers": ["a.dev/x", "a.dev/y"]}}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await server.http.patch(f"{MAPS}/a", json=added, headers=headers)).status_code == 422
    await server.cluster.patch("configmaps", "default", "a", {"metadata": {"finalizers": None}})
    assert (await server.http.get(f"{MAPS}/a")).status_code == 404


async def test_a_pod_waits_for_the_kubelet_to_confirm(cluster: Cluster) -> None:
    await cluster.create("pods", pod(terminationGracePeriodSeconds=20))
    marked = await cluster.delete("pods", "default", "a")
    assert marked["metadata"]["deletionTimestamp"] == "2030-01-01T00:00:20Z"
    shorter = await cluster.delete("pods", "default", "a", DeleteOptions(grace_seconds=5))
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = await cluster.delete("pods", "default", "a", DeleteOptions(grace_seconds=50))
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
    await cluster.delete("pods", "default", "a", DeleteOptions(grace_seconds=0))
    assert cluster.find("pods", "default", "a") is None


async def test_preconditions_of_a_deletion_hold(server: Server) -> None:
    created = await server.cluster.create("configmaps", config_map())
    body = {"preconditions": {"uid": "another"}}
    assert (await server.http.request("DELETE", f"{MAPS}/a", json=body)).status_code == 409
    body = {"preconditions": {"resourceVersion": "0"}}
    assert (await server.http.request("DELETE", f"{MAPS}/a", json=body)).status_code == 409
    body = {"preconditions": {"uid": created["metadata"]["uid"]}}
    assert (await server.http.request("DELETE", f"{MAPS}/a", json=body)).json()["status"] == "Success"


async def test_foreground_deletion_is_refused_in_words(server: Server) -> None:
    await server.cluster.create("configmaps", config_map())
    answer = await server.http.request("DELETE", f"{MAPS}/a", json={"propagationPolicy": "Foreground"})
    assert answer.status_code == 501
    assert server.cluster.find("configmaps", "default", "a")


@pytest.mark.parametrize(
    ("labels", "fields", "names"),
    [
        ("app=a", "", ["m1"]),
        ("app==a", "", ["m1"]),
        ("app!=a", "", ["m2", "m3"]),
        ("app in (a, b)", "", ["m1", "m2"]),
        ("app notin (a)", "", ["m2", "m3"]),
        ("app", "", ["m1", "m2"]),
        ("!app", "", ["m3"]),
        ("app,app!=b", "", ["m1"]),
        ("", "metadata.name=m2", ["m2"]),
        ("", "metadata.name!=m2,metadata.namespace=default", ["m1", "m3"]),
    ],
)
async def test_selectors_choose(server: Server, labels: str, fields: str, names: list[str]) -> None:
    for name, found in (("m3", {}), ("m1", {"app": "a"}), ("m2", {"app": "b"})):
        await server.cluster.create("configmaps", config_map(name, labels=found))
    params = {"labelSelector": labels, "fieldSelector": fields, "resourceVersion": "0"}
    answer = (await server.http.get(MAPS, params=params)).json()
    assert [each["metadata"]["name"] for each in answer["items"]] == names
    assert answer["kind"] == "ConfigMapList"


@pytest.mark.parametrize(
    "params",
    [{"labelSelector": "a in b"}, {"labelSelector": "=x"}, {"fieldSelector": "spec.x=1"}, {"fieldSelector": "x"}],
)
async def test_selectors_that_mean_nothing_are_refused(server: Server, params: dict[str, str]) -> None:
    assert (await server.http.get(MAPS, params=params)).status_code == 400


async def test_long_lists_come_in_pages(server: Server) -> None:
    for number in range(7):
        await server.cluster.create("configmaps", config_map(f"m{number}"))
    names: list[str] = []
    params: dict[str, Any] = {"limit": 3}
    versions = set()
    while True:
        page = (await server.http.get("/api/v1/configmaps", params=params)).json()
        names += [each["metadata"]["name"] for each in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        await server.cluster.create("configmaps", config_map(f"a{len(names)}"))
        if "continue" not in page["metadata"]:
            break
        params["continue"] = page["metadata"]["continue"]
    assert names == [f"m{number}" for number in range(7)]
    assert len(versions) == 1
    assert (await server.http.get(MAPS, params={"continue": "nonsense"})).status_code == 400


async def test_events_have_two_shapes(server: Server) -> None:
    about = {"kind": "Pod", "name": "a", "namespace": "default"}
    body = {"metadata": {"name": "e"}, "regarding": about, "note": "hello", "reason": "Hi", "type": "Normal"}
    await server.http.post("/apis/events.k8s.io/v1/namespaces/default/events", json=body)
    params = {"fieldSelector": "involvedObject.name=a,involvedObject.kind=Pod"}
    (old,) = (await server.http.get("/api/v1/namespaces/default/events", params=params)).json()["items"]
    assert (old["message"], old["involvedObject"]) == ("hello", about)
    new = (await server.http.get("/apis/events.k8s.io/v1/namespaces/default/events/e")).json()
    assert (new["note"], new["regarding"], new["apiVersion"]) == ("hello", about, "events.k8s.io/v1")


async def test_scale_changes_the_replicas_of_any_kind_that_has_them(server: Server) -> None:
    await server.cluster.create(WIDGETS, widget())
    scale = (await server.http.get(f"{WIDGET_PATH}/a/scale")).json()
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["replicas"]) == ("Scale", 3, 0)
    scale["spec"]["replicas"] = 5
    assert (await server.http.put(f"{WIDGET_PATH}/a/scale", json=scale)).json()["spec"]["replicas"] == 5
    headers = {"Content-Type": "application/merge-patch+json"}
    stale = await server.http.put(f"{WIDGET_PATH}/a/scale", json=scale)
    assert stale.status_code == 409
    for replicas, code in ((4, 422), (-1, 422), ("x", 422), (7, 200)):
        body = {"spec": {"replicas": replicas}}
        assert (await server.http.patch(f"{WIDGET_PATH}/a/scale", json=body, headers=headers)).status_code == code
    assert server.cluster.get(WIDGETS, "default", "a")["spec"]["replicas"] == 7


async def test_built_in_kinds_get_their_defaults(cluster: Cluster) -> None:
    ports = [{"port": 80}]
    service = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"ports": ports}}
    made = await cluster.create("services", service)
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP"}]
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"a": "b"}}
    assert (await cluster.create("secrets", secret))["data"] == {"a": "Yg=="}
    made = await cluster.create("pods", pod(tolerations=[{"operator": "Exists"}], hostNetwork=True))
    assert made["spec"]["nodeName"] == "local"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["status"]["phase"] == "Pending"
    assert made["metadata"]["annotations"] == {"pavane.dev/local-ignored": "hostNetwork, tolerations"}


async def test_what_a_real_server_forbids_to_change_is_forbidden(cluster: Cluster) -> None:
    await cluster.create("pods", pod())
    with pytest.raises(ApiError, match="may not change"):
        await cluster.patch("pods", "default", "a", {"spec": {"hostname": "other"}})
    body = config_map() | {"immutable": True}
    await cluster.create("configmaps", body)
    with pytest.raises(ApiError, match="immutable"):
        await cluster.patch("configmaps", "default", "a", {"data": {"a": "2"}})


async def test_tables_show_the_printer_columns(server: Server) -> None:
    await server.cluster.create(WIDGETS, widget(mode="B"))
    conditions = [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]
    await server.cluster.patch(WIDGETS, "default", "a", {"status": {"conditions": conditions}}, subresource="status")
    server.cluster.now.move(minutes=5, seconds=7)  # type: ignore[attr-defined]
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    found = (await server.http.get(WIDGET_PATH, headers=accept)).json()
    assert [each["name"] for each in found["columnDefinitions"]] == ["Name", "Replicas", "Ready", "Mode", "Age"]
    assert [each["priority"] for each in found["columnDefinitions"]] == [0, 0, 0, 1, 0]
    assert found["rows"][0]["cells"] == ["a", 3, "True", "B", "5m"]
    assert found["rows"][0]["object"]["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("times", "age"),
    [
        ({"lastTimestamp": "2030-01-01T00:00:00Z"}, "5m"),
        ({"eventTime": "2030-01-01T00:01:00.000000Z"}, "4m"),
        (
            {"eventTime": "2030-01-01T00:01:00Z", "series": {"count": 2, "lastObservedTime": "2030-01-01T00:03:00Z"}},
            "2m",
        ),
        ({}, "<unknown>"),
    ],
)
async def test_the_age_of_an_event_is_told_by_whatever_its_recorder_filled(
    server: Server, times: dict[str, Any], age: str
) -> None:
    about = {"regarding": {"kind": "Pod", "name": "a"}, "type": "Normal", "reason": "Seen"}
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"}}
    assert (await server.http.post(path, json={**event, **about, **times})).status_code == 201
    server.cluster.now.move(minutes=5, seconds=7)  # type: ignore[attr-defined]
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    found = (await server.http.get("/api/v1/namespaces/default/events", headers=accept)).json()
    assert found["rows"][0]["cells"][:2] == ["e", age]


async def test_a_definition_goes_when_its_objects_are_gone(server: Server) -> None:
    await server.cluster.create(WIDGETS, widget())
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{WIDGETS}"
    refused = await server.http.delete(path)
    assert (refused.status_code, "delete them first" in refused.json()["message"]) == (409, True)
    await server.cluster.delete(WIDGETS, "default", "a")
    await server.cluster.delete(DEFINITIONS, "", WIDGETS)
    assert server.cluster.find(DEFINITIONS, "", WIDGETS) is None
    assert (await server.http.get(WIDGET_PATH)).status_code == 404


async def test_the_log_of_a_pod_is_streamed(server: Server) -> None:
    await server.cluster.create("pods", pod())
    assert (await server.http.get(f"{PODS}/a/log", params={"tailLines": 2})).text == "a 1\na 2\n"
    assert (await server.http.get(f"{PODS}/a/log", params={"tailLines": "x"})).status_code == 400
    assert "use tailLines" in (await server.http.get(f"{PODS}/a/log", params={"sinceSeconds": "5"})).json()["message"]
    assert (await server.http.get(f"{PODS}/a/log", params={"container": "none"})).status_code == 400
    assert "not found" in (await server.http.get(f"{PODS}/a/log", params={"previous": "true"})).json()["message"]


async def test_the_server_tells_what_it_serves(server: Server) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        assert (await server.http.get(path, headers={"Authorization": ""})).text == "ok"
    assert (await server.http.get("/version", headers={"Authorization": ""})).json()["gitVersion"] == "v1.32.0+pavane"
    groups = (await server.http.get("/apis")).json()["groups"]
    assert "test.dev" in [each["name"] for each in groups]
    entries = {each["name"]: each for each in (await server.http.get("/apis/test.dev/v1")).json()["resources"]}
    assert entries["widgets"]["shortNames"] == ["wd"]
    assert entries["widgets/scale"]["group"] == "autoscaling"
    index = (await server.http.get("/openapi/v3")).json()["paths"]
    document = (await server.http.get(index["apis/test.dev/v1"]["serverRelativeURL"])).json()
    assert document["components"]["schemas"]["dev.test.v1.Widget"]["properties"]["spec"]["required"] == ["size"]
    assert (await server.http.get("/openapi/v2")).status_code == 404

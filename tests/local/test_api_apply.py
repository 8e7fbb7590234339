"""Server-side apply and the other patches (docs/specs/operator.md 6.2, 6.3)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pavane_local.api.cluster import Cluster, WriteOptions
from pavane_local.api.errors import ApiError
from pavane_local.store import Object
from tests.local.api_server import WIDGET_PATH, WIDGETS, Server, a_cluster, a_server, config_map, pod, widget


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_cluster(tmp_path) as running:
        yield running


async def apply(cluster: Cluster, manager: str, force: bool = False, **spec: Any) -> Object:
    body = {"metadata": {"name": "a", "namespace": "default"}, "spec": spec}
    applied, _ = await cluster.apply(WIDGETS, body, WriteOptions(manager), force=force)
    return applied


def owned(body: Object, manager: str) -> Any:
    (entry,) = (each for each in body["metadata"]["managedFields"] if each["manager"] == manager)
    return entry["fieldsV1"]


async def test_applying_creates_and_owns_only_what_was_said(cluster: Cluster) -> None:
    made = await apply(cluster, "me", size="1Gi", env=[{"name": "x", "value": "1"}])
    assert made["spec"]["replicas"] == 3
    key = 'k:{"name":"x"}'
    assert owned(made, "me") == {"f:spec": {"f:env": {key: {".": {}, "f:name": {}, "f:value": {}}}, "f:size": {}}}


async def test_applying_the_same_again_changes_nothing(cluster: Cluster) -> None:
    made = await apply(cluster, "me", size="1Gi", env=[{"name": "x"}])
    cluster.now.move(minutes=1)  # type: ignore[attr-defined]
    assert await apply(cluster, "me", size="1Gi", env=[{"name": "x"}]) == made


async def test_another_value_of_a_field_with_an_owner_is_a_conflict(cluster: Cluster) -> None:
    await apply(cluster, "one", size="1Gi", mode="A")
    with pytest.raises(ApiError) as refusal:
        await apply(cluster, "two", size="2Gi", mode="B", replicas=5)
    assert refusal.value.code == 409
    assert [(cause.reason, cause.field) for cause in refusal.value.causes] == [
        ("FieldManagerConflict", ".spec.mode"),
        ("FieldManagerConflict", ".spec.size"),
    ]
    assert 'Apply failed with 2 conflicts: conflict with "one": .spec' in refusal.value.message
    taken = await apply(cluster, "two", force=True, size="2Gi", mode="B")
    assert owned(taken, "two") == {"f:spec": {"f:mode": {}, "f:size": {}}}
    assert "one" not in [each["manager"] for each in taken["metadata"]["managedFields"]]


async def test_the_same_value_is_owned_together_and_stays_until_the_last_lets_go(cluster: Cluster) -> None:
    await apply(cluster, "one", size="1Gi", mode="A")
    await apply(cluster, "two", size="1Gi", mode="A")
    assert (await apply(cluster, "one", size="1Gi"))["spec"]["mode"] == "A"
    assert "mode" not in (await apply(cluster, "two", size="1Gi"))["spec"]


async def test_a_default_comes_back_when_its_last_owner_lets_go(cluster: Cluster) -> None:
    assert (await apply(cluster, "one", size="1Gi", replicas=5))["spec"]["replicas"] == 5
    assert (await apply(cluster, "one", size="1Gi"))["spec"]["replicas"] == 3


async def test_entries_of_lists_belong_to_who_applied_them(cluster: Cluster) -> None:
    await apply(cluster, "one", size="1Gi", env=[{"name": "a", "value": "1"}, {"name": "b"}], tags=["x"])
    made = await apply(cluster, "two", env=[{"name": "c"}, {"name": "a"}], tags=["y"], size="1Gi")
    assert [each["name"] for each in made["spec"]["env"]] == ["a", "b", "c"]
    assert made["spec"]["tags"] == ["x", "y"]
    made = await apply(cluster, "one", size="1Gi", tags=["x"])
    assert made["spec"]["env"] == [{"name": "a"}, {"name": "c"}]
    made = await apply(cluster, "two", size="1Gi")
    assert "env" not in made["spec"]
    assert made["spec"]["tags"] == ["x"]


async def test_other_writes_own_what_they_change(cluster: Cluster) -> None:
    await apply(cluster, "me", size="1Gi", mode="A")
    options = WriteOptions("editor")
    changed = await cluster.patch(WIDGETS, "default", "a", {"spec": {"mode": "B"}}, "merge", options)
    assert owned(changed, "editor") == {"f:spec": {"f:mode": {}}}
    assert owned(changed, "me") == {"f:spec": {"f:size": {}}}
    with pytest.raises(ApiError, match='conflict with "editor"'):
        await apply(cluster, "me", size="1Gi", mode="A")


async def test_status_has_its_own_owners(cluster: Cluster) -> None:
    body = widget() | {"status": {"replicas": 1}}
    options = WriteOptions("me")
    with pytest.raises(ApiError) as refusal:
        await cluster.apply(WIDGETS, body, options, subresource="status")
    assert refusal.value.code == 404
    made, created = await cluster.apply(WIDGETS, body, options)
    assert (created, made.get("status")) == (True, None)
    made, created = await cluster.apply(WIDGETS, body | {"spec": {"size": "9Gi"}}, options, subresource="status")
    assert (created, made["status"], made["spec"]["size"]) == (False, {"replicas": 1}, "1Gi")
    made, _ = await cluster.apply(WIDGETS, widget(), options)
    assert made["status"] == {"replicas": 1}


@pytest.mark.parametrize("wrong", [{"resourceVersion": "1"}, {"uid": "another"}])
async def test_an_apply_has_preconditions(cluster: Cluster, wrong: dict[str, str]) -> None:
    made = await apply(cluster, "me", size="1Gi")
    body = widget(size="2Gi")
    body["metadata"] |= wrong
    with pytest.raises(ApiError) as refusal:
        await cluster.apply(WIDGETS, body, WriteOptions("me"))
    assert refusal.value.code == 409
    body["metadata"] |= {name: made["metadata"][name] for name in wrong}
    assert (await cluster.apply(WIDGETS, body, WriteOptions("me")))[0]["spec"]["size"] == "2Gi"


async def test_an_apply_that_expects_a_missing_object_creates_nothing(cluster: Cluster) -> None:
    body = widget()
    body["metadata"]["uid"] = "gone"
    with pytest.raises(ApiError) as refusal:
        await cluster.apply(WIDGETS, body, WriteOptions("me"))
    assert refusal.value.code == 409
    assert cluster.find(WIDGETS, "default", "a") is None


async def test_built_in_lists_merge_by_their_keys(cluster: Cluster) -> None:
    def service(port: int, target: int) -> Object:
        ports = [{"port": port, "targetPort": target}]
        return {"metadata": {"name": "s", "namespace": "default"}, "spec": {"ports": ports}}

    await cluster.apply("services", service(80, 8080), WriteOptions("one"))
    made, _ = await cluster.apply("services", service(81, 8081), WriteOptions("two"))
    assert [each["port"] for each in made["spec"]["ports"]] == [80, 81]
    with pytest.raises(ApiError, match=r'\.spec\.ports\[port=80,protocol="TCP"\]\.targetPort'):
        await cluster.apply("services", service(80, 9999), WriteOptions("three"))


async def test_finalizers_and_owners_are_merged(cluster: Cluster) -> None:
    def body(finalizer: str, uid: str) -> Object:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid}
        return config_map(finalizers=[finalizer], ownerReferences=[owner])

    await cluster.apply("configmaps", body("a.dev/one", "1"), WriteOptions("one"))
    made, _ = await cluster.apply("configmaps", body("a.dev/two", "2"), WriteOptions("two"))
    assert made["metadata"]["finalizers"] == ["a.dev/one", "a.dev/two"]
    assert [each["uid"] for each in made["metadata"]["ownerReferences"]] == ["1", "2"]
    made, _ = await cluster.apply("configmaps", config_map(), WriteOptions("one"))
    assert made["metadata"]["finalizers"] == ["a.dev/two"]


async def test_apply_over_http_needs_a_manager_and_says_created(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server:
        headers = {"Content-Type": "application/apply-patch+yaml"}
        body = b"apiVersion: test.dev/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 1Gi}\n"
        path = f"{WIDGET_PATH}/a"
        assert (await server.http.patch(path, content=body, headers=headers)).status_code == 400
        for code in (201, 200):
            answer = await server.http.patch(path, params={"fieldManager": "me"}, content=body, headers=headers)
            assert answer.status_code == code
        other = body.replace(b"1Gi", b"2Gi")
        answer = await server.http.patch(path, params={"fieldManager": "you"}, content=other, headers=headers)
        assert (answer.status_code, answer.json()["details"]["causes"][0]["field"]) == (409, ".spec.size")
        forced = {"fieldManager": "you", "force": "true"}
        assert (await server.http.patch(path, params=forced, content=other, headers=headers)).status_code == 200


STRATEGIC: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"env": [{"name": "b", "value": "3"}, {"name": "c"}]}, {"env": ["a=1", "b=3", "c=None"]}),
    ({"env": [{"name": "a", "$patch": "delete"}], "$setElementOrder/env": [{"name": "b"}]}, {"env": ["b=2"]}),
    ({"args": ["x"]}, {"args": ["x"]}),
    ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}),
    ({"resources": {"$patch": "delete"}}, {"resources": None}),
    ({"$retainKeys": ["name", "image", "args"]}, {"args": ["one", "two"], "env": [], "resources": None}),
    ({"ports": [{"containerPort": 80, "name": "web"}]}, {"ports": [(80, "web"), (81, None)]}),
]


@pytest.mark.parametrize(("patch", "wanted"), STRATEGIC)
async def test_strategic_merge_follows_its_directives(
    cluster: Cluster, patch: dict[str, Any], wanted: dict[str, Any]
) -> None:
    container = {
        **{"name": "main", "image": "pavane", "args": ["one", "two"]},
        "env": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}],
        "resources": {"requests": {"cpu": "1"}},
        "ports": [{"containerPort": 80}, {"containerPort": 81}],
    }
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"] | {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "serviceName": "s", "template": template}
    await cluster.create("statefulsets.apps", {"metadata": {"name": "s", "namespace": "default"}, "spec": spec})
    body = {"spec": {"template": {"spec": {"containers": [{"name": "main", **patch}]}}}}
    made = await cluster.patch("statefulsets.apps", "default", "s", body, "strategic")
    (found,) = made["spec"]["template"]["spec"]["containers"]
    shown = {
        "env": [f"{each['name']}={each.get('value')}" for each in found.get("env", ())],
        "ports": [(each["containerPort"], each.get("name")) for each in found.get("ports", ())],
    }
    assert {key: shown.get(key, found.get(key)) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("kind", "patch", "code"),
    [
        ("json", [{"op": "test", "path": "/spec/size", "value": "9Gi"}], 422),
        ("json", [{"op": "remove", "path": "/spec/none"}], 422),
        ("json", [{"op": "remove", "path": "/metadata"}], 400),
        ("json", {"not": "a list"}, 422),
        ("merge", [], 400),
        ("merge", {"metadata": {"name": "b"}}, 400),
        ("strategic", {"spec": {}}, 415),
    ],
)
async def test_patches_that_do_not_fit_are_refused(cluster: Cluster, kind: str, patch: Any, code: int) -> None:
    await cluster.create(WIDGETS, widget())
    await _refused(cluster, WIDGETS, kind, patch, code)


@pytest.mark.parametrize("patch", [{"$patch": "replace"}, {"data": {"$deleteFromPrimitiveList/a": ["x"]}}])
async def test_directives_that_are_not_served_are_refused(cluster: Cluster, patch: Any) -> None:
    await cluster.create("configmaps", config_map())
    await _refused(cluster, "configmaps", "strategic", patch, 400)


async def _refused(cluster: Cluster, resource: str, kind: str, patch: Any, code: int) -> None:
    before = cluster.get(resource, "default", "a")
    with pytest.raises(ApiError) as refusal:
        await cluster.patch(resource, "default", "a", patch, kind)
    assert refusal.value.code == code
    assert cluster.get(resource, "default", "a") == before


async def test_json_and_merge_patches_change_what_they_name(cluster: Cluster) -> None:
    await cluster.create(WIDGETS, widget(config={"a": 1, "b": 2}))
    operations = [
        {"op": "test", "path": "/spec/size", "value": "1Gi"},
        {"op": "add", "path": "/spec/mode", "value": "A"},
    ]
    assert (await cluster.patch(WIDGETS, "default", "a", operations, "json"))["spec"]["mode"] == "A"
    merged = await cluster.patch(WIDGETS, "default", "a", {"spec": {"config": {"a": None, "c": {"d": 3}}}})
    assert merged["spec"]["config"] == {"b": 2, "c": {"d": 3}}


async def test_a_patch_can_carry_a_precondition(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server:
        await _stale_patch(server)


async def _stale_patch(server: Server) -> None:
    made = await server.cluster.create(WIDGETS, widget())
    await server.cluster.patch(WIDGETS, "default", "a", {"spec": {"mode": "A"}})
    body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"mode": "B"}}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await server.http.patch(f"{WIDGET_PATH}/a", json=body, headers=headers)).status_code == 409
    wrong = {"Content-Type": "text/plain"}
    assert (await server.http.patch(f"{WIDGET_PATH}/a", content=b"{}", headers=wrong)).status_code == 415

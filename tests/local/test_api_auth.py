"""Who may do what (docs/specs/operator.md 6.6)."""

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.local.api_server import Server, a_server, pod


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with a_server(tmp_path) as running:
        await running.cluster.create("namespaces", {"metadata": {"name": "pavane-system"}})
        account = {"metadata": {"name": "default", "namespace": "pavane-system"}}
        await running.cluster.create("serviceaccounts", account)
        yield running


async def token(server: Server, namespace: str) -> str:
    body = pod()
    body["metadata"]["namespace"] = namespace
    made = await server.cluster.create("pods", body)
    config = yaml.safe_load(server.api.kubeconfig_of(made))
    assert config["clusters"][0]["cluster"]["server"] == str(server.http.base_url).rstrip("/")
    found: str = config["users"][0]["user"]["token"]
    return found


async def code(server: Server, token: str, path: str = "/api/v1/pods") -> int:
    return (await server.http.get(path, headers={"Authorization": f"Bearer {token}"})).status_code


async def review(server: Server, token: str, **spec: Any) -> dict[str, Any]:
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    status: dict[str, Any] = (await server.http.post(path, json={"spec": {"token": token, **spec}})).json()["status"]
    return status


async def test_the_platform_may_all_and_others_nothing(server: Server) -> None:
    platform, other = await token(server, "pavane-system"), await token(server, "default")
    assert await code(server, platform) == 200
    assert await code(server, other) == 403
    assert await code(server, other, "/apis") == 200
    assert await code(server, other[:-2] + "xx") == 401
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for bearer, allowed in ((platform, True), (other, False)):
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/vnd.kubernetes.protobuf"}
        answer = await server.http.post(path, content=b"k8s\x00", headers=headers)
        assert answer.json()["status"] == {"allowed": allowed}


async def test_a_role_of_its_namespace_lets_an_account_in(server: Server) -> None:
    found = await token(server, "default")
    head = {"name": "executors", "namespace": "default"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "create"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "executors"}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]
    await server.cluster.create("roles.rbac.authorization.k8s.io", {"metadata": head, "rules": rules})
    assert await code(server, found, "/api/v1/namespaces/default/pods") == 403
    binding = {"metadata": head, "roleRef": role, "subjects": subjects}
    await server.cluster.create("rolebindings.rbac.authorization.k8s.io", binding)
    for path, wanted in {
        "/api/v1/namespaces/default/pods": 200,
        "/api/v1/namespaces/default/pods?watch=true": 403,
        "/api/v1/namespaces/default/pods/some": 403,
        "/api/v1/namespaces/default/secrets": 403,
        "/api/v1/namespaces/pavane-system/pods": 403,
        "/api/v1/pods": 403,
    }.items():
        assert await code(server, found, path) == wanted, path
    await server.cluster.delete("roles.rbac.authorization.k8s.io", "default", "executors")
    assert await code(server, found, "/api/v1/namespaces/default/pods") == 403


async def test_a_token_ends_with_its_pod_and_not_by_time(server: Server) -> None:
    found = await token(server, "pavane-system")
    server.cluster.now.move(days=400)  # type: ignore[attr-defined]
    assert await code(server, found) == 200
    await server.cluster.patch("pods", "pavane-system", "a", {"metadata": {"labels": {"a": "b"}}})
    assert await code(server, found) == 200
    marked = await server.cluster.delete("pods", "pavane-system", "a")
    assert "deletionTimestamp" in marked["metadata"]
    assert await code(server, found) == 200
    await server.http.request("DELETE", "/api/v1/namespaces/pavane-system/pods/a", json={"gracePeriodSeconds": 0})
    assert await code(server, found) == 401
    again = await token(server, "pavane-system")
    assert [await code(server, each) for each in (found, again)] == [401, 200]


async def test_a_token_ends_with_its_account(server: Server) -> None:
    found = await token(server, "pavane-system")
    await server.cluster.delete("serviceaccounts", "pavane-system", "default")
    assert await code(server, found) == 401


async def test_token_reviews_tell_who(server: Server) -> None:
    found = await token(server, "default")
    told = await review(server, found, audiences=["pavane-api"])
    assert (told["authenticated"], told["audiences"]) == (True, ["pavane-api"])
    assert told["user"]["username"] == "system:serviceaccount:default:default"
    assert await review(server, "nonsense") == {"error": "invalid bearer token"}
    admin = server.http.headers["Authorization"].removeprefix("Bearer ")
    assert (await review(server, admin, audiences=["anything"]))["audiences"] == ["anything"]


async def test_a_token_for_an_audience_is_good_for_that_alone(server: Server) -> None:
    made = await server.cluster.create("pods", {**pod(), "metadata": {"name": "b", "namespace": "default"}})
    found = server.api.token_of(made, "pavane-otlp")
    told = await review(server, found, audiences=["pavane-api", "pavane-otlp"])
    assert (told["user"]["username"], told["audiences"]) == ("system:serviceaccount:default:default", ["pavane-otlp"])
    assert not (await review(server, found, audiences=["pavane-api"])).get("authenticated")
    assert await code(server, found, "/apis") == 401


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"user": "system:serviceaccount:pavane-system:pavane-operator"}, True),
        ({"user": "system:serviceaccount:default:default"}, False),
        ({"user": "pavane-admin", "groups": ["system:masters"]}, True),
        ({"user": "somebody"}, False),
    ],
)
async def test_access_reviews_answer_for_others(server: Server, spec: dict[str, Any], allowed: bool) -> None:
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert (await server.http.post(path, json={"spec": spec})).json()["status"] == {"allowed": allowed}


async def test_secrets_of_the_folder_are_private(server: Server, tmp_path: Path) -> None:
    private = [tmp_path / "kubeconfig", *(tmp_path / "ca").iterdir()]
    assert len(private) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert config["current-context"] == "pavane-local"


async def test_nobody_is_let_in_without_the_right_authority(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    async with a_server(folder) as other:
        with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
            await other.http.get(f"{server.http.base_url}/livez")

"""The charts on a real API server: every shape is admitted, and nobody may more than he should."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import yaml

from e2e.kubernetes.control_plane import control_plane
from e2e.kubernetes.tools import CONTROL_PLANE
from pavane_api.app import create_app
from pavane_api.settings import ApiSettings
from pavane_operator.kube import Forbidden, Identity, KubeClient, NotFound, Resource, Target, TooManyRequests
from pavane_operator.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    STATEFUL_SETS,
    custom,
)
from tests.api.plane import serving
from tests.charts.rendering import CHARTS, NAMESPACE, RELEASE, SHAPES
from tests.requires import requires

RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
UNTIL_S = 40.0
WATCHED, OTHER = "watched", "other"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A control plane with the definitions; in the release's namespace only restricted pods are admitted."""
    for program in (*CONTROL_PLANE, "helm"):
        requires(program)
    with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        _helm(plane.kubeconfig, "install", "pavane-crds", str(CHARTS / "pavane-crds"), "--namespace", "default")
        asyncio.run(_namespaces(plane.kubeconfig))
        yield plane.kubeconfig


async def _namespaces(kubeconfig: Path) -> None:
    async with await KubeClient.connect(Target(kubeconfig)) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
        for name in (WATCHED, OTHER):
            await kube.create(NAMESPACES, {"metadata": {"name": name}})
        # One shape brings no account of its own for the control plane.
        await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "somebody"}}, NAMESPACE)
        async with asyncio.timeout(UNTIL_S):
            while not await _served(kube):
                await asyncio.sleep(0.05)


async def _served(kube: KubeClient) -> bool:
    """Whether the server has got its storage for our kind ready."""
    try:
        await kube.list(RAFT_CLUSTERS)
    except (NotFound, TooManyRequests):
        return False
    return True


def _helm(kubeconfig: Path, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    result = subprocess.run(
        [requires("helm"), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=50
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def release(kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The chart, installed with the arguments of the parameter."""
    arguments: list[str] = request.param
    _helm(kubeconfig, "install", RELEASE, str(CHARTS / "pavane"), "--namespace", NAMESPACE, *arguments)
    yield kubeconfig
    # Without hooks: there is no node to run one.
    _helm(kubeconfig, "uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks", "--wait")


EVERY_SHAPE = pytest.mark.parametrize(
    "release", [["--values", str(shape)] for shape in SHAPES], ids=[shape.stem for shape in SHAPES], indirect=True
)
EVERYWHERE = pytest.mark.parametrize("release", [[]], ids=["everywhere"], indirect=True)
IN_ONE = pytest.mark.parametrize("release", [["--set", f"watchNamespaces={{{WATCHED}}}"]], ids=["one"], indirect=True)


@EVERY_SHAPE
async def test_each_shape_is_accepted_and_its_pods_are_admitted(release: Path) -> None:
    deployments = Resource("apps", "v1", "deployments", "Deployment")
    async with await KubeClient.connect(Target(release)) as kube, asyncio.timeout(UNTIL_S):
        while True:
            found = (await kube.list(deployments, NAMESPACE)).items
            # Pods that the restricted level refuses would never be made.
            made = [(one.get("status") or {}).get("replicas", 0) for one in found]
            if made and made == [one["spec"]["replicas"] for one in found]:
                return
            await asyncio.sleep(0.05)


@EVERYWHERE
async def test_the_backup_of_the_page_is_accepted(release: Path) -> None:
    page = (CHARTS.parent / "docs" / "operations.md").read_text("utf-8")
    body = yaml.safe_load(page.partition("kind: Backup\n")[2].partition("```")[0].replace("NAME", "q"))
    async with await KubeClient.connect(Target(release)) as kube:
        await kube.apply(custom("Backup", "backups"), body, WATCHED, manager="user", strict=True)
        await kube.delete(custom("Backup", "backups"), "q-1", WATCHED)


class Attempt(NamedTuple):
    """Something that somebody might try."""

    verb: str
    resource: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None


NOBODY_MAY = (
    Attempt("create", PODS, WATCHED, "q-server-g1-0", "exec"),
    Attempt("create", PODS, WATCHED, "q-server-g1-0", "portforward"),
    Attempt("create", ROLES, WATCHED),
    Attempt("create", CLUSTER_ROLES),
    Attempt("create", BINDINGS, WATCHED),
    Attempt("get", NODES),
    Attempt("delete", NAMESPACES, None, WATCHED),
    Attempt("create", SERVICE_ACCOUNTS, WATCHED, "default", "token"),
    Attempt("patch", CRDS, None, "raftclusters.pavane.dev"),
    Attempt("deletecollection", SECRETS, WATCHED),
)
"""Neither operator, control plane nor a pod of a resource."""
ONLY_OTHERS_MAY = {
    "operator": (
        Attempt("create", RAFT_CLUSTERS, WATCHED),
        Attempt("delete", RAFT_CLUSTERS, WATCHED, "q"),
        Attempt("update", LEASES, "kube-system", "kube-scheduler"),
        Attempt("update", LEASES, NAMESPACE, "another"),
    ),
    "api": (
        Attempt("create", PODS, WATCHED),
        Attempt("list", SECRETS, WATCHED),
        Attempt("patch", SECRETS, WATCHED, "q-keys"),
        Attempt("patch", RAFT_CLUSTERS, WATCHED, "q", "status"),
        Attempt("patch", STATEFUL_SETS, WATCHED, "q-server-g1"),
        Attempt("delete", PODS, WATCHED, "q-server-g1-0"),
        Attempt("list", CONFIG_MAPS, WATCHED),
    ),
}


def _account(name: str, namespace: str = NAMESPACE) -> Identity:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return Identity(f"system:serviceaccount:{namespace}:{name}", "", groups)


async def _allowed(kube: KubeClient, who: Identity, attempts: tuple[Attempt, ...]) -> list[Attempt]:
    return [
        one
        for one in attempts
        if await kube.access_review(
            who, one.verb, one.resource, namespace=one.namespace, name=one.name, subresource=one.subresource
        )
    ]


@EVERYWHERE
async def test_no_account_may_do_what_it_should_not(release: Path) -> None:
    async with await KubeClient.connect(Target(release)) as kube:
        for component, attempts in ONLY_OTHERS_MAY.items():
            account = _account(f"pavane-{component}")
            assert await _allowed(kube, account, (*NOBODY_MAY, *attempts)) == []
        # What tells that the questions are understood.
        own = Attempt("patch", RAFT_CLUSTERS, WATCHED, "q", "status")
        assert await _allowed(kube, _account("pavane-operator"), (own,)) == [own]


@EVERYWHERE
async def test_the_pods_of_a_resource_may_nothing(release: Path) -> None:
    everything = {*NOBODY_MAY, *(attempt for attempts in ONLY_OTHERS_MAY.values() for attempt in attempts)}
    async with await KubeClient.connect(Target(release)) as kube:
        for account in (_account("q", WATCHED), _account("default", WATCHED)):
            assert await _allowed(kube, account, tuple(everything)) == []
            assert await _allowed(kube, account, (Attempt("get", RAFT_CLUSTERS, WATCHED, "q"),)) == []


@IN_ONE
async def test_outside_of_the_watched_namespaces_there_is_nothing_to_get(release: Path) -> None:
    async with await KubeClient.connect(Target(release)) as kube:
        for component, resource in (("operator", SECRETS), ("operator", STATEFUL_SETS), ("api", SECRETS)):
            account = _account(f"pavane-{component}")
            for verb, place in (("get", OTHER), ("get", "kube-system"), ("get", NAMESPACE)):
                assert await _allowed(kube, account, (Attempt(verb, resource, place, "any"),)) == []
            inside = Attempt("get", resource, WATCHED, "any")
            assert await _allowed(kube, account, (inside,)) == [inside]


@IN_ONE
async def test_a_call_with_the_token_of_an_account_is_refused_where_it_should_be(release: Path) -> None:
    async with await KubeClient.connect(Target(release)) as admin:
        for component in ("operator", "api"):
            token = await _token(release, f"pavane-{component}")
            async with await KubeClient.connect(Target(release, token=token)) as kube:
                for refused in (
                    kube.list(SECRETS),
                    kube.get(SECRETS, "any", OTHER),
                    kube.create(PODS, {"metadata": {"name": "mine"}, "spec": {"containers": []}}, OTHER),
                    kube.delete(NAMESPACES, OTHER),
                ):
                    with pytest.raises(Forbidden):
                        await refused
                assert (await kube.list(RAFT_CLUSTERS, WATCHED)).items == ()
        assert (await admin.get(NAMESPACES, OTHER))["status"]["phase"] == "Active"


async def _token(kubeconfig: Path, account: str, *options: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    command = (requires("kubectl"), "create", "token", account, "--namespace", NAMESPACE, *options)
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().strip()


READS = tuple(Attempt(verb, RAFT_CLUSTERS, WATCHED) for verb in ("get", "list", "watch"))
CHANGES = tuple(Attempt(verb, RAFT_CLUSTERS, WATCHED) for verb in ("create", "update", "patch", "delete"))
SCALES = tuple(Attempt(verb, RAFT_CLUSTERS, WATCHED, "q", "scale") for verb in ("get", "update", "patch"))
ALL_AT_ONCE = (Attempt("deletecollection", RAFT_CLUSTERS, WATCHED),)
STATUS = (Attempt("patch", RAFT_CLUSTERS, WATCHED, "q", "status"),)
ELSEWHERE = (Attempt("get", RAFT_CLUSTERS, OTHER),)
EVERYTHING = (*READS, *CHANGES, *SCALES, *ALL_AT_ONCE, *STATUS, *ELSEWHERE)
USERS: dict[str, tuple[Attempt, ...]] = {
    "view": READS,
    "edit": (*READS, *CHANGES, *SCALES),
    "admin": (*READS, *CHANGES, *SCALES, *ALL_AT_ONCE),
}


@EVERYWHERE
async def test_the_roles_of_the_cluster_hold_for_our_kinds(release: Path) -> None:
    async with await KubeClient.connect(Target(release)) as kube:
        for role, expected in USERS.items():
            await _bind(kube, role)
            user = Identity(role, "", ("system:authenticated",))
            async with asyncio.timeout(UNTIL_S):  # the roles are put together after the installation
                while await _allowed(kube, user, EVERYTHING) != list(expected):
                    await asyncio.sleep(0.05)


async def _bind(kube: KubeClient, role: str) -> None:
    binding: dict[str, Any] = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
    }
    await kube.create_if_absent(BINDINGS, binding, WATCHED)


@EVERYWHERE
async def test_the_control_plane_lets_each_caller_do_what_kubectl_lets_him(release: Path, tmp_path: Path) -> None:
    own = await _token(release, "pavane-api")
    app = create_app(ApiSettings(data=tmp_path), lambda: KubeClient.connect(Target(release, token=own)))
    resource = {"metadata": {"name": "q"}, "spec": {"stateMachine": "Broadcast"}}
    path = f"/api/v1/namespaces/{WATCHED}/raftclusters"
    async with serving(app) as url, await KubeClient.connect(Target(release)) as admin:

        async def a_client(*verbs: str) -> httpx2.AsyncClient:
            name = "-".join(verbs)
            await admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, NAMESPACE)
            rule = {"apiGroups": ["pavane.dev"], "resources": ["raftclusters"], "verbs": list(verbs)}
            await admin.create(ROLES, {"metadata": {"name": name}, "rules": [rule]}, WATCHED)
            binding = {
                "metadata": {"name": f"may-{name}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
            }
            await admin.create(BINDINGS, binding, WATCHED)
            token = await _token(release, name, "--audience", "pavane-api")
            headers = {"Authorization": f"Bearer {token}"}
            return httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False)

        new = {"If-None-Match": "*"}
        async with await a_client("update", "list") as changing, await a_client("create", "list", "watch") as creating:
            assert (await changing.put(f"{path}/q", json=resource, headers=new)).status_code == 403
            assert (await creating.put(f"{path}/q", json=resource, headers=new)).status_code == 201
            assert (await creating.put(f"{path}/q", json=resource, headers={"If-Match": "*"})).status_code == 403
            assert (await changing.put(f"{path}/q", json=resource, headers={"If-Match": "*"})).status_code == 200
            for client in (changing, creating):
                assert (await client.get(path)).status_code == 200
                assert (await client.get(f"{path}/q")).status_code == 403
                assert (await client.delete(f"{path}/q", headers={"If-Match": "*"})).status_code == 403
            assert (await changing.get(path, params={"watch": "true"})).status_code == 403
            async with creating.stream("GET", path, params={"watch": "true"}) as stream:
                assert stream.status_code == 200
        async with httpx2.AsyncClient(trust_env=False) as stranger:
            assert (await stranger.get(url + path)).status_code == 401
        await admin.delete(RAFT_CLUSTERS, "q", WATCHED)


def _kubeconfig(admin: Path, token: str, path: Path) -> str:
    """A kubeconfig for the owner of a token."""
    config = yaml.safe_load(admin.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.parametrize(
    ("release", "watched"), [([], ""), (["--set", f"watchNamespaces={{{WATCHED}}}"], WATCHED)], indirect=["release"]
)
async def test_the_operator_needs_no_right_that_it_has_not(release: Path, watched: str, tmp_path: Path) -> None:
    settings = {
        "KUBECONFIG": _kubeconfig(release, await _token(release, "pavane-operator"), tmp_path / "kubeconfig"),
        "POD_NAMESPACE": NAMESPACE,
        "PAVANE_WATCH_NAMESPACES": watched,
        "PAVANE_HEALTH_PORT": "0",
    }
    log = tmp_path / "log"
    with log.open("wb") as file:
        operator = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pavane_cli.main", "operator"), env={**os.environ, **settings}, stderr=file
        )
    try:
        async with await KubeClient.connect(Target(release)) as admin, asyncio.timeout(UNTIL_S):
            spec = {"stateMachine": "Broadcast", "replicas": 1, "deletionPolicy": "Delete"}
            await admin.create(RAFT_CLUSTERS, {"metadata": {"name": "w"}, "spec": spec}, WATCHED)
            while await admin.get_or_none(STATEFUL_SETS, "w-server-g1", WATCHED) is None:
                await asyncio.sleep(0.05)
            await admin.delete(RAFT_CLUSTERS, "w", WATCHED)
            while await admin.get_or_none(RAFT_CLUSTERS, "w", WATCHED) is not None:
                await asyncio.sleep(0.05)
    finally:
        operator.terminate()  # it gives the Lease back, for the next one
        await operator.wait()
    complaints = [line for line in log.read_text().splitlines() if "forbidden" in line.lower() or "Traceback" in line]
    assert complaints == []

"""`pavane check` against the embedded API server (docs/specs/operator.md 8.1)."""

import asyncio
import copy
import json
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands.check import (
    COMPONENT_LABEL,
    CONTROL_PLANE,
    NEWEST_SERVER,
    OLDEST_SERVER,
    OPERATOR,
    PLATFORM_LABELS,
    Finding,
    Result,
    component_finding,
    examine,
    references,
    server_finding,
)
from pavane_cli.commands.why import explain
from pavane_cli.failures import ExitCode
from pavane_local.api.cluster import DEFINITIONS
from pavane_local.api.selectors import labels
from pavane_operator.crds.definitions import GROUP, all_kinds, definitions
from pavane_operator.kube import Forbidden, KubeClient, Target
from pavane_operator.kube.resources import CONFIG_MAPS, CRDS, NAMESPACES, PODS, SECRETS, Object
from tests.charts.rendering import pod_templates, render
from tests.local.api_server import Server, a_server, pod

DEFINITION = "raftclusters.pavane.dev"
PLATFORM = yaml.safe_load(resources.files("pavane_local").joinpath("platform.yaml").read_text(encoding="utf-8"))["pods"]
SINCE = "2029-12-31T23:59:00Z"


@dataclass
class Cluster:
    """A server that knows our kinds, an administrator's client, and one of an account that may do nothing."""

    server: Server
    kube: KubeClient
    nobody: KubeClient

    async def findings(self, namespace: str | None = "default") -> dict[str, Finding]:
        return {each.check: each async for each in examine(self.kube, namespace)}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with a_server(tmp_path) as server:
        for definition in definitions():
            await server.cluster.create(DEFINITIONS, definition)
        account = yaml.safe_load(server.api.kubeconfig_of(await server.cluster.create("pods", pod("account"))))
        target = Target(server.api.kubeconfig)
        stranger = Target(server.api.kubeconfig, token=account["users"][0]["user"]["token"])
        async with await KubeClient.connect(target) as kube, await KubeClient.connect(stranger) as nobody:
            await kube.create(NAMESPACES, {"metadata": {"name": "pavane-system"}})
            yield Cluster(server, kube, nobody)


async def raft(kube: KubeClient, name: str = "a", status: Object | None = None, **spec: Any) -> Object:
    wanted = {"replicas": 1, "stateMachine": "Broadcast", "storage": {"size": "64Mi"}, **spec}
    made = await kube.create(RAFT_CLUSTERS, {"metadata": {"name": name}, "spec": wanted}, "default")
    if status is None:
        return made
    return await kube.apply_status(RAFT_CLUSTERS, {"metadata": {"name": name}, "status": status}, "default")


def condition(kind: str, value: str, reason: str, message: str = "") -> Object:
    return {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": SINCE}


async def platform(kube: KubeClient, *, ready: bool = True) -> None:
    """Operator and control plane, as a local cluster describes them."""
    for described in PLATFORM:
        body = {"metadata": described["metadata"], "spec": {"containers": pod()["spec"]["containers"]}}
        await kube.create(PODS, body, "pavane-system")
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        status = {"metadata": {"name": described["metadata"]["name"]}, "status": {"conditions": conditions}}
        await kube.apply(PODS, status, "pavane-system", subresource="status")


SERVING = [
    condition("Ready", "True", "Serving"),
    condition("UpToDate", "True", "Applied"),
    condition("Stalled", "False", "NotStalled"),
]


def results(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: each.result.value for name, each in findings.items()}


async def test_before_the_installation_only_the_operator_is_missing(cluster: Cluster) -> None:
    found = await cluster.findings()
    assert results(found) == {
        "server": "ok",
        **{f"definition {kind.plural}.{GROUP}": "ok" for kind in all_kinds()},
        "right to read": "ok",
        "right to change": "ok",
        "operator": "problem",
        "control plane": "ok",
        **{kind.plural: "ok" for kind in all_kinds()},
    }
    assert "install the chart pavane" in found["operator"].message


async def test_definitions_that_are_missing_or_old_are_named_with_their_chart(cluster: Cluster) -> None:
    old = copy.deepcopy(await cluster.kube.get(CRDS, DEFINITION))
    properties = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["rollout"]["properties"]["deadline"]
    await cluster.kube.replace(CRDS, old)
    told = (await cluster.findings())[f"definition {DEFINITION}"]
    assert told.result is Result.PROBLEM
    assert "spec.rollout.deadline" in told.message
    await cluster.kube.delete(CRDS, DEFINITION)
    found = await cluster.findings()
    assert found[f"definition {DEFINITION}"].result is Result.PROBLEM
    assert "chart pavane-crds" in found[f"definition {DEFINITION}"].message
    # Also whoever may not read definitions is told so.
    assert found["raftclusters"].result is Result.PROBLEM
    assert "chart pavane-crds" in found["raftclusters"].message


async def test_whoever_may_nothing_is_told_what_and_nothing_is_guessed(cluster: Cluster) -> None:
    found = {each.check: each async for each in examine(cluster.nobody, "default")}
    assert results(found) == {
        "server": "ok",
        "definitions": "unknown",
        "right to read": "problem",
        "right to change": "problem",
        "platform": "unknown",
        "resources": "unknown",
    }
    for asked in ("watch raftclusters", "get pods/log", "list events", "in namespace default", "role `view`"):
        assert asked in found["right to read"].message
    for asked in ("create raftclusters", "patch raftclusters", "delete raftclusters", "role `edit`"):
        assert asked in found["right to change"].message


async def test_a_server_that_does_not_answer_or_know_the_user_is_the_only_finding(cluster: Cluster) -> None:
    stranger = Target(cluster.server.api.kubeconfig, token="guessed")
    async with await KubeClient.connect(stranger) as kube:
        (unknown,) = [each async for each in examine(kube, "default")]
    assert unknown.result is Result.PROBLEM
    assert "renew the kubeconfig" in unknown.message
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = yaml.safe_load(cluster.server.api.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = url = f"https://127.0.0.1:{taken.getsockname()[1]}"
        away = cluster.server.api.kubeconfig.with_name("away")
        away.write_text(yaml.safe_dump(config))
        async with await KubeClient.connect(Target(away)) as kube:
            (silent,) = [each async for each in examine(kube, "default")]
    assert silent.result is Result.PROBLEM
    assert url in silent.message


@pytest.mark.parametrize(
    ("version", "result"),
    [
        ("v1.28.15", Result.PROBLEM),
        ("v1.29.0", Result.OK),
        ("v1.34.4-gke.1", Result.OK),
        ("v1.35.0", Result.UNKNOWN),
        ("", Result.UNKNOWN),
    ],
)
def test_servers_of_some_releases_are_supported(version: str, result: Result) -> None:
    told = server_finding("https://s", version)
    assert told.result is result
    assert version in told.message


def test_the_charts_ask_for_the_same_oldest_server() -> None:
    wanted = f'kubeVersion: ">={".".join(map(str, OLDEST_SERVER))}.0-0"'
    charts = sorted((Path(__file__).parents[2] / "charts").glob("*/Chart.yaml"))
    assert charts
    assert [str(chart) for chart in charts if wanted not in chart.read_text(encoding="utf-8")] == []
    assert OLDEST_SERVER < NEWEST_SERVER


async def test_operator_and_control_plane_are_found_by_their_labels(cluster: Cluster) -> None:
    await platform(cluster.kube)
    found = await cluster.findings()
    assert results(found)["operator"] == results(found)["control plane"] == "ok"
    assert "pavane-system/pavane-api" in found["control plane"].message


async def test_operator_and_control_plane_must_be_ready(cluster: Cluster) -> None:
    await platform(cluster.kube, ready=False)
    found = await cluster.findings()
    for check, name in (("operator", "pavane-operator"), ("control plane", "pavane-api")):
        assert found[check].result is Result.PROBLEM
        assert f"kubectl -n pavane-system describe pod {name}" in found[check].message


def test_pods_of_the_chart_carry_the_labels_that_are_looked_for() -> None:
    chosen = labels(PLATFORM_LABELS)
    listed = [each["metadata"]["labels"] for each in pod_templates(render("pavane"))]
    assert [each[COMPONENT_LABEL] for each in listed if chosen(each)] == [CONTROL_PLANE, OPERATOR]


def a_pod(name: str, phase: str, **status: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "n"}, "status": {"phase": phase, **status}}


def test_of_the_operator_ended_pods_do_not_count_and_the_reason_of_a_waiting_one_is_told() -> None:
    ready = a_pod("a", "Running", conditions=[{"type": "Ready", "status": "True"}])
    evicted = a_pod("b", "Failed")
    assert component_finding("operator", [ready, evicted], None).result is Result.OK
    assert component_finding("operator", [evicted], None).result is Result.PROBLEM
    waiting = a_pod("c", "Pending", containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}])
    told = component_finding("operator", [ready, waiting], None)
    assert told.result is Result.PROBLEM
    assert "n/c (ImagePullBackOff)" in told.message
    assert component_finding("operator", [], "pavane-system").result is Result.UNKNOWN


async def test_a_resource_that_serves_or_was_suspended_is_well(cluster: Cluster) -> None:
    await raft(cluster.kube, "a", {"conditions": SERVING, "activeGeneration": 1})
    suspended = [condition("Ready", "False", "Suspended", "spec.suspend is true"), *SERVING[1:]]
    await raft(cluster.kube, "b", {"conditions": suspended, "activeGeneration": 1}, suspend=True)
    found = await cluster.findings()
    assert found["raftclusters"].message.startswith("2 of 2 ")
    assert not [check for check in found if check.startswith("raftcluster/")]


async def test_a_resource_that_stalls_is_explained_as_by_why(cluster: Cluster) -> None:
    stalled = [*SERVING[:2], condition("Stalled", "True", "InvalidConfig", "spec.config.a: there is no such setting")]
    document = await raft(cluster.kube, "a", {"conditions": stalled, "activeGeneration": 1})
    found = await cluster.findings()
    assert found["raftcluster/a"].result is Result.PROBLEM
    assert found["raftcluster/a"].message == explain(document, "raftcluster/a")
    assert found["raftclusters"].message.startswith("0 of 1 ")
    assert "raftcluster/a in default" in await cluster.findings(None)
    assert "raftcluster/a" not in await cluster.findings("pavane-system")


async def test_a_resource_that_is_blocked_or_unseen_is_a_problem(cluster: Cluster) -> None:
    blocker = {"reason": "ImagePull", "pod": "a-g2-0", "since": SINCE, "message": "not found"}
    rollout = {"state": "CreatingNext", "generation": 2, "blockers": [blocker]}
    await raft(cluster.kube, "a", {"conditions": SERVING, "activeGeneration": 1, "rollout": rollout})
    await raft(cluster.kube, "b")
    found = await cluster.findings()
    assert "a-g2-0: ImagePull – not found" in found["raftcluster/a"].message
    assert "not been seen by an operator" in found["raftcluster/b"].message
    assert {found[f"raftcluster/{name}"].result for name in "ab"} == {Result.PROBLEM}


async def test_what_a_spec_refers_to_must_be_there(cluster: Cluster) -> None:
    status = {"conditions": SERVING, "activeGeneration": 1}
    level = {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "levels", "key": "level"}}}
    await raft(cluster.kube, "a", status, tls={"mode": "Secret", "secretName": "mine"}, extraEnv=[level])
    told = (await cluster.findings())["raftcluster/a"]
    assert told.result is Result.PROBLEM
    assert "tls.secretName: Secret mine does not exist" in told.message
    assert "extraEnv[0].valueFrom.configMapKeyRef: ConfigMap levels does not exist" in told.message
    await cluster.kube.create(SECRETS, {"metadata": {"name": "mine"}}, "default")
    await cluster.kube.create(CONFIG_MAPS, {"metadata": {"name": "levels"}, "data": {"other": "1"}}, "default")
    told = (await cluster.findings())["raftcluster/a"]
    assert told.message == "extraEnv[0].valueFrom.configMapKeyRef: ConfigMap levels has no key level: add it."
    await cluster.kube.patch(CONFIG_MAPS, "levels", {"data": {"level": "1"}}, "default")
    assert "raftcluster/a" not in await cluster.findings()


class Limited(KubeClient):
    """The client of a user who may not read some paths: the embedded server knows no partial rights."""

    refused = ""

    async def _call(self, method: str, path: str, **options: Any) -> Object:
        if method == "GET" and path == self.refused:
            raise Forbidden(f"{path} is forbidden", status=403)
        return await super()._call(method, path, **options)


async def test_a_reference_that_the_user_may_not_read_is_unknown(cluster: Cluster) -> None:
    status = {"conditions": SERVING, "activeGeneration": 1}
    await raft(cluster.kube, "a", status, tls={"mode": "Secret", "secretName": "mine"})
    async with await Limited.connect(Target(cluster.server.api.kubeconfig)) as kube:
        kube.refused = SECRETS.path("default", "mine")
        found = {each.check: each async for each in examine(kube, "default")}
    assert found["raftcluster/a"].result is Result.UNKNOWN
    assert "may not look at tls.secretName" in found["raftcluster/a"].message


async def test_who_may_not_look_everywhere_looks_where_the_platform_usually_is(cluster: Cluster) -> None:
    async with await Limited.connect(Target(cluster.server.api.kubeconfig)) as kube:
        kube.refused = PODS.path()
        found = {each.check: each async for each in examine(kube, "default")}
        assert found["operator"].result is Result.UNKNOWN
        await platform(cluster.kube)
        found = {each.check: each async for each in examine(kube, "default")}
    assert found["operator"].result is Result.OK


def test_optional_references_and_free_settings_are_none() -> None:
    spec = {
        "imagePullSecrets": [{"name": "pull"}],
        "secretRef": {"name": "ident", "key": "secret"},
        "extraEnv": [{"valueFrom": {"secretKeyRef": {"name": "o", "key": "k", "optional": True}}}, {"value": "x"}],
        "config": {"secretName": "a setting"},
    }
    assert [(each.field, each.name, each.key) for each in references(spec)] == [
        ("imagePullSecrets", "pull", None),
        ("secretRef", "ident", "secret"),
    ]


async def test_the_command_prints_findings_and_exits_1_for_a_problem(cluster: Cluster, tmp_path: Path) -> None:
    code, text = await pavane(tmp_path, "check", "--kubeconfig", str(cluster.server.api.kubeconfig), "-o", "json")
    assert code == ExitCode.ERROR
    told = {each["check"]: each for each in json.loads(text)}
    assert told["operator"]["result"] == "problem"
    assert told["operator"].keys() == {"check", "result", "message"}
    await platform(cluster.kube)
    # The administrator's options may stand before the command, as a user of kubectl writes them.
    code, text = await pavane(tmp_path, "-n", "team", "--kubeconfig", str(cluster.server.api.kubeconfig), "check")
    assert code == ExitCode.DONE, text
    assert text.splitlines()[0].split() == ["CHECK", "RESULT", "MESSAGE"]
    assert "0 of 0 in namespace team" in text


async def pavane(folder: Path, *arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pavane_cli.main",
        *arguments,
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()

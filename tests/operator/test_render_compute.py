"""ComputeCluster's rendered objects, and what is wrong with its scripts (docs/specs/operator.md 1.8, 3.5, 4.2)."""

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane.dataflow import sql
from pavane.dataflow.ports import Script
from pavane.pods.compute_settings import ComputeSettings, Engine, load
from pavane.pods.main import program_of
from pavane_operator.charts.rules import rules
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.computecluster import ComputeClusterSpec, ComputeClusterStatus
from pavane_operator.kinds.computecluster.promotion import ComputePromotion
from pavane_operator.kinds.computecluster.render import ComputeRenderer
from pavane_operator.objects.names import Names
from pavane_operator.plan.model import Child, Observed, OwnCondition, Pod, Resource, Writers
from tests.operator.network import Party, connects
from tests.operator.test_render_raft import DEFAULTS, UID, stored

RENDERER = ComputeRenderer(DEFAULTS)
SCRIPT = """CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0-1');
CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t;"""
PRESENT: dict[str, Any] = {"WaltzCluster/ledger": {}, "ledger-client": {}}


def resource(active: int | None = None, **spec: Any) -> Resource:
    given = {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": 2, "views": 3}, "scripts": {"one": SCRIPT}}
    parsed, status = (
        ComputeClusterSpec.model_validate({**given, **spec}),
        ComputeClusterStatus(active_generation=active),
    )
    return Resource("ComputeCluster", "main", "data", UID, "7", 1, parsed, status)


def revision(of: Resource, number: int = 1) -> Child:
    return stored(RENDERER.revision(of, number, rollout_id("ComputeCluster", of.spec)))


def problems(of: Resource, references: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    found = RENDERER.problems(of, PRESENT if references is None else references)
    return [(problem.reason, problem.message) for problem in found]


def test_a_pod_can_read_what_is_rendered_for_it(tmp_path: Path) -> None:
    of = resource(1, interval="50ms", engine="Spark")
    config, _, pods = RENDERER.generation(of, revision(of, 2))
    assert (pods.name, pods.body["spec"]["replicas"]) == ("main-controller-g2", 1)
    template = pods.body["spec"]["template"]["spec"]
    (container,) = template["containers"]
    path = tmp_path / "config.yaml"
    path.write_text(config.body["data"]["config.yaml"])
    environment = {one["name"]: one.get("value", "") for one in container["env"]}
    own = {name.removeprefix("PAVANE_").lower(): value for name, value in environment.items()}
    pod = {"POD_NAME": "main-controller-g2-0", "POD_NAMESPACE": "data", "POD_IP": "10.0.0.1"}
    settings = ComputeSettings.model_validate({**own, **pod, "config": path})
    found = load(settings)
    assert (found.ticks, found.views, found.engine, found.interval_ms) == (2, 3, Engine.SPARK, 50)
    assert [view.name for script in found.parsed() for view in script.views] == ["v"]
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == str(settings.waltz_client)]
    (volume,) = [one for one in template["volumes"] if one["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "ledger-client"


@pytest.mark.parametrize(
    ("resources", "scripts", "memory_mib", "disk_mib"),
    [
        ({}, 1, 128, None),
        ({"limits": {"memory": "2Gi", "ephemeral-storage": "4Gi"}}, 2, 512, "1024"),
        ({"requests": {"memory": "64Mi"}}, 4, 32, None),
    ],
)
def test_the_state_of_views_is_in_the_pod_with_half_of_its_memory_and_disk(
    resources: dict[str, Any], scripts: int, memory_mib: int, disk_mib: str | None
) -> None:
    of = resource(1, resources=resources, scripts={str(number): SCRIPT for number in range(scripts)})
    *_, pods = RENDERER.generation(of, revision(of, 2))
    (container,) = pods.body["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value", "") for one in container["env"]}
    assert environment["PAVANE_STATE_MEMORY_MIB"] == str(memory_mib)
    assert environment.get("PAVANE_STATE_DISK_MIB") == disk_mib
    assert environment["PAVANE_STATE"].startswith(f"{container['volumeMounts'][-1]['mountPath']}/")


def test_another_script_is_another_generation() -> None:
    one, other = resource(), resource(scripts={"one": SCRIPT.replace("sum", "max")})
    assert rollout_id("ComputeCluster", one.spec) != rollout_id("ComputeCluster", other.spec)


def test_a_cluster_without_any_script_starts_none_but_may_lose_its_last_one() -> None:
    assert problems(resource(scripts={})) == [
        ("ReferenceNotReady", "there is no Dataflow for it yet, and no script in spec.scripts")
    ]
    assert problems(resource(2, scripts={})) == []


def test_pods_may_reach_the_log_and_nobody_else_reaches_them() -> None:
    of = resource(1)
    shared = RENDERER.shared(of, Writers((1,), fence=1), PRESENT)
    policies = {one.name: one.body["spec"] for one in shared if one.kind == "NetworkPolicy"}
    peers = [peer for rule in policies["main-egress"]["egress"] for peer in rule.get("to", ())]
    selected = [peer.get("podSelector", {}).get("matchLabels", {}) for peer in peers]
    assert "ledger" in {labels.get("app.kubernetes.io/instance") for labels in selected}


def test_controller_and_replicas_read_what_is_rendered_for_them(tmp_path: Path) -> None:
    of = resource(1, replicas=2, engine="Spark", resources={"requests": {"cpu": "2"}})
    manifests = RENDERER.generation(of, revision(of, 2))
    sets = {
        one.body["metadata"]["labels"]["app.kubernetes.io/component"]: one.body["spec"]
        for one in manifests
        if one.kind == "StatefulSet"
    }
    configs = {one.name: one.body["data"]["config.yaml"] for one in manifests if one.kind == "ConfigMap"}
    assert {role: spec["replicas"] for role, spec in sets.items()} == {"controller": 1, "replica": 2}
    assert {
        role
        for role, spec in sets.items()
        if spec["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    } == {"replica"}
    found = {}
    for role in sets:
        path = tmp_path / role
        path.write_text(configs[f"main-{role}-g2"])
        found[role] = load(ComputeSettings.model_construct(config=path))
        assert program_of("ComputeCluster", role) == f"pavane.pods.compute_{role}"
    replicas = found["controller"].replicas
    assert [view.name for script in found["controller"].parsed() for view in script.views] == ["v"]
    assert replicas == {
        f"main-replica-g2-{ordinal}": f"main-replica-g2-{ordinal}.main-replica-g2.data.svc:7072" for ordinal in (0, 1)
    }
    assert (found["replica"].engine, found["replica"].ticks, found["replica"].views) == (Engine.SPARK, 2, 3)
    services = {one.name: one.body["spec"] for one in manifests if one.kind == "Service"}
    assert services["main-replica-g2"]["publishNotReadyAddresses"]  # the controller dials who is not ready yet


def test_without_replicas_one_pod_does_everything() -> None:
    of = resource(1)
    assert [one.kind for one in RENDERER.generation(of, revision(of))] == ["ConfigMap", "Service", "StatefulSet"]
    assert rollout_id("ComputeCluster", of.spec) == rollout_id("ComputeCluster", resource(1, replicas=0).spec)


def test_a_repair_cannot_change_the_number_of_replicas() -> None:
    problem = RENDERER.repair_problem(resource(1, replicas=3), revision(resource(1, replicas=2)))
    assert problem is not None
    assert "spec.replicas" in problem.message


def test_only_the_controller_of_its_generation_reaches_a_replica() -> None:
    of = resource(1, replicas=2)
    policies = [
        one.body
        for one in (*RENDERER.shared(of, Writers((1,)), PRESENT), *RENDERER.generation(of, revision(of, 2)))
        if one.kind == "NetworkPolicy"
    ]

    def pod(role: str, generation: int, name: str = "main") -> Party:
        labels = Names("ComputeCluster", role).labels(name, "0.1.0", generation)
        return Party("10.1.0.9", "data", labels, {"kubernetes.io/metadata.name": "data"})

    def platform(component: str) -> Party:
        labels = {"app.kubernetes.io/part-of": "pavane", "app.kubernetes.io/component": component}
        return Party("10.1.0.9", "pavane-system", labels, {"kubernetes.io/metadata.name": "pavane-system"})

    shop = Party("10.1.0.9", "data", {"app": "shop"}, {"kubernetes.io/metadata.name": "data"})
    target = pod("replica", 2)
    assert connects(policies, pod("controller", 2), target, 7072)
    strangers = (pod("controller", 1), pod("replica", 2), pod("controller", 2, "other"), platform("operator"), shop)
    for stranger in strangers:
        assert not connects(policies, stranger, target, 7072)
    for port in (7070, 7071, 7072):  # nobody has any business with the pods of views but the platform
        assert not connects(policies, shop, pod("controller", 2), port)
    assert connects(policies, platform("operator"), pod("controller", 2), 7070)
    off = resource(1, replicas=2, networkPolicy={"enabled": False})
    assert not [one for one in RENDERER.generation(off, revision(off, 2)) if one.kind == "NetworkPolicy"]


async def test_a_replica_that_is_missing_is_named() -> None:
    of = resource(1, replicas=2)
    children = tuple(stored(one) for one in RENDERER.generation(of, revision(of)))
    names = [f"main-replica-g1-{ordinal}" for ordinal in (0, 1)]

    async def replicated(*ready: bool) -> OwnCondition:
        pods = tuple(
            Pod(name, name, "1", 1, "10.0.0.1", one, follows=True) for name, one in zip(names, ready, strict=True)
        )
        facts = await ComputePromotion("data", "main", UID).observe(of, Observed(True, children, pods))
        return next(each for each in facts.conditions if each.type == "Replicated")

    assert (await replicated(True, True)).status is True
    missing = await replicated(True, False)
    assert (missing.status, missing.reason) == (False, "ReplicaMissing")
    assert missing.message == "1 of 2 replicas compute the views, not main-replica-g1-1"
    alone = tuple(stored(one) for one in RENDERER.generation(resource(1), revision(resource(1))))
    facts = await ComputePromotion("data", "main", UID).observe(resource(1), Observed(True, alone, ()))
    assert [each.type for each in facts.conditions] == ["WritesAllowed"]


async def test_scripts_are_read_once_and_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 64 KB takes a second, and each plan asks."""
    read: list[threading.Thread] = []
    real = sql.parse

    def parse(text: str) -> Script:
        read.append(threading.current_thread())
        return real(text)

    monkeypatch.setattr(sql, "parse", parse)
    of = resource(1, scripts={"own": SCRIPT.replace("AS s", "AS of_this_test")})
    for _ in range(2):
        await ComputePromotion("data", "main", UID).observe(of, Observed(True, (), ()))
        assert problems(of) == []
    assert len(read) == 1
    assert read[0] is not threading.current_thread()


SPARK: dict[str, Any] = {"engine": "Spark", "image": "mine:1", "spark": {"master": "kubernetes"}}


def selected(labels: dict[str, str], selector: dict[str, Any]) -> bool:
    wanted = selector.get("matchLabels", {})
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def test_a_pod_reads_the_template_of_its_executors(tmp_path: Path) -> None:
    executors = {"instances": 3, "cores": 2, "memory": "1536Mi"}
    of = resource(1, **SPARK | {"spark": {"master": "kubernetes", "executors": executors}})
    config, _, stateful_set = RENDERER.generation(of, revision(of, 2))
    path = tmp_path / "config.yaml"
    path.write_text(config.body["data"]["config.yaml"])
    found = load(ComputeSettings.model_construct(config=path)).executors
    assert found is not None
    assert (found.instances, found.cores, found.memory_mib) == (3, 2, 1536)
    driver, executor = stateful_set.body["spec"]["template"], found.template
    assert (driver["spec"]["automountServiceAccountToken"], executor["spec"]["automountServiceAccountToken"]) == (
        True,
        False,
    )
    ours, theirs = driver["spec"]["containers"][0], executor["spec"]["containers"][0]
    assert (ours["image"], theirs["image"]) == ("mine:1", "mine:1")
    assert theirs["securityContext"] == ours["securityContext"]
    assert executor["spec"]["securityContext"] == driver["spec"]["securityContext"]
    # Else the operator would take an executor for a pod of the generation, and wait for its stage.
    owner = ("app.kubernetes.io/name", "app.kubernetes.io/instance")
    assert [executor["metadata"]["labels"][key] for key in owner] != [
        driver["metadata"]["labels"][key] for key in owner
    ]
    assert executor["metadata"]["labels"]["pavane.dev/generation"] == "2"


def test_a_pod_is_told_where_spark_keeps_state(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for spark in ({"checkpoint": "s3a://views/here"}, {"checkpoint": "s3a://views/here", "master": "kubernetes"}):
        config, *_ = RENDERER.generation(of := resource(1, **SPARK | {"spark": spark}), revision(of, 2))
        path.write_text(config.body["data"]["config.yaml"])
        assert load(ComputeSettings.model_construct(config=path)).checkpoint == "s3a://views/here"


def test_only_a_pod_that_makes_executors_has_rights() -> None:
    for of in (resource(1), resource(1, engine="Spark")):
        shared = {one.kind for one in RENDERER.shared(of, Writers((1,), fence=1), PRESENT)}
        assert not shared & {"Role", "RoleBinding"}
        config, _, pods = RENDERER.generation(of, revision(of))
        assert "executors" not in config.body["data"]["config.yaml"]
        assert pods.body["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    made = {one.kind: one.body for one in RENDERER.shared(resource(1, **SPARK), Writers((1,), fence=1), PRESENT)}
    (rule,) = made["Role"]["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert made["RoleBinding"]["roleRef"]["name"] == made["Role"]["metadata"]["name"]
    assert made["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "main", "namespace": "data"}]
    granted = [each for role in ("operator", "operatorExecutors") for each in rules()[role] if "pods" in each.resources]
    of_operator = {verb for each in granted for verb in each.verbs}
    assert set(rule["verbs"]) <= of_operator


def test_driver_and_executors_reach_each_other() -> None:
    of = resource(1, **SPARK)
    shared = RENDERER.shared(of, Writers((1,), fence=1), PRESENT)
    specs = [one.body["spec"] for one in shared if one.kind == "NetworkPolicy"]
    config, _, pods = RENDERER.generation(of, revision(of))
    driver = pods.body["spec"]["template"]["metadata"]["labels"]
    text = yaml.safe_load(config.body["data"]["config.yaml"])
    executor = text["executors"]["template"]["metadata"]["labels"]

    def open_ports(way: str, at: dict[str, str], to: dict[str, str]) -> set[int]:
        end = {"Ingress": "from", "Egress": "to"}[way]
        found = [rule for spec in specs if selected(at, spec["podSelector"]) for rule in spec.get(way.lower(), ())]
        pods = [rule for rule in found for one in rule.get(end, ()) if selected(to, one.get("podSelector", {}))]
        return {port["port"] for rule in pods for port in rule["ports"]}

    for one, other, ports in (
        (driver, executor, {7079}),
        (executor, driver, {7078, 7079}),
        (executor, executor, {7079}),
    ):
        assert open_ports("Egress", one, other) == open_ports("Ingress", other, one) == ports
    anywhere = {
        port["port"]
        for spec in specs
        if selected(driver, spec["podSelector"])
        for rule in spec.get("egress", ())
        if "to" not in rule
        for port in rule["ports"]
    }
    assert {443, 6443} <= anywhere
    assert not [
        spec
        for spec in specs
        if selected(executor, spec["podSelector"]) and any("to" not in rule for rule in spec.get("egress", ()))
    ]
    disabled = RENDERER.shared(resource(1, **SPARK, networkPolicy={"enabled": False}), Writers((1,), fence=1), PRESENT)
    assert not [one for one in disabled if one.kind == "NetworkPolicy"]


def test_what_is_wrong_with_a_script_is_said_before_anything_runs() -> None:
    assert problems(resource()) == []
    assert problems(resource(scripts={"bad": "CREATE MATERIALIZED VIEW v AS\nSELECT x FROM t"})) == [
        (
            "InvalidConfig",
            "script bad: line 2, column 15: there is no table t, and no view before this one. Known here: none.",
        )
    ]
    taken = resource(partitions={"ticks": 1, "views": 3})
    assert problems(taken) == [("InvalidConfig", "script one: table t reads the partition of partitions.ticks")]
    twice = resource(scripts={"one": SCRIPT, "two": SCRIPT.replace(" v ", " V ")})
    assert problems(twice) == [("InvalidConfig", "script two: the view V is in script one as well")]


def test_the_log_is_waited_for() -> None:
    assert problems(resource(), {}) == [("ReferenceNotReady", "there is no WaltzCluster ledger")]
    half: dict[str, Any] = {"WaltzCluster/ledger": {}}
    assert problems(resource(), half) == [("ReferenceNotReady", "WaltzCluster ledger has no Secret ledger-client yet")]
    assert RENDERER.references(resource()) == ("ledger-client", "ledger-tls")
    assert ComputePromotion("data", "main", UID).own_status(resource(), None) == {"log": "ledger"}

"""Coordinator's rendered objects and the judgement of what its pods say (docs/specs/operator.md 3.4, 4.1, 4.2)."""

import base64
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pavane.pods.coordinator_settings import CoordinatorSettings, load
from pavane.wire.stages import Stage
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.coordinator import CoordinatorSpec, CoordinatorStatus
from pavane_operator.kinds.coordinator import kind as coordinator_kind
from pavane_operator.kinds.coordinator.promotion import CoordinatorPromotion
from pavane_operator.kinds.coordinator.render import CoordinatorRenderer
from pavane_operator.kinds.fenced import ALLOW_WRITES, facts
from pavane_operator.kinds.raft import kind as raft_kind
from pavane_operator.kube.resources import SECRETS, custom
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    UID_LABEL,
    Child,
    Manifest,
    Observed,
    OwnCondition,
    Pod,
    PodBlocker,
    Problem,
    Resource,
    StageView,
    Writers,
)
from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.metrics import Metrics
from pavane_operator.runtime.observe import certificates_of
from pavane_operator.runtime.operator import Operator
from pavane_operator.runtime.reconcile import Shared
from tests.operator.test_render_raft import DEFAULTS, UID, stored

RENDERER = CoordinatorRenderer(DEFAULTS)
APPLICATION = {"command": ["pavane", "ambrosia", "run", "bank:Account"], "files": "bank-1", "version": 3}


def resource(active: int | None = None, coming: int | None = None, **spec: Any) -> Resource:
    status = CoordinatorStatus(active_generation=active, next_generation=coming)
    parsed = CoordinatorSpec.model_validate({"application": APPLICATION, **spec})
    return Resource("Coordinator", "alice", "data", UID, "7", 1, parsed, status)


def revision(of: Resource, number: int = 1) -> Child:
    return stored(RENDERER.revision(of, number, rollout_id("Coordinator", of.spec)))


def shared(of: Resource) -> dict[str, Manifest]:
    return {manifest.kind: manifest for manifest in RENDERER.shared(of, Writers((1,), fence=1), {})}


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container["env"]}


def test_a_pod_can_read_what_is_rendered_for_it_and_its_application_finds_it(tmp_path: Path) -> None:
    of = resource(1, 2, peers={"far": "10.1.2.3:2500"}, checkpointMib=64)
    config, _, pods = RENDERER.generation(of, revision(of, 2))
    assert (pods.name, pods.body["spec"]["replicas"]) == ("alice-instance-g2", 1)
    coordinator, application = pods.body["spec"]["template"]["spec"]["containers"]
    path = tmp_path / "config.yaml"
    path.write_text(config.body["data"]["config.yaml"])
    own = {name.removeprefix("PAVANE_").lower(): value for name, value in environment(coordinator).items()}
    pod = {"POD_NAME": "alice-instance-g2-0", "POD_NAMESPACE": "data", "POD_IP": "10.0.0.1"}
    settings = CoordinatorSettings.model_validate({**own, **pod, "config": path})
    found = load(settings)
    assert (found.instance, found.log, found.checkpoint_mib) == ("alice", f"alice-{UID[:8]}", 64)
    assert (found.version, environment(application)["PAVANE_VERSION"]) == (3, "3")
    assert found.peers == {"far": "10.1.2.3:2500"}
    said = environment(application)
    assert said["PAVANE_AMBROSIA"] == "$(POD_IP):2000,2001"
    assert (said["PAVANE_INSTANCE"], said["PAVANE_HTTP"]) == ("alice", "$(POD_IP):8080")
    assert application["image"] == coordinator["image"]
    assert application["securityContext"] == coordinator["securityContext"]


def test_with_a_log_on_waltz_there_is_no_volume_and_pods_reach_that_log(tmp_path: Path) -> None:
    of = resource(1, log={"waltzClusterRef": {"name": "ledger"}, "partition": 3})
    config, _, pods = RENDERER.generation(of, revision(of))
    template = pods.body["spec"]["template"]["spec"]
    path = tmp_path / "config.yaml"
    path.write_text(config.body["data"]["config.yaml"])
    own = {
        name.removeprefix("PAVANE_").lower(): value for name, value in environment(template["containers"][0]).items()
    }
    pod = {"POD_NAME": "alice-instance-g1-0", "POD_NAMESPACE": "data", "POD_IP": "10.0.0.1"}
    settings = CoordinatorSettings.model_validate({**own, **pod, "config": path})
    assert load(settings).partition == 3
    places = {one["mountPath"]: one["name"] for one in template["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in template["volumes"]}
    assert volumes[places[str(settings.waltz_client)]]["secret"]["secretName"] == "ledger-client"
    assert volumes[places[str(settings.ambrosia_log.parent)]]["emptyDir"] == {}
    assert not any("persistentVolumeClaim" in one for one in template["volumes"])
    assert "affinity" not in template
    manifests = RENDERER.shared(of, Writers((1,), fence=1), {})
    assert "PersistentVolumeClaim" not in {one.kind for one in manifests}
    egress = next(one for one in manifests if one.name.endswith("-egress"))
    assert "ledger" in str(egress.body["spec"]["egress"])
    on_volume = next(one for one in RENDERER.shared(resource(1), Writers((1,), fence=1), {}) if one.name == egress.name)
    assert "ledger" not in str(on_volume.body["spec"]["egress"])


def test_a_log_that_is_not_there_is_waited_for() -> None:
    of = resource(log={"waltzClusterRef": {"name": "ledger"}})
    present: dict[str, Any] = {"WaltzCluster/ledger": {}, "ledger-client": {}}
    assert RENDERER.references(of) == ("ledger-client", "ledger-tls")
    assert RENDERER.problems(of, present) == ()
    assert RENDERER.problems(resource(), {}) == ()
    said = [RENDERER.problems(of, {name: {}})[0].message for name in ("ledger-client", "WaltzCluster/ledger")]
    assert said == ["there is no WaltzCluster ledger", "WaltzCluster ledger has no Secret ledger-client yet"]


def test_the_application_sends_its_spans_where_the_coordinator_does_unless_it_says_otherwise() -> None:
    renderer = CoordinatorRenderer(replace(DEFAULTS, otlp_endpoint="http://collector:4318"))

    def told(**application: Any) -> tuple[dict[str, str], dict[str, str]]:
        of = resource(1, application={**APPLICATION, **application})
        pods = renderer.generation(of, stored(renderer.revision(of, 1, rollout_id("Coordinator", of.spec))))[2]
        coordinator, own = pods.body["spec"]["template"]["spec"]["containers"]
        return environment(coordinator), environment(own)

    coordinator, own = told()
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES", "PAVANE_OTLP_TOKEN_FILE"):
        assert own[name] == coordinator[name]
    _, own = told(env=[{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://mine:4318"}])
    assert own["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://mine:4318"


def test_the_log_belongs_to_the_resource_and_both_generations_mount_it() -> None:
    of = resource(1, 2)
    claim = shared(of)["PersistentVolumeClaim"]
    assert claim.name == f"alice-log-{UID[:8]}"
    assert claim.create_only
    assert claim.body["metadata"]["labels"][UID_LABEL] == UID
    assert GENERATION_LABEL not in claim.body["metadata"]["labels"], "a retirement would take it"
    assert "ownerReferences" not in claim.body["metadata"], "the deletion of the resource would take it"
    assert claim.body["spec"]["accessModes"] == ["ReadWriteOnce"]
    for number in (1, 2):
        pod = RENDERER.generation(of, revision(of, number))[2].body["spec"]["template"]["spec"]
        assert {"name": "log", "persistentVolumeClaim": {"claimName": claim.name}} in pod["volumes"]
        assert "requiredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["podAffinity"]
    anywhere = resource(1, storage={"shared": True})
    assert shared(anywhere)["PersistentVolumeClaim"].body["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "affinity" not in RENDERER.generation(anywhere, revision(anywhere))[2].body["spec"]["template"]["spec"]


def pod_of(generation: int, stage: Stage, *, leads: bool = False) -> Pod:
    name = f"alice-instance-g{generation}-0"
    view = StageView(stage, connected=True, leads=leads)
    return Pod(name, name, "1", generation, address="10.0.0.1", stage=view)


def test_a_generation_leads_when_its_pod_may_write_and_says_that_it_leads() -> None:
    old, new = pod_of(1, Stage.READ_WRITE, leads=True), pod_of(2, Stage.READ_ONLY)
    observed = Observed(fresh=True, pods=(old, new))
    before = facts(resource(1, 2), observed, {}, "takes calls")
    assert (before.leads, before.fence, before.down, before.steps_done) == (False, 1, None, frozenset())
    moving = facts(resource(1, 2), replace(observed, pods=(old, pod_of(2, Stage.READ_WRITE))), {}, "takes calls")
    assert (moving.leads, moving.fence, moving.steps_done) == (False, 2, frozenset({ALLOW_WRITES}))
    after = facts(resource(1, 2), replace(observed, pods=(pod_of(2, Stage.READ_WRITE, leads=True),)), {}, "takes calls")
    assert after.leads
    (writes,) = after.conditions
    assert (writes.type, writes.status) == ("WritesAllowed", True)


async def test_of_several_pods_the_one_that_leads_is_named_and_an_eviction_may_take_any() -> None:
    of = resource(1, replicas=3)
    assert RENDERER.generation(of, revision(of))[2].body["spec"]["replicas"] == 3
    budget = shared(of)["PodDisruptionBudget"].body["spec"]
    assert budget["maxUnavailable"] == 3, "two pods wait and are never ready: they must not hold a drain up"
    pods = [replace(pod_of(1, Stage.READ_WRITE, leads=ordinal == 1), name=f"pod-{ordinal}") for ordinal in range(3)]
    promotion = CoordinatorPromotion("data", "alice", UID)
    found = await promotion.observe(of, Observed(fresh=True, pods=tuple(pods)))
    assert (found.down, found.own_status) == (None, {"instance": "alice", "primary": "pod-1"})
    nobody = await promotion.observe(of, Observed(fresh=True, pods=(pods[0], pods[2])))
    assert nobody.own_status["primary"] is None
    assert nobody.down is not None


def test_an_immortal_that_nobody_leads_is_down() -> None:
    found = facts(resource(1), Observed(fresh=True, pods=(pod_of(1, Stage.READ_WRITE),)), {}, "takes calls")
    assert found.down is not None
    assert found.down == Problem("ActiveDown", "no pod of generation 1 leads")
    assert facts(resource(), Observed(fresh=True), {}, "").down is None


def test_what_a_pod_waits_for_is_said_where_nobody_leads() -> None:
    half = PodBlocker("ApplicationMissing", "the application has opened 10.0.0.1:2000 but not 10.0.0.1:2001")
    pods = [pod_of(1, Stage.READ_WRITE), pod_of(2, Stage.READ_ONLY)]
    told = [replace(each, stage=replace(each.stage, blockers=(half,))) for each in pods if each.stage is not None]
    found = facts(resource(1), Observed(fresh=True, pods=tuple(told)), {}, "takes calls")
    assert found.down is not None
    assert found.down.message == f"no pod of generation 1 leads; alice-instance-g1-0: {half.message}"


async def test_a_full_volume_under_an_immortal_is_a_condition() -> None:
    promotion = CoordinatorPromotion("data", "alice", UID)
    pod = pod_of(1, Stage.READ_WRITE, leads=True)

    async def told(of: Resource, *blockers: PodBlocker) -> list[OwnCondition]:
        assert pod.stage is not None
        seen = replace(pod, stage=replace(pod.stage, blockers=blockers))
        found = await promotion.observe(of, Observed(fresh=True, pods=(seen,)))
        assert found.down is None, "what it has it serves"
        return [each for each in found.conditions if each.type == "VolumesHaveRoom"]

    assert await told(resource(1)) == [OwnCondition("VolumesHaveRoom", True, "HasRoom")]
    full = PodBlocker("VolumeFull", "the volume is full")
    said = f"{pod.name}: the volume is full"
    assert await told(resource(1), full) == [OwnCondition("VolumesHaveRoom", False, "VolumeFull", said)]
    assert await told(resource(1, log={"waltzClusterRef": {"name": "ledger"}}), full) == []
    assert await told(resource(), full) == [], "it has never served"


def secret(kind: str, of: str, name: str, authorities: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": kind, "app.kubernetes.io/instance": of}
    data = {"ca.crt": base64.b64encode(authorities.encode()).decode()}
    return {"metadata": {"name": name, "namespace": "data", "uid": name, "labels": labels}, "data": data}


SECRETS_OF_ALL = (
    secret("coordinator", "alice", "alice-tls", "A\n"),
    secret("coordinator", "bob", "bob-tls", "B\n"),
    secret("coordinator", "bob", "bob-ca", "the authority's own\n"),
    secret("raftcluster", "carol", "carol-tls", "C\n"),
    {"metadata": {"name": "mine-tls", "namespace": "data", "uid": "mine"}, "data": {}},
)


def test_coordinators_trust_the_authorities_of_those_of_their_namespace_unless_the_user_gives_one() -> None:
    found = certificates_of("Coordinator", SECRETS_OF_ALL)
    assert set(found) == {"Secret/alice-tls", "Secret/bob-tls"}

    def live(**spec: Any) -> Mapping[str, str]:
        manifests = RENDERER.shared(resource(1, **spec), Writers((1,), fence=1), found)
        data: Mapping[str, str] = next(one for one in manifests if one.kind == "ConfigMap").body["data"]
        return data

    assert live()["peers.crt"] == "A\nB\n"
    assert "peers.crt" not in live(tls={"mode": "Secret", "secretName": "mine-tls"})
    assert "peers.crt" not in live(tls={"mode": "Disabled"})


async def test_a_certificate_wakes_the_other_coordinators_of_its_namespace_also_one_that_the_operator_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = Cache()
    shared = cast("Shared", SimpleNamespace(cache=cache, rng=random.Random(1), metrics=Metrics()))
    operator = Operator([coordinator_kind(DEFAULTS), raft_kind(DEFAULTS)], shared)
    woken: list[str] = []
    monkeypatch.setattr(operator.keepers, "wake", lambda uid, _: woken.append(uid))
    for kind, name, namespace in (
        ("Coordinator", "alice", "data"),
        ("Coordinator", "bob", "data"),
        ("Coordinator", "far", "elsewhere"),
        ("RaftCluster", "meta", "data"),
    ):
        body = {"metadata": {"name": name, "namespace": namespace, "uid": name}}
        operator.resource_seen(custom(kind, f"{kind.lower()}s"), body, deleted=False)
    for certificate, expected in ((SECRETS_OF_ALL[1], {"alice", "bob"}), (SECRETS_OF_ALL[3], set[str]())):
        woken.clear()
        cache.seen(SECRETS, certificate)
        operator.child_seen(SECRETS, certificate, deleted=False)
        assert set(woken) == expected

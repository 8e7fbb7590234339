"""Rendered objects on a real API server: accepted as they are, pods admitted as *restricted*, claims that grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.kubernetes.control_plane import control_plane
from e2e.kubernetes.tools import CONTROL_PLANE
from pavane_operator.kinds.raft.render import RaftRenderer
from pavane_operator.kube import AlreadyExists, Forbidden, KubeClient, Target
from pavane_operator.kube.resources import BUILT_IN, NAMESPACES, PODS, SERVICE_ACCOUNTS, VOLUME_CLAIMS, Object, Resource
from pavane_operator.plan.children import is_missing_or_drifted
from pavane_operator.plan.model import ApplyChild, Child, GrowVolume, Manifest, Writers
from pavane_operator.plan.model import Resource as Custom
from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.execute import Executor
from tests.operator.test_render_raft import DEFAULTS, resource, revision
from tests.requires import requires

NAMESPACE = "data"
OWNERS = Resource("", "v1", "configmaps", "ConfigMap")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
TYPES = {each.kind: each for each in BUILT_IN}
UNTIL_S = 30.0
EVERYTHING: dict[str, Any] = {
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "podLabels": {"team": "a"},
    "podAnnotations": {"team.test/note": "x"},
    "networkPolicy": {
        "ingressCIDRs": ["10.0.0.0/8", "2001:db8::/32"],
        "egressCIDRs": ["192.0.2.0/24"],
        "clientSelector": {
            "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]},
            "podSelector": {"matchLabels": {"role": "client"}},
        },
    },
    "podDisruptionBudget": {"maxUnavailable": 0},
    "serviceType": "NodePort",
    "serviceAnnotations": {"team.test/note": "x"},
}
NO_KEYS: dict[str, Any] = {"tls": {"mode": "Disabled"}, "secretRef": {"name": "mine"}}
"""Nothing is left for Secret `{name}-keys` to hold."""

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    for program in CONTROL_PLANE:
        requires(program)
    with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        asyncio.run(_prepared(plane.kubeconfig))
        yield plane.kubeconfig


async def _prepared(kubeconfig: Path) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    async with await KubeClient.connect(Target(kubeconfig)) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
        for name in ("rigid", "elastic"):
            body = {"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner"}
            await kube.create(CLASSES, {**body, "allowVolumeExpansion": name == "elastic"})


@pytest.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(Target(kubeconfig)) as client:
        yield client


async def _owned_by_something_real(kube: KubeClient, of: Custom) -> Custom:
    """The resource with the uid of an object that exists, so that the garbage collector leaves what it owns alone."""
    owner = await kube.create(OWNERS, {"metadata": {"name": f"owner-of-{of.name}"}}, NAMESPACE)
    return replace(of, uid=owner["metadata"]["uid"], kind="ConfigMap", namespace=NAMESPACE)


def _manifests(of: Custom) -> list[Manifest]:
    renderer, recorded = RaftRenderer(DEFAULTS), revision(of)
    own = RaftRenderer(DEFAULTS).revision(of, 1, "0123456789abcdef")
    shared = renderer.shared(of, Writers((1,)), {})
    return [own, *shared, renderer.public_service(of, 1), *renderer.generation(of, recorded)]


def _with_real_owner(body: Object, of: Custom) -> Object:
    owners = [{**body["metadata"]["ownerReferences"][0], "apiVersion": "v1", "name": f"owner-of-{of.name}"}]
    return {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}


@pytest.mark.parametrize("spec", [{}, EVERYTHING, NO_KEYS], ids=["least", "everything", "no-keys"])
async def test_every_object_is_accepted_and_its_drift_is_none(
    kube: KubeClient, spec: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    of = await _owned_by_something_real(kube, replace(resource(**spec), name=request.node.callspec.id))
    manifests = [
        Manifest.of(_with_real_owner(dict(one.body), of), create_only=one.create_only) for one in _manifests(of)
    ]
    children = []
    for manifest in manifests:
        live = await kube.apply(TYPES[manifest.kind], dict(manifest.body), NAMESPACE, strict=True)
        children.append(Child(manifest.kind, manifest.name, live["metadata"]["uid"], "1", live))
    assert [one.name for one in manifests if is_missing_or_drifted(one, children)] == []


@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["least", "everything"])
async def test_pods_are_admitted_at_the_restricted_level(kube: KubeClient, spec: dict[str, Any]) -> None:
    stateful_set = RaftRenderer(DEFAULTS).generation(resource(**spec), revision(resource(**spec)))[2].body["spec"]
    template = stateful_set["template"]
    volumes = [*template["spec"]["volumes"], {"name": "data", "emptyDir": {}}]
    pod: Object = {
        "metadata": {**template["metadata"], "name": f"pod-{len(spec)}"},
        "spec": {**template["spec"], "volumes": volumes},
    }
    await kube.create_if_absent(
        SERVICE_ACCOUNTS, {"metadata": {"name": template["spec"]["serviceAccountName"]}}, NAMESPACE
    )
    await kube.create(PODS, pod, NAMESPACE)
    context = {**pod["spec"]["securityContext"], "runAsNonRoot": False}
    careless = {**pod, "metadata": {"name": "careless"}, "spec": {**pod["spec"], "securityContext": context}}
    with pytest.raises(Forbidden, match="violates PodSecurity"):
        await kube.create(PODS, careless, NAMESPACE)


async def test_what_is_absent_is_made_by_one_call_and_what_is_not_ours_stays_as_it_is(kube: KubeClient) -> None:
    of = await _owned_by_something_real(kube, replace(resource(**EVERYTHING), name="one-call"))
    executor = Executor(kube, OWNERS, Cache(), lambda: datetime.now(UTC))
    manifests = [Manifest.of(_with_real_owner(dict(one.body), of)) for one in _manifests(of)]
    for manifest in manifests:
        before = kube.calls.copy()
        await executor.execute(of, ApplyChild(manifest))
        assert kube.calls - before == {("PATCH", 201): 1}, manifest.name
    live = next(each for each in manifests if each.kind == OWNERS.kind)
    await kube.delete(OWNERS, live.name, NAMESPACE)
    theirs = await kube.create(OWNERS, {"metadata": {"name": live.name}, "data": {"precious": "yes"}}, NAMESPACE)
    stranger = Executor(kube, OWNERS, Cache(), lambda: datetime.now(UTC))
    with pytest.raises(AlreadyExists, match="does not belong to ConfigMap one-call"):
        await stranger.execute(of, ApplyChild(live))
    assert await kube.get(OWNERS, live.name, NAMESPACE) == theirs


# ---- growth


async def _bound_claim(kube: KubeClient, storage_class: str) -> Object:
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    path = {"hostPath": {"path": "/nowhere"}}
    await kube.create(
        VOLUMES, {"metadata": {"name": storage_class}, "spec": {**common, **path, "capacity": {"storage": "1Gi"}}}
    )
    spec = {**common, "resources": {"requests": {"storage": "1Gi"}}}
    await kube.create(VOLUME_CLAIMS, {"metadata": {"name": storage_class}, "spec": spec}, NAMESPACE)
    async with asyncio.timeout(UNTIL_S):
        while True:
            claim = await kube.get(VOLUME_CLAIMS, storage_class, NAMESPACE)
            if claim["status"].get("phase") == "Bound":
                return claim
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("storage_class", "grows"), [("elastic", True), ("rigid", False)])
async def test_a_claim_grows_where_its_class_allows_that_and_a_refusal_is_kept_in_words(
    kube: KubeClient, storage_class: str, grows: bool
) -> None:
    claim = await _bound_claim(kube, storage_class)
    executor = Executor(kube, VOLUME_CLAIMS, Cache(), lambda: datetime.now(UTC))
    uid = claim["metadata"]["uid"]
    await executor.execute(replace(resource(), namespace=NAMESPACE), GrowVolume(storage_class, uid, "2Gi"))
    asked = (await kube.get(VOLUME_CLAIMS, storage_class, NAMESPACE))["spec"]["resources"]["requests"]["storage"]
    assert asked == ("2Gi" if grows else "1Gi")
    assert ("storageclass" in executor.refusals[uid].message) if not grows else (executor.refusals == {})


# ---- texts


@pytest.mark.parametrize("brief", [False, True], ids=["library", "light"])
async def test_what_is_applied_may_hold_any_character(kubeconfig: Path, brief: bool) -> None:
    text = r"\ud83d" + "\N{GRINNING FACE}\x7f\x85\u2028\ufeff\uffff"
    body: Object = {"metadata": {"name": "text"}, "data": {"text": f"{text}, half: \ud83d"}}
    async with await KubeClient.connect(Target(kubeconfig), brief=brief) as kube:
        applied = await kube.apply(OWNERS, body, NAMESPACE)
    assert applied["data"]["text"] == f"{text}, half: \N{REPLACEMENT CHARACTER}"

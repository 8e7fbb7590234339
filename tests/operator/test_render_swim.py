"""SwimGroup's rendered objects (docs/specs/operator.md 3.2, 4.1, 4.2).

`pytest --rewrite` writes the golden file anew: read the difference before you commit it.
"""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane.pods.swim_settings import SwimSettings, live_settings, load
from pavane.swim.keys import read_keys
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.swimgroup import SwimGroupSpec, SwimGroupStatus
from pavane_operator.kinds.swim.render import SwimRenderer
from pavane_operator.plan.model import Child, Manifest, Resource, Writers
from tests.operator.test_render_raft import DEFAULTS, UID, stored

GOLDEN = Path(__file__).parent / "golden" / "swim_objects.yaml"
RENDERER = SwimRenderer(DEFAULTS)
KEY = "ab" * 32
REFERENCE: dict[str, Any] = {"keyringSecretRef": {"name": "mine"}}


def resource(active: int | None = None, coming: int | None = None, **spec: Any) -> Resource:
    status = SwimGroupStatus(active_generation=active, next_generation=coming)
    parsed = SwimGroupSpec.model_validate(spec)
    return Resource("SwimGroup", "crew", "data", UID, "7", 1, parsed, status)


def revision(of: Resource, number: int = 1) -> Child:
    return stored(RENDERER.revision(of, number, rollout_id("SwimGroup", of.spec)))


def secret(text: str) -> dict[str, Any]:
    return {"mine": {"data": {"keyring": base64.b64encode(text.encode()).decode()}}}


def shared(of: Resource, fence: int = 1, references: dict[str, Any] | None = None) -> dict[str, Manifest]:
    found = RENDERER.shared(of, Writers((fence,), fence=fence), references or {})
    return {f"{manifest.kind} {manifest.name}": manifest for manifest in found}


def test_all_objects_are_those_of_the_golden_file(request: pytest.FixtureRequest) -> None:
    of = resource(2, 3, seeds=["outside.test:7946"], config={"max_datagram_bytes": 1200})
    manifests = [*shared(of, 2).values(), RENDERER.public_service(of, 2), *RENDERER.generation(of, revision(of, 3))]
    rendered = yaml.safe_dump_all([dict(manifest.body) for manifest in manifests], sort_keys=True)
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text()


@pytest.mark.parametrize("encryption", ["none", "psk", "e1", "e0"])
def test_a_pod_can_read_what_is_rendered_for_it(encryption: str, tmp_path: Path) -> None:
    of = resource(1, 2, encryption=encryption, profile="wan", seeds=["a.test:1"])
    config, _, stateful_set = RENDERER.generation(of, revision(of, 2))
    (container,) = stateful_set.body["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    path = tmp_path / "config.yaml"
    path.write_text(config.body["data"]["config.yaml"])
    ours = {name.removeprefix("PAVANE_").lower(): value for name, value in env.items() if "PAVANE_" in name}
    pod = {"POD_NAME": "crew-member-g2-0", "POD_NAMESPACE": "data", "POD_IP": "10.0.0.1"}
    found = load(SwimSettings.model_validate({**ours, **pod, "config": path}))
    assert (found.member.group, found.member.rollout, found.member.seal) == ("data/crew", 2, encryption == "e0")
    assert found.seeds == ("crew-member-g1.data.svc:7946", "crew-member-g2.data.svc:7946", "a.test:1")
    assert ("keys" in mounts) == ("Secret crew-keys" in shared(of)) == (encryption != "none")
    assert (env.get("PAVANE_SWIM_PSK_FILE") is not None) == (encryption == "psk")
    live = live_settings(yaml.safe_load(shared(of)["ConfigMap crew-live"].body["data"]["live.yaml"]))
    assert live.seeds == found.seeds
    assert live.profile == found.member.profile
    assert {"name": "swim", "containerPort": 7946, "protocol": "UDP"} in container["ports"]
    assert "volumeClaimTemplates" not in stateful_set.body["spec"]


def test_the_active_number_is_that_of_the_fence_and_never_turned_back_by_a_late_apply() -> None:
    active = shared(resource(1, 2), fence=2)["ConfigMap crew-active"]
    assert active.body["data"] == {"generation": "2\n"}
    assert active.guarded


def test_keys_are_generated_once_and_a_member_can_use_them(tmp_path: Path) -> None:
    manifest = shared(resource())["Secret crew-keys"]
    assert manifest.create_only
    assert manifest == shared(resource())["Secret crew-keys"]
    path = tmp_path / "keyring"
    path.write_bytes(base64.b64decode(manifest.body["data"]["keyring"]))
    assert len(read_keys(path)) == 1


def test_the_users_keys_are_copied_as_they_change_and_what_is_no_key_leaves_the_copy_alone() -> None:
    of = resource(**REFERENCE)
    assert RENDERER.references(of) == ("mine",)
    for text in (KEY, f"{KEY}\n{'cd' * 32}\n"):
        manifest = shared(of, references=secret(text))["Secret crew-keys"]
        assert base64.b64decode(manifest.body["data"]["keyring"]).decode() == text
        assert not manifest.create_only
        assert RENDERER.problems(of, secret(text)) == ()
    for references, said in (
        ({}, "Secret mine does not exist"),
        ({"mine": {"data": {}}}, "has no key keyring"),
        (secret("ab"), "64 hexadecimal digits"),
        (secret(f"{KEY}\n" * 9), "1 to 8 are allowed"),
    ):
        (problem,) = RENDERER.problems(of, references)
        assert problem.reason == "ReferenceNotReady"
        assert said in problem.message
        assert KEY not in problem.message
        assert "Secret crew-keys" not in shared(of, references=references)


def test_psks_are_no_keys() -> None:
    assert RENDERER.problems(resource(encryption="psk", **REFERENCE), secret("ab" * 16)) == ()
    assert RENDERER.problems(resource(encryption="e1", **REFERENCE), secret("ab" * 16))


@pytest.mark.parametrize(
    ("config", "said"),
    [({"capacity": 5}, "no such"), ({"max_datagram_bytes": "x"}, "whole"), ({"max_datagram_bytes": 1}, "choose")],
)
def test_settings_that_a_member_would_refuse_are_told(config: dict[str, Any], said: str) -> None:
    (problem,) = RENDERER.problems(resource(config=config), {})
    assert (problem.reason, said in problem.message) == ("InvalidConfig", True)


@pytest.mark.parametrize("spec", [{"seeds": ["x:99999"]}, {"seeds": ["a..b:7946"]}, {"group": "a\tb"}])
def test_seeds_and_names_that_a_member_would_refuse_are_told(spec: dict[str, Any]) -> None:
    (problem,) = RENDERER.problems(resource(**spec), {})
    assert (problem.reason, f"spec.{next(iter(spec))}" in problem.message) == ("InvalidConfig", True)


def test_on_the_network_of_the_nodes_there_is_one_pod_per_node_beside_what_the_user_wants() -> None:
    mine = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
    of = resource(hostNetwork=True, affinity=mine)
    pod = RENDERER.generation(of, revision(of))[2].body["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    rack, host = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rack == {"topologyKey": "rack"}
    assert host["topologyKey"] == "kubernetes.io/hostname"
    assert "pavane.dev/generation" not in host["labelSelector"]["matchLabels"], "both generations need the port"
    assert (
        "hostNetwork" not in RENDERER.generation(resource(), revision(resource()))[2].body["spec"]["template"]["spec"]
    )


def test_policies_let_members_of_others_in_and_reach_them_by_udp() -> None:
    found = shared(resource())
    udp = [{"protocol": "UDP", "port": 7946}]
    assert found["NetworkPolicy crew-clients"].body["spec"]["ingress"][0]["ports"] == udp
    assert {"to": [{"podSelector": {}}], "ports": udp} in found["NetworkPolicy crew-egress"].body["spec"]["egress"]


def test_a_repair_keeps_the_group_together() -> None:
    standing = revision(resource())
    refused = RENDERER.repair_problem(resource(encryption="e0"), standing)
    assert refused is not None
    assert "spec.encryption" in refused.message
    assert RENDERER.repair_problem(resource(image="other:1"), standing) is None

"""RaftCluster's rendered objects (docs/specs/operator.md 2.2, 4.1, 4.2).

`pytest --rewrite` writes the golden file anew: read the difference before you commit it.
"""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane.application import Connection
from pavane.pods.raft_settings import RaftSettings, load
from pavane.raft.config import MACHINES
from pavane.raft.keys import RaftKeys
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.raftcluster import RaftClusterSpec, RaftClusterStatus
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft.keys import known
from pavane_operator.kinds.raft.render import RaftRenderer
from pavane_operator.plan.model import Child, Manifest, Repair, Resource, Writers

GOLDEN = Path(__file__).parent / "golden" / "raft_objects.yaml"
UID = "6f1c2f0e-8f0d-4a52-9d8e-2f6a1f2b3c4d"
DEFAULTS = RenderDefaults(
    image="registry.test/pavane:1",
    version="0.1.0",
    otlp_endpoint="http://pavane-api.pavane-system.svc:8000",
    otlp_audience="pavane-otlp",
    secret_key=b"k" * 32,
    platform_namespace="pavane-system",
)
SERVING = Writers((1,))


def resource(**spec: Any) -> Resource:
    return Resource(
        kind="RaftCluster",
        name="log",
        namespace="data",
        uid=UID,
        resource_version="7",
        metadata_generation=1,
        spec=RaftClusterSpec.model_validate({"stateMachine": "Broadcast", **spec}),
        status=None,
    )


def stored(manifest: Manifest) -> Child:
    """The manifest as the API server would show it."""
    return Child(manifest.kind, manifest.name, "uid", "1", manifest.body)


def revision(of: Resource, number: int = 1, defaults: RenderDefaults = DEFAULTS) -> Child:
    return stored(RaftRenderer(defaults).revision(of, number, rollout_id("RaftCluster", of.spec)))


def objects(of: Resource, number: int = 1, defaults: RenderDefaults = DEFAULTS) -> dict[str, dict[str, Any]]:
    """All objects of a resource with one generation, by kind and name."""
    renderer = RaftRenderer(defaults)
    recorded = revision(of, number, defaults)
    manifests = [
        *renderer.shared(of, Writers((number,)), {}),
        renderer.public_service(of, number),
        *renderer.generation(of, recorded),
    ]
    found = {f"{manifest.kind}/{manifest.name}": dict(manifest.body) for manifest in manifests}
    return {"ControllerRevision/" + recorded.name: dict(recorded.body), **found}


def stateful_set(of: Resource, number: int = 1, defaults: RenderDefaults = DEFAULTS) -> dict[str, Any]:
    return objects(of, number, defaults)[f"StatefulSet/log-server-g{number}"]


def container(of: Resource) -> dict[str, Any]:
    found: dict[str, Any] = stateful_set(of)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_all_objects_are_those_of_the_golden_file(request: pytest.FixtureRequest) -> None:
    of = resource(
        extraEnv=[{"name": "A", "value": "b"}], config={"rpc_timeout": 60}, storage={"storageClassName": "fast"}
    )
    rendered = yaml.safe_dump_all(objects(of, 3).values(), sort_keys=True)
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text()


def test_every_object_is_found_by_its_labels_and_goes_with_its_owner() -> None:
    for name, body in objects(resource()).items():
        labels, owner = body["metadata"]["labels"], body["metadata"]["ownerReferences"][0]
        assert labels["app.kubernetes.io/managed-by"] == "pavane-operator", name
        assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"]) == ("raftcluster", "log")
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, True)
        assert body["metadata"]["annotations"]["pavane.dev/spec-hash"]


def test_only_objects_of_a_generation_carry_its_number() -> None:
    numbered = {
        name for name, body in objects(resource(), 4).items() if "pavane.dev/generation" in body["metadata"]["labels"]
    }
    assert numbered == {
        "ControllerRevision/log-g4",
        "ConfigMap/log-server-g4",
        "Service/log-server-g4",
        "StatefulSet/log-server-g4",
    }


def test_the_selectors_of_two_generations_share_no_pod() -> None:
    first, second = (stateful_set(resource(), number)["spec"] for number in (1, 2))
    assert first["selector"]["matchLabels"] != second["selector"]["matchLabels"]
    for spec in (first, second):
        pod_labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= pod_labels.items()


def test_the_public_service_selects_the_pods_of_one_generation_and_0_selects_none() -> None:
    of, renderer = resource(), RaftRenderer(DEFAULTS)
    pod_labels = stateful_set(of, 2)["spec"]["template"]["metadata"]["labels"]

    def selects(number: int) -> bool:
        selector = renderer.public_service(of, number).body["spec"]["selector"]
        return bool(selector.items() <= pod_labels.items())

    assert [selects(number) for number in (0, 1, 2)] == [False, False, True]


def test_volumes_say_whose_they_are() -> None:
    claim = stateful_set(resource(storage={"size": "5Gi"}))["spec"]["volumeClaimTemplates"][0]
    assert claim["metadata"]["labels"]["pavane.dev/uid"] == UID
    assert claim["metadata"]["labels"]["pavane.dev/generation"] == "1"
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"


def test_neither_a_changed_spec_nor_another_release_changes_the_pods_of_a_generation() -> None:
    before = resource(image="registry.test/pavane:1", config={"rpc_timeout": 60})
    recorded = revision(before)
    after = resource(
        image="registry.test/pavane:2", rollout={"restart": "now"}, electionTimeout={"min": "1s", "max": "2s"}
    )
    other_release = RaftRenderer(replace(DEFAULTS, image="other", version="0.2.0", otlp_endpoint=None))
    old = [dict(manifest.body) for manifest in RaftRenderer(DEFAULTS).generation(before, recorded)]
    new = [dict(manifest.body) for manifest in other_release.generation(after, recorded)]
    assert new == old


def test_the_default_image_is_recorded_when_a_generation_is_created() -> None:
    recorded = revision(resource())
    later = RaftRenderer(replace(DEFAULTS, image="registry.test/pavane:9"))
    assert later.image(recorded) == "registry.test/pavane:1"


@pytest.mark.parametrize("missing", ["image", "config", "statefulSet"])
def test_a_revision_that_lacks_something_is_not_guessed_at(missing: str) -> None:
    recorded = revision(resource())
    data = {key: value for key, value in recorded.body["data"].items() if key != missing}
    with pytest.raises(ValueError, match=f"revision log-g1 was written by another release .*{missing}"):
        RaftRenderer(DEFAULTS).generation(resource(), replace(recorded, body={**recorded.body, "data": data}))


def test_a_revision_of_a_release_with_other_templates_is_used_as_it_stands() -> None:
    recorded = revision(resource())
    data = json.loads(json.dumps(recorded.body["data"]))
    data["statefulSet"]["template"]["metadata"]["labels"]["of"] = "another release"
    (_, _, rendered) = RaftRenderer(DEFAULTS).generation(
        resource(), replace(recorded, body={**recorded.body, "data": data})
    )
    assert rendered.body["spec"]["template"] == data["statefulSet"]["template"]


def test_the_number_of_pods_is_live_and_the_size_of_their_claims_that_of_their_beginning() -> None:
    recorded = revision(resource(storage={"size": "1Gi"}))
    later = resource(storage={"size": "4Gi"}, replicas=5)
    spec = RaftRenderer(DEFAULTS).generation(later, recorded)[2].body["spec"]
    assert spec["replicas"] == 5
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"] == {"requests": {"storage": "1Gi"}}


def test_a_revision_survives_storage_as_json() -> None:
    recorded = revision(resource(extraEnv=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]))
    read_back = replace(recorded, body=json.loads(json.dumps(recorded.body)))
    renderer = RaftRenderer(DEFAULTS)
    assert renderer.generation(resource(), read_back) == renderer.generation(resource(), recorded)


def test_the_cluster_secret_is_a_random_ident_and_the_same_at_each_plan() -> None:
    def secret(of: Resource, key: bytes) -> str:
        manifest = RaftRenderer(replace(DEFAULTS, secret_key=key)).shared(of, SERVING, {})[0]
        assert (manifest.kind, manifest.name, manifest.create_only) == ("Secret", "log-keys", True)
        return base64.b64decode(manifest.body["data"]["secret"]).decode()

    one = secret(resource(), b"a" * 32)
    assert secret(resource(), b"a" * 32) == one
    assert len(bytes.fromhex(one)) == 16
    assert secret(resource(), b"b" * 32) != one
    assert secret(replace(resource(), uid="other"), b"a" * 32) != one


def test_the_secret_is_no_argument_and_no_variable() -> None:
    secret = base64.b64decode(objects(resource())["Secret/log-keys"]["data"]["secret"]).decode()
    assert secret not in json.dumps(stateful_set(resource()))


def secret_of(name: str, **data: bytes) -> dict[str, Any]:
    """A Secret of the user's, as the API server shows it."""
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"metadata": {"name": name}, "data": encoded}


def settings_of(rendered: dict[str, dict[str, Any]], given: dict[str, Any], folder: Path) -> RaftSettings:
    """What a pod of generation 2 sees, with the volumes as folders below `folder`."""
    config = folder / "config.yaml"
    config.write_text(rendered["ConfigMap/log-server-g2"]["data"]["config.yaml"])
    pod_spec = rendered["StatefulSet/log-server-g2"]["spec"]["template"]["spec"]
    secrets = {"log-keys": rendered["Secret/log-keys"], "mine": given}
    names = {each["name"]: each["secret"]["secretName"] for each in pod_spec["volumes"] if "secret" in each}
    mounts = {each["name"]: each["mountPath"] for each in pod_spec["containers"][0]["volumeMounts"]}
    for volume in names.keys() - {"tls"}:
        (folder / volume).mkdir()
        for key, value in secrets[names[volume]]["data"].items():
            (folder / volume / key).write_bytes(base64.b64decode(value))
    pod = {"POD_NAME": "log-server-g2-1", "POD_NAMESPACE": "data", "POD_IP": "127.0.0.1"}
    variables = dict(pod)
    for variable in pod_spec["containers"][0]["env"]:
        if "value" in variable:
            value = variable["value"]
            for name, known in pod.items():
                value = value.replace(f"$({name})", known)
            for volume in names.keys() - {"tls"}:
                value = value.replace(mounts[volume], str(folder / volume))
            variables[variable["name"]] = value
    fields = {
        name.removeprefix("PAVANE_").lower(): value for name, value in variables.items() if name.startswith("PAVANE_")
    }
    return RaftSettings(**{**fields, **pod, "config": config})  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_pod_understands_its_settings(tmp_path: Path, machine: str) -> None:
    """The pod's own program reads what the renderer wrote: environment, config file and secret."""
    timeout = {"min": "240ms", "max": "400ms"}
    of = resource(config={"rpc_timeout": 60}, electionTimeout=timeout, clusterId="ledger", stateMachine=machine)
    rendered = objects(of, 2)
    settings = settings_of(rendered, {}, tmp_path)
    loaded = load(settings)
    assert loaded.peer.id == "log-server-g2-1"
    assert loaded.peer.url == "tcp://log-server-g2-1.log-server-g2.data.svc:8047"
    assert loaded.peer.seeds == ("tcp://log.data.svc:8047", "tcp://log-server-g2.data.svc:8047")
    assert (loaded.peer.election_min, loaded.peer.election_max, loaded.peer.heartbeat) == (240, 400, 60)
    assert (loaded.peer.rpc_timeout, loaded.cluster_id, loaded.peer.generation) == (60, "ledger", 2)
    assert loaded.peer.machine == machine
    assert len(loaded.peer.ident) == 32
    client = RaftKeys.of(rendered["Secret/log-keys"])
    assert settings.tls == Path("/etc/pavane/tls")
    assert client.ident == loaded.peer.ident
    assert client.curve is not None
    assert loaded.curve is not None
    assert client.curve.server == loaded.curve.public
    assert loaded.curve.clients is not None
    assert [path.read_bytes() for path in loaded.curve.clients.glob("*.pub")] == [client.curve.public]
    assert RaftKeys.read(tmp_path / "keys") == client


def test_pods_operator_and_clients_use_the_secret_that_the_user_gave(tmp_path: Path) -> None:
    of = resource(secretRef={"name": "mine", "key": "ident"})
    rendered, given = objects(of, 2), secret_of("mine", ident=b"of the user\n", secret=b"for something else")
    settings = settings_of(rendered, given, tmp_path)
    client = known(rendered["Secret/log-keys"], RaftClusterSpec.model_validate(of.spec).secret_ref, {"mine": given})
    assert load(settings).peer.ident == client.ident == b"of the user"
    assert RaftKeys.read(tmp_path / "keys", settings.raft_secret_file) == client
    assert client.curve is not None
    assert "secret" not in rendered["Secret/log-keys"]["data"], "there must not be two"
    assert settings.raft_curve_clients == tmp_path / "keys", "what else the user's Secret holds lets nobody in"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "Secret mine does not exist: create it with the cluster's secret in ident"),
        (secret_of("mine", secret=b"x"), "Secret mine lacks ident"),
        ({"metadata": {"name": "mine"}}, "Secret mine lacks ident"),
        (secret_of("mine", ident=b""), "Secret mine: ident holds 0 bytes"),
        (secret_of("mine", ident=b"\n"), "Secret mine: ident holds 0 bytes"),
        (secret_of("mine", ident=b"x" * 257), "Secret mine: ident holds 257 bytes, where 1 to 256 are allowed"),
    ],
    ids=["no Secret", "no key", "no data", "nothing", "a newline", "too much"],
)
def test_a_reference_to_no_secret_is_not_ready(given: dict[str, Any] | None, words: str) -> None:
    of = resource(secretRef={"name": "mine", "key": "ident"})
    renderer = RaftRenderer(DEFAULTS)
    assert renderer.references(of) == ("log-keys", "mine")
    (problem,) = renderer.problems(of, {} if given is None else {"mine": given})
    assert problem.reason == "ReferenceNotReady"
    assert words in problem.message


def test_a_reference_to_a_secret_is_ready() -> None:
    of, most = resource(secretRef={"name": "mine", "key": "ident"}), b"x" * 256 + b"\n"
    assert RaftRenderer(DEFAULTS).problems(of, {"mine": secret_of("mine", ident=most)}) == ()
    assert RaftRenderer(DEFAULTS).references(resource()) == ("log-keys",)


def test_pods_of_a_cluster_in_clear_mount_the_users_secret_too() -> None:
    volumes = stateful_set(resource(tls={"mode": "Disabled"}, secretRef={"name": "mine"}))["spec"]["template"]["spec"]
    secrets = {each["name"]: each["secret"]["secretName"] for each in volumes["volumes"] if "secret" in each}
    assert secrets == {"keys": "log-keys", "secret": "mine"}


def test_a_cluster_in_clear_gets_neither_keys_nor_certificates() -> None:
    rendered = objects(resource(tls={"mode": "Disabled"}))
    assert RaftKeys.of(rendered["Secret/log-keys"]).curve is None
    template = json.dumps(stateful_set(resource(tls={"mode": "Disabled"})))
    assert "CURVE" not in template
    assert "tls" not in template.lower()


@pytest.mark.parametrize(
    ("tls", "mounted"),
    [({}, "log-tls"), ({"mode": "Secret", "secretName": "mine"}, "mine")],
    ids=["ours", "the user's"],
)
def test_pods_mount_the_certificate_and_not_its_authority(tls: dict[str, str], mounted: str) -> None:
    volumes = stateful_set(resource(tls=tls))["spec"]["template"]["spec"]["volumes"]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert secrets == {"keys": "log-keys", "tls": mounted}


def test_a_damaged_secret_is_told_by_what_it_lacks() -> None:
    secret = objects(resource())["Secret/log-keys"]
    for key in ("secret", "curve-client.pub", "curve-client.secret"):
        data = {name: value for name, value in secret["data"].items() if name != key}
        with pytest.raises(ValueError, match=f"Secret log-keys lacks {key}"):
            RaftKeys.of({**secret, "data": data})


def test_names_of_the_services_go_into_the_certificate() -> None:
    of = replace(resource(), status=RaftClusterStatus(active_generation=3, next_generation=4))
    names = RaftRenderer(DEFAULTS).dns_names(of)
    assert names[0] == "log.data.svc"
    assert {"*.log-server-g3.data.svc", "*.log-server-g4.data.svc", "log-server-g4.data.svc", "log"} <= set(names)


def test_paths_stand_in_no_config_map() -> None:
    """The process kubelet rewrites paths in variables and arguments, and cannot in files (6.8)."""
    data = objects(resource())["ConfigMap/log-server-g1"]["data"]["config.yaml"]
    assert not [value for value in yaml.safe_load(data).values() if str(value).startswith("/")]


def test_a_bootstrap_names_all_members_and_an_ordinary_rollout_none() -> None:
    renderer = RaftRenderer(DEFAULTS)
    told = renderer.expected_state(resource(), 1, bootstrap=True)
    assert told["bootstrap"] == "entry"
    assert json.loads(told["initial"]) == [
        [f"log-server-g1-{ordinal}", f"tcp://log-server-g1-{ordinal}.log-server-g1.data.svc:8047"]
        for ordinal in range(3)
    ]
    assert renderer.expected_state(resource(), 2, bootstrap=False) == {}


def test_no_endpoint_means_no_export() -> None:
    def exports(endpoint: str | None) -> bool:
        spec = stateful_set(resource(), 1, replace(DEFAULTS, otlp_endpoint=endpoint))["spec"]["template"]["spec"]
        return any(one["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT" for one in spec["containers"][0]["env"])

    assert [exports("http://collector:4318"), exports(None)] == [True, False]


@pytest.mark.parametrize(
    ("without", "sent"), [({}, True), ({"otlp_endpoint": None}, False), ({"otlp_audience": None}, False)]
)
def test_spans_go_with_a_token_of_the_account_for_them_alone(without: dict[str, Any], sent: bool) -> None:
    spec = stateful_set(resource(), 1, replace(DEFAULTS, **without))["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    paths = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    tokens = [
        f"{paths[volume['name']]}/{source['serviceAccountToken']['path']}"
        for volume in spec["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if source["serviceAccountToken"]["audience"] == "pavane-otlp"
    ]
    named = [one["value"] for one in container["env"] if one["name"] == "PAVANE_OTLP_TOKEN_FILE"]
    assert named == tokens
    assert bool(named) is sent
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"colour": 1}, "spec.config.colour: no such setting; there are append_timeout"),
        ({"election_min": 100}, "spec.config.election_min: no such setting"),
        ({"rpc_timeout": "fast"}, "spec.config.rpc_timeout: 'fast' is not a whole number"),
        ({"rpc_timeout": True}, "is not a whole number"),
        ({"append_timeout": 10_000}, "append_timeout"),
    ],
)
def test_a_setting_that_a_server_would_refuse_is_a_problem(config: dict[str, Any], words: str) -> None:
    (problem,) = RaftRenderer(DEFAULTS).problems(resource(config=config), {})
    assert problem.reason == "InvalidConfig"
    assert words in problem.message


@pytest.mark.parametrize("config", [{}, {"rpc_timeout": 60, "append_timeout": 90}, {"broadcast_heartbeat": 250}])
def test_settings_that_a_server_takes_are_none(config: dict[str, Any]) -> None:
    assert RaftRenderer(DEFAULTS).problems(resource(config=config), {}) == ()


def test_resources_and_variables_of_the_user_reach_the_container() -> None:
    of = resource(resources={"limits": {"memory": "1Gi"}}, extraEnv=[{"name": "A", "value": "b"}])
    assert container(of)["resources"]["limits"] == {"memory": "1Gi"}
    assert {"name": "A", "value": "b"} in container(of)["env"]


def repaired(of: Resource, former: Child, time: int = 1) -> Child:
    renderer = RaftRenderer(DEFAULTS)
    return stored(renderer.revision(of, 1, rollout_id("RaftCluster", of.spec), Repair(time, former)))


def test_a_repair_renders_the_present_spec_beside_what_stands() -> None:
    former = revision(resource(storage={"size": "1Gi"}, config={"rpc_timeout": 100}))
    later = resource(storage={"size": "3Gi"}, config={"rpc_timeout": 200}, podAnnotations={"team": "log"})
    again = repaired(later, former, 2)
    assert again.name == "log-g1-r2"
    assert again.generation == 1
    renderer = RaftRenderer(DEFAULTS)
    before, after = ([dict(each.body) for each in renderer.generation(later, each)] for each in (former, again))
    names = [[each["metadata"]["name"] for each in objects] for objects in (before, after)]
    assert names == [
        ["log-server-g1", "log-server-g1", "log-server-g1"],
        ["log-server-g1-r2", "log-server-g1", "log-server-g1"],
    ]
    assert "200" in after[0]["data"]["config.yaml"], "an immutable ConfigMap is replaced by another"
    spec = after[2]["spec"]
    assert spec["template"]["metadata"]["annotations"] == {"team": "log", "pavane.dev/repair": "2"}
    volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == "log-server-g1-r2"
    assert spec["volumeClaimTemplates"] == before[2]["spec"]["volumeClaimTemplates"], "no server lets these change"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clusterId": "other"}, "spec.clusterId"),
        ({"secretRef": {"name": "mine"}}, "spec.secretRef"),
        ({"stateMachine": "Tree"}, "spec.stateMachine"),
        ({"storage": {"storageClassName": "fast"}}, "spec.storage"),
        ({"tls": {"mode": "Disabled"}}, "spec.tls"),
    ],
)
def test_a_repair_cannot_change_what_volumes_or_peers_depend_on(changed: dict[str, Any], words: str) -> None:
    problem = RaftRenderer(DEFAULTS).repair_problem(resource(**changed), revision(resource()))
    assert problem is not None
    assert problem.reason == "InvalidConfig"
    assert words in problem.message


def test_a_repair_may_change_all_else() -> None:
    later = resource(image="other", extraEnv=[{"name": "A", "value": "b"}], storage={"size": "9Gi"}, replicas=5)
    assert RaftRenderer(DEFAULTS).repair_problem(later, revision(resource())) is None


def test_applications_get_the_keys_of_a_client_and_never_those_of_a_server() -> None:
    for spec in ({}, {"tls": {"mode": "Disabled"}}, {"secretRef": {"name": "mine", "key": "ident"}}):
        of = resource(**spec)
        secrets = {"log-keys": objects(of)["Secret/log-keys"] | {"metadata": {"name": "log-keys"}}}
        if "secretRef" in spec:
            secrets["mine"] = secret_of("mine", ident=b"of the user\n")
        renderer = RaftRenderer(DEFAULTS)
        assert set(renderer.references(of)) == set(secrets)
        shared = {each.name: each.body for each in renderer.shared(of, SERVING, secrets) if each.kind == "Secret"}
        data = {key: base64.b64decode(value) for key, value in shared["log-client"]["data"].items()}
        assert set(data) == {"connection.json"}
        found = Connection.parse(data["connection.json"].decode(), "the Secret")
        expected = known(secrets["log-keys"], of.spec.secret_ref, secrets)  # type: ignore[attr-defined]
        assert (found.name, found.urls) == ("log", ("tcp://log.data.svc:8047",))
        assert (found.secret, found.curve) == (expected.ident, expected.curve)
        private = secrets["log-keys"]["data"].get("curve-server.secret", base64.b64encode(b"there is none").decode())
        assert base64.b64decode(private) not in data["connection.json"]


@pytest.mark.parametrize("secrets", [{}, {"log-keys": secret_of("log-keys")}])
def test_of_keys_that_are_not_there_applications_get_nothing(secrets: dict[str, Any]) -> None:
    shared = RaftRenderer(DEFAULTS).shared(resource(), SERVING, secrets)
    assert "log-client" not in {each.name for each in shared}

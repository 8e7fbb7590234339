"""WaltzCluster's rendered objects and the judgement of its metadata (docs/specs/operator.md 3.3, 4.1, 4.2)."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from pavane.pods.settings import store_options
from pavane.pods.waltz_settings import (
    Metadata,
    WaltzServerSettings,
    WaltzStorageSettings,
    ZooKeeperServers,
    load,
    metadata,
)
from pavane.runtime.settings import SettingsError
from pavane.waltz.core.quotas import Quota
from pavane.waltz.core.rights import Right
from pavane.waltz.wire.blobs import (
    UNRESOLVED,
    AssignedPartition,
    Consumer,
    PartitionAssignment,
    PartitionMetadata,
    ReplicaState,
    Rollout,
    ServerPartitions,
)
from pavane_operator.crds.common import pod_fields, rollout_id
from pavane_operator.crds.status import Condition, Truth
from pavane_operator.crds.waltzcluster import WaltzClusterSpec, WaltzClusterStatus
from pavane_operator.kinds.raft.keys import generated
from pavane_operator.kinds.waltz.copies import Faults, Told, told_in
from pavane_operator.kinds.waltz.facts import SET_REPLICAS, SET_ROLLOUT, Registry, facts
from pavane_operator.kinds.waltz.names import storage_addresses
from pavane_operator.kinds.waltz.render import WaltzRenderer, clients
from pavane_operator.plan.model import GENERATION_LABEL, TEMPLATE_ANNOTATION, Child, Manifest, Resource, Writers
from tests.operator.test_render_raft import DEFAULTS, UID, stored

RENDERER = WaltzRenderer(DEFAULTS)
META: dict[str, Any] = {
    "metadata": {"name": "meta"},
    "spec": {"stateMachine": "Tree"},
    "status": {"activeGeneration": 1},
}
KEYS: dict[str, Any] = {
    "metadata": {"name": "meta-keys"},
    "data": generated("uid-of-meta", b"k" * 32, encrypted=True, ident=True),
}
CERTIFICATE: dict[str, Any] = {
    "metadata": {"name": "ledger-tls"},
    "data": {"ca.crt": base64.b64encode(b"authority").decode(), "tls.key": base64.b64encode(b"private").decode()},
}
READY = {"RaftCluster/meta": META, "meta-keys": KEYS, "ledger-tls": CERTIFICATE}


def resource(active: int | None = None, coming: int | None = None, **spec: Any) -> Resource:
    status = WaltzClusterStatus(active_generation=active, next_generation=coming)
    parsed = WaltzClusterSpec.model_validate({"metadata": {"raftClusterRef": {"name": "meta"}}, **spec})
    return Resource("WaltzCluster", "ledger", "data", UID, "7", 1, parsed, status)


def revision(of: Resource, number: int = 1) -> Child:
    return stored(RENDERER.revision(of, number, rollout_id("WaltzCluster", of.spec)))


def shared(of: Resource, references: Mapping[str, Any] | None = None) -> dict[str, Manifest]:
    found = RENDERER.shared(of, Writers((1,), fence=1), READY if references is None else references)
    return {f"{manifest.kind} {manifest.name}": manifest for manifest in found}


def environment(stateful_set: Manifest) -> dict[str, str]:
    (container,) = stateful_set.body["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def ours(stateful_set: Manifest, config: Manifest, folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    path.write_text(config.body["data"]["config.yaml"])
    found = {
        name.removeprefix("PAVANE_").lower(): value
        for name, value in environment(stateful_set).items()
        if name.startswith("PAVANE_")
    }
    pod = {"POD_NAME": f"{stateful_set.name}-0", "POD_NAMESPACE": "data", "POD_IP": "10.0.0.1"}
    return {**found, **pod, "config": path}


def test_pods_can_read_what_is_rendered_for_them(tmp_path: Path) -> None:
    of = resource(1, 2, partitions=4, storage={"nodes": 3, "size": "64Mi"})
    config, service, servers = RENDERER.generation(of, revision(of, 2))
    assert servers.name == "ledger-server-g2"
    assert servers.body["spec"]["replicas"] == 2
    settings = WaltzServerSettings.model_validate(ours(servers, config, tmp_path))
    found = load(settings)
    assert (found.cluster_name, found.root, found.partitions) == ("ledger", f"/ledger-{UID[:8]}", 4)
    assert found.storage == tuple(f"ledger-storage-{n}.ledger-storage.data.svc:55280" for n in range(3))
    assert settings.waltz_host == "$(POD_NAME).ledger-server-g2.data.svc"
    assert "volumeClaimTemplates" not in servers.body["spec"]
    assert service.body["spec"]["publishNotReadyAddresses"]

    config, service, nodes = RENDERER.standing(of, revision(of, 2))
    assert (nodes.name, nodes.body["spec"]["replicas"]) == ("ledger-storage", 3)
    kept = WaltzStorageSettings.model_validate(ours(nodes, config, tmp_path))
    assert load(kept) == found
    assert kept.waltz_host == "$(POD_NAME).ledger-storage.data.svc"
    (claim,) = nodes.body["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "64Mi"}}
    for manifest in (config, service, nodes, nodes.body["spec"]["template"], claim):
        body: Any = manifest.body if isinstance(manifest, Manifest) else manifest
        assert GENERATION_LABEL not in body["metadata"]["labels"], "a retirement would take it"


def test_servers_alone_are_told_what_is_kept(tmp_path: Path) -> None:
    """Storage nodes hear it from them: a change of it restarts none."""
    of = resource(1, 2, retention={"maxAge": "24h", "maxBytes": "64Mi"})
    config, _, servers = RENDERER.generation(of, revision(of, 2))
    found = load(WaltzServerSettings.model_validate(ours(servers, config, tmp_path)))
    assert (found.retention_bytes, found.retention_age_ms) == (64 << 20, 86_400_000)
    assert found.retention_respects_consumers
    greedy = resource(1, 2, retention={"maxAge": "24h", "respectConsumers": False})
    config, _, servers = RENDERER.generation(greedy, revision(greedy, 2))
    assert not load(WaltzServerSettings.model_validate(ours(servers, config, tmp_path))).retention_respects_consumers
    assert RENDERER.standing(of, revision(of, 2)) == RENDERER.standing(resource(1, 2), revision(resource(1, 2), 2))


def test_servers_alone_are_told_where_the_archive_is(tmp_path: Path) -> None:
    of = resource(1, 2, archive={"url": "s3://backups/logs", "secretName": "store", "whileAway": "Drop"})
    config, _, servers = RENDERER.generation(of, revision(of, 2))
    settings = WaltzServerSettings.model_validate(ours(servers, config, tmp_path))
    found = load(settings)
    assert (found.archive_url, found.archive_delay_ms, found.archive_drops) == ("s3://backups/logs", 300_000, True)
    volumes = {one["name"]: one for one in servers.body["spec"]["template"]["spec"]["volumes"]}
    assert volumes["archive"]["secret"]["secretName"] == "store"
    assert settings.waltz_archive is not None
    assert RENDERER.standing(of, revision(of, 2)) == RENDERER.standing(resource(1, 2), revision(resource(1, 2), 2))
    assert "store" in RENDERER.references(of)
    store = {"data": {"aws_endpoint": base64.b64encode(b"http://minio:9000\n").decode()}}
    rules = shared(of, {**READY, "store": store})["NetworkPolicy ledger-egress"].body["spec"]["egress"]
    anywhere = {port["port"] for rule in rules if "to" not in rule for port in rule["ports"]}
    assert {443, 9000} <= anywhere


def test_options_of_the_archive_are_files(tmp_path: Path) -> None:
    (tmp_path / "aws_region").write_text("eu-1\n")
    (tmp_path / "..data").mkdir()
    assert store_options(tmp_path, "PAVANE_WALTZ_ARCHIVE") == {"aws_region": "eu-1"}
    assert store_options(None, "PAVANE_WALTZ_ARCHIVE") == {}
    with pytest.raises(SettingsError, match="PAVANE_WALTZ_ARCHIVE"):
        store_options(tmp_path / "none", "PAVANE_WALTZ_ARCHIVE")


def mark(of: Resource, number: int) -> str:
    (_, _, nodes) = RENDERER.standing(of, revision(of, number))
    return str(nodes.body["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION])


def test_storage_nodes_restart_only_for_what_concerns_them() -> None:
    plain = mark(resource(), 1)
    assert mark(resource(rollout={"restart": "again"}), 2) == plain
    assert mark(resource(servers={"replicas": 5}), 2) == plain
    assert mark(resource(image="other"), 2) != plain
    assert mark(resource(storage={"resources": {"limits": {"memory": "1Gi"}}}), 2) != plain


def test_clients_are_asked_for_certificates_where_the_resource_says_so_alone(tmp_path: Path) -> None:
    plain, of = resource(1, 2), resource(1, 2, clients={"authentication": "Certificate"})
    assert pod_fields(of.spec).keys() - pod_fields(plain.spec).keys() == {"clients"}, "no log of before is rolled out"
    assert (clients(plain), clients(of)) == ((), ("client",))
    config, _, servers = RENDERER.generation(of, revision(of, 2))
    settings = WaltzServerSettings.model_validate(ours(servers, config, tmp_path))
    assert settings.waltz_clients == Path("/etc/pavane/clients")
    config, _, servers = RENDERER.generation(plain, revision(plain, 2))
    assert WaltzServerSettings.model_validate(ours(servers, config, tmp_path)).waltz_clients is None
    assert RENDERER.standing(of, revision(of, 2)) == RENDERER.standing(plain, revision(plain, 2))

    assert "Secret ledger-client" not in shared(of), "nobody could connect with it"
    encoded = {
        name: base64.b64encode(name.encode()).decode() for name in ("ca.crt", "client.client.crt", "client.client.key")
    }
    found = shared(of, {**READY, "ledger-clients": {"data": encoded}})
    assert found["ConfigMap ledger-clients"].body["data"] == {"ca.crt": "ca.crt"}
    data = {name: base64.b64decode(value) for name, value in found["Secret ledger-client"].body["data"].items()}
    assert data == {
        "servers": b"ledger.data.svc:55180\n",
        "ca.crt": b"authority",
        "tls.crt": b"client.client.crt",
        "tls.key": b"client.client.key",
    }


def test_each_client_with_a_quota_gets_a_secret_and_servers_know_it(tmp_path: Path) -> None:
    bulk = {"identity": "bulk", "bytesPerSecond": "2Ki", "appendsPerSecond": 7}
    quotas = [bulk, {"identity": "few", "connections": 1}, {"identity": "none", "bytesPerSecond": "500m"}]
    of = resource(1, 2, clients={"authentication": "Certificate", "quotas": quotas})
    assert clients(of) == ("client", "bulk", "few", "none")
    config, _, servers = RENDERER.generation(of, revision(of, 2))
    found = load(WaltzServerSettings.model_validate(ours(servers, config, tmp_path)))
    assert found.client_quotas == (Quota("bulk", 2048, 7), Quota("few", connections=1), Quota("none", 1024))


def test_each_client_with_a_rule_gets_a_secret_and_servers_its_rights(tmp_path: Path) -> None:
    rules = [{"identity": "client", "may": ["read"]}, {"identity": "billing", "may": ["append"], "partitions": [1]}]
    of = resource(1, 2, clients={"authentication": "Certificate", "rights": rules})
    assert clients(of) == ("client", "billing")
    config, _, servers = RENDERER.generation(of, revision(of, 2))
    found = load(WaltzServerSettings.model_validate(ours(servers, config, tmp_path))).client_rights
    assert found is not None
    assert [(one.identity, one.may, one.partitions) for one in found] == [
        ("client", frozenset({Right.READ}), None),
        ("billing", frozenset({Right.APPEND}), frozenset({1})),
    ]
    assert RENDERER.standing(of, revision(of, 2)) == RENDERER.standing(resource(1, 2), revision(resource(1, 2), 2))
    files = (f"client.{name}.{kind}" for name in ("client", "billing") for kind in ("crt", "key"))
    encoded = {name: base64.b64encode(name.encode()).decode() for name in ("ca.crt", *files)}
    made = shared(of, {**READY, "ledger-clients": {"data": encoded}})
    for secret, name in (("ledger-client", "client"), ("ledger-client-billing", "billing")):
        data = made[f"Secret {secret}"].body["data"]
        assert base64.b64decode(data["tls.key"]) == f"client.{name}.key".encode()
        assert data.keys() == {"servers", "ca.crt", "tls.crt", "tls.key"}


def test_servers_get_the_keys_of_a_client_and_applications_none(tmp_path: Path) -> None:
    secrets = {name: each.body["data"] for name, each in shared(resource()).items() if name.startswith("Secret ")}
    for name, value in secrets["Secret ledger-metadata"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    found = metadata(tmp_path)
    assert isinstance(found, Metadata)
    assert found.addresses == ("tcp://meta.data.svc:8047",)
    assert found.keys.curve is not None
    private = KEYS["data"]["curve-server.secret"]
    assert all(private not in data.values() for data in secrets.values())
    client = {name: base64.b64decode(value) for name, value in secrets["Secret ledger-client"].items()}
    assert client == {"servers": b"ledger.data.svc:55180\n", "ca.crt": b"authority"}
    clear = shared(resource(tls={"mode": "Disabled"}), {"RaftCluster/meta": META, "meta-keys": KEYS})
    assert set(clear["Secret ledger-client"].body["data"]) == {"servers"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RaftCluster/meta": None}, "RaftCluster meta does not exist"),
        ({"RaftCluster/meta": {**META, "spec": {"stateMachine": "KeyValue"}}}, "stateMachine: Tree"),
        ({"RaftCluster/meta": {**META, "status": {}}}, "does not serve yet"),
        ({"meta-keys": None}, "Secret meta-keys of RaftCluster meta does not exist"),
        ({"RaftCluster/meta": {**META, "spec": {"stateMachine": "Tree", "secretRef": {"name": "own"}}}}, "own"),
    ],
)
def test_a_metadata_store_that_cannot_be_used_is_told(changes: dict[str, Any], said: str) -> None:
    references = {name: body for name, body in {**READY, **changes}.items() if body is not None}
    (problem,) = RENDERER.problems(resource(), references)
    assert problem.reason == "ReferenceNotReady"
    assert said in problem.message
    assert "Secret ledger-metadata" not in shared(resource(), references)
    assert RENDERER.problems(resource(), READY) == ()


def test_what_is_referred_to_is_named() -> None:
    assert RENDERER.references(resource()) == ("meta-keys", "ledger-tls")
    own = {"RaftCluster/meta": {**META, "spec": {"stateMachine": "Tree", "secretRef": {"name": "own"}}}}
    assert RENDERER.references(resource(), own) == ("meta-keys", "own", "ledger-tls")


def test_pods_may_reach_the_metadata_store_and_budgets_know_both_roles() -> None:
    found = shared(resource())
    (rule,) = [
        rule
        for rule in found["NetworkPolicy ledger-egress"].body["spec"]["egress"]
        if {"protocol": "TCP", "port": 8047} in rule.get("ports", ())
    ]
    assert rule["to"] == [
        {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/name": "raftcluster", "app.kubernetes.io/instance": "meta"}
            }
        }
    ]
    assert found["PodDisruptionBudget ledger-storage"].body["spec"]["maxUnavailable"] == 1
    assert found["PodDisruptionBudget ledger-server"].body["spec"]["maxUnavailable"] == 1
    assert "*.ledger-storage.data.svc" in RENDERER.dns_names(resource(1))


ZOOKEEPER = {"zookeeper": {"connectString": "zk-0.data:2181,zk-1.data:2182,10.0.0.9:2181", "root": "/waltz/ledger"}}


def test_zookeeper_needs_no_other_resource_and_its_ports_are_open(tmp_path: Path) -> None:
    of = resource(1, metadata=ZOOKEEPER)
    assert RENDERER.references(of) == ("ledger-tls",)
    assert RENDERER.problems(of, {}) == ()
    found = shared(of, {"ledger-tls": CERTIFICATE})
    for name, value in found["Secret ledger-metadata"].body["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    assert metadata(tmp_path) == ZooKeeperServers(connect=ZOOKEEPER["zookeeper"]["connectString"])
    egress = found["NetworkPolicy ledger-egress"].body["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 2181}, {"protocol": "TCP", "port": 2182}]} in egress
    config, *_ = RENDERER.generation(of, revision(of))
    assert yaml.safe_load(config.body["data"]["config.yaml"])["root"] == "/waltz/ledger"
    silent = facts(resource(1, 2, metadata=ZOOKEEPER), None)
    assert silent.safety is not None
    assert "ZooKeeper at zk-0.data:2181" in silent.safety.message
    foreign = facts(of, Registry(foreign="/waltz/ledger holds another cluster"))
    assert foreign.safety is not None
    assert foreign.exchange is not None
    assert foreign.fence is None
    assert {one.message for one in foreign.conditions} == {"/waltz/ledger holds another cluster"}


# ---- what the metadata store says

NODES = [f"q-storage-{ordinal}.q:1" for ordinal in range(5)]


def states(*sessions: int, session: int = 9, generation: int = 5) -> PartitionMetadata:
    replicas = tuple(ReplicaState(0, node, each, UNRESOLVED) for node, each in zip(NODES, sessions, strict=False))
    return PartitionMetadata(generation, session, replicas)


def registry(*, rollout: int | Rollout | None = 2, numbers: Mapping[int, int], **changes: Any) -> Registry:
    """Two partitions, one at each of two servers."""
    given = [ServerPartitions(server, (AssignedPartition(at, 5),)) for at, server in enumerate(sorted(numbers))]
    found: dict[str, Any] = {
        "rollout": Rollout(rollout, 2) if isinstance(rollout, int) else rollout,
        "assignment": PartitionAssignment(7, 2, tuple(given)),
        "consistent": True,
        "servers": numbers,
        "partitions": {0: states(9, 9, 9), 1: states(9, 9, 9)},
    }
    return Registry(**{**found, **changes})


def judged(found: Registry | None, active: int | None = 1, coming: int | None = 2) -> Any:
    return facts(resource(active, coming, partitions=2), found)


def test_a_consumer_for_which_retention_waits_for_an_hour_is_named() -> None:
    began = 1_000_000
    consumers = Consumer("billing", 7, 1, 2, "pod-1", began), Consumer("idle", 3, 1, 2, "pod-2")
    for passed, status in ((3599, False), (3600, True)):
        look = {1: states(9, 9, 9)._replace(consumers=consumers)}
        found = judged(registry(numbers={3: 1, 4: 1}, partitions=look, looked_ms=began + passed * 1000))
        (condition,) = [one for one in found.conditions if one.type == "ConsumerStuck"]
        assert condition.status is status
    assert "billing of partition 1, at transaction 7 (pod-1)" in condition.message
    assert "idle" not in condition.message


def test_a_generation_leads_when_it_alone_owns_and_all_its_partitions_take_appends() -> None:
    assert judged(registry(numbers={3: 2, 4: 2})).leads
    assert not judged(registry(numbers={3: 1, 4: 2})).leads
    assert not judged(registry(numbers={3: 2, 4: 2}, consistent=False)).leads
    assert not judged(registry(numbers={3: 2, 4: 2}, rollout=1)).leads
    behind = {0: states(9, 9, 9), 1: states(9, 9, 9, generation=4)}
    assert not judged(registry(numbers={3: 2, 4: 2}, partitions=behind)).leads, "its owner has not opened it"


def test_the_step_is_done_when_its_number_stands_in_the_store() -> None:
    assert judged(registry(numbers={3: 1, 4: 1}, rollout=1)).steps_done == frozenset()
    assert judged(registry(numbers={3: 1, 4: 1})).steps_done == {SET_ROLLOUT}
    assert judged(registry(numbers={3: 1, 4: 1}, rollout=None)).fence is None
    assert judged(registry(numbers={3: 1, 4: 1}, rollout=6)).fence == 6


def test_the_way_back_is_done_when_the_former_number_stands_there_and_what_was_left_is_told() -> None:
    before = judged(registry(numbers={3: 2, 4: 2}), active=2, coming=1)
    assert (before.steps_done, before.leads, before.left) == (frozenset(), False, None)
    back = Rollout(1, 2, left=2)
    on_the_way = judged(registry(numbers={3: 1, 4: 2}, rollout=back), active=2, coming=1)
    assert (on_the_way.steps_done, on_the_way.leads, on_the_way.left) == ({SET_ROLLOUT}, False, 2)
    assert judged(registry(numbers={3: 1, 4: 1}, rollout=back), active=2, coming=1).leads


def test_replicas_decide_what_is_safe_and_whether_a_node_may_be_replaced() -> None:
    whole = judged(registry(numbers={3: 1, 4: 1}))
    assert (whole.safety, whole.exchange, whole.down) == (None, None, None)
    one_less = judged(registry(numbers={3: 1, 4: 1}, partitions={0: states(9, 9, 8), 1: states(9, 9, 9)}))
    assert one_less.safety is None
    assert one_less.exchange.reason == "ReplicasMissing"
    two_less = judged(registry(numbers={3: 1, 4: 1}, partitions={0: states(9, 8, 8), 1: states(9, 9, 9)}))
    assert two_less.safety.reason == "NoQuorum"
    assert two_less.own_status["writable"] == "1/2"
    assert {each.type: each.status for each in two_less.conditions} == {
        "WritesAllowed": False,
        "LogHealthy": False,
        "ConsumerStuck": False,
    }
    assert judged(registry(numbers={3: 1, 4: 1}, consistent=False)).exchange is not None


def test_partitions_are_added_while_the_log_runs_and_nothing_is_missed_until_they_open() -> None:
    where: dict[str, Any] = {"storage": tuple(storage_addresses("ledger", "data", 3))}
    found = facts(resource(1, None, partitions=4), registry(numbers={3: 1, 4: 1}, **where, total=2))
    assert (found.due, found.down, found.safety) == (SET_REPLICAS, None, None)
    assert found.own_status["writable"] == "2/2"
    told = facts(resource(1, None, partitions=4), registry(numbers={3: 1, 4: 1}, **where, total=4))
    assert (told.due, told.down, told.safety) == (None, None, None)
    assert told.own_status["writable"] == "2/4"
    allowed = next(one for one in told.conditions if one.type == "WritesAllowed")
    assert (allowed.status, allowed.message) == (False, "2 of 4 partitions accept appends")
    closed = {**{0: states(9, 9, 9), 1: states(9, 9, 9)}, 2: states(9, 8, 8)}
    lost = facts(resource(1, None, partitions=4), registry(numbers={3: 1, 4: 1}, **where, total=4, partitions=closed))
    assert lost.down is not None, "one that was open is missed"
    for calm in (registry(numbers={3: 1, 4: 1}), registry(numbers={3: 1, 4: 1}, **where, total=2, consistent=False)):
        assert facts(resource(1, None, partitions=4), calm).due is None
    during = facts(resource(1, 2, partitions=4), registry(numbers={3: 2, 4: 2}, **where, total=2))
    assert (during.due, during.leads) == (None, True), "a rollout goes on with what there is, and ends first"


def test_more_partitions_are_no_new_generation() -> None:
    few, many = resource(partitions=4), resource(partitions=16)
    assert rollout_id("WaltzCluster", few.spec) == rollout_id("WaltzCluster", many.spec)
    first = [rollout_id("WaltzCluster", each.spec, as_written=True) for each in (few, many)]
    assert len(set(first)) == 2, "release 0.1.0 counted them: its generations keep their ids"


def test_a_vanished_server_makes_its_partitions_unwritable() -> None:
    gone = registry(numbers={3: 1, 4: 1}, servers={3: 1})
    assert judged(gone).down.reason == "NoQuorum"
    assert judged(gone).own_status["writable"] == "1/2"


def test_a_silent_store_permits_nothing() -> None:
    silent = judged(None)
    assert not silent.leads
    assert silent.safety is not None
    assert silent.exchange is not None
    assert {each.status for each in silent.conditions} == {None}
    for coming in (None, 2):
        lost = judged(Registry(), active=1, coming=coming)
        assert {each.reason for each in (lost.down, lost.safety, lost.exchange)} == {"RegistryLost"}
        assert "RaftCluster meta" in lost.down.message
        assert {each.type: (each.status, each.reason) for each in lost.conditions} == {
            "WritesAllowed": (False, "RegistryLost"),
            "LogHealthy": (None, "RegistryLost"),
        }
    empty = judged(Registry(), active=None, coming=1)
    assert empty.safety is None, "a bootstrap makes the nodes"
    assert not empty.leads


ROTTEN = "damaged from transaction 7 on: a record does not match its CRC"


def with_faults(faults: Faults, found: Registry | None) -> Any:
    told = {pod: Told(each, full=False) for pod, each in faults.items()}
    return facts(resource(1, None, partitions=2), found, told)


def test_a_copy_that_is_not_used_is_named_with_its_node_and_partition() -> None:
    told = with_faults({"q-storage-1": {0: ROTTEN}}, registry(numbers={3: 1, 4: 1}))
    (healthy,) = (each for each in told.conditions if each.type == "LogHealthy")
    assert (healthy.status, healthy.reason) == (False, "CopyUnusable")
    assert healthy.message == f"storage node q-storage-1, partition 0: {ROTTEN}"
    assert [(each.reason, each.message) for each in told.warnings] == [("CopyUnusable", healthy.message)]
    assert (told.down, told.safety) == (None, None), "the others go on"
    silent = with_faults({"q-storage-1": {0: ROTTEN}}, None)
    assert [each.reason for each in silent.conditions if each.type == "LogHealthy"] == ["CopyUnusable"]
    assert silent.warnings == told.warnings


def test_a_copy_that_was_rebuilt_before_anybody_looked_has_an_event() -> None:
    told = {"q-storage-1": Told({}, full=False, mended={0: ROTTEN})}
    found = facts(resource(1, None, partitions=2), registry(numbers={3: 1, 4: 1}), told)
    (event,) = found.warnings
    assert event.reason == "CopyRebuilt"
    assert event.message == f"storage node q-storage-1, partition 0: {ROTTEN}; it was copied from the others"
    assert told_in({"faults": {}, "full": False, "mended": {"0": ROTTEN}}) == told["q-storage-1"]


def test_copies_that_are_too_few_are_what_a_log_that_is_down_waits_for() -> None:
    faults = {"q-storage-1": {0: ROTTEN, 1: ROTTEN}, "q-storage-2": {0: "a sync failed: No space left"}}
    down = with_faults(faults, registry(numbers={3: 1, 4: 1})).down
    assert down.reason == "CopyUnusable"
    assert "too few copies are left of 1 partitions" in down.message
    assert "q-storage-2, partition 0: a sync failed" in down.message
    assert "partition 1" not in down.message


@pytest.mark.parametrize(
    ("nodes", "counting", "pods", "lost"), [(3, 5, (0, 4), False), (5, 3, (0, 4), False), (5, 3, (0, 1), True)]
)
def test_while_storage_nodes_come_or_go_those_are_enough_that_count(
    nodes: int, counting: int, pods: tuple[int, ...], lost: bool
) -> None:
    look = registry(numbers={3: 1, 4: 1}, partitions=dict.fromkeys(range(2), states(*[9] * counting)))
    told = {f"q-storage-{pod}": Told({0: ROTTEN}, full=False) for pod in pods}
    found = facts(resource(1, None, partitions=2, storage={"size": "1Gi", "nodes": nodes}), look, told)
    assert (found.down is not None) == lost


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, []),
        ({"q-storage-0": Told({}, full=False)}, [(True, "HasRoom", "")]),
        (
            {"q-storage-0": Told({}, full=True), "q-storage-1": Told({}, full=False)},
            [(False, "VolumeFull", "the volume of storage node q-storage-0 is full: it takes no appends")],
        ),
    ],
)
@pytest.mark.parametrize("found", [None, Registry(), registry(numbers={3: 1, 4: 1})])
def test_a_full_volume_of_a_storage_node_is_told_whatever_the_registry_says(
    told: dict[str, Told], expected: list[tuple[bool, str, str]], found: Registry | None
) -> None:
    conditions = facts(resource(1, None, partitions=2), found, told).conditions
    room = [each for each in conditions if each.type == "VolumesHaveRoom"]
    assert [(each.status, each.reason, each.message) for each in room] == expected


@pytest.mark.parametrize(
    ("full", "told", "known"),
    [
        (("q-storage-1",), {}, ["q-storage-1"]),
        (("q-storage-1",), {"q-storage-0": Told({}, full=False)}, ["q-storage-1"]),
        (("q-storage-1",), {"q-storage-1": Told({}, full=False)}, []),
        (("q-storage-9",), {}, []),  # its pod is gone
        ((), {}, []),
    ],
)
def test_of_a_storage_node_that_does_not_answer_the_last_word_counts(
    full: tuple[str, ...], told: dict[str, Told], known: list[str]
) -> None:
    def room(of: Resource, told: dict[str, Told]) -> Any:
        pods = {"q-storage-0", "q-storage-1"}
        conditions = facts(of, None, told, standing=pods).conditions
        (found,) = (each for each in conditions if each.type == "VolumesHaveRoom")
        return found

    of = resource(1, None, partitions=2)
    before = room(of, {name: Told({}, full=True) for name in full} or {"q-storage-0": Told({}, full=False)})
    truth, at = Truth.TRUE if before.status else Truth.FALSE, datetime(2026, 1, 1, tzinfo=UTC)
    words = {"reason": before.reason, "message": before.message}
    stored = Condition(type=before.type, status=truth, last_transition_time=at, **words)
    assert of.status is not None
    later = replace(of, status=of.status.model_copy(update={"conditions": [stored]}))
    now = room(later, told)
    assert [name for name in ("q-storage-0", "q-storage-1", "q-storage-9") if name in now.message] == known
    assert now.status == (not known)


def test_many_copies_are_named_in_part() -> None:
    told = with_faults({"q-storage-0": dict.fromkeys(range(20), ROTTEN)}, registry(numbers={3: 1, 4: 1}))
    (healthy,) = (each for each in told.conditions if each.type == "LogHealthy")
    assert healthy.message.endswith("; and 12 more")
    assert len(told.warnings) == 20


def test_a_repair_of_a_generation_of_the_first_release_may_keep_a_duration_as_it_was_written() -> None:
    metadata_of = {"raftClusterRef": {"name": "meta"}, "sessionTimeout": "1m"}
    of = resource(metadata=metadata_of)
    body: Any = dict(revision(of).body)
    body["data"]["fields"] = pod_fields(of.spec, as_written=True)
    assert body["data"]["fields"]["metadata"]["sessionTimeout"] == "1m"
    standing = Child("ControllerRevision", "ledger-g1", "uid", "1", body)
    assert RENDERER.repair_problem(of, standing) is None
    assert RENDERER.repair_problem(resource(metadata={**metadata_of, "sessionTimeout": "2s"}), standing) is not None


def placed(*ordinals: int, members: tuple[int, ...] | None = None, **changes: Any) -> Registry:
    """All partitions are to be on these storage nodes, and count on `members`."""
    every = storage_addresses("ledger", "data", 5)
    counting = ordinals if members is None else members
    meta = PartitionMetadata(5, 9, tuple(ReplicaState(0, every[one], 9, UNRESOLVED) for one in counting))
    found: dict[str, Any] = {
        "total": 2,
        "storage": tuple(every[one] for one in ordinals),
        "partitions": {0: meta, 1: meta},
    }
    return registry(numbers={3: 1, 4: 1}, **{**found, **changes})


def test_storage_nodes_are_named_when_their_pods_are_there_and_go_when_nothing_counts_on_them() -> None:
    three, five = (resource(1, None, partitions=2, storage={"nodes": nodes}) for nodes in (3, 5))
    pods = {f"ledger-storage-{ordinal}" for ordinal in range(5)}
    assert facts(five, placed(0, 1, 2), ready=pods - {"ledger-storage-4"}).due is None
    assert facts(five, placed(0, 1, 2), ready=pods).due == SET_REPLICAS
    assert facts(three, placed(0, 1, 2), ready=pods).due is None
    assert facts(three, placed(0, 1, 2, 3, 4), ready=set()).due == SET_REPLICAS
    filling = facts(five, placed(0, 1, 2, 3, 4, members=(0, 1, 2)), ready=pods)
    assert (filling.due, filling.standing, filling.down, filling.safety) == (None, 5, None, None)
    assert filling.exchange is not None
    assert filling.own_status["partitions"].moving == 2
    healthy = next(one for one in filling.conditions if one.type == "LogHealthy")
    assert (healthy.status, healthy.reason) == (False, "ReplicasMove")
    assert "2 of 2 partitions move to other storage nodes" in healthy.message
    draining = facts(three, placed(0, 1, 2, members=(0, 1, 2, 3, 4)), ready=pods)
    assert draining.standing == 5, "pods that count stay"
    done = facts(three, placed(0, 1, 2), ready=pods)
    assert (done.standing, done.exchange, done.own_status["partitions"].moving) == (3, None, None)
    assert facts(three, None, ready=pods).standing is None, "while the store does not answer none goes"

"""Every rule of our definitions refuses on both servers, in the same words, by its field (6.4)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from e2e.contract.target import KubeTarget
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube.resources import Object, Resource, custom

pytestmark = pytest.mark.contract(since="1.29")  # the first with quantity()

RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")
SWIM_GROUPS = custom("SwimGroup", "swimgroups")
WALTZ_CLUSTERS = custom("WaltzCluster", "waltzclusters")
COORDINATORS = custom("Coordinator", "coordinators")
COMPUTE_CLUSTERS = custom("ComputeCluster", "computeclusters")
BACKUPS = custom("Backup", "backups")


def compute(**spec: Any) -> dict[str, Any]:
    """A spec of a ComputeCluster."""
    return {"waltzClusterRef": {"name": "ledger"}, "partitions": {"ticks": 2, "views": 3}, "scripts": {}, **spec}


def waltz(**spec: Any) -> dict[str, Any]:
    """A spec of a WaltzCluster."""
    return {"metadata": {"raftClusterRef": {"name": "meta"}}, **spec}


def gate(**fields: Any) -> dict[str, Any]:
    """A gate of a rollout."""
    return {"name": "probe", "for": "5s", "http": {"port": 7071, "path": "/readyz"}, **fields}


class Breach(NamedTuple):
    """How to break a rule: by a spec, or, where it compares, by a change `then` of a spec that is fine."""

    field: str
    spec: dict[str, Any]
    then: dict[str, Any] | None = None
    name: str = "q"
    of: Resource = RAFT_CLUSTERS


NIGHTLY = {"schedule": "30 2 * * *", "url": "s3://b/q"}
BREACHES = {
    "names starting with PAVANE_": Breach("spec.extraEnv[0].name", {"extraEnv": [{"name": "PAVANE_X", "value": "1"}]}),
    "tls.secretName is required in mode Secret": Breach("spec.tls", {"tls": {"mode": "Secret"}}),
    "set exactly one of fieldRef": Breach("spec.extraEnv[0].valueFrom", {"extraEnv": [{"name": "X", "valueFrom": {}}]}),
    "stabilityPeriod must be between": Breach(
        "spec.rollout.caughtUp.stabilityPeriod", {"rollout": {"caughtUp": {"stabilityPeriod": "2h"}}}
    ),
    "a Backup is made once": Breach("spec", {"of": {"name": "q"}, "url": "s3://b/q"}, {"keep": 2}, of=BACKUPS),
    "a ComputeCluster has nothing to back up": Breach(
        "spec.of", {"of": {"kind": "ComputeCluster", "name": "q"}, "url": "s3://b/q"}, of=BACKUPS
    ),
    "a SwimGroup has nothing to back up": Breach(
        "spec.of", {"of": {"kind": "SwimGroup", "name": "q"}, "url": "s3://b/q"}, of=BACKUPS
    ),
    "backup needs a volume": Breach(
        "spec", {"log": {"waltzClusterRef": {"name": "ledger"}}, "backup": NIGHTLY}, of=COORDINATORS
    ),
    "backup needs archive": Breach("spec", waltz(backup=NIGHTLY), of=WALTZ_CLUSTERS),
    "bake must be between": Breach("spec.rollout.bake", {"rollout": {"bake": "25h"}}),
    "rollout.bake is not available": Breach("spec.rollout", {"rollout": {"bake": "1m"}}, of=SWIM_GROUPS),
    "onFailure SwitchBack and phase Baking need rollout.bake": Breach(
        "spec.rollout", {"rollout": {"gates": [gate(onFailure="SwitchBack")]}}
    ),
    "for must be between 0s and 24h": Breach(
        "spec.rollout.gates[0].for", {"rollout": {"gates": [gate(**{"for": "25h"})]}}
    ),
    "duration must be between 1m and 168h": Breach(
        "spec.rollout.windows[0].duration", {"rollout": {"windows": [{"schedule": "0 2 * * *", "duration": "30s"}]}}
    ),
    "set exactly one of http, prometheus and sql": Breach(
        "spec.rollout.gates[0]", {"rollout": {"gates": [gate(prometheus={"query": "up", "min": 1})]}}
    ),
    "prometheus needs min or max": Breach(
        "spec.rollout.gates[0].prometheus",
        {"rollout": {"gates": [{"name": "probe", "for": "5s", "prometheus": {"query": "up"}}]}},
    ),
    "sql needs min or max": Breach(
        "spec.rollout.gates[0].sql",
        {"rollout": {"gates": [{"name": "probe", "for": "5s", "sql": {"compute": "main", "query": "SELECT 1"}}]}},
    ),
    "jsonPath needs expect, min or max": Breach(
        "spec.rollout.gates[0].http",
        {"rollout": {"gates": [gate(http={"port": 7071, "path": "/stage", "jsonPath": "{.lag}"})]}},
    ),
    "terminationGracePeriod must be between": Breach(
        "spec.terminationGracePeriod", {"terminationGracePeriod": "500ms"}
    ),
    "electionTimeout.max must be at least 1.5 times": Breach(
        "spec.electionTimeout", {"electionTimeout": {"min": "200ms", "max": "250ms"}}
    ),
    "electionTimeout.min must be at least 50ms": Breach(
        "spec.electionTimeout", {"electionTimeout": {"min": "10ms", "max": "300ms"}}
    ),
    "tls.renewBefore must be shorter": Breach("spec.tls", {"tls": {"duration": "1h", "renewBefore": "1h"}}),
    "tls.renewBefore must be at least 5m": Breach("spec.tls", {"tls": {"renewBefore": "1m"}}),
    "clusterId cannot be changed": Breach("spec", {"clusterId": "one"}, {"clusterId": None}),
    "secretRef cannot be changed": Breach("spec", {"secretRef": {"name": "one"}}, {"secretRef": None}),
    "stateMachine cannot be changed": Breach(
        "spec.stateMachine", {"stateMachine": "Broadcast"}, {"stateMachine": "KeyValue"}
    ),
    "storage.size cannot shrink": Breach(
        "spec.storage.size", {"storage": {"size": "1Gi"}}, {"storage": {"size": "999Mi"}}
    ),
    "replicas must be odd": Breach("spec.replicas", {"replicas": 2}),
    "tls.mode cannot be changed": Breach(
        "spec.tls.mode", {"tls": {"mode": "Disabled"}}, {"tls": {"mode": "SelfSigned"}}
    ),
    "tls.secretName cannot be changed": Breach(
        "spec.tls.secretName", {"tls": {"mode": "Secret", "secretName": "a"}}, {"tls": {"secretName": "b"}}
    ),
    "set only one of value and valueFrom": Breach(
        "spec.extraEnv",
        {"extraEnv": [{"name": "X", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    ),
    "keys under pavane.dev/ and": Breach("spec.podLabels", {"podLabels": {"pavane.dev/x": "y"}}),
    "the name must start with a letter": Breach("<nil>", {}, name="1q"),
    "the name must not be 'default'": Breach("<nil>", {}, name="default"),
    "the name must have at most 32 characters": Breach("<nil>", {}, name="q" * 33),
    "capacity must be at least twice replicas": Breach("spec", {"replicas": 3, "capacity": 5}, of=SWIM_GROUPS),
    "group cannot be changed": Breach("spec", {"group": "one"}, {"group": None}, of=SWIM_GROUPS),
    "keyringSecretRef is not allowed with encryption none": Breach(
        "spec", {"encryption": "none", "keyringSecretRef": {"name": "one"}}, of=SWIM_GROUPS
    ),
    "storage.nodes must be odd": Breach("spec.storage.nodes", waltz(storage={"nodes": 2}), of=WALTZ_CLUSTERS),
    "storage.storageClassName cannot be changed": Breach(
        "spec.storage", waltz(), {"storage": {"storageClassName": "fast"}}, of=WALTZ_CLUSTERS
    ),
    "set retention.maxAge": Breach("spec.retention", waltz(retention={}), of=WALTZ_CLUSTERS),
    "retention.maxAge must be at least 1m": Breach(
        "spec.retention", waltz(retention={"maxAge": "59s"}), of=WALTZ_CLUSTERS
    ),
    "retention.maxBytes must be at least 1Mi": Breach(
        "spec.retention", waltz(retention={"maxBytes": "1023Ki"}), of=WALTZ_CLUSTERS
    ),
    "waltzClusterRef cannot be changed": Breach(
        "spec.waltzClusterRef", compute(), {"waltzClusterRef": {"name": "other"}}, of=COMPUTE_CLUSTERS
    ),
    "spark needs engine Spark": Breach("spec", compute(spark={"master": "local"}), of=COMPUTE_CLUSTERS),
    "rollout.bake is not available with engine Spark": Breach(
        "spec", compute(engine="Spark", rollout={"bake": "1m"}), of=COMPUTE_CLUSTERS
    ),
    "executors need master kubernetes": Breach(
        "spec.spark", compute(engine="Spark", spark={"executors": {"instances": 2}}), of=COMPUTE_CLUSTERS
    ),
    "executors.memory must be at least 512Mi": Breach(
        "spec.spark.executors.memory",
        compute(engine="Spark", spark={"master": "kubernetes", "executors": {"memory": "256Mi"}}),
        of=COMPUTE_CLUSTERS,
    ),
    "the partitions of ticks and views cannot be changed": Breach(
        "spec.partitions", compute(), {"partitions": {"ticks": 4}}, of=COMPUTE_CLUSTERS
    ),
    "partitions.ticks and partitions.views must differ": Breach(
        "spec.partitions", compute(partitions={"ticks": 3, "views": 3}), of=COMPUTE_CLUSTERS
    ),
    "interval must be between 10ms and 10s": Breach("spec.interval", compute(interval="1m"), of=COMPUTE_CLUSTERS),
    "instanceName cannot be changed": Breach("spec", {"instanceName": "one"}, {"instanceName": None}, of=COORDINATORS),
    "log cannot be changed": Breach(
        "spec.log",
        {"log": {"waltzClusterRef": {"name": "ledger"}}},
        {"log": {"waltzClusterRef": {"name": "ledger"}, "partition": 1}},
        of=COORDINATORS,
    ),
    "log cannot be added or removed": Breach(
        "spec", {"log": {"waltzClusterRef": {"name": "ledger"}}}, {"log": None}, of=COORDINATORS
    ),
    "replicas must be 1 with log": Breach(
        "spec", {"log": {"waltzClusterRef": {"name": "ledger"}}, "replicas": 2}, of=COORDINATORS
    ),
    "storage.shared needs a volume": Breach(
        "spec", {"log": {"waltzClusterRef": {"name": "ledger"}}, "storage": {"shared": True}}, of=COORDINATORS
    ),
    "storage.shared cannot be changed": Breach(
        "spec.storage.shared", {"storage": {"shared": False}}, {"storage": {"shared": True}}, of=COORDINATORS
    ),
    "partitions cannot become fewer": Breach("spec.partitions", waltz(), {"partitions": 7}, of=WALTZ_CLUSTERS),
    "clusterName cannot be changed": Breach("spec", waltz(clusterName="one"), {"clusterName": None}, of=WALTZ_CLUSTERS),
    "metadata.raftClusterRef cannot be changed": Breach(
        "spec.metadata", waltz(), {"metadata": {"raftClusterRef": {"name": "other"}}}, of=WALTZ_CLUSTERS
    ),
    "clients.authentication Certificate needs tls.mode SelfSigned": Breach(
        "spec", waltz(clients={"authentication": "Certificate"}, tls={"mode": "Disabled"}), of=WALTZ_CLUSTERS
    ),
    "clients.rights needs clients.authentication Certificate": Breach(
        "spec.clients",
        waltz(clients={"authentication": "None", "rights": [{"identity": "billing", "may": ["append"]}]}),
        of=WALTZ_CLUSTERS,
    ),
    "clients.quotas needs clients.authentication Certificate": Breach(
        "spec.clients",
        waltz(clients={"authentication": "None", "quotas": [{"identity": "billing", "connections": 3}]}),
        of=WALTZ_CLUSTERS,
    ),
    "archive.delay must be between": Breach(
        "spec.archive", waltz(archive={"url": "s3://logs", "delay": "2h"}), of=WALTZ_CLUSTERS
    ),
    "set exactly one of metadata.raftClusterRef and metadata.zookeeper": Breach(
        "spec.metadata", {"metadata": {}}, of=WALTZ_CLUSTERS
    ),
    "metadata.zookeeper cannot be changed": Breach(
        "spec.metadata",
        {"metadata": {"zookeeper": {"connectString": "a:2181", "root": "/waltz"}}},
        {"metadata": {"zookeeper": {"connectString": "a:2181", "root": "/other"}}},
        of=WALTZ_CLUSTERS,
    ),
    "metadata.sessionTimeout must be between": Breach(
        "spec.metadata",
        {"metadata": {"raftClusterRef": {"name": "meta"}, "sessionTimeout": "100ms"}},
        of=WALTZ_CLUSTERS,
    ),
    "In and NotIn require values": Breach(
        "spec.networkPolicy.clientSelector.podSelector.matchExpressions[0]",
        {"networkPolicy": {"clientSelector": {"podSelector": {"matchExpressions": [{"key": "x", "operator": "In"}]}}}},
    ),
    "encryption cannot be changed": Breach(
        "spec.encryption", {"encryption": "e1"}, {"encryption": "e0"}, of=SWIM_GROUPS
    ),
}


def rules(schema: Object) -> Iterator[str]:
    """The messages of all rules of a schema."""
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for part in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield from rules(part)


def test_each_rule_of_our_definitions_is_tried() -> None:
    schemas = (version["schema"]["openAPIV3Schema"] for body in definitions() for version in body["spec"]["versions"])
    messages = {message for schema in schemas for message in rules(schema)}
    assert {each for each in messages if not each.startswith(tuple(BREACHES))} == set()


@pytest.mark.parametrize("words", BREACHES)
def test_a_broken_rule_is_told(target: KubeTarget, words: str) -> None:
    breach = BREACHES[words]
    body = {"metadata": {"name": breach.name}, "spec": breach.spec}
    answer = target.create(breach.of, body, fieldValidation="Strict")
    if breach.then is not None:
        answer.ok()
        answer = target.patch(breach.of, breach.name, {"spec": breach.then})
    answer.refused(422, "Invalid")
    assert any(
        each["field"] == breach.field and words in each["message"] for each in answer.body["details"]["causes"]
    ), answer.message


@pytest.mark.parametrize("grown", ["1Gi", "1024Mi", "1.5Gi", 2_000_000_000, "2Gi"])
def test_a_volume_may_grow(target: KubeTarget, grown: str | int) -> None:
    body = {"metadata": {"name": "q"}, "spec": {"storage": {"size": "1Gi"}}}
    target.create(RAFT_CLUSTERS, body).ok()
    target.patch(RAFT_CLUSTERS, "q", {"spec": {"storage": {"size": grown}}}).ok()

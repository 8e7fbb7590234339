"""The pod template of a RaftCluster server, from what its revision recorded (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pavane.raft.keys import IDENT_KEY, SERVER_SECRET_KEY
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.tls import TlsMode
from pavane_operator.crds.values import parse_duration
from pavane_operator.kinds.raft import keys, names
from pavane_operator.objects.pods import CONTAINER_SECURITY, pod_metadata, pod_spec
from pavane_operator.plan.model import REPAIR_ANNOTATION
from pavane_operator.tls.names import certificate_secret

CONFIG_MOUNT = "/etc/pavane/config"
LIVE_MOUNT = "/etc/pavane/live"
LIVE_KEY = "live.yaml"
KEYS_MOUNT = "/etc/pavane/keys"
SECRET_MOUNT = "/etc/pavane/secret"  # noqa: S105 - a folder; not that of the keys: what is there may connect
TLS_MOUNT = "/etc/pavane/tls"
DATA_MOUNT = "/var/lib/pavane"
TEMPORARY_MOUNT = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
CONFIG_KEY = "config.yaml"
CONTAINER = "server"


@dataclass(frozen=True, slots=True)
class PodInputs:
    """What distinguishes the pods of one generation from those of another."""

    name: str
    """Of the resource."""
    namespace: str
    generation: int
    image: str
    version: str
    otlp_endpoint: str | None
    spec: RaftClusterSpec
    repair: int = 0
    """Which repair of the generation it is; 0 = none."""


def template(inputs: PodInputs) -> dict[str, Any]:
    """`spec.template` of the StatefulSet."""
    spec = inputs.spec
    secrets = {"keys": keys.name_of(inputs.name)}
    if spec.secret_ref is not None:
        secrets["secret"] = spec.secret_ref.name
    if _secured(inputs):
        secrets["tls"] = certificate_secret(inputs.name, spec.tls)
    config = names.config_map(inputs.name, inputs.generation, inputs.repair)
    return {
        "metadata": _metadata(inputs),
        "spec": {
            **pod_spec(spec, inputs.name, names.selector(inputs.name, inputs.generation)),
            "terminationGracePeriodSeconds": int(parse_duration(spec.termination_grace_period).total_seconds()),
            "containers": [_container(inputs)],
            "volumes": [
                {"name": "config", "configMap": {"name": config}},
                {"name": "live", "configMap": {"name": f"{inputs.name}-live"}},
                *(
                    {"name": volume, "secret": {"secretName": secret, "defaultMode": 0o440}}
                    for volume, secret in secrets.items()
                ),
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


def _secured(inputs: PodInputs) -> bool:
    return inputs.spec.tls.mode is not TlsMode.DISABLED


def _metadata(inputs: PodInputs) -> dict[str, Any]:
    metadata = pod_metadata(inputs.spec, names.labels(inputs.name, inputs.version, inputs.generation))
    if inputs.repair:
        metadata["annotations"] = {**metadata.get("annotations", {}), REPAIR_ANNOTATION: str(inputs.repair)}
    return metadata


def _container(inputs: PodInputs) -> dict[str, Any]:
    spec = inputs.spec
    extra = [variable.model_dump(mode="json", by_alias=True, exclude_none=True) for variable in spec.extra_env]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": inputs.image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["pavane", "pod"],
        "env": [*_environment(inputs), *extra],
        "ports": [
            {"name": "stage", "containerPort": names.STAGE_PORT, "protocol": "TCP"},
            {"name": "ops", "containerPort": names.OPS_PORT, "protocol": "TCP"},
            {"name": "raft", "containerPort": names.RAFT_PORT, "protocol": "TCP"},
            {"name": "publish", "containerPort": names.PUBLISH_PORT, "protocol": "TCP"},
        ],
        "securityContext": dict(CONTAINER_SECURITY),
        "startupProbe": _probe("/livez", period_s=2, failures=150),
        "livenessProbe": _probe("/livez", period_s=10, failures=3),
        "readinessProbe": _probe("/readyz", period_s=2, failures=2),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_MOUNT, "readOnly": True},
            {"name": "live", "mountPath": LIVE_MOUNT, "readOnly": True},
            {"name": "keys", "mountPath": KEYS_MOUNT, "readOnly": True},
            *([{"name": "secret", "mountPath": SECRET_MOUNT, "readOnly": True}] if spec.secret_ref is not None else []),
            *([{"name": "tls", "mountPath": TLS_MOUNT, "readOnly": True}] if _secured(inputs) else []),
            {"name": "data", "mountPath": DATA_MOUNT},
            {"name": "tmp", "mountPath": TEMPORARY_MOUNT},
        ],
    }
    resources = spec.resources.model_dump(mode="json", by_alias=True, exclude_none=True)
    if resources:
        container["resources"] = resources
    return container


def _environment(inputs: PodInputs) -> list[dict[str, Any]]:
    attributes = {
        "k8s.namespace.name": "$(POD_NAMESPACE)",
        "k8s.pod.name": "$(POD_NAME)",
        "pavane.resource": inputs.name,
        "pavane.generation": str(inputs.generation),
    }
    reference = inputs.spec.secret_ref
    ident_file = f"{KEYS_MOUNT}/{IDENT_KEY}" if reference is None else f"{SECRET_MOUNT}/{reference.key}"
    environment = [
        _field("POD_NAME", "metadata.name"),
        _field("POD_NAMESPACE", "metadata.namespace"),
        _field("POD_UID", "metadata.uid"),
        _field("POD_IP", "status.podIP"),
        _field("NODE_NAME", "spec.nodeName"),
        _value("PAVANE_RESOURCE", inputs.name),
        _value("PAVANE_KIND", names.KIND),
        _value("PAVANE_ROLE", names.ROLE),
        _value("PAVANE_GENERATION", str(inputs.generation)),
        _value("PAVANE_CONFIG", f"{CONFIG_MOUNT}/{CONFIG_KEY}"),
        _value("PAVANE_LIVE", f"{LIVE_MOUNT}/{LIVE_KEY}"),
        _value("PAVANE_RAFT_URL", names.peer_url_template(inputs.name, inputs.namespace, inputs.generation)),
        # A folder below the mount: the root of a real volume may hold what its file system put there.
        _value("PAVANE_RAFT_DATA", f"{DATA_MOUNT}/raft"),
        _value("PAVANE_RAFT_SECRET_FILE", ident_file),
        _value("OTEL_RESOURCE_ATTRIBUTES", ",".join(f"{key}={value}" for key, value in attributes.items())),
    ]
    if _secured(inputs):
        environment += [
            _value("PAVANE_TLS", TLS_MOUNT),
            _value("PAVANE_RAFT_CURVE_SERVER_SECRET_FILE", f"{KEYS_MOUNT}/{SERVER_SECRET_KEY}"),
            _value("PAVANE_RAFT_CURVE_CLIENTS", KEYS_MOUNT),
        ]
    if inputs.otlp_endpoint:
        environment.append(_value("OTEL_EXPORTER_OTLP_ENDPOINT", inputs.otlp_endpoint))
    return environment


def _value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "ops"},
        "periodSeconds": period_s,
        "failureThreshold": failures,
    }

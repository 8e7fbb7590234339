"""Parts of a pod that are the same for all kinds (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pavane_operator.crds.common import CommonSpec, ResourceRequirements
from pavane_operator.crds.tls import TlsMode
from pavane_operator.crds.values import parse_duration
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.objects.names import OPS_PORT, STAGE_PORT, Names
from pavane_operator.plan.model import REPAIR_ANNOTATION, Repair, Resource
from pavane_operator.tls.names import certificate_secret

RUN_AS = 10001
"""uid, gid and fsGroup of all our processes: any fixed number that is nobody's on a node."""
NODE_LOST_S = 30
"""How long a node that is not ready or unreachable is borne: Kubernetes' own five minutes are long for a quorum."""
CONTAINER_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""With the pod's own context what the *restricted* level of pod security asks for; and a root that is read-only."""
CONFIG_MOUNT = "/etc/pavane/config"
CONFIG_KEY = "config.yaml"
LIVE_MOUNT = "/etc/pavane/live"
LIVE_KEY = "live.yaml"
TLS_MOUNT = "/etc/pavane/tls"
OTLP_MOUNT = "/etc/pavane/otlp"
OTLP_FILE = "token"
OTLP_TOKEN_S = 3600
"""How long a token for spans is good; the kubelet renews it before."""
TEMPORARY_MOUNT = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the container, and of the Services in front of it."""

    name: str
    number: int
    protocol: str = "TCP"


STAGE = Port("stage", STAGE_PORT)
OPS = Port("ops", OPS_PORT)


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume of the pod: a ConfigMap, a Secret, a claim of the resource, a token, or what the StatefulSet claims."""

    name: str
    path: str
    config_map: str | None = None
    secret: str | None = None
    claim: str | None = None
    audience: str | None = None
    """Of a token of the pod's account, in the file OTLP_FILE."""
    read_only: bool = False
    """Of a claim: whether the pod only reads there. All else is read only anyway."""

    def volume(self) -> dict[str, Any] | None:
        """Its entry in `volumes` of the pod; what the StatefulSet claims has none."""
        if self.config_map is not None:
            return {"name": self.name, "configMap": {"name": self.config_map}}
        if self.secret is not None:
            return {"name": self.name, "secret": {"secretName": self.secret, "defaultMode": 0o440}}
        if self.claim is not None:
            return {"name": self.name, "persistentVolumeClaim": {"claimName": self.claim}}
        if self.audience is not None:
            token = {"audience": self.audience, "expirationSeconds": OTLP_TOKEN_S, "path": OTLP_FILE}
            return {"name": self.name, "projected": {"sources": [{"serviceAccountToken": token}], "defaultMode": 0o440}}
        return None

    def mount(self) -> dict[str, Any]:
        """Its entry in `volumeMounts` of the container."""
        given = (self.config_map, self.secret, self.audience)
        read_only = {"readOnly": True} if self.read_only or any(each is not None for each in given) else {}
        return {"name": self.name, "mountPath": self.path, **read_only}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What distinguishes the pods of one generation from those of another."""

    resource: Resource
    generation: int
    image: str
    version: str
    otlp_endpoint: str | None
    otlp_audience: str | None
    repair: int = 0
    """Which repair of the generation it is; 0 = none."""

    @classmethod
    def of(cls, resource: Resource, generation: int, defaults: RenderDefaults, repair: Repair | None) -> Inputs:
        """Those of a generation, or of its repair, that is rendered now."""
        return cls(
            resource,
            generation,
            image_of(resource.spec, defaults),
            defaults.version,
            defaults.otlp_endpoint,
            defaults.otlp_audience,
            0 if repair is None else repair.time,
        )

    @property
    def secured(self) -> bool:
        """Whether the stage port, and what else follows `spec.tls`, is encrypted."""
        return self.resource.spec.tls.mode is not TlsMode.DISABLED


def image_of(spec: CommonSpec, defaults: RenderDefaults) -> str:
    """The image of a generation that is created now."""
    return spec.image or defaults.image


def template(
    inputs: Inputs,
    names: Names,
    ports: Sequence[Port],
    mounts: Sequence[Mount],
    environment: Sequence[Mapping[str, Any]],
    *,
    resources: ResourceRequirements | None = None,
    host_network: bool = False,
) -> dict[str, Any]:
    """`spec.template` of the StatefulSet.

    Args:
        inputs: The generation.
        names: Of the kind; its role is the name of the container.
        ports: Of the container beside `stage` and `ops`.
        mounts: Volumes beside `config`, `live`, `tls`, `otlp` and `tmp`.
        environment: Variables of the kind's process.
        resources: Computing resources of the container.
        host_network: Whether the pods use the addresses of their nodes, one pod of the resource per node.
    """
    resource, spec = inputs.resource, inputs.resource.spec
    config = names.config_map(resource.name, inputs.generation, inputs.repair)
    all_mounts = [
        Mount("config", CONFIG_MOUNT, config_map=config),
        Mount("live", LIVE_MOUNT, config_map=f"{resource.name}-live"),
        *mounts,
    ]
    if inputs.secured:
        all_mounts.append(Mount("tls", TLS_MOUNT, secret=certificate_secret(resource.name, spec.tls)))
    all_mounts += token_mounts(inputs)
    volumes = [volume for each in all_mounts if (volume := each.volume()) is not None]
    container: dict[str, Any] = {
        "name": names.role,
        "image": inputs.image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["pavane", "pod"],
        "env": [
            *_environment(inputs, names),
            *environment,
            *(variable.model_dump(mode="json", by_alias=True, exclude_none=True) for variable in spec.extra_env),
        ],
        "ports": [
            {"name": port.name, "containerPort": port.number, "protocol": port.protocol}
            for port in (STAGE, OPS, *ports)
        ],
        "securityContext": dict(CONTAINER_SECURITY),
        "startupProbe": _probe("/livez", period_s=2, failures=150),
        "livenessProbe": _probe("/livez", period_s=10, failures=3),
        "readinessProbe": _probe("/readyz", period_s=2, failures=2),
        "volumeMounts": [*(each.mount() for each in all_mounts), {"name": "tmp", "mountPath": TEMPORARY_MOUNT}],
    }
    wanted = {} if resources is None else resources.model_dump(mode="json", by_alias=True, exclude_none=True)
    if wanted:
        container["resources"] = wanted
    return {
        "metadata": _metadata(inputs, names),
        "spec": {
            **_on_nodes(
                pod_spec(spec, resource.name, names.selector(resource.name, inputs.generation)),
                names.all_pods(resource.name) if host_network else None,
            ),
            "terminationGracePeriodSeconds": int(parse_duration(spec.termination_grace_period).total_seconds()),
            "containers": [container],
            "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
        },
    }


def variable(name: str, value: str) -> dict[str, Any]:
    """A variable of the container."""
    return {"name": name, "value": value}


def _on_nodes(spec: dict[str, Any], pods: Mapping[str, str] | None) -> dict[str, Any]:
    """The pod with the addresses of its node, apart from all other `pods` of the resource; None = with its own."""
    if pods is None:
        return spec
    affinity = spec.get("affinity", {})
    apart = affinity.get("podAntiAffinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    rule = {"labelSelector": {"matchLabels": dict(pods)}, "topologyKey": "kubernetes.io/hostname"}
    apart = {**apart, required: [*apart.get(required, []), rule]}
    return {
        **spec,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "affinity": {**affinity, "podAntiAffinity": apart},
    }


def _metadata(inputs: Inputs, names: Names) -> dict[str, Any]:
    labels = names.labels(inputs.resource.name, inputs.version, inputs.generation)
    metadata = pod_metadata(inputs.resource.spec, labels)
    if inputs.repair:
        metadata["annotations"] = {**metadata.get("annotations", {}), REPAIR_ANNOTATION: str(inputs.repair)}
    return metadata


def telemetry(inputs: Inputs) -> list[dict[str, Any]]:
    """Variables that say where a container sends its spans, and whose they are; it needs POD_NAME and POD_NAMESPACE."""
    attributes = {
        "k8s.namespace.name": "$(POD_NAMESPACE)",
        "k8s.pod.name": "$(POD_NAME)",
        "pavane.resource": inputs.resource.name,
        "pavane.generation": str(inputs.generation),
    }
    found = [variable("OTEL_RESOURCE_ATTRIBUTES", ",".join(f"{key}={value}" for key, value in attributes.items()))]
    if inputs.otlp_endpoint:
        found.append(variable("OTEL_EXPORTER_OTLP_ENDPOINT", inputs.otlp_endpoint))
    if token_mounts(inputs):
        found.append(variable("PAVANE_OTLP_TOKEN_FILE", f"{OTLP_MOUNT}/{OTLP_FILE}"))
    return found


def token_mounts(inputs: Inputs) -> list[Mount]:
    """The token that a container sends with its spans; none where nobody asks for one."""
    if not inputs.otlp_endpoint or not inputs.otlp_audience:
        return []
    return [Mount("otlp", OTLP_MOUNT, audience=inputs.otlp_audience)]


def _environment(inputs: Inputs, names: Names) -> list[dict[str, Any]]:
    environment = [
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("POD_IP", "status.podIP"),
        field("NODE_NAME", "spec.nodeName"),
        variable("PAVANE_RESOURCE", inputs.resource.name),
        variable("PAVANE_KIND", names.kind),
        variable("PAVANE_ROLE", names.role),
        variable("PAVANE_GENERATION", str(inputs.generation)),
        variable("PAVANE_CONFIG", f"{CONFIG_MOUNT}/{CONFIG_KEY}"),
        variable("PAVANE_LIVE", f"{LIVE_MOUNT}/{LIVE_KEY}"),
    ]
    # The order is part of the template, which an upgrade of the operator must not change.
    attributes, *endpoint = telemetry(inputs)
    tls = [variable("PAVANE_TLS", TLS_MOUNT)] if inputs.secured else []
    return [*environment, attributes, *tls, *endpoint]


def field(name: str, path: str) -> dict[str, Any]:
    """A variable of the container with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": OPS.name}, "periodSeconds": period_s, "failureThreshold": failures}


def pod_metadata(spec: CommonSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    """`metadata` of a pod template: the user's labels and annotations, and ours, which no user can set."""
    metadata: dict[str, Any] = {"labels": {**spec.pod_labels, **labels}}
    if spec.pod_annotations:
        metadata["annotations"] = dict(spec.pod_annotations)
    return metadata


def pod_spec(spec: CommonSpec, account: str, selector: Mapping[str, str]) -> dict[str, Any]:
    """`spec` of a pod template without containers and volumes.

    Args:
        spec: P fields of the generation.
        account: Name of the ServiceAccount.
        selector: Labels of the pods of this role and generation, over which they are spread.
    """
    found: dict[str, Any] = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        # A variable for each Service of the namespace: one of a Service named pavane-… would look like a setting.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": RUN_AS,
            "runAsGroup": RUN_AS,
            "fsGroup": RUN_AS,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(spec),
    }
    optional = {
        "imagePullSecrets": [_plain(secret) for secret in spec.image_pull_secrets],
        "nodeSelector": dict(spec.node_selector),
        "affinity": _plain(spec.affinity),
        "priorityClassName": spec.priority_class_name,
        "runtimeClassName": spec.runtime_class_name,
        "topologySpreadConstraints": _spread(spec, selector),
    }
    return found | {name: value for name, value in optional.items() if value}


def _tolerations(spec: CommonSpec) -> list[dict[str, Any]]:
    own = [_plain(toleration) for toleration in spec.tolerations]
    said = {toleration.get("key") for toleration in own}
    lost = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOST_S}
        for key in _NODE_TAINTS
        if key not in said
    ]
    return [*own, *lost]


def _spread(spec: CommonSpec, selector: Mapping[str, str]) -> list[dict[str, Any]]:
    wanted: list[dict[str, Any]] = [
        {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    ]
    if spec.topology_spread_constraints is not None:
        wanted = [_plain(constraint) for constraint in spec.topology_spread_constraints]
    return [{**constraint, "labelSelector": {"matchLabels": dict(selector)}} for constraint in wanted]


def _plain(model: Any) -> dict[str, Any]:
    plain: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain

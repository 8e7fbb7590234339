"""Parts of a pod that are the same for all kinds (docs/specs/operator.md 4.2)."""

from collections.abc import Mapping
from typing import Any

from pavane_operator.crds.common import CommonSpec

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
_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


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

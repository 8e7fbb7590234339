"""Executors of Spark: their pod template, the rights of the pod that makes them, their network (compute.md 17)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pavane_operator.crds.computecluster import ComputeClusterSpec
from pavane_operator.crds.values import parse_quantity
from pavane_operator.kinds.computecluster.names import CONTROLLER, EXECUTORS
from pavane_operator.kube.resources import PODS, ROLES
from pavane_operator.objects import pods
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import CONTAINER_SECURITY, TEMPORARY_MOUNT, Inputs, Port
from pavane_operator.objects.policies import rule_from, rule_to
from pavane_operator.plan.model import Manifest, Resource

DRIVER = Port("driver", 7078)
BLOCKS = Port("blocks", 7079)
"""Where driver and executors send each other what they computed. As in `pavane.spark.kubernetes`."""
API_SERVER = (Port("https", 443), Port("api-server", 6443))
"""Of most clusters; with another port `networkPolicy.egressCIDRs` must have its address."""
VERBS = ["get", "list", "watch", "create", "patch", "delete", "deletecollection"]
"""Which Spark's scheduler needs on pods."""
RBAC = f"{ROLES.group}/{ROLES.version}"


def config(spec: ComputeClusterSpec, inputs: Inputs) -> dict[str, Any]:
    """What the pod must know of its executors, and where they keep state; nothing where it evaluates by itself."""
    wanted = spec.executors
    kept = {"checkpoint": spec.spark.checkpoint} if spec.spark is not None and spec.spark.checkpoint else {}
    if wanted is None:
        return kept
    memory = int(parse_quantity(wanted.memory) // Decimal(2**20))
    sizes = {"instances": wanted.instances, "cores": wanted.cores, "memory_mib": memory}
    return {**kept, "executors": {**sizes, "template": _template(spec, inputs)}}


def may_make_pods(spec: ComputeClusterSpec, template: dict[str, Any]) -> dict[str, Any]:
    """The template of the pod, with a token of its account where it makes executors."""
    if spec.executors is None:
        return template
    return {**template, "spec": {**template["spec"], "automountServiceAccountToken": True}}


def shared(resource: Resource, spec: ComputeClusterSpec, labels: Mapping[str, str]) -> tuple[Manifest, ...]:
    """Role, RoleBinding and NetworkPolicies for executors, where there are any."""
    if spec.executors is None:
        return ()
    name = f"{resource.name}-executors"
    role = owned(resource, RBAC, "Role", name, labels)
    role["rules"] = [{"apiGroups": [""], "resources": [PODS.plural], "verbs": VERBS}]
    binding = owned(resource, RBAC, "RoleBinding", name, labels)
    binding["roleRef"] = {"apiGroup": ROLES.group, "kind": "Role", "name": name}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": resource.name, "namespace": resource.namespace}]
    policies = _policies(resource, labels) if spec.network_policy.enabled else ()
    return (Manifest.of(role), Manifest.of(binding), *policies)


def _template(spec: ComputeClusterSpec, inputs: Inputs) -> dict[str, Any]:
    """The pod template of the executors: Spark adds what they do, how much they need, and whose they are."""
    name = inputs.resource.name
    environment = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in spec.extra_env]
    container = {
        "name": EXECUTORS.role,
        "image": inputs.image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["python", "-m", "pavane.spark.executor"],
        "env": environment,
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [{"name": "tmp", "mountPath": TEMPORARY_MOUNT}],
    }
    labels = {**EXECUTORS.labels(name, inputs.version, inputs.generation), "app.kubernetes.io/managed-by": "spark"}
    return {
        "metadata": pods.pod_metadata(spec, labels),
        "spec": {
            **pods.pod_spec(spec, name, EXECUTORS.selector(name, inputs.generation)),
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def _policies(resource: Resource, labels: Mapping[str, str]) -> tuple[Manifest, ...]:
    drivers, executors = CONTROLLER.of_resource(resource.name), EXECUTORS.of_resource(resource.name)
    rules = {
        "driver": (
            drivers,
            [rule_from(executors, (DRIVER, BLOCKS))],
            [rule_to(executors, (BLOCKS,)), rule_to(None, API_SERVER)],
        ),
        "executors": (
            executors,
            [rule_from(drivers, (BLOCKS,)), rule_from(executors, (BLOCKS,))],
            [rule_to(drivers, (DRIVER, BLOCKS)), rule_to(executors, (BLOCKS,))],
        ),
    }
    manifests = []
    for name, (selected, ingress, egress) in rules.items():
        body = owned(resource, "networking.k8s.io/v1", "NetworkPolicy", f"{resource.name}-{name}", labels)
        body["spec"] = {
            "podSelector": {"matchLabels": selected},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        }
        manifests.append(Manifest.of(body))
    return tuple(manifests)

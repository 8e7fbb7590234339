"""The pod template of an immortal: coordinator and application side by side (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.coordinator import Application, CoordinatorSpec
from pavane_operator.kinds.coordinator import names
from pavane_operator.kinds.waltz.names import client_secret
from pavane_operator.objects import pods
from pavane_operator.objects.pods import Inputs, Mount, variable

LOG_MOUNT = "/var/lib/pavane"
CLIENT_MOUNT = "/etc/pavane/waltz"
APPLICATION_MOUNT = "/app"
APPLICATION = "application"
HOSTNAME = "kubernetes.io/hostname"


def template(inputs: Inputs, spec: CoordinatorSpec) -> dict[str, Any]:
    """`spec.template` of the StatefulSet."""
    resource = inputs.resource
    if spec.log is None:
        mounts = [Mount("log", LOG_MOUNT, claim=names.claim(resource))]
        # A folder below the mount: the root of a real volume may hold what its file system put there.
        places = [variable("PAVANE_AMBROSIA_LOG", f"{LOG_MOUNT}/ambrosia")]
    else:
        mounts = [Mount("log", CLIENT_MOUNT, secret=client_secret(spec.log.waltz_cluster_ref.name))]
        places = [
            variable("PAVANE_AMBROSIA_LOG", f"{pods.TEMPORARY_MOUNT}/ambrosia"),
            variable("PAVANE_WALTZ_CLIENT", CLIENT_MOUNT),
        ]
    made = pods.template(inputs, names.NAMES, (names.LINK,), mounts, places, resources=spec.resources)
    # Clients find the pod that leads by its readiness, so a successor is to be seen soon.
    made["spec"]["containers"][0]["readinessProbe"] |= {"periodSeconds": 1, "failureThreshold": 1}
    made["spec"]["containers"].append(_application(inputs, spec.application, spec.instance_name or resource.name))
    if spec.application.files is not None:
        files = Mount("application", APPLICATION_MOUNT, config_map=spec.application.files)
        made["spec"]["volumes"].append(files.volume())
    if spec.log is None and not spec.storage.shared:
        made["spec"]["affinity"] = beside(made["spec"].get("affinity", {}), names.NAMES.all_pods(resource.name))
    return made


def _application(inputs: Inputs, application: Application, instance: str) -> dict[str, Any]:
    ports = f"{names.RECEIVE_PORT},{names.SEND_PORT}"
    environment = [
        pods.field("POD_NAME", "metadata.name"),
        pods.field("POD_NAMESPACE", "metadata.namespace"),
        pods.field("POD_IP", "status.podIP"),
        variable("PAVANE_AMBROSIA", f"$(POD_IP):{ports}"),
        variable("PAVANE_INSTANCE", instance),
        variable("PAVANE_HTTP", f"$(POD_IP):{names.HTTP.number}"),
        variable("PAVANE_VERSION", str(application.version)),
        # The order of sets must be the same in every life.
        variable("PYTHONHASHSEED", "0"),
    ]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": pods.TEMPORARY_MOUNT}]
    mounts += [each.mount() for each in pods.token_mounts(inputs)]
    if application.files is not None:
        environment.append(variable("PYTHONPATH", APPLICATION_MOUNT))
        mounts.append({"name": "application", "mountPath": APPLICATION_MOUNT, "readOnly": True})
    own = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in application.env]
    named = {each["name"] for each in own}
    environment += [each for each in pods.telemetry(inputs) if each["name"] not in named]
    container: dict[str, Any] = {
        "name": APPLICATION,
        "image": application.image or inputs.image,
        "imagePullPolicy": inputs.resource.spec.image_pull_policy.value,
        "env": [*environment, *own],
        "ports": [{"name": names.HTTP.name, "containerPort": names.HTTP.number, "protocol": names.HTTP.protocol}],
        "securityContext": dict(pods.CONTAINER_SECURITY),
        "volumeMounts": mounts,
    }
    resources = application.resources.model_dump(mode="json", by_alias=True, exclude_none=True)
    optional = {"command": list(application.command), "args": list(application.args), "resources": resources}
    return container | {name: value for name, value in optional.items() if value}


def beside(affinity: dict[str, Any], pods_of_resource: dict[str, str]) -> dict[str, Any]:
    """Return affinity to the node of the other generation: a volume that is ReadWriteOnce is mounted on one node."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    together = affinity.get("podAffinity", {})
    term = {"labelSelector": {"matchLabels": pods_of_resource}, "topologyKey": HOSTNAME}
    return {**affinity, "podAffinity": {**together, required: [*together.get(required, []), term]}}

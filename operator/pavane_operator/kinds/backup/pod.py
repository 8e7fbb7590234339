"""The pod that makes a Backup of a RaftCluster (docs/specs/operator.md 1.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pavane.raft.keys import IDENT_KEY
from pavane_operator.crds.backup import DEFINITION, BackupStatus
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kinds.backup.deciding import NAMES, cluster_of
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft import keys, names
from pavane_operator.kinds.raft.pod import KEYS_MOUNT, SECRET_MOUNT
from pavane_operator.objects import pods
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import TEMPORARY_MOUNT, Mount, field, variable
from pavane_operator.plan.model import Resource

STORE_MOUNT = "/etc/pavane/store"


def pod_name(body: Mapping[str, Any], attempt: int) -> str:
    """Name of the pod of an attempt."""
    return f"{body['metadata']['name']}-backup-{attempt}"


def render(
    body: Mapping[str, Any], cluster: Mapping[str, Any], status: BackupStatus, defaults: RenderDefaults
) -> dict[str, Any]:
    """The pod: the product's own image on nodes where the members may run, with as much memory as they have."""
    namespace, of = cluster_of(body)
    spec = RaftClusterSpec.model_validate(cluster.get("spec") or {}, extra="ignore")
    # What keeps members apart would keep it from every node that has one.
    affinity = spec.affinity.model_copy(update={"pod_affinity": None, "pod_anti_affinity": None})
    spec = spec.model_copy(update={"topology_spread_constraints": [], "affinity": affinity})
    metadata = body["metadata"]
    resource = Resource(DEFINITION.name, metadata["name"], namespace, metadata["uid"], "", 0, spec, None)
    mounts = [Mount("keys", KEYS_MOUNT, secret=keys.name_of(of))]
    if spec.secret_ref is not None:
        mounts.append(Mount("secret", SECRET_MOUNT, secret=spec.secret_ref.name))
    own = body["spec"]
    if own.get("secretName"):
        mounts.append(Mount("store", STORE_MOUNT, secret=own["secretName"]))
    container = {
        "name": NAMES.role,
        "image": defaults.image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["pavane", "pod"],
        "env": _environment(body, status, spec, of),
        "securityContext": dict(pods.CONTAINER_SECURITY),
        "resources": spec.resources.model_dump(mode="json", by_alias=True, exclude_none=True),
        "volumeMounts": [*(each.mount() for each in mounts), {"name": "tmp", "mountPath": TEMPORARY_MOUNT}],
    }
    labels = NAMES.labels(metadata["name"], defaults.version)
    pod = owned(resource, "v1", "Pod", pod_name(body, status.attempt or 1), labels)
    pod["spec"] = {
        **pods.pod_spec(spec, of, labels),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [*(each.volume() for each in mounts), {"name": "tmp", "emptyDir": {}}],
    }
    return pod


def _environment(body: Mapping[str, Any], status: BackupStatus, spec: RaftClusterSpec, of: str) -> list[dict[str, Any]]:
    own, namespace = body["spec"], body["metadata"]["namespace"]
    secret = f"{KEYS_MOUNT}/{IDENT_KEY}" if spec.secret_ref is None else f"{SECRET_MOUNT}/{spec.secret_ref.key}"
    found = {
        "PAVANE_KIND": NAMES.kind,
        "PAVANE_ROLE": NAMES.role,
        "PAVANE_BACKUP_URL": own["url"].rstrip("/"),
        "PAVANE_BACKUP_NAME": (status.url or "").rpartition("/")[2],
        "PAVANE_BACKUP_PEERS": names.public_url(of, namespace),
        "PAVANE_RAFT_KEYS": KEYS_MOUNT,
        "PAVANE_RAFT_SECRET_FILE": secret,
        "TMPDIR": TEMPORARY_MOUNT,
    }
    if own.get("secretName"):
        found["PAVANE_BACKUP_STORE"] = STORE_MOUNT
    if own.get("keep"):
        found["PAVANE_BACKUP_KEEP"] = str(own["keep"])
    return [field("POD_NAME", "metadata.name"), *(variable(name, value) for name, value in found.items())]

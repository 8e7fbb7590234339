"""The pod of one attempt of a Backup (docs/specs/operator.md 1.10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pavane.raft.keys import IDENT_KEY
from pavane.waltz.state.archived import folder_of
from pavane_operator.crds.backup import DEFINITION, BackedUpKind, BackupStatus
from pavane_operator.crds.common import CommonSpec, ResourceRequirements
from pavane_operator.crds.coordinator import CoordinatorSpec
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.waltzcluster import WaltzClusterSpec
from pavane_operator.kinds.backup.deciding import NAMES, source_of
from pavane_operator.kinds.coordinator import names as coordinators
from pavane_operator.kinds.coordinator.pod import LOG_MOUNT, beside
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft import keys
from pavane_operator.kinds.raft import names as rafts
from pavane_operator.kinds.raft.pod import KEYS_MOUNT, SECRET_MOUNT
from pavane_operator.kinds.waltz import names as waltzes
from pavane_operator.kinds.waltz.pod import ARCHIVE_MOUNT
from pavane_operator.objects import pods
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import TEMPORARY_MOUNT, Mount, field, variable
from pavane_operator.plan.model import Resource

STORE_MOUNT = "/etc/pavane/store"
CLIENT_MOUNT = "/etc/pavane/waltz"


def pod_name(body: Mapping[str, Any], attempt: int) -> str:
    """Name of the pod of an attempt."""
    return f"{body['metadata']['name']}-backup-{attempt}"


@dataclass(frozen=True, slots=True)
class _Part:
    """What the pod has of what it copies."""

    spec: CommonSpec
    resources: ResourceRequirements
    mounts: tuple[Mount, ...]
    variables: dict[str, str]
    affinity: dict[str, Any] | None = None


def render(
    body: Mapping[str, Any], cluster: Mapping[str, Any], status: BackupStatus, defaults: RenderDefaults
) -> dict[str, Any]:
    """The pod: the product's own image on nodes where the pods of the resource may run, with as much memory."""
    namespace, kind, of = source_of(body)
    part = _PARTS[BackedUpKind(kind)](cluster)
    # What keeps pods apart would keep it from every node that has one.
    affinity = part.spec.affinity.model_copy(update={"pod_affinity": None, "pod_anti_affinity": None})
    spec = part.spec.model_copy(update={"topology_spread_constraints": [], "affinity": affinity})
    metadata, names = body["metadata"], NAMES[kind]
    resource = Resource(DEFINITION.name, metadata["name"], namespace, metadata["uid"], "", 0, spec, None)
    mounts, own = list(part.mounts), body["spec"]
    if own.get("secretName"):
        mounts.append(Mount("store", STORE_MOUNT, secret=own["secretName"]))
    container = {
        "name": names.role,
        "image": defaults.image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["pavane", "pod"],
        "env": _environment(body, status, part.variables),
        "securityContext": dict(pods.CONTAINER_SECURITY),
        "resources": part.resources.model_dump(mode="json", by_alias=True, exclude_none=True),
        "volumeMounts": [*(each.mount() for each in mounts), {"name": "tmp", "mountPath": TEMPORARY_MOUNT}],
    }
    labels = names.labels(metadata["name"], defaults.version)
    pod = owned(resource, "v1", "Pod", pod_name(body, status.attempt or 1), labels)
    pod["spec"] = {
        **pods.pod_spec(spec, of, labels),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [*(each.volume() for each in mounts), {"name": "tmp", "emptyDir": {}}],
    }
    if part.affinity is not None:
        pod["spec"]["affinity"] = {**pod["spec"].get("affinity", {}), **part.affinity}
    return pod


def _raft(cluster: Mapping[str, Any]) -> _Part:
    spec, of = RaftClusterSpec.model_validate(cluster.get("spec") or {}, extra="ignore"), cluster["metadata"]
    mounts = [Mount("keys", KEYS_MOUNT, secret=keys.name_of(of["name"]))]
    secret = f"{KEYS_MOUNT}/{IDENT_KEY}"
    if spec.secret_ref is not None:
        mounts.append(Mount("secret", SECRET_MOUNT, secret=spec.secret_ref.name))
        secret = f"{SECRET_MOUNT}/{spec.secret_ref.key}"
    told = {
        "PAVANE_BACKUP_PEERS": rafts.public_url(of["name"], of["namespace"]),
        "PAVANE_RAFT_KEYS": KEYS_MOUNT,
        "PAVANE_RAFT_SECRET_FILE": secret,
    }
    return _Part(spec, spec.resources, tuple(mounts), told)


def _coordinator(cluster: Mapping[str, Any]) -> _Part:
    spec, of = CoordinatorSpec.model_validate(cluster.get("spec") or {}, extra="ignore"), cluster["metadata"]
    resource = Resource("Coordinator", of["name"], of["namespace"], of["uid"], "", 0, spec, None)
    told = {
        "PAVANE_AMBROSIA_LOG": f"{LOG_MOUNT}/ambrosia/{coordinators.folder(of['name'], of['uid'])}",
        "PAVANE_INSTANCE": spec.instance_name or of["name"],
    }
    mount = Mount("log", LOG_MOUNT, claim=coordinators.claim(resource), read_only=True)
    # A volume that is ReadWriteOnce is mounted on one node.
    near = None if spec.storage.shared else beside({}, coordinators.NAMES.all_pods(of["name"]))
    return _Part(spec, spec.resources, (mount,), told, near)


def _waltz(cluster: Mapping[str, Any]) -> _Part:
    spec, of = WaltzClusterSpec.model_validate(cluster.get("spec") or {}, extra="ignore"), cluster["metadata"]
    mounts = [Mount("client", CLIENT_MOUNT, secret=waltzes.client_secret(of["name"]))]
    told = {"PAVANE_WALTZ_CLIENT": CLIENT_MOUNT}
    if spec.archive is not None:
        place = folder_of(spec.cluster_name or of["name"], waltzes.key(of["uid"]))
        told["PAVANE_ARCHIVE_URL"] = f"{spec.archive.url.rstrip('/')}/{place}"
        if spec.archive.secret_name is not None:
            mounts.append(Mount("archive", ARCHIVE_MOUNT, secret=spec.archive.secret_name))
            told["PAVANE_ARCHIVE_STORE"] = ARCHIVE_MOUNT
    return _Part(spec, spec.servers.resources, tuple(mounts), told)


_PARTS = {
    BackedUpKind.RAFT_CLUSTER: _raft,
    BackedUpKind.COORDINATOR: _coordinator,
    BackedUpKind.WALTZ_CLUSTER: _waltz,
}


def _environment(body: Mapping[str, Any], status: BackupStatus, told: Mapping[str, str]) -> list[dict[str, Any]]:
    own, names = body["spec"], NAMES[source_of(body)[1]]
    found = {
        "PAVANE_KIND": names.kind,
        "PAVANE_ROLE": names.role,
        "PAVANE_BACKUP_URL": own["url"].rstrip("/"),
        "PAVANE_BACKUP_NAME": (status.url or "").rpartition("/")[2],
        **told,
        "TMPDIR": TEMPORARY_MOUNT,
    }
    if own.get("secretName"):
        found["PAVANE_BACKUP_STORE"] = STORE_MOUNT
    if own.get("keep"):
        found["PAVANE_BACKUP_KEEP"] = str(own["keep"])
    return [field("POD_NAME", "metadata.name"), *(variable(name, value) for name, value in found.items())]

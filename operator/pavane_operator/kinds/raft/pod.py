"""The pod template of a RaftCluster server, from what its revision records (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from typing import Any

from pavane.raft.keys import IDENT_KEY, SERVER_SECRET_KEY
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kinds.raft import keys, names
from pavane_operator.objects import pods
from pavane_operator.objects.pods import Inputs, Mount, Port, variable

KEYS_MOUNT = "/etc/pavane/keys"
SECRET_MOUNT = "/etc/pavane/secret"  # noqa: S105 - a folder; not that of the keys: what is there may connect
DATA_MOUNT = "/var/lib/pavane"

RAFT = Port("raft", names.RAFT_PORT)
PUBLISH = Port("publish", names.PUBLISH_PORT)


def template(inputs: Inputs, spec: RaftClusterSpec) -> dict[str, Any]:
    """`spec.template` of the StatefulSet."""
    resource = inputs.resource
    mounts = [Mount("keys", KEYS_MOUNT, secret=keys.name_of(resource.name))]
    if spec.secret_ref is not None:
        mounts.append(Mount("secret", SECRET_MOUNT, secret=spec.secret_ref.name))
    mounts.append(Mount("data", DATA_MOUNT))
    ident_file = f"{KEYS_MOUNT}/{IDENT_KEY}" if spec.secret_ref is None else f"{SECRET_MOUNT}/{spec.secret_ref.key}"
    url = names.peer_url_template(resource.name, resource.namespace, inputs.generation)
    environment = [
        variable("PAVANE_RAFT_URL", url),
        # A folder below the mount: the root of a real volume may hold what its file system put there.
        variable("PAVANE_RAFT_DATA", f"{DATA_MOUNT}/raft"),
        variable("PAVANE_RAFT_SECRET_FILE", ident_file),
    ]
    if inputs.secured:
        environment += [
            variable("PAVANE_RAFT_CURVE_SERVER_SECRET_FILE", f"{KEYS_MOUNT}/{SERVER_SECRET_KEY}"),
            variable("PAVANE_RAFT_CURVE_CLIENTS", KEYS_MOUNT),
        ]
    return pods.template(inputs, names.NAMES, (RAFT, PUBLISH), mounts, environment, resources=spec.resources)

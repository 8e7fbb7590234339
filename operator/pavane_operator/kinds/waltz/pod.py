"""The pod templates of servers and storage nodes (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.waltzcluster import WaltzClusterSpec
from pavane_operator.kinds.waltz import names
from pavane_operator.objects import pods
from pavane_operator.objects.pods import Inputs, Mount, variable

METADATA_MOUNT = "/etc/pavane/metadata"
CLIENTS_MOUNT = "/etc/pavane/clients"
ARCHIVE_MOUNT = "/etc/pavane/archive"
DATA_MOUNT = "/var/lib/pavane"


def server(inputs: Inputs, spec: WaltzClusterSpec) -> dict[str, Any]:
    """`spec.template` of the servers of a generation."""
    resource = inputs.resource
    host = names.SERVERS.headless_host(resource.name, resource.namespace, inputs.generation)
    mounts = [Mount("metadata", METADATA_MOUNT, secret=names.metadata_secret(resource.name))]
    environment = [
        variable("PAVANE_WALTZ_HOST", f"$(POD_NAME).{host}"),
        variable("PAVANE_WALTZ_METADATA", METADATA_MOUNT),
    ]
    if spec.certifies_clients:
        mounts.append(Mount("clients", CLIENTS_MOUNT, config_map=names.clients_map(resource.name)))
        environment.append(variable("PAVANE_WALTZ_CLIENTS", CLIENTS_MOUNT))
    if spec.archive is not None and spec.archive.secret_name is not None:
        mounts.append(Mount("archive", ARCHIVE_MOUNT, secret=spec.archive.secret_name))
        environment.append(variable("PAVANE_WALTZ_ARCHIVE", ARCHIVE_MOUNT))
    return pods.template(
        inputs,
        names.SERVERS,
        (names.WALTZ_PORT,),
        mounts,
        environment,
        resources=spec.servers.resources,
    )


def storage(inputs: Inputs, spec: WaltzClusterSpec) -> dict[str, Any]:
    """`spec.template` of the storage nodes."""
    resource = inputs.resource
    host = names.STORAGE.headless_host(resource.name, resource.namespace, 0)
    return pods.template(
        inputs,
        names.STORAGE,
        (names.NODE_PORT, names.NODE_ADMIN_PORT),
        [Mount("data", DATA_MOUNT)],
        [
            variable("PAVANE_WALTZ_HOST", f"$(POD_NAME).{host}"),
            # A folder below the mount: the root of a real volume may hold what its file system put there.
            variable("PAVANE_WALTZ_DATA", f"{DATA_MOUNT}/waltz"),
        ],
        resources=spec.storage.resources,
    )

"""The RaftCluster or ZooKeeper that holds the metadata: what of it servers and the operator get to see.

Servers get the keys of a client, never those of a Raft server (docs/specs/operator.md 1.9).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pavane.pods.waltz_settings import ADDRESSES_FILE, ZOOKEEPER_FILE, ZooKeeperServers
from pavane.pods.waltz_settings import Metadata as Peers
from pavane.raft.keys import CLIENT_PUBLIC_KEY, CLIENT_SECRET_KEY, IDENT_KEY, SERVER_PUBLIC_KEY, RaftKeys
from pavane_operator.crds import raftcluster
from pavane_operator.crds.raftcluster import SecretRef, StateMachine
from pavane_operator.crds.waltzcluster import WaltzClusterSpec
from pavane_operator.kinds.raft.keys import known, name_of
from pavane_operator.kinds.raft.names import NAMES as RAFT_NAMES
from pavane_operator.kinds.raft.names import RAFT_PORT
from pavane_operator.objects.pods import Port
from pavane_operator.objects.policies import Target

KIND = raftcluster.DEFINITION.name


def secrets(spec: WaltzClusterSpec, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the Secrets that hold its keys."""
    ref = spec.metadata.raft_cluster_ref
    if ref is None:
        return ()
    given = _secret_ref(found.get(f"{KIND}/{ref.name}"))
    return (name_of(ref.name), *(() if given is None else (given.name,)))


def problem(spec: WaltzClusterSpec, references: Mapping[str, Any]) -> str:
    """Why the store cannot be used yet, in words for the user; empty: nothing is known against it."""
    if spec.metadata.raft_cluster_ref is None:
        return ""
    try:
        _keys(spec.metadata.raft_cluster_ref.name, references)
    except ValueError as error:
        return str(error)
    return ""


def servers(spec: WaltzClusterSpec, namespace: str, references: Mapping[str, Any]) -> Peers | ZooKeeperServers:
    """How a client reaches the store. Raises ValueError, in words for the user, while a RaftCluster cannot be used."""
    if spec.metadata.zookeeper is not None:
        return ZooKeeperServers(connect=spec.metadata.zookeeper.connect_string)
    name = _raft(spec)
    return Peers(addresses=(f"tcp://{name}.{namespace}.svc:{RAFT_PORT}",), keys=_keys(name, references))


def data(spec: WaltzClusterSpec, namespace: str, references: Mapping[str, Any]) -> dict[str, str]:
    """`data` of the Secret for servers. Raises ValueError as `servers`."""
    found = servers(spec, namespace, references)
    if isinstance(found, ZooKeeperServers):
        values = {ZOOKEEPER_FILE: f"{found.connect}\n".encode()}
    else:
        values = {ADDRESSES_FILE: "".join(f"{url}\n" for url in found.addresses).encode(), IDENT_KEY: found.keys.ident}
        if (curve := found.keys.curve) is not None:
            values |= {
                SERVER_PUBLIC_KEY: curve.server,
                CLIENT_PUBLIC_KEY: curve.public,
                CLIENT_SECRET_KEY: curve.secret,
            }
    return {name: base64.b64encode(value).decode() for name, value in values.items()}


def egress(spec: WaltzClusterSpec) -> tuple[Target, ...]:
    """What the servers connect to: pods of the RaftCluster, or anything on the ports of ZooKeeper's servers."""
    if spec.metadata.zookeeper is None:
        return ((RAFT_NAMES.of_resource(_raft(spec)), (Port("raft", RAFT_PORT),)),)
    ports = {int(server.rpartition(":")[2]) for server in spec.metadata.zookeeper.connect_string.split(",")}
    return ((None, tuple(Port(f"zookeeper-{port}", port) for port in sorted(ports))),)


def _raft(spec: WaltzClusterSpec) -> str:
    ref = spec.metadata.raft_cluster_ref
    assert ref is not None  # noqa: S101 - the schema demands one of the two
    return ref.name


def _keys(name: str, references: Mapping[str, Any]) -> RaftKeys:
    found = references.get(f"{KIND}/{name}")
    if found is None:
        raise ValueError(f"{KIND} {name} does not exist: create it with stateMachine: Tree")
    machine = (found.get("spec") or {}).get("stateMachine")
    if machine != StateMachine.TREE:
        raise ValueError(f"{KIND} {name} has the state machine {machine}: name one with stateMachine: Tree")
    if not (found.get("status") or {}).get("activeGeneration"):
        raise ValueError(f"{KIND} {name} does not serve yet: `pavane why raft/{name}` says what it waits for")
    secret = references.get(name_of(name))
    if secret is None:
        raise ValueError(f"Secret {name_of(name)} of {KIND} {name} does not exist")
    return known(secret, _secret_ref(found), references)


def _secret_ref(document: Mapping[str, Any] | None) -> SecretRef | None:
    given = ((document or {}).get("spec") or {}).get("secretRef")
    return None if given is None else SecretRef.model_validate(given)

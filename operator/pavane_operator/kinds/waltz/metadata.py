"""The RaftCluster that holds the metadata: what of it servers and the operator get to see.

Servers get the keys of a client, never those of a Raft server (docs/specs/operator.md 1.9).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pavane.pods.waltz_settings import ADDRESSES_FILE
from pavane.raft.keys import CLIENT_PUBLIC_KEY, CLIENT_SECRET_KEY, IDENT_KEY, SERVER_PUBLIC_KEY, RaftKeys
from pavane_operator.crds import raftcluster
from pavane_operator.crds.raftcluster import SecretRef, StateMachine
from pavane_operator.crds.waltzcluster import WaltzClusterSpec
from pavane_operator.kinds.raft.keys import known, name_of
from pavane_operator.kinds.raft.names import RAFT_PORT

KIND = raftcluster.DEFINITION.name


def target(spec: WaltzClusterSpec) -> str:
    """The RaftCluster as `Kind/name`."""
    return f"{KIND}/{spec.metadata.raft_cluster_ref.name}"


def secrets(spec: WaltzClusterSpec, targets: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the Secrets that hold its keys."""
    given = _secret_ref(targets.get(target(spec)))
    return (name_of(spec.metadata.raft_cluster_ref.name), *(() if given is None else (given.name,)))


def keys(spec: WaltzClusterSpec, references: Mapping[str, Any]) -> RaftKeys:
    """Keys of a client. Raises ValueError, in words for the user, while the cluster cannot be used."""
    name = spec.metadata.raft_cluster_ref.name
    found = references.get(target(spec))
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


def url(spec: WaltzClusterSpec, namespace: str) -> str:
    """Where its clients connect: the public Service, whose name stays."""
    return f"tcp://{spec.metadata.raft_cluster_ref.name}.{namespace}.svc:{RAFT_PORT}"


def data(spec: WaltzClusterSpec, namespace: str, references: Mapping[str, Any]) -> dict[str, str]:
    """`data` of the Secret for servers. Raises ValueError as `keys`."""
    found = keys(spec, references)
    values = {ADDRESSES_FILE: f"{url(spec, namespace)}\n".encode(), IDENT_KEY: found.ident}
    if found.curve is not None:
        values |= {
            SERVER_PUBLIC_KEY: found.curve.server,
            CLIENT_PUBLIC_KEY: found.curve.public,
            CLIENT_SECRET_KEY: found.curve.secret,
        }
    return {name: base64.b64encode(value).decode() for name, value in values.items()}


def _secret_ref(document: Mapping[str, Any] | None) -> SecretRef | None:
    given = ((document or {}).get("spec") or {}).get("secretRef")
    return None if given is None else SecretRef.model_validate(given)

"""How the members and clients of a RaftCluster know each other: Secret `{name}-keys` (docs/specs/operator.md 4.1), and
the user's own with the ident where the spec names one (1.4)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import zmq
from zmq.utils import z85

from pavane.raft.keys import (
    CLIENT_PUBLIC_KEY,
    CLIENT_SECRET_KEY,
    IDENT_KEY,
    SERVER_PUBLIC_KEY,
    SERVER_SECRET_KEY,
    RaftKeys,
    ident_of,
)
from pavane_operator.crds.raftcluster import SecretRef

IDENT_BYTES = 16
"""Of the ident, written as 32 hex digits."""
CURVE_BYTES = 32


def name_of(resource_name: str) -> str:
    """Name of the Secret."""
    return f"{resource_name}-keys"


def known(secret: Mapping[str, Any], reference: SecretRef | None, references: Mapping[str, Any]) -> RaftKeys:
    """The keys of a cluster from its Secret `{name}-keys` and, where the spec names one, the user's among `references`.

    Raises ValueError, in words for the user, when one of them lacks something or holds what cannot be.
    """
    return RaftKeys.of(secret, None if reference is None else ident_given(reference, references))


def ident_given(reference: SecretRef, references: Mapping[str, Any]) -> bytes:
    """The ident that the user gave. Raises ValueError, in words for him, when there is none that can be used."""
    if reference.name not in references:
        raise ValueError(
            f"Secret {reference.name} does not exist: create it with the cluster's secret in {reference.key}"
        )
    return ident_of(references[reference.name], reference.key)


def generated(uid: str, secret_key: bytes, *, encrypted: bool, ident: bool) -> dict[str, str]:
    """`data` of the Secret for a new resource: derived, so that rendering twice gives the same (whoever creates it
    first decides); with pairs for CURVE where connections are `encrypted`, and an `ident` unless the user gives it."""

    def derived(purpose: bytes, size: int) -> bytes:
        return hashlib.blake2b(uid.encode(), key=secret_key, digest_size=size, person=purpose).digest()

    data = {IDENT_KEY: derived(b"", IDENT_BYTES).hex().encode()} if ident else {}
    if encrypted:
        server, client = (z85.encode(derived(purpose, CURVE_BYTES)) for purpose in (b"curve-server", b"curve-client"))
        data |= {SERVER_SECRET_KEY: server, SERVER_PUBLIC_KEY: zmq.curve_public(server)}
        data |= {CLIENT_SECRET_KEY: client, CLIENT_PUBLIC_KEY: zmq.curve_public(client)}
    return {key: base64.b64encode(value).decode() for key, value in data.items()}

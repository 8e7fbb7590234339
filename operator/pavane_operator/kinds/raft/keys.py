"""Secret `{name}-keys` of a RaftCluster (docs/specs/operator.md 4.1)."""

from __future__ import annotations

import base64
import hashlib

import zmq
from zmq.utils import z85

from pavane.raft.keys import (
    CLIENT_PUBLIC_KEY,
    CLIENT_SECRET_KEY,
    IDENT_KEY,
    SERVER_PUBLIC_KEY,
    SERVER_SECRET_KEY,
)

IDENT_BYTES = 16
"""Of the ident, written as 32 hex digits."""
CURVE_BYTES = 32


def name_of(resource_name: str) -> str:
    """Name of the Secret."""
    return f"{resource_name}-keys"


def generated(uid: str, secret_key: bytes, *, encrypted: bool) -> dict[str, str]:
    """`data` of the Secret for a new resource: derived, so that rendering twice gives the same (whoever creates it
    first decides); with pairs for CURVE where connections are `encrypted`."""

    def derived(purpose: bytes, size: int) -> bytes:
        return hashlib.blake2b(uid.encode(), key=secret_key, digest_size=size, person=purpose).digest()

    data = {IDENT_KEY: derived(b"", IDENT_BYTES).hex().encode()}
    if encrypted:
        server, client = (z85.encode(derived(purpose, CURVE_BYTES)) for purpose in (b"curve-server", b"curve-client"))
        data |= {SERVER_SECRET_KEY: server, SERVER_PUBLIC_KEY: zmq.curve_public(server)}
        data |= {CLIENT_SECRET_KEY: client, CLIENT_PUBLIC_KEY: zmq.curve_public(client)}
    return {key: base64.b64encode(value).decode() for key, value in data.items()}

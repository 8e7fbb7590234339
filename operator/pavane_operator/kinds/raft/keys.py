"""Secret `{name}-keys` of a RaftCluster: how its members and clients know each other (docs/specs/operator.md 4.1).

The only module that knows what the keys of this Secret are called; whoever opens a client reads them by `RaftKeys`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import zmq
from zmq.utils import z85

from pavane.raft.curve import CurveKeys

IDENT_KEY = "secret"
SERVER_SECRET_KEY = "curve-server.secret"  # noqa: S105 - a key's name, as are the next
SERVER_PUBLIC_KEY = "curve-server.public"
CLIENT_SECRET_KEY = "curve-client.secret"  # noqa: S105
CLIENT_PUBLIC_KEY = "curve-client.pub"
"""Ends as a peer wants it of the keys that it is to accept (docs/specs/raft.md 14.2)."""
IDENT_BYTES = 16
"""Of the ident, written as 32 hex digits."""
CURVE_BYTES = 32


@dataclass(frozen=True, slots=True)
class RaftKeys:
    """What a client of the cluster needs."""

    ident: bytes = field(repr=False)
    curve: CurveKeys | None
    """None for a cluster that speaks in clear."""

    @classmethod
    def of(cls, secret: Mapping[str, Any]) -> Self:
        """Take them from the Secret. Raises ValueError for one that lacks a key, or holds what is none."""
        data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
        return cls._from(data, f"Secret {secret['metadata']['name']}")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Take them from the folder where a pod sees the Secret. Raises OSError, and ValueError as `of` does."""
        return cls._from({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}, str(folder))

    @classmethod
    def _from(cls, data: Mapping[str, bytes], place: str) -> Self:
        needed = {IDENT_KEY}
        if SERVER_PUBLIC_KEY in data:
            needed |= {CLIENT_PUBLIC_KEY, CLIENT_SECRET_KEY}
        missing = sorted(needed - data.keys())
        if missing:
            raise ValueError(f"{place} lacks {', '.join(missing)}")
        curve = None
        if SERVER_PUBLIC_KEY in data:
            curve = CurveKeys(data[SERVER_PUBLIC_KEY], data[CLIENT_PUBLIC_KEY], data[CLIENT_SECRET_KEY])
        return cls(data[IDENT_KEY], curve)


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

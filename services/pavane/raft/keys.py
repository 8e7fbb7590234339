"""How members and clients of a cluster know each other, as a Secret holds it (docs/specs/raft.md 14.2).

The only module that knows what they are called; whoever opens a client for a RaftCluster reads them by `RaftKeys`.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pavane.raft.curve import CurveKeys

IDENT_MAX_BYTES = 256
"""Of an ident that a user gives: every message carries it. The protocol itself sets no limit."""
IDENT_KEY = "secret"
SERVER_SECRET_KEY = "curve-server.secret"  # noqa: S105 - a file's name, as are the next
SERVER_PUBLIC_KEY = "curve-server.public"
CLIENT_SECRET_KEY = "curve-client.secret"  # noqa: S105
CLIENT_PUBLIC_KEY = "curve-client.pub"  # ends as a peer wants it of the keys that it is to accept


def ident_in(content: bytes) -> bytes:
    """The ident that a file holds: editors, and ``echo``, end it with a newline (docs/specs/raft.md 16)."""
    return content.removesuffix(b"\n")


def ident_of(secret: Mapping[str, Any], key: str) -> bytes:
    """Take the ident from a Secret that a user made, as an API server shows it.

    Raises ``ValueError`` when the key is missing, or holds nothing or more than ``IDENT_MAX_BYTES``.
    """
    name = secret["metadata"]["name"]
    data = secret.get("data") or {}
    if key not in data:
        raise ValueError(f"Secret {name} lacks {key}")
    ident = ident_in(base64.b64decode(data[key]))
    if not 1 <= len(ident) <= IDENT_MAX_BYTES:
        raise ValueError(f"Secret {name}: {key} holds {len(ident)} bytes, where 1 to {IDENT_MAX_BYTES} are allowed")
    return ident


@dataclass(frozen=True, slots=True)
class RaftKeys:
    """What a client of the cluster needs; ``curve`` is ``None`` for a cluster that speaks in clear."""

    ident: bytes = field(repr=False)
    curve: CurveKeys | None

    @classmethod
    def of(cls, secret: Mapping[str, Any], ident: bytes | None = None) -> Self:
        """Take them from a Secret as an API server shows it; an ``ident`` that the user gave goes before its own.

        Raises ``ValueError`` for one that lacks a key, or holds what is none.
        """
        data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
        return cls._from(data, f"Secret {secret['metadata']['name']}", ident)

    @classmethod
    def read(cls, folder: Path, ident_file: Path | None = None) -> Self:
        """Take them from the folder where a pod sees the Secret, and the ident from ``ident_file`` if there is one.

        Raises ``OSError``, and ``ValueError`` as ``of``.
        """
        ident = None if ident_file is None else ident_in(ident_file.read_bytes())
        data = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return cls._from(data, str(folder), ident)

    @classmethod
    def _from(cls, data: Mapping[str, bytes], place: str, ident: bytes | None) -> Self:
        needed = {IDENT_KEY} if ident is None else set()
        if SERVER_PUBLIC_KEY in data:
            needed |= {CLIENT_PUBLIC_KEY, CLIENT_SECRET_KEY}
        missing = sorted(needed - data.keys())
        if missing:
            raise ValueError(f"{place} lacks {', '.join(missing)}")
        curve = None
        if SERVER_PUBLIC_KEY in data:
            curve = CurveKeys(data[SERVER_PUBLIC_KEY], data[CLIENT_PUBLIC_KEY], data[CLIENT_SECRET_KEY])
        return cls(data[IDENT_KEY] if ident is None else ident, curve)

"""How members and clients of a cluster know each other, as a Secret holds it (docs/specs/raft.md 14.2).

The only module that knows what they are called; whoever opens a client for a RaftCluster reads them by `RaftKeys`.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pavane.raft.curve import CurveKeys

IDENT_KEY = "secret"
SERVER_SECRET_KEY = "curve-server.secret"  # noqa: S105 - a file's name, as are the next
SERVER_PUBLIC_KEY = "curve-server.public"
CLIENT_SECRET_KEY = "curve-client.secret"  # noqa: S105
CLIENT_PUBLIC_KEY = "curve-client.pub"  # ends as a peer wants it of the keys that it is to accept


@dataclass(frozen=True, slots=True)
class RaftKeys:
    """What a client of the cluster needs; ``curve`` is ``None`` for a cluster that speaks in clear."""

    ident: bytes = field(repr=False)
    curve: CurveKeys | None

    @classmethod
    def of(cls, secret: Mapping[str, Any]) -> Self:
        """Take them from a Secret as an API server shows it.

        Raises ``ValueError`` for one that lacks a key, or holds what is none.
        """
        data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
        return cls._from(data, f"Secret {secret['metadata']['name']}")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Take them from the folder where a pod sees the Secret. Raises ``OSError``, and ``ValueError`` as ``of``."""
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

"""What a log holds, as applications see it (docs/specs/waltz.md 9.1)."""

from __future__ import annotations

from dataclasses import dataclass

from pavane.waltz.wire.fields import ReqId

Lock = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction; ``reqid`` is the identity of its append."""

    id: int
    header: int
    data: bytes
    reqid: ReqId

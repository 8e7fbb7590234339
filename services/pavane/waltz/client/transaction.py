"""What a log holds, as applications see it (docs/specs/waltz.md 9.1)."""

from __future__ import annotations

from typing import NamedTuple

from pavane.waltz.wire.fields import ReqId

Lock = tuple[str, int]


class Transaction(NamedTuple):
    """A committed transaction; ``reqid`` is the identity of its append."""

    id: int
    header: int
    data: bytes
    reqid: ReqId


class Trim(NamedTuple):
    """A partition began with ``former`` and begins with ``first`` now; its last transaction is ``hwm``."""

    former: int
    first: int
    hwm: int

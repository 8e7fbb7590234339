"""What servers tell on their ops ports of the archive: whether it takes anything (docs/specs/waltz.md 13.9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pydantic import BaseModel

from pavane_operator.plan.model import OwnCondition

PATH = "/partitions"
BEHIND = "ArchiveBehind"
"""Condition, and reason of it and of an event."""
BEHIND_S = 60
"""The archive has taken nothing for so long: less is a restart of the store."""
PARTITIONS_NAMED_MAX = 8


class Archive(BaseModel):
    """What one partition's owner tells; `fault` is empty while the archive takes what comes."""

    fault: str
    faulty_s: float
    faulty_ms: int
    """Since when, in milliseconds since 1970."""
    waiting_bytes: int


class Partition(BaseModel):
    """A partition of the server that was asked."""

    partition: int
    archive: Archive | None


class Owned(BaseModel):
    """All partitions of a server."""

    partitions: list[Partition]


def behind(told: Mapping[str, Owned]) -> OwnCondition | None:
    """Judge what the servers tell, by pod; None: none tells of an archive."""
    owned = [(one.partition, one.archive) for each in told.values() for one in each.partitions]
    known = {number: archive for number, archive in owned if archive is not None}
    if not known:
        return None
    away = {number: known[number] for number in sorted(known) if known[number].fault}
    away = {number: archive for number, archive in away.items() if archive.faulty_s >= BEHIND_S}
    if not away:
        return OwnCondition(BEHIND, False, "AllArchived")
    first = min(away.values(), key=lambda archive: archive.faulty_ms)
    since = datetime.fromtimestamp(first.faulty_ms // 1000, UTC).isoformat()
    waiting = _roughly(sum(archive.waiting_bytes for archive in away.values()))
    text = f"the archive has taken nothing of {_named(away)} since {since}, {waiting} wait: {first.fault}"
    return OwnCondition(BEHIND, True, BEHIND, text)


def _named(partitions: Iterable[int]) -> str:
    numbers = [str(number) for number in partitions]
    more = f" and {len(numbers) - PARTITIONS_NAMED_MAX} more" if len(numbers) > PARTITIONS_NAMED_MAX else ""
    return f"partition {', '.join(numbers[:PARTITIONS_NAMED_MAX])}{more}"


def _roughly(size: int) -> str:
    """Return a size that changes seldom: each change is a write of the status, and an event."""
    mib = size >> 20
    return f"{1 << mib.bit_length() - 1} MiB or more" if mib else "less than 1 MiB"

"""Recovery: what replicas hold and what was promised → what is in the log (docs/specs/waltz.md 13.4).

Everything here is a function of its arguments. Whoever drives a recovery asks the replicas, calls ``classify`` for each
answer and ``resolve`` whenever one has changed.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from pavane.waltz.wire.blobs import UNRESOLVED

NEVER = -1  # session id of a replica that no session has ever seen
EMPTY = -1


class Member(NamedTuple):
    """What the metadata say of a replica: its last session, and what the session after it decided."""

    session: int
    closing_hwm: int


class Info(NamedTuple):
    """What a storage node says of itself: its durable session, what was decided there, and its last transaction."""

    session: int
    lwm: int
    local_lwm: int
    max_txid: int


class Plan(NamedTuple):
    """How a replica takes part: cut it to ``truncate_to`` unless that is ``None``; with ``stamp`` note the cut at once.

    ``lossy``: its disk is older than what it has promised, so it may have acknowledged what it does not hold.
    """

    voting: bool = False
    lossy: bool = False
    truncate_to: int | None = None
    stamp: bool = False


class Report(NamedTuple):
    """What a replica holds at this moment of a recovery."""

    hwm: int
    voting: bool
    lossy: bool


class Verdict(Enum):
    """Why nothing is decided yet."""

    BLOCKED = "a transaction may be committed, and too few replicas are there to tell"
    NO_VOTER = "no replica of the last session may vote"


def classify(members: Mapping[str, Member], node: str, info: Info) -> Plan:
    """Return how the replica on ``node`` takes part in the recovery of a partition with these ``members``."""
    member = members.get(node)
    if member is None:
        # New, unless the partition is: then nobody has anything that counts.
        return Plan(truncate_to=info.lwm) if members else Plan(voting=True)
    if info.session < member.session:
        kept = info.lwm if member.closing_hwm == UNRESOLVED else min(info.lwm, member.closing_hwm)
        return Plan(lossy=True, truncate_to=kept)
    if member.closing_hwm != UNRESOLVED and info.session <= max(other.session for other in members.values()):
        return Plan(truncate_to=member.closing_hwm if member.session != NEVER else EMPTY, stamp=True)
    return Plan(voting=info.max_txid >= info.lwm)


def resolve(members: Iterable[str], reports: Mapping[str, Report]) -> int | Verdict:
    """Return the last transaction that is in the log, or why that cannot be said yet.

    ``members`` are the replicas of the last session; only their reports count.
    """
    last = set(members)
    if not last:
        return EMPTY
    counted = [report for node, report in reports.items() if node in last]
    quorum = len(last) // 2 + 1
    absent = len(last) - len(counted)
    voting = [report.hwm for report in counted if report.voting]
    if not voting:
        return Verdict.NO_VOTER

    def supports(txid: int) -> int:
        return sum(report.hwm >= txid for report in counted)

    for txid in sorted({report.hwm for report in counted}, reverse=True):
        if txid < min(voting):
            break
        if supports(txid) >= quorum:
            after = txid + 1
            return txid if supports(after) + absent + _lost(counted, after) < quorum else Verdict.BLOCKED
        if supports(txid) + absent + _lost(counted, txid) >= quorum:
            return Verdict.BLOCKED
    return Verdict.BLOCKED


def _lost(reports: Iterable[Report], txid: int) -> int:
    """Return how many may have acknowledged ``txid`` and do not hold it any more."""
    return sum(report.lossy and report.hwm < txid for report in reports)


def usher(reports: Mapping[str, Report]) -> str | None:
    """Return the replica from which the others copy while nothing is decided: one that holds most."""
    return max(reports, key=lambda node: (reports[node].hwm, node), default=None)


def next_members(
    members: Mapping[str, Member], assigned: Iterable[str], clean: Iterable[str], session: int, resolved: int
) -> dict[str, Member]:
    """Return what the metadata say of the replicas once ``session`` has resolved; ``clean`` ones took part."""
    clean = set(clean)
    after = {}
    for node in assigned:
        before = members.get(node)
        if node in clean:
            after[node] = Member(session, UNRESOLVED)
        elif before is None:
            after[node] = Member(NEVER, NEVER)
        elif before.closing_hwm == UNRESOLVED:
            after[node] = Member(before.session, resolved)
        else:
            after[node] = before
    return after

"""Which Backups `spec.backup` of a RaftCluster makes and clears away, and what its condition says; without I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pavane_operator.crds.backup import BackedUpKind, BackupStatus, Phase, ScheduledBackup
from pavane_operator.crds.base import RESOURCE_NAME_MAX_CHARACTERS
from pavane_operator.cron import Schedule
from pavane_operator.kinds.backup.deciding import SHORT, age, cannot_begin, ended, phase_of, source_of
from pavane_operator.plan.model import BACKUP_FAILED, OwnCondition

SCHEDULED_LABEL = "pavane.dev/scheduled-for"
"""Of a Backup: the cluster whose schedule made it."""
TIME_FORMAT = "%y%m%d%H%M"
"""In names, UTC: each due time has another."""
STEM_MAX_CHARACTERS = RESOURCE_NAME_MAX_CHARACTERS - len("-2601010230")
DIGEST_DIGITS = 5
"""At the end of a stem that had to be cut, so that two of them differ."""

Object = Mapping[str, Any]


def scheduled(cluster: Object, backups: Sequence[Object]) -> list[Object]:
    """Return the Backups that the schedule of a cluster made, the newest first."""
    name = cluster["metadata"]["name"]
    place = (cluster["metadata"]["namespace"], cluster["kind"], name)
    found = [
        body
        for body in backups
        if source_of(body) == place and (body["metadata"].get("labels") or {}).get(SCHEDULED_LABEL) == name
    ]
    return sorted(found, key=age, reverse=True)


def due(cluster: Object, backups: Sequence[Object], now: datetime) -> dict[str, Any] | None:
    """Return the Backup that is due of a cluster; None if there is none.

    Of all runs that were missed it is the last one. While another of the schedule has not ended, none is due; nor is
    one of a time before the newest: a schedule that was changed makes nothing for days that have gone.
    """
    wanted = wanted_of(cluster)
    if wanted is None or cannot_begin(cluster):
        return None
    of_schedule = scheduled(cluster, backups)
    if not all(map(ended, of_schedule)):
        return None
    try:
        at = Schedule.parse(wanted.schedule, wanted.time_zone).last(now)
    except ValueError:
        return None  # `told` says so
    if at is None:
        return None
    namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
    # One of another kind may have the same name.
    stem = name if cluster["kind"] == BackedUpKind.RAFT_CLUSTER else f"{name}-{SHORT[cluster['kind']]}"
    called = f"{_stem(stem)}-{at:{TIME_FORMAT}}"
    newest = max((str(body["metadata"]["name"]) for body in of_schedule), default="")
    if newest >= called:  # the time in names has a fixed width
        return None
    if any((namespace, called) == (body["metadata"]["namespace"], body["metadata"]["name"]) for body in backups):
        return None
    store = wanted.model_dump(mode="json", by_alias=True, exclude_none=True, include={"url", "secret_name", "keep"})
    return {
        "metadata": {"name": called, "namespace": namespace, "labels": {SCHEDULED_LABEL: name}},
        "spec": {"of": {"kind": cluster["kind"], "name": name}, **store},
    }


def surplus(cluster: Object, backups: Sequence[Object]) -> list[Object]:
    """Return those of the schedule that are to be deleted: as many of each sort stay as copies do, the newest."""
    wanted = wanted_of(cluster)
    if wanted is None:
        return []
    found = [body for body in scheduled(cluster, backups) if ended(body)]
    good = [body for body in found if phase_of(body) is Phase.COMPLETE]
    kept = [*good[: wanted.keep], *(body for body in found[: wanted.keep] if body not in good)]
    return [body for body in found if body not in kept]


def told(cluster: Object, backups: Sequence[Object], now: datetime) -> tuple[OwnCondition, ...]:
    """Return what a cluster says of its backups; nothing without a schedule."""
    wanted = wanted_of(cluster)
    if wanted is None:
        return ()
    try:
        if Schedule.parse(wanted.schedule, wanted.time_zone).last(now) is None:
            raise ValueError(f"schedule {wanted.schedule!r} names no day that comes")
    except ValueError as error:
        return (OwnCondition(BACKUP_FAILED, True, "InvalidSchedule", f"spec.backup: {error}"),)
    found = [body for body in scheduled(cluster, backups) if ended(body)]
    good = next((body for body in found if phase_of(body) is Phase.COMPLETE), None)
    last = f"the last good one is {_named(good)}" if good is not None else "there is no good one"
    if not found:
        return (OwnCondition(BACKUP_FAILED, False, "NoneYet"),)
    if found[0] is good:
        return (OwnCondition(BACKUP_FAILED, False, "LastVerified", last),)
    failed = found[: found.index(good)] if good is not None else found
    status = BackupStatus.parse(failed[0].get("status")) or BackupStatus()
    words = next((each.message for each in status.conditions if each.type == "Failed"), "")
    many = f"{len(failed)} in a row since {_named(failed[-1])}; " if len(failed) > 1 else ""
    text = f"{many}Backup {_named(failed[0])}: {words}; {last}"
    return (OwnCondition(BACKUP_FAILED, True, "LastFailed", text),)


def wanted_of(cluster: Object) -> ScheduledBackup | None:
    """Return `spec.backup` of a cluster."""
    given = (cluster.get("spec") or {}).get("backup")
    return None if given is None else ScheduledBackup.model_validate(given, extra="ignore")


def _named(body: Object) -> str:
    """Name of a Backup, and when it ended."""
    status = BackupStatus.parse(body.get("status")) or BackupStatus()
    when = f" of {status.completed_at:%F %R} UTC" if status.completed_at is not None else ""
    return f"{body['metadata']['name']}{when}"


def _stem(name: str) -> str:
    if len(name) <= STEM_MAX_CHARACTERS:
        return name
    digest = hashlib.blake2b(name.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{name[: STEM_MAX_CHARACTERS - DIGEST_DIGITS]}{digest}"

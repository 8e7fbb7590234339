"""What is to be done for a Backup, and what its status says; without I/O (docs/specs/operator.md 1.10).

The status is written before what it says is done: an operator that is killed between two calls finds the rest again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ValidationError

from pavane_operator.crds.backup import DEFINITION, BackedUpKind, BackupStatus, Phase
from pavane_operator.crds.status import Truth, condition_of
from pavane_operator.objects.names import Names
from pavane_operator.plan.model import parse_time

NAMES = {
    "RaftCluster": Names(DEFINITION.name, "raft"),
    "Coordinator": Names(DEFINITION.name, "coordinator"),
    "WaltzCluster": Names(DEFINITION.name, "waltz"),
}
"""Of the pod, by the kind of what it copies."""
DEADLINE = timedelta(hours=4)
"""Of a Backup since it was created: one that hangs, or waits for a cluster that never comes, holds up no other."""
ATTEMPTS_MAX = 5
"""Pods, one after the other: a store that is away for a few minutes costs no backup."""
RETRY = timedelta(seconds=15)
"""Before the second attempt; twice as long before each further one, 4 minutes in all."""

UID_CHARACTERS = 8
"""Of a uid in names: what is before its first dash."""
CREATING_MAX = timedelta(minutes=1)
"""A kubelet gives no reason while a Secret is missing; beyond this time that is more likely than a slow pull."""
SHORT = {"RaftCluster": "raft", "Coordinator": "coord", "WaltzCluster": "waltz"}
"""How commands call a kind."""
STOPPING_MAX = timedelta(minutes=1)
"""Beyond its grace period: a pod that is deleted longer is on a node that is gone, and never says that it has ended."""

Object = Mapping[str, Any]
Source = tuple[str, str, str]
"""Namespace, kind and name of what is backed up."""


class Made(BaseModel):
    """What the pod tells of a backup that it has made and read back."""

    index: int
    bytes: int
    digest: str
    kept: str
    until: str = ""
    """Where it ends, in words."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What comes next for a Backup."""

    status: BackupStatus
    start: bool = False
    """The pod of the attempt is to be there."""


def url_of(body: Object, cluster: Object) -> str:
    """Where the backup is: below the URL of the spec, in a folder that no other Backup has.

    Another Backup of this name, after the deletion of this one, gets another. It begins with the cluster, so that
    `keep` counts no copies of another one: one of its name, or one of another installation with the same URL.
    """
    own, of = body["metadata"], cluster["metadata"]
    return f"{body['spec']['url'].rstrip('/')}/{of['uid'][:UID_CHARACTERS]}-{own['name']}-{own['uid'][:UID_CHARACTERS]}"


def phase_of(body: Object) -> Phase:
    """Where a Backup stands, as stored."""
    return (BackupStatus.parse(body.get("status")) or BackupStatus()).phase or Phase.PENDING


def ended(body: Object) -> bool:
    """Whether nothing is to be done for it any more."""
    return phase_of(body) in (Phase.COMPLETE, Phase.FAILED)


def turns(backups: Iterable[Object]) -> dict[Source, Object]:
    """Return whose turn it is, by what it copies (`source_of`): one that runs, else the oldest."""
    found: dict[Source, Object] = {}
    for body in sorted(backups, key=lambda each: (phase_of(each) is not Phase.RUNNING, age(each))):
        if not ended(body):
            found.setdefault(source_of(body), body)
    return found


def source_of(body: Object) -> Source:
    """Return namespace, kind and name of what it is a backup of."""
    of = body["spec"]["of"]
    return body["metadata"]["namespace"], of.get("kind", BackedUpKind.RAFT_CLUSTER.value), of["name"]


def words_of(body: Object) -> str:
    """Kind and name of what it is a backup of."""
    _, kind, name = source_of(body)
    return f"{kind} {name}"


def decide(body: Object, first: Object, cluster: Object | None, pod: Object | None, now: datetime) -> Decision:
    """Say what comes next for a Backup that has not ended.

    Args:
        body: The Backup.
        first: Whose turn it is to copy the cluster.
        cluster: What it is a backup of; None = there is none.
        pod: Of the present attempt; None = there is none.
        now: The time.
    """
    status = BackupStatus.parse(body.get("status")) or BackupStatus()
    ran = _terminated(body, pod or {})
    if status.phase is Phase.RUNNING and (made := _made(ran)) is not None:
        return _complete(body, status, made, now)  # past its time, too: the copy is there
    created = parse_time(body["metadata"].get("creationTimestamp"))
    if created is not None and now - created > DEADLINE:
        last = _said(status, "Complete")
        hours = DEADLINE // timedelta(hours=1)
        return _failed(
            body, status, "DeadlineExceeded", f"not done within {hours} hours{f': {last}' if last else ''}", now
        )
    if status.phase is not Phase.RUNNING:
        waits = _waits(body, first, cluster)
        if cluster is None or waits is not None:
            return Decision(_next(body, status, Phase.PENDING, *(waits or _missing(body)), now))
        if (never := refusal(cluster)) is not None:
            return _failed(body, status, *never, now)
        told = {"started_at": now.replace(microsecond=0), "attempt": 1, "url": url_of(body, cluster)}
        begun = status.model_copy(update=told)
        return Decision(_next(body, begun, Phase.RUNNING, "Copying", "", now), start=True)
    if pod is None:
        if status.retry_at is not None and now < status.retry_at:
            return Decision(_again(body, status, now))
        if cluster is None:
            return _failed(body, status, "ClusterMissing", f"{words_of(body)} is gone", now)
        return Decision(_again(body, status, now), start=True)
    if not ran and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") and not _is_lost(pod, now):
        return Decision(_next(body, status, Phase.RUNNING, *_held_up(body, pod, _said(status, "Complete"), now), now))
    words = _last_words(body, pod, ran) or "its pod was ended before it was done"
    attempt = status.attempt or 1
    if attempt >= ATTEMPTS_MAX:
        return _failed(body, status, "AttemptsFailed", f"{attempt} attempts failed, the last: {words}", now)
    later = {"attempt": attempt + 1, "retry_at": now.replace(microsecond=0) + RETRY * 2 ** (attempt - 1)}
    text = f"attempt {attempt} of {ATTEMPTS_MAX} failed: {words}"
    return Decision(_next(body, status.model_copy(update=later), Phase.RUNNING, "Retrying", text, now))


def refused(body: Object, status: BackupStatus, why: str, now: datetime) -> BackupStatus:
    """Return the status where the API server does not take the pod: it is tried again until the deadline."""
    return _next(body, status, Phase.RUNNING, "PodRefused", why, now)


def age(body: Object) -> tuple[str, str]:
    """What Backups are sorted by, the oldest first."""
    return str(body["metadata"].get("creationTimestamp", "")), str(body["metadata"]["name"])


def _waits(body: Object, first: Object, cluster: Object | None) -> tuple[str, str] | None:
    """Reason and message why it cannot begin."""
    if first["metadata"]["uid"] != body["metadata"]["uid"]:
        return "OneAtATime", f"Backup {first['metadata']['name']} of {words_of(body)} is first"
    if cluster is None:
        return _missing(body)
    return cannot_begin(cluster)


def _missing(body: Object) -> tuple[str, str]:
    return "ClusterMissing", f"there is no {words_of(body)}"


def cannot_begin(cluster: Object) -> tuple[str, str] | None:
    """Reason and message why a cluster cannot be copied now."""
    called = f"{cluster['kind']} {cluster['metadata']['name']}"
    if cluster["metadata"].get("deletionTimestamp"):
        return "ClusterMissing", f"{called} is being deleted"
    if (cluster.get("spec") or {}).get("suspend"):
        hint = f"start it with `pavane resume-resource {SHORT[cluster['kind']]}/{cluster['metadata']['name']}`"
        return "ClusterSuspended", f"{called} is suspended: {hint}"
    if not (cluster.get("status") or {}).get("activeGeneration"):
        return "ClusterNotReady", f"{called} has no active generation yet"
    return None


def refusal(cluster: Object) -> tuple[str, str] | None:
    """Reason and message why no backup of it can ever be made, as it is."""
    spec, called = cluster.get("spec") or {}, f"{cluster['kind']} {cluster['metadata']['name']}"
    if cluster["kind"] == BackedUpKind.COORDINATOR and spec.get("log") is not None:
        log = spec["log"]["waltzClusterRef"]["name"]
        return "LogOnWaltz", f"{called} keeps checkpoints and calls in WaltzCluster {log}: make a Backup of that"
    if cluster["kind"] == BackedUpKind.WALTZ_CLUSTER and spec.get("archive") is None:
        return "NoArchive", f"{called} has no spec.archive, of which its backups tell: add one"
    return None


def _terminated(body: Object, pod: Object) -> Object:
    """How its own container ended, empty while it has not: one that was put beside it may run for ever."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each.get("name") == NAMES[source_of(body)[1]].role:
            return (each.get("state") or {}).get("terminated") or {}
    return {}


def _is_lost(pod: Object, now: datetime) -> bool:
    deleted = parse_time((pod.get("metadata") or {}).get("deletionTimestamp"))
    return deleted is not None and now - deleted > STOPPING_MAX


def _made(terminated: Object) -> Made | None:
    if terminated.get("exitCode") != 0:
        return None
    try:
        return Made.model_validate(json.loads(terminated.get("message") or ""))
    except (ValueError, ValidationError):
        return None


def _last_words(body: Object, pod: Object, terminated: Object) -> str:
    if terminated.get("message"):
        return str(terminated["message"]).strip()
    if terminated.get("reason") == "OOMKilled":
        return f"out of memory: raise spec.resources of {words_of(body)}"
    status = pod.get("status") or {}
    return str(status.get("message") or status.get("reason") or "")


def _held_up(body: Object, pod: Object, before: str, now: datetime) -> tuple[str, str]:
    """What a pod that has not ended waits for; `before` was said until now."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return "PodPending", f"{waiting.get('reason', 'Waiting')}: {waiting['message']}"
        began = parse_time((pod.get("status") or {}).get("startTime"))
        if waiting and began is not None and now - began > CREATING_MAX:
            secret = body["spec"].get("secretName")
            asked = f": is there a Secret {secret}?" if secret else ""
            return "PodPending", f"its volumes or its image are not there yet{asked}"
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return "PodPending", str(each.get("message") or each.get("reason") or "")
    return ("Retrying", before) if before.startswith("attempt ") else ("Copying", "")


def _said(status: BackupStatus, kind: str) -> str:
    return next((each.message for each in status.conditions if each.type == kind), "")


def _again(body: Object, status: BackupStatus, now: datetime) -> BackupStatus:
    held = next((each for each in status.conditions if each.type == "Complete"), None)
    reason, text = (held.reason, held.message) if held is not None else ("Copying", "")
    return _next(body, status, Phase.RUNNING, reason, text, now)


def _complete(body: Object, status: BackupStatus, made: Made, now: datetime) -> Decision:
    told = {
        "completed_at": now.replace(microsecond=0),
        "index": made.index,
        "bytes": made.bytes,
        "digest": made.digest or None,
        "retry_at": None,
    }
    text = f"everything up to {made.until or f'entry {made.index}'}, read back and compared"
    text += f"; older backups were not deleted: {made.kept}" if made.kept else ""
    return Decision(_next(body, status.model_copy(update=told), Phase.COMPLETE, "Verified", text, now))


def _failed(body: Object, status: BackupStatus, reason: str, text: str, now: datetime) -> Decision:
    told = {"completed_at": now.replace(microsecond=0), "retry_at": None}
    text = f"{text}; correct what it names and create another Backup"
    return Decision(_next(body, status.model_copy(update=told), Phase.FAILED, reason, text, now))


def _next(body: Object, status: BackupStatus, phase: Phase, reason: str, message: str, now: datetime) -> BackupStatus:
    """Return the status with this phase, and the conditions that belong to it."""
    generation = body["metadata"].get("generation")
    found = [
        condition_of(status.conditions, kind, Truth(str(holds)), reason, message, generation=generation, now=now)
        for kind, holds in (("Complete", phase is Phase.COMPLETE), ("Failed", phase is Phase.FAILED))
    ]
    update = {"phase": phase, "observed_generation": generation, "conditions": found}
    return status.model_copy(update=update)

"""Which scripts a ComputeCluster is to have of its Dataflows, and what each Dataflow's status is; without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pavane.dataflow.ports import Script
from pavane_operator.crds.base import TEXT_MAX_CHARACTERS
from pavane_operator.crds.computecluster import LAG_DEFAULT
from pavane_operator.crds.dataflow import DataflowColumn, DataflowStatus, DataflowView
from pavane_operator.crds.status import Truth, condition_of
from pavane_operator.kinds.computecluster.scripts import Scripts

MANAGER = "pavane-dataflows"
"""Owns the scripts in ComputeClusters that Dataflows brought, and nothing else."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the script is accepted: reason and message of the condition Ready."""

    accepted: bool
    reason: str
    message: str
    script: Script | None = None
    """The script that the ComputeCluster is to have, also an earlier one."""


@dataclass(slots=True)
class Handing:
    """What one ComputeCluster gets."""

    scripts: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By name of the Dataflow."""


def owned(cluster: Object) -> set[str]:
    """Return the names of the scripts in a ComputeCluster that Dataflows brought."""
    found: set[str] = set()
    for entry in cluster["metadata"].get("managedFields") or ():
        if entry.get("manager") == MANAGER:
            fields = ((entry.get("fieldsV1") or {}).get("f:spec") or {}).get("f:scripts") or {}
            found |= {name.removeprefix("f:") for name in fields if name.startswith("f:")}
    return found


def handing(cluster: Object, dataflows: Iterable[Object]) -> Handing:
    """Return what a ComputeCluster is to have: the script of each Dataflow that is right, older Dataflows first.

    Of one that is refused the script that it brought before stays, so that nobody loses a view by a slip.
    """
    spec = cluster["spec"]
    present: Mapping[str, str] = spec.get("scripts") or {}
    brought = owned(cluster)
    checked = Scripts(spec["partitions"]["ticks"], spec["partitions"]["views"])
    result = Handing()
    for name, text in present.items():
        if name not in brought:
            checked.add(name, text)
    for body in sorted(dataflows, key=_age):
        name, text = body["metadata"]["name"], body["spec"]["script"]
        if name in present and name not in brought:
            message = f"ComputeCluster {cluster['metadata']['name']} has a script {name} of its own: remove one of them"
            result.verdicts[name] = Verdict(False, "NameTaken", message)
            continue
        found = checked.add(name, text)
        if not found:
            result.scripts[name] = text
            result.verdicts[name] = Verdict(True, "Accepted", "", checked.parsed[name])
            continue
        message = "; ".join(found)
        earlier = present.get(name)
        if earlier is not None and not checked.add(name, earlier):
            result.scripts[name] = earlier
            message += ". The views of the earlier script go on"
        result.verdicts[name] = Verdict(False, "InvalidScript", message, checked.parsed.get(name))
    return result


def _age(body: Object) -> tuple[str, str]:
    return str(body["metadata"].get("creationTimestamp", "")), str(body["metadata"]["name"])


def missing(cluster: str) -> Verdict:
    """The verdict while there is no such ComputeCluster."""
    return Verdict(False, "ComputeClusterMissing", f"there is no ComputeCluster {cluster}")


def status(
    body: Object, verdict: Verdict, cluster: Object | None, said: Mapping[str, Any] | None, now: datetime
) -> DataflowStatus:
    """Return the status of a Dataflow. `said` is what the pod that writes the views says of them, None if none does."""
    former = DataflowStatus.parse(body.get("status")) or DataflowStatus()
    generation = body["metadata"].get("generation")
    views = _views(verdict.script, said, former)
    wanted = (
        ("Ready", verdict.accepted, verdict.reason, verdict.message),
        ("UpToDate", *_up_to_date(body, verdict, cluster, said, views)),
    )
    own = {view.name for view in views}
    bad: dict[str, int] = {}
    for each in (said or {}).get("views", ()):
        bad |= each["badRows"] if each["name"] in own else {}
    return DataflowStatus(
        observed_generation=generation,
        views=views,
        bad_rows=former.bad_rows if said is None else sum(bad.values()),
        conditions=[
            condition_of(former.conditions, kind, Truth(str(holds)), reason, message, generation=generation, now=now)
            for kind, holds, reason, message in wanted
        ],
    )


def _views(script: Script | None, said: Mapping[str, Any] | None, former: DataflowStatus) -> list[DataflowView]:
    found = []
    known = {each["name"]: each for each in (said or {}).get("views", ())}
    before = {view.name: view for view in former.views}
    for view in script.views if script is not None else ():
        columns = [DataflowColumn(name=column.name, type=column.type) for column in view.columns]
        own = known.get(view.name)
        if own is None:
            last = before.get(view.name) if said is None else None
            frontier, lag = (last.frontier, last.lag) if last is not None else (None, None)
            found.append(DataflowView(name=view.name, columns=columns, frontier=frontier, lag=lag))
            continue
        found.append(
            DataflowView(
                name=view.name,
                columns=columns,
                frontier=own["upper"],
                lag=max(0, (said or {})["tick"] - own["upper"] + 1),
                failure=(own["failure"] or "")[:TEXT_MAX_CHARACTERS] or None,
            )
        )
    return found


def _up_to_date(
    body: Object,
    verdict: Verdict,
    cluster: Object | None,
    said: Mapping[str, Any] | None,
    views: Sequence[DataflowView],
) -> tuple[bool, str, str]:
    if cluster is None or verdict.script is None:
        return False, verdict.reason, "no view is kept up to date"
    if not verdict.accepted:
        return False, verdict.reason, "the views are those of the earlier script"
    name, text = body["metadata"]["name"], body["spec"]["script"]
    current = _current(cluster)
    if (cluster["spec"].get("scripts") or {}).get(name) != text or current is not None:
        return False, "RollingOut", current or "the ComputeCluster gets the script"
    failed = [f"{view.name}: {view.failure}" for view in views if view.failure]
    if failed:
        return False, "ViewFailed", "; ".join(failed)
    if said is None:
        return False, "NoPod", "the pod that keeps the views does not answer"
    unbuilt = [view.name for view in views if view.frontier is None]
    if unbuilt:
        return False, "NotHydrated", f"the view {unbuilt[0]} is being built"
    rollout = cluster["spec"].get("rollout") or {}
    allowed = (rollout.get("caughtUp") or {}).get("allowedLag", LAG_DEFAULT)
    late = [f"{view.name} lacks {view.lag} ticks" for view in views if (view.lag or 0) > allowed]
    return (False, "Lagging", "; ".join(late)) if late else (True, "UpToDate", "")


def _current(cluster: Object) -> str | None:
    """Return why a ComputeCluster's present scripts are not those of the generation that writes; None if they are."""
    held = cluster.get("status") or {}
    for condition in held.get("conditions") or ():
        if condition["type"] == "UpToDate":
            if condition.get("observedGeneration") != cluster["metadata"].get("generation"):
                return "the ComputeCluster starts a new generation"
            return None if condition["status"] == Truth.TRUE.value else condition.get("message") or condition["reason"]
    return "the ComputeCluster has no status yet"

"""What the metadata store says of a WaltzCluster, judged for the planner (docs/specs/operator.md 3.3). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pavane.waltz.wire.blobs import UNRESOLVED, PartitionAssignment, PartitionMetadata, Rollout
from pavane_operator.crds.waltzcluster import PartitionCounts, WaltzClusterSpec
from pavane_operator.plan.model import Facts, OwnCondition, Problem, Resource

SET_ROLLOUT = "SetRollout"
ALLOW_WRITES = "AllowWrites"


@dataclass(frozen=True, slots=True)
class Registry:
    """One look at the metadata store."""

    foreign: str = ""
    """Why nothing there may be touched: another cluster has the same root."""

    rollout: Rollout | None = None
    """None until the first generation was permitted to serve."""
    assignment: PartitionAssignment | None = None
    """Who serves which partition; None until the cluster's nodes are made."""
    consistent: bool = False
    """All servers that there are took part in the assignment, and no other."""
    servers: Mapping[int, int] | None = None
    """Live servers: id → number of their generation, 0 where they told none."""
    partitions: Mapping[int, PartitionMetadata] | None = None
    """By number; one that was never opened is missing."""


@dataclass(frozen=True, slots=True)
class _Counts:
    writable: frozenset[int]
    replicated: frozenset[int]
    quorate: frozenset[int]


def silent(spec: WaltzClusterSpec) -> Problem:
    """What is told while the store does not answer."""
    if spec.metadata.zookeeper is not None:
        servers = spec.metadata.zookeeper.connect_string
        return Problem("NoQuorum", f"ZooKeeper at {servers}, which holds the metadata, does not answer")
    return Problem("NoQuorum", "the RaftCluster with the metadata does not answer")


def facts(resource: Resource, registry: Registry | None) -> Facts:
    """Judge a look; None = the store did not answer."""
    spec = resource.spec
    assert isinstance(spec, WaltzClusterSpec)  # noqa: S101 - the registry parses by the kind's model
    status = resource.status
    coming = status.next_generation if status is not None else None
    active = status.active_generation if status is not None else None
    if registry is None or registry.foreign:
        problem = silent(spec) if registry is None else Problem("ReferenceNotReady", registry.foreign)
        conditions = _unknown(problem) if active else ()
        return Facts(safety=problem, exchange=problem, members=frozenset(), conditions=conditions)
    counts = _counts(registry, spec.storage.nodes)
    total, number = spec.partitions, registry.rollout.number if registry.rollout is not None else None
    writable = len(counts.writable)
    done = number is not None and coming is not None and number >= coming
    return Facts(
        leads=coming is not None and _leads(registry, counts, total, coming),
        safety=_safety(counts, total, bootstrap=not active),
        steps_done=frozenset({SET_ROLLOUT}) if done else frozenset(),
        fence=number,
        down=_down(writable, total) if active else None,
        exchange=_exchange(registry, counts, total),
        members=frozenset(),
        settling=bool(active) and (writable < total or len(counts.replicated) < total),
        own_status={
            "partitions": PartitionCounts(total=total, writable=writable, replicated=len(counts.replicated)),
            "writable": f"{writable}/{total}",
        },
        conditions=_conditions(counts, total) if active else (),
    )


def _counts(registry: Registry, nodes: int) -> _Counts:
    """Which partitions accept appends now, and which have all their replicas, or a majority of them."""
    writable, replicated, quorate = set(), set(), set()
    live, known = registry.servers or {}, registry.partitions or {}
    for partition, metadata in known.items():
        current = sum(
            replica.session == metadata.session and replica.closing_hwm == UNRESOLVED for replica in metadata.replicas
        )
        if current > nodes // 2:
            quorate.add(partition)
        if current >= nodes:
            replicated.add(partition)
    for server in registry.assignment.servers if registry.assignment is not None else ():
        for given in server.partitions:
            opened = known.get(given.partition)
            current_owner = opened is not None and opened.generation == given.generation
            if server.server_id in live and current_owner and given.partition in quorate:
                writable.add(given.partition)
    return _Counts(frozenset(writable), frozenset(replicated), frozenset(quorate))


def _leads(registry: Registry, counts: _Counts, total: int, coming: int) -> bool:
    """Every partition takes appends at a server of the generation, and of no other."""
    owners = {
        server.server_id
        for server in (registry.assignment.servers if registry.assignment is not None else ())
        if server.partitions
    }
    live = registry.servers or {}
    return (
        registry.consistent
        and registry.rollout is not None
        and registry.rollout.number == coming
        and bool(owners)
        and all(live.get(owner) == coming for owner in owners)
        and len(counts.writable) == total
    )


def _safety(counts: _Counts, total: int, *, bootstrap: bool) -> Problem | None:
    if bootstrap or len(counts.quorate) == total:
        return None
    return Problem("NoQuorum", f"{total - len(counts.quorate)} of {total} partitions lack a majority of their replicas")


def _down(writable: int, total: int) -> Problem | None:
    if writable == total:
        return None
    return Problem("NoQuorum", f"{total - writable} of {total} partitions accept no appends")


def _exchange(registry: Registry, counts: _Counts, total: int) -> Problem | None:
    """Why no storage node may be stopped now: each partition has to be able to do without one."""
    if not registry.consistent:
        return Problem("NotLeading", "partitions are being moved")
    missing = total - len(counts.replicated)
    if missing:
        return Problem("ReplicasMissing", f"{missing} of {total} partitions lack a replica on a storage node")
    return None


def _conditions(counts: _Counts, total: int) -> tuple[OwnCondition, ...]:
    writable, replicated = len(counts.writable), len(counts.replicated)
    return (
        OwnCondition(
            "WritesAllowed",
            writable == total,
            "AllWritable" if writable == total else "NotWritable",
            f"{writable} of {total} partitions accept appends",
        ),
        OwnCondition(
            "LogHealthy",
            replicated == total,
            "AllReplicated" if replicated == total else "ReplicasMissing",
            f"{replicated} of {total} partitions have all their replicas",
        ),
    )


def _unknown(problem: Problem) -> tuple[OwnCondition, ...]:
    return tuple(OwnCondition(name, None, problem.reason, problem.message) for name in ("WritesAllowed", "LogHealthy"))

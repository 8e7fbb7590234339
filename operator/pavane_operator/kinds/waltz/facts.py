"""What the metadata store says of a WaltzCluster, judged for the planner (docs/specs/operator.md 3.3). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from pavane.waltz.core.retention import STUCK_S
from pavane.waltz.wire.blobs import UNRESOLVED, PartitionAssignment, PartitionMetadata, Rollout
from pavane_operator.crds.waltzcluster import PartitionCounts, WaltzClusterSpec
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.waltz import archives, names
from pavane_operator.kinds.waltz.copies import Faults, Told
from pavane_operator.plan.model import Facts, OwnCondition, Problem, Resource

SET_ROLLOUT = "SetRollout"
ALLOW_WRITES = "AllowWrites"
SET_REPLICAS = "SetReplicas"
"""The step that tells the registry how many partitions there are, and on which storage nodes."""
UNUSABLE = "CopyUnusable"
"""Reason: a storage node does not use its copy of a partition, for it is damaged or its disk has failed."""
REBUILT = "CopyRebuilt"
"""Reason of an event: a copy was damaged, and was rebuilt from the others."""
REGISTRY_LOST = "RegistryLost"
"""Reason: the metadata store holds nothing of this log, which has served before."""
NAMED_MAX = 8
"""Copies that a message names; the rest is counted. Each has an event of its own."""


NOTHING_TOLD: Mapping[str, Told] = MappingProxyType({})


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
    storage: tuple[str, ...] = ()
    """Storage nodes, `host:port`, on which it says that partitions are to be."""
    total: int = 0
    """How many partitions the registry says there are; 0 while its nodes are not made."""
    keys: int = 0
    """With how many it was made."""
    partitions: Mapping[int, PartitionMetadata] | None = None
    """By number; one that was never opened is missing."""
    looked_ms: int = 0
    """When, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class _Counts:
    writable: frozenset[int]
    replicated: frozenset[int]
    quorate: frozenset[int]


ROOM = "VolumesHaveRoom"


def silent(spec: WaltzClusterSpec) -> Problem:
    """What is told while the store does not answer."""
    if spec.metadata.zookeeper is not None:
        servers = spec.metadata.zookeeper.connect_string
        return Problem("NoQuorum", f"ZooKeeper at {servers}, which holds the metadata, does not answer")
    return Problem("NoQuorum", "the RaftCluster with the metadata does not answer")


def facts(
    resource: Resource,
    registry: Registry | None,
    told: Mapping[str, Told] = NOTHING_TOLD,
    ready: Set[str] = frozenset(),
    owned: Mapping[str, archives.Owned] = MappingProxyType({}),
    standing: Set[str] = frozenset(),
) -> Facts:
    """Judge a look; None = the store did not answer. `told` is what storage nodes say of themselves, `standing` are
    their pods and `ready` those that are, `owned` is what servers say of their partitions."""
    found = _facts(resource, registry, {pod: each.faults for pod, each in told.items() if each.faults}, ready)
    found = replace(found, warnings=(*found.warnings, *_rebuilt(told)))
    if found.conditions and (behind := archives.behind(owned)) is not None:
        events = (Problem(behind.reason, behind.message),) if behind.status else ()
        found = replace(found, conditions=(*found.conditions, behind), warnings=(*found.warnings, *events))
    room = _room(resource, told, standing) if found.conditions else ()
    return replace(found, conditions=(*found.conditions, *room))


def _rebuilt(told: Mapping[str, Told]) -> Iterator[Problem]:
    """Copies that are whole again: often nobody has looked between the damage and the repair."""
    for pod, each in sorted(told.items()):
        for partition, text in sorted(each.mended.items()):
            yield Problem(REBUILT, f"storage node {pod}, partition {partition}: {text}; it was copied from the others")


def _room(resource: Resource, told: Mapping[str, Told], standing: Set[str]) -> tuple[OwnCondition, ...]:
    """Of a node that does not answer now, what was last known of it counts."""
    conditions = resource.status.conditions if resource.status is not None else ()
    former = next((each for each in conditions if each.type == ROOM), None)
    if not told and (former is None or not standing):
        return ()
    named = set((former.message or "").split()) & (standing - told.keys()) if former is not None else set()
    full = sorted({pod for pod, each in told.items() if each.full} | named)
    if full:
        text = f"the volume of storage node {' and '.join(full)} is full: it takes no appends"
        return (OwnCondition(ROOM, False, "VolumeFull", text),)
    return (OwnCondition(ROOM, True, "HasRoom"),)


def _facts(resource: Resource, registry: Registry | None, faults: Faults, ready: Set[str]) -> Facts:
    spec = spec_of(resource, WaltzClusterSpec)
    status = resource.status
    coming = status.next_generation if status is not None else None
    active = status.active_generation if status is not None else None
    if registry is None or registry.foreign:
        problem = silent(spec) if registry is None else Problem("ReferenceNotReady", registry.foreign)
        conditions = _unknown(problem, faults) if active else ()
        warnings = _warnings(faults)
        return Facts(safety=problem, exchange=problem, members=frozenset(), conditions=conditions, warnings=warnings)
    if active and registry.assignment is None:
        return _registry_lost(resource, spec, faults)
    counts = _counts(registry, spec.storage.nodes)
    total, number = registry.total or spec.partitions, registry.rollout.number if registry.rollout is not None else None
    moving = _moving(registry)
    writable, born = len(counts.writable), total - len(_unborn(registry, total))
    lost = _lost(faults, registry.partitions or {}, spec.storage.nodes)
    back = bool(active and coming and coming < active)  # then the greater number is the one that is left
    done = number is not None and coming is not None and (number == coming if back else number >= coming)
    return Facts(
        leads=coming is not None and _leads(registry, counts, total, coming),
        safety=_safety(counts, born, lost, bootstrap=not active),
        steps_done=frozenset({SET_ROLLOUT}) if done else frozenset(),
        fence=number,
        left=registry.rollout.left or None if registry.rollout is not None else None,
        down=_down(writable, born, lost) if active else None,
        due=SET_REPLICAS if active and coming is None and _misplaced(resource, registry, spec, ready) else None,
        standing=_needed(registry),
        exchange=_exchange(registry, counts, total, moving),
        members=frozenset(),
        settling=bool(active)
        and (moving > 0 or writable < total or len(counts.replicated) < total or any(faults.values())),
        own_status={
            "partitions": PartitionCounts(
                total=total,
                writable=writable,
                replicated=len(counts.replicated),
                trimmed=sum(one.start > 0 for one in (registry.partitions or {}).values()),
                nodes=len(registry.storage) or None,
                moving=moving or None,
                keys=registry.keys or None,
            ),
            "writable": f"{writable}/{total}",
        },
        conditions=(*_conditions(counts, total, faults, moving), _stuck(registry)) if active else (),
        warnings=_warnings(faults),
    )


def _registry_lost(resource: Resource, spec: WaltzClusterSpec, faults: Faults) -> Facts:
    """No server makes the nodes of a log that has served: it would begin anew, beside storage that knows better."""
    ref = spec.metadata.raft_cluster_ref
    store = "ZooKeeper" if ref is None else f"RaftCluster {ref.name}"
    mend = "bring its former data back" if ref is None else f"`pavane waltz adopt {resource.name}` makes it again"
    problem = Problem(
        REGISTRY_LOST,
        f"{store} holds nothing of WaltzCluster {resource.name}, as if it was deleted and created again: {mend}; "
        "the storage nodes still hold the log",
    )
    own = OwnCondition("WritesAllowed", False, problem.reason, problem.message)
    healthy = _unusable(faults) or OwnCondition("LogHealthy", None, problem.reason, problem.message)
    return Facts(
        down=problem,
        safety=problem,
        exchange=problem,
        members=frozenset(),
        settling=True,
        conditions=(own, healthy),
        warnings=_warnings(faults),
    )


def _misplaced(resource: Resource, registry: Registry, spec: WaltzClusterSpec, ready: Set[str]) -> bool:
    """Whether the registry is to be told of partitions, or of storage nodes, the new ones of which are there."""
    wanted = names.storage_addresses(resource.name, resource.namespace, spec.storage.nodes)
    added = {address.partition(".")[0] for address in set(wanted) - set(registry.storage)}
    differs = 0 < registry.total < spec.partitions or (registry.storage and set(wanted) != set(registry.storage))
    return registry.consistent and bool(differs) and added <= ready


def _moving(registry: Registry) -> int:
    """How many partitions count on other storage nodes than they are to."""
    wanted, known = set(registry.storage), (registry.partitions or {}).values()
    return sum(bool(wanted and one.replicas) and {each.address for each in one.replicas} != wanted for one in known)


def _needed(registry: Registry) -> int:
    """As many storage pods as there have to be: those on which partitions count, or are to."""
    known = (registry.partitions or {}).values()
    addresses = {*registry.storage, *(each.address for one in known for each in one.replicas)}
    numbers = [one.partition(".")[0].rpartition("-")[2] for one in addresses]
    return max((1 + int(number) for number in numbers if number.isdecimal()), default=0)


def _unborn(registry: Registry, total: int) -> set[int]:
    """Partitions that were added and have never been open: nobody misses their appends."""
    return set(range(total)) - set(registry.partitions or {})


def _counts(registry: Registry, nodes: int) -> _Counts:
    """Which partitions accept appends now, and which have all their replicas, or a majority of them."""
    writable, replicated, quorate = set(), set(), set()
    live, known = registry.servers or {}, registry.partitions or {}
    for partition, metadata in known.items():
        current = sum(
            replica.session == metadata.session and replica.closing_hwm == UNRESOLVED for replica in metadata.replicas
        )
        members = len(metadata.replicas) or nodes
        if current > members // 2:
            quorate.add(partition)
        if current >= members:
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


def _lost(faults: Faults, known: Mapping[int, PartitionMetadata], nodes: int) -> Problem | None:
    """Partitions that lack a majority of usable copies among those that count; None = there are none."""
    told: dict[int, list[str]] = {}
    for pod, found in faults.items():
        for partition in found:
            told.setdefault(partition, []).append(pod)
    lost = set[int]()
    for partition, pods in told.items():
        counting = {one.address.partition(".")[0] for one in known[partition].replicas} if partition in known else set()
        total, gone = (len(counting), len(counting & set(pods))) if counting else (nodes, len(pods))
        if total - gone <= total // 2:
            lost.add(partition)
    if not lost:
        return None
    these = {pod: {number: found[number] for number in found if number in lost} for pod, found in faults.items()}
    return Problem(UNUSABLE, f"too few copies are left of {len(lost)} partitions: {_named(these)}")


def _named(faults: Faults) -> str:
    told = [
        f"storage node {pod}, partition {partition}: {text}"
        for pod, found in sorted(faults.items())
        for partition, text in sorted(found.items())
    ]
    more = f"; and {len(told) - NAMED_MAX} more" if len(told) > NAMED_MAX else ""
    return "; ".join(told[:NAMED_MAX]) + more


def _warnings(faults: Faults) -> tuple[Problem, ...]:
    return tuple(
        Problem(UNUSABLE, _named({pod: {partition: text}}))
        for pod, found in sorted(faults.items())
        for partition, text in sorted(found.items())
    )


def _safety(counts: _Counts, total: int, lost: Problem | None, *, bootstrap: bool) -> Problem | None:
    if lost is not None or bootstrap:
        return None if bootstrap else lost
    if len(counts.quorate) == total:
        return None
    return Problem("NoQuorum", f"{total - len(counts.quorate)} of {total} partitions lack a majority of their replicas")


def _down(writable: int, total: int, lost: Problem | None) -> Problem | None:
    if lost is not None:
        return lost  # whatever the store says: a server notices with the next append
    if writable == total:
        return None
    return Problem("NoQuorum", f"{total - writable} of {total} partitions accept no appends")


def _exchange(registry: Registry, counts: _Counts, total: int, moving: int) -> Problem | None:
    """Why no storage node may be stopped now: each partition has to be able to do without one."""
    if not registry.consistent:
        return Problem("NotLeading", "partitions are being moved")
    if moving:
        return Problem("ReplicasMissing", f"{moving} of {total} partitions move to other storage nodes")
    missing = total - len(counts.replicated)
    if missing:
        return Problem("ReplicasMissing", f"{missing} of {total} partitions lack a replica on a storage node")
    return None


def _conditions(counts: _Counts, total: int, faults: Faults, moving: int) -> tuple[OwnCondition, ...]:
    writable, replicated = len(counts.writable), len(counts.replicated)
    healthy = OwnCondition(
        "LogHealthy",
        replicated == total,
        "AllReplicated" if replicated == total else "ReplicasMissing",
        f"{replicated} of {total} partitions have all their replicas",
    )
    if moving:
        text = (
            f"{moving} of {total} partitions move to other storage nodes: each when new copies are filled and verified"
        )
        healthy = OwnCondition("LogHealthy", False, "ReplicasMove", text)
    return (
        OwnCondition(
            "WritesAllowed",
            writable == total,
            "AllWritable" if writable == total else "NotWritable",
            f"{writable} of {total} partitions accept appends",
        ),
        _unusable(faults) or healthy,
    )


def _stuck(registry: Registry) -> OwnCondition:
    """Whether retention waits for a consumer that has not moved for long."""
    stuck = [
        f"{one.name} of partition {number}, at transaction {one.position} ({one.who})"
        for number, partition in sorted((registry.partitions or {}).items())
        for one in partition.consumers
        if one.held and registry.looked_ms - one.held >= STUCK_S * 1000
    ]
    if not stuck:
        return OwnCondition("ConsumerStuck", False, "AllMove")
    more = f"; and {len(stuck) - NAMED_MAX} more" if len(stuck) > NAMED_MAX else ""
    text = f"for more than an hour nothing was trimmed because of consumer {'; '.join(stuck[:NAMED_MAX])}{more}"
    return OwnCondition("ConsumerStuck", True, "ConsumerStuck", text)


def _unusable(faults: Faults) -> OwnCondition | None:
    return OwnCondition("LogHealthy", False, UNUSABLE, _named(faults)) if any(faults.values()) else None


def _unknown(problem: Problem, faults: Faults) -> tuple[OwnCondition, ...]:
    allowed, healthy = (
        OwnCondition(name, None, problem.reason, problem.message) for name in ("WritesAllowed", "LogHealthy")
    )
    return allowed, _unusable(faults) or healthy

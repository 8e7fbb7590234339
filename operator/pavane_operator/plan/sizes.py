"""How many pods each StatefulSet gets now, on its way to what the spec asks for (docs/specs/operator.md 2.8, 3.1).

A set never gets smaller than the store needs, and never larger over the volume of a pod that the store took out. The
number that was decided is noted on the set itself, so that one set by hand is told from it and applied away.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pavane_operator.crds.status import State
from pavane_operator.plan.children import (
    STATEFUL_SET,
    decided_replicas,
    find,
    find_manifest,
    ordinal_in,
    replicas_of,
)
from pavane_operator.plan.model import REPLICAS_ANNOTATION, SPEC_HASH_ANNOTATION, Child, Manifest
from pavane_operator.plan.snapshot import ResourceSnapshot


@dataclass(frozen=True, slots=True)
class Size:
    """What a StatefulSet is told."""

    replicas: int
    start: int = 0
    """Ordinal of its first pod; another than 0 only while the last pod of a suspension still runs."""
    decided: int | None = None
    """The number to note; None = `replicas`."""


STOPPED = Size(0)


def sized(manifest: Manifest, size: Size) -> Manifest:
    """A rendered StatefulSet with this size instead of the one that the spec asks for."""
    metadata = dict(manifest.body["metadata"])
    noted = size.replicas if size.decided is None else size.decided
    former = {key: value for key, value in metadata["annotations"].items() if key != SPEC_HASH_ANNOTATION}
    metadata["annotations"] = {**former, REPLICAS_ANNOTATION: str(noted)}
    spec = {**manifest.body["spec"], "replicas": size.replicas}
    if size.start:
        spec["ordinals"] = {"start": size.start}
    return Manifest.of({**manifest.body, "metadata": metadata, "spec": spec})


def size_of(seen: ResourceSnapshot, generation: int, manifest: Manifest) -> Size:
    """The size that a StatefulSet of the active or the next generation should have now."""
    wanted = replicas_of(manifest.body)
    live = find(seen.observed.children, STATEFUL_SET, manifest.name)
    decided = None if live is None else decided_replicas(live)
    if generation != seen.active:
        follows = seen.before_promotion and not seen.bootstrap  # the members of a bootstrap were told to its pods
        return Size(wanted if decided is None or follows else decided)
    if seen.state is State.IDLE and seen.spec.suspend:
        return _stopping(seen, manifest.name, live)
    named = max(_ordinals(seen.facts.members or (), manifest.name), default=-1) + 1
    if not decided:  # suspended till now, or deleted by hand: as many as it has volumes, for they are the quorum
        volumes = _ordinals((volume.name for volume in seen.volumes), manifest.name)
        return Size(max(*volumes, named - 1, -1) + 1 or wanted)
    if seen.state is not State.IDLE or seen.facts.members is None:
        return Size(max(decided, named))
    return Size(max(named, _possible(seen, manifest.name, wanted, decided)))


def next_parting(seen: ResourceSnapshot) -> tuple[Manifest, ...] | None:
    """The sets of former generations with fewer pods, where these go in batches (docs/specs/operator.md 3.2).

    Empty = the last batch is not gone yet, or the store not ready for the next one; None = all that is left may go.
    """
    waiting, found = False, list[Manifest]()
    for live in seen.foreign_objects:
        manifest = find_manifest(seen.rendered(live.generation or 0), live.name) if live.kind == STATEFUL_SET else None
        if manifest is None or live.deleting or not replicas_of(live.body):
            continue
        before, pods = replicas_of(live.body), {pod.name for pod in seen.pods(live.generation or 0)}
        going = any((ordinal_in(name, live.name) or 0) >= before for name in pods)
        if going or seen.facts.parting is not None:
            waiting = True
            continue
        # What was decided stays noted, so that each batch is a part of what there once was.
        decided = decided_replicas(live)
        left = max(before - max(decided // seen.kind.partings, 1), 0)
        found.append(sized(manifest, Size(left, decided=decided)))
    return tuple(found) if found or waiting else None


def surplus_volumes(seen: ResourceSnapshot, generation: int) -> list[Child]:
    """Volumes beyond the size of their set that no pod uses and the store does not count on.

    They go before a pod of their name can come back: an old log that names it would make it vote (3.1).
    """
    pods = {pod.name for pod in seen.pods(generation)}
    members = seen.facts.members
    if generation == seen.active and members is None:
        return []
    found = []
    for stateful_set in _live_sets(seen, generation):
        decided = decided_replicas(stateful_set)
        for volume in seen.volumes if decided else ():
            ordinal = ordinal_in(volume.name, stateful_set.name)
            pod = f"{stateful_set.name}-{ordinal}"
            if ordinal is not None and ordinal >= decided and pod not in pods and pod not in (members or ()):
                found.append(volume)
    return found


def is_stopped(seen: ResourceSnapshot) -> bool:
    """Whether the active generation was scaled to 0."""
    sets = _live_sets(seen, seen.active)
    return bool(sets) and all(decided_replicas(each) == 0 for each in sets)


def differs(seen: ResourceSnapshot, generation: int) -> bool:
    """Whether a set of the generation has not the size that the spec asks for, or has volumes beyond it."""
    return bool(surplus_volumes(seen, generation)) or any(
        (live := find(seen.observed.children, STATEFUL_SET, manifest.name)) is not None
        and decided_replicas(live) != replicas_of(manifest.body)
        for manifest in seen.rendered(generation)
        if manifest.kind == STATEFUL_SET
    )


def _live_sets(seen: ResourceSnapshot, generation: int) -> list[Child]:
    return [child for child in seen.observed.children if child.kind == STATEFUL_SET and child.generation == generation]


def _ordinals(names: Iterable[str], stateful_set: str) -> list[int]:
    return [ordinal for name in names if (ordinal := ordinal_in(name, stateful_set)) is not None]


def _possible(seen: ResourceSnapshot, stateful_set: str, wanted: int, decided: int) -> int:
    """As much of what is wanted as the pods and volumes of those that the store took out leave room for."""
    removed = _ordinals(seen.facts.removed, stateful_set)
    left = _ordinals((volume.name for volume in surplus_volumes(seen, seen.active)), stateful_set)
    if left:
        wanted = min(wanted, decided)
    return min([wanted, *removed])


def _stopping(seen: ResourceSnapshot, stateful_set: str, live: Child | None) -> Size:
    """The next step of a suspension: all pods but the last one, then that."""
    if live is None:
        return STOPPED
    pods = {
        ordinal: pod for pod in seen.pods(seen.active) if (ordinal := ordinal_in(pod.name, stateful_set)) is not None
    }
    if decided_replicas(live):
        last = ordinal_in(seen.facts.stops_last or "", stateful_set)
    else:
        start = int((live.body["spec"].get("ordinals") or {}).get("start", 0))
        last = start if replicas_of(live.body) else None
    if last is None or last not in pods or len(pods) == 1:
        return STOPPED
    return Size(1, start=last, decided=0)

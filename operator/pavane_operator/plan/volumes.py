"""Growth of volumes in place (docs/specs/operator.md 4.3): a claim asks for more, the cluster does the rest."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pavane_operator.crds.values import parse_quantity
from pavane_operator.plan.model import Child, GrowVolume, Problem
from pavane_operator.plan.snapshot import ResourceSnapshot

RETRY = timedelta(minutes=10)
"""After this long a refused growth is asked for again: a storage class can be changed to allow it."""
CANNOT_GROW = "VolumeCannotGrow"
RESIZING = "VolumeResizing"


def growth(seen: ResourceSnapshot) -> tuple[GrowVolume, ...]:
    """The claims of the active generation that ask for less than the spec does, and were not just refused."""
    if seen.storage is None:
        return ()
    size = str(seen.storage.size)
    return tuple(
        GrowVolume(claim.name, claim.uid, size)
        for claim in _active_claims(seen)
        if _is_less(_requested(claim), size) and not _is_refused(seen, claim, size)
    )


def growth_problem(seen: ResourceSnapshot) -> Problem | None:
    """Why a volume of the active generation has not the size of the spec yet: refused, or still being resized."""
    if seen.storage is None:
        return None
    size = str(seen.storage.size)
    for claim in _active_claims(seen):
        if _is_less(_requested(claim), size) and _is_refused(seen, claim, size):
            refusal = seen.observed.refusals[claim.uid]
            text = f"{refusal.message}; let the storage class allow it, or roll to new volumes (spec.rollout.restart)"
            return Problem(CANNOT_GROW, f"claim {claim.name} cannot grow to {size}: {text}")
    for claim in _active_claims(seen):
        status = claim.body.get("status") or {}
        if _is_less((status.get("capacity") or {}).get("storage"), size):
            told = [f"{one['type']}: {one.get('message') or one.get('reason', '')}" for one in _true_conditions(status)]
            return Problem(RESIZING, f"claim {claim.name} is growing to {size}" + "".join(f"; {text}" for text in told))
    return None


def _active_claims(seen: ResourceSnapshot) -> Iterator[Child]:
    """A claim that is not bound cannot be changed; its volume will be made as it asks."""
    for claim in seen.volumes:
        bound = (claim.body.get("status") or {}).get("phase") == "Bound"
        if bound and seen.active and claim.generation in (None, seen.active) and not claim.deleting:
            yield claim


def _true_conditions(status: Any) -> list[Any]:
    return [one for one in status.get("conditions") or () if one.get("status") == "True"]


def _requested(claim: Child) -> object:
    return claim.body["spec"]["resources"]["requests"]["storage"]


def _is_refused(seen: ResourceSnapshot, claim: Child, size: str) -> bool:
    refusal = seen.observed.refusals.get(claim.uid)
    return refusal is not None and refusal.size == size and seen.now < refusal.at + RETRY


def _is_less(has: object, wanted: str) -> bool:
    """Whether it is known to be less; a size that nobody told, or told in another notation, is not."""
    try:
        return has is not None and parse_quantity(str(has)) < parse_quantity(wanted)
    except ValueError:
        return False

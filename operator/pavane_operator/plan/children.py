"""What is there against what should be there (docs/specs/operator.md 4.3, rows D1 and B3)."""

from collections.abc import Iterable, Mapping
from typing import Any

from pavane_operator.crds.values import usual_quantity
from pavane_operator.plan.model import REPLICAS_ANNOTATION, Child, Manifest

STATEFUL_SET = "StatefulSet"
CONFIG_MAP = "ConfigMap"
REVISION = "ControllerRevision"
VOLUME = "PersistentVolumeClaim"
SERVICE = "Service"

WITHDRAWN = frozenset({"NetworkPolicy", "PodDisruptionBudget"})
"""Kinds of which everything goes that is not wanted any more. Others stay: what somebody turned off can be turned on
again, a Secret that was deleted cannot."""

_NEVER_CHANGED = {STATEFUL_SET: frozenset({"template", "volumeClaimTemplates"})}
"""Parts of `spec` that are rendered once for ever: their drift is reported elsewhere and never applied away."""


def find(children: Iterable[Child], kind: str, name: str) -> Child | None:
    """The child of this kind and name."""
    return next((child for child in children if child.kind == kind and child.name == name), None)


def find_manifest(manifests: Iterable[Manifest], name: str) -> Manifest | None:
    """The StatefulSet of this name among rendered objects."""
    return next((each for each in manifests if each.kind == STATEFUL_SET and each.name == name), None)


def is_missing_or_drifted(manifest: Manifest, children: Iterable[Child]) -> bool:
    """Whether the manifest has to be created or applied again.

    It does not when our last intent was the same and the live object still contains all of it. An object that is only
    created is compared by its existence. One that is being deleted can only be waited for.
    """
    live = find(children, manifest.kind, manifest.name)
    if live is None:
        return True
    if manifest.create_only or live.deleting:
        return False
    # The hash of the whole intent is one of its annotations, so an intent that takes something away differs too.
    return not _contains(live.body, _compared(manifest))


def pods_of_sets(manifests: Iterable[Manifest]) -> tuple[str, ...]:
    """Names of the pods that these StatefulSets make."""
    found = []
    for manifest in manifests:
        if manifest.kind == STATEFUL_SET:
            spec = manifest.body["spec"]
            start = int((spec.get("ordinals") or {}).get("start", 0))
            found += [f"{manifest.name}-{ordinal}" for ordinal in range(start, start + replicas_of(manifest.body))]
    return tuple(found)


def template_drifted(manifest: Manifest, live: Child) -> bool:
    """Whether the live StatefulSet's pods are made by another template than the manifest's."""
    return not _contains((live.body.get("spec") or {}).get("template"), manifest.body["spec"]["template"])


def replicas_of(body: Mapping[str, Any]) -> int:
    """`spec.replicas` of a StatefulSet; absent means one."""
    return int((body.get("spec") or {}).get("replicas", 1))


def decided_replicas(stateful_set: Child) -> int:
    """How many pods the planner decided that this set should have; 0 = it is suspended, or on its way there."""
    noted = stateful_set.annotations.get(REPLICAS_ANNOTATION, "")
    return int(noted) if noted.isascii() and noted.isdecimal() else replicas_of(stateful_set.body)


def ordinal_in(name: str, stateful_set: str) -> int | None:
    """Which pod of the set a pod's name, or that of a pod's volume claim, means; None for one of another set."""
    stem, _, ordinal = name.rpartition("-")
    if not (ordinal.isascii() and ordinal.isdecimal()) or not (
        stem == stateful_set or stem.endswith(f"-{stateful_set}")
    ):
        return None
    return int(ordinal)


def _compared(manifest: Manifest) -> Mapping[str, Any]:
    left_out = _NEVER_CHANGED.get(manifest.kind)
    body = {key: value for key, value in manifest.body.items() if key not in ("apiVersion", "kind", "stringData")}
    if left_out and "spec" in body:
        body["spec"] = {key: value for key, value in body["spec"].items() if key not in left_out}
    return body


def _contains(live: Any, intent: Any) -> bool:
    if isinstance(intent, Mapping):
        return isinstance(live, Mapping) and all(_contains(live.get(key), value) for key, value in intent.items())
    if isinstance(intent, (list, tuple)):
        return (
            isinstance(live, (list, tuple))
            and len(live) == len(intent)
            and all(_contains(one, other) for one, other in zip(live, intent, strict=True))
        )
    return bool(live == intent) or ((usual := _usual(intent)) is not None and usual == _usual(live))


def _usual(value: Any) -> str | None:
    """A quantity as every notation of it is written, for a server has its own; None for anything else."""
    try:
        return usual_quantity(value)
    except ValueError:
        return None

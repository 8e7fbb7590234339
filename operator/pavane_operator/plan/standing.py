"""Roles that belong to the resource and not to a generation: storage that serves one generation after the other.

Their objects carry no number, so that nothing that deletes a former generation meets them. What they are made of is
recorded with each generation; it becomes theirs when that generation serves, one pod at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pavane_operator.crds.status import State
from pavane_operator.plan.children import STATEFUL_SET, decided_replicas, find, ordinal_in, pods_of_sets, replicas_of
from pavane_operator.plan.model import SPEC_HASH_ANNOTATION, TEMPLATE_ANNOTATION, Manifest, Pod
from pavane_operator.plan.sizes import STOPPED, Size, sized
from pavane_operator.plan.snapshot import ResourceSnapshot


def standing_manifests(seen: ResourceSnapshot, rendered: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """What was rendered, with as many pods as are wanted now: those of a generation stop before them (2.8)."""
    suspended = seen.spec.suspend and seen.state is State.IDLE and not seen.pods(seen.active)
    found = []
    for manifest in rendered:
        if manifest.kind == STATEFUL_SET:
            size = STOPPED if suspended else Size(_wanted(seen, manifest))
            found.append(sized(_with_live_claims(seen, manifest), size))
        else:
            found.append(manifest)
    return tuple(found)


def _wanted(seen: ResourceSnapshot, manifest: Manifest) -> int:
    """As many pods as the spec asks for, and as the store counts on: what is to go goes after it has left the store."""
    live = find(seen.observed.children, STATEFUL_SET, manifest.name)
    present = 0 if live is None else decided_replicas(live)
    needed = present if seen.facts.standing is None else seen.facts.standing
    return max(replicas_of(manifest.body), needed)


def outdated_pods(seen: ResourceSnapshot, standing: Iterable[Manifest]) -> list[Pod]:
    """Pods of a former template: those that are not ready first, for they serve nobody; then the last of the set."""
    found: list[tuple[bool, int, Pod]] = []
    for manifest in standing:
        wanted = _template(manifest.body)
        for pod in seen.observed.standing if wanted else ():
            ordinal = ordinal_in(pod.name, manifest.name)
            if ordinal is not None and not pod.deleting and pod.template != wanted:
                found.append((pod.ready, -ordinal, pod))
    return [pod for _, _, pod in sorted(found, key=lambda one: one[:2])]


def replaceable(seen: ResourceSnapshot, standing: Sequence[Manifest], outdated: Sequence[Pod]) -> Pod | None:
    """The pod that may be replaced now; None = there is none, or the others are not well."""
    if not outdated or seen.state is not State.IDLE or seen.spec.suspend or not _applied(seen, standing):
        return None
    first = outdated[0]
    if any(pod.deleting for pod in seen.observed.standing):
        return None
    if not first.ready:
        return first
    ready = {pod.name for pod in seen.observed.standing if pod.ready}
    return first if ready.issuperset(pods_of_sets(standing)) and seen.facts.exchange is None else None


def _applied(seen: ResourceSnapshot, standing: Iterable[Manifest]) -> bool:
    """Whether the live sets make pods of the present template."""
    sets = [manifest for manifest in standing if manifest.kind == STATEFUL_SET]
    live = [find(seen.observed.children, STATEFUL_SET, manifest.name) for manifest in sets]
    return all(
        child is not None and _template(child.body) == _template(manifest.body)
        for child, manifest in zip(live, sets, strict=True)
    )


def _template(body: Mapping[str, Any]) -> str:
    template = (body.get("spec") or {}).get("template") or {}
    return str(((template.get("metadata") or {}).get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""))


def _with_live_claims(seen: ResourceSnapshot, manifest: Manifest) -> Manifest:
    """No server lets the claims of a set change; the volumes themselves grow."""
    live = find(seen.observed.children, STATEFUL_SET, manifest.name)
    claims = None if live is None else (live.body.get("spec") or {}).get("volumeClaimTemplates")
    if claims is None:
        return manifest
    metadata = dict(manifest.body["metadata"])
    metadata["annotations"] = {
        key: value for key, value in metadata["annotations"].items() if key != SPEC_HASH_ANNOTATION
    }
    spec = {key: value for key, value in manifest.body["spec"].items() if key != "volumeClaimTemplates"}
    spec["volumeClaimTemplates"] = claims
    return Manifest.of({**manifest.body, "metadata": metadata, "spec": spec})

"""PodDisruptionBudget: how many pods an eviction may take away (docs/specs/operator.md 4.1)."""

from collections.abc import Mapping

from pavane_operator.objects.owned import owned
from pavane_operator.plan.model import GENERATION_LABEL, Manifest, Resource, Writers


def disruption_budget(
    resource: Resource,
    role: str,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
    writers: Writers,
    *,
    spare: int,
    waiting: int = 0,
) -> tuple[Manifest, ...]:
    """PodDisruptionBudget `{name}-{role}` over all generations that may write; none if it is disabled or none may.

    Args:
        resource: Whose pods.
        role: Role of the pods.
        labels: Of the object.
        selector: Labels of the role's pods in all generations.
        writers: The generations that may write.
        spare: Pods of one generation that may be away without stopping it. Where there are none, as with a single pod,
            one may go all the same: it comes back, while a node that can never be drained does not help anybody.
        waiting: Pods of one generation that are never ready while another one leads, and so count as gone.
    """
    wanted = resource.spec.pod_disruption_budget
    if not wanted.enabled or not writers.generations:
        return ()
    body = owned(resource, "policy/v1", "PodDisruptionBudget", f"{resource.name}-{role}", labels)
    numbers = [str(number) for number in writers.generations]
    body["spec"] = {
        # While the right to write moves, old and new members are needed together: nobody leaves by choice.
        "maxUnavailable": 0 if writers.moving else waiting + min(wanted.max_unavailable, max(spare, 1)),
        "selector": {
            "matchLabels": dict(selector),
            "matchExpressions": [{"key": GENERATION_LABEL, "operator": "In", "values": numbers}],
        },
    }
    return (Manifest.of(body),)


def standing_budget(
    resource: Resource, role: str, labels: Mapping[str, str], selector: Mapping[str, str], *, spare: int
) -> tuple[Manifest, ...]:
    """PodDisruptionBudget `{name}-{role}` over the pods of a role that belongs to the resource, as above."""
    wanted = resource.spec.pod_disruption_budget
    if not wanted.enabled:
        return ()
    body = owned(resource, "policy/v1", "PodDisruptionBudget", f"{resource.name}-{role}", labels)
    body["spec"] = {
        "maxUnavailable": min(wanted.max_unavailable, max(spare, 1)),
        "selector": {"matchLabels": dict(selector)},
    }
    return (Manifest.of(body),)

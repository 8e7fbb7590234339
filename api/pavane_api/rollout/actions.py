"""Rollout actions as server-side apply of one field, one manager per field (docs/specs/operator.md 8.1).

The REST API and the command line both act through this module, so a field has one manager wherever it was set from,
and the conflict with a GitOps tool that owns the field is visible instead of silently won.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pavane_operator import kube

FORWARD_ONLY = ("Promoting", "Retiring")
"""States in which an attempt can no longer be aborted or approved."""


class Refused(Exception):
    """The state of the resource does not allow the action; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action: the field it sets and the value for a resource; ``value`` raises Refused."""

    name: str
    field: str
    value: Callable[[dict[str, Any], str | None], object]
    takes_number: bool
    """The value is the number of the attempt, which a caller may state to be sure."""


def _status(document: dict[str, Any]) -> dict[str, Any]:
    status: dict[str, Any] = document.get("status") or {}
    return status


def _attempt(document: dict[str, Any], _: str | None) -> object:
    status = _status(document)
    number, state = status.get("nextGeneration"), (status.get("rollout") or {}).get("state", "Idle")
    if not number or state in (*FORWARD_ONLY, "Idle"):
        raise Refused(f"There is no attempt that waits: the rollout is {state}.")
    return number


def _abortable(document: dict[str, Any], _: str | None) -> object:
    status = _status(document)
    number, state = status.get("nextGeneration"), (status.get("rollout") or {}).get("state", "Idle")
    if state in FORWARD_ONLY:
        raise Refused(
            f"Generation {number} is {state}: from here it only goes forward. Change the spec back to roll again."
        )
    if not number or state in {"Idle", "Aborting"}:
        raise Refused(f"There is nothing to abort: the rollout is {state}.")
    return number


def _failed(document: dict[str, Any], _: str | None) -> object:
    failed = _status(document).get("failed")
    if not failed:
        raise Refused("No attempt has failed, so there is nothing to try again.")
    return failed["generation"]


def _restart(document: dict[str, Any], reason: str | None) -> object:
    if reason:
        return reason
    last = _status(document).get("lastGeneration") or 0
    return f"after-{last}"


ACTIONS = {
    action.name: action
    for action in (
        Action("promote", "promote", _attempt, takes_number=True),
        Action("force-promote", "forcePromote", _attempt, takes_number=True),
        Action("pause", "paused", lambda _document, _reason: True, takes_number=False),
        Action("resume", "paused", lambda _document, _reason: False, takes_number=False),
        Action("abort", "abort", _abortable, takes_number=True),
        Action("retry", "retry", _failed, takes_number=True),
        Action("restart", "restart", _restart, takes_number=False),
    )
}
"""Every action by its name."""


async def act(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    action: Action,
    *,
    number: int | None = None,
    reason: str | None = None,
    annotations: dict[str, str] | None = None,
) -> tuple[kube.Object, object]:
    """Set the action's field; returns the changed resource and the value that was set.

    ``number`` is the attempt that the caller means: another one now is Refused. ``reason`` is the text of a restart.
    Raises ``kube.NotFound``, ``kube.Conflict`` when another manager owns the field, and Refused.
    """
    document = await client.get(resource, name, namespace)
    value = action.value(document, reason)
    if number is not None and action.takes_number and value != number:
        raise Refused(f"The attempt is number {value} now, not {number}: look again before you decide.")
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if annotations:
        metadata["annotations"] = annotations
    body = {"metadata": metadata, "spec": {"rollout": {action.field: value}}}
    changed = await client.apply(resource, body, namespace, manager=f"pavane-{action.field}")
    return changed, value

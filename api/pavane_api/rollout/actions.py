"""Actions on a resource as server-side apply of one field, one manager per field (docs/specs/operator.md 8.1).

The REST API and the command line both act through this module, so a field has one manager wherever it was set from,
and the conflict with a GitOps tool that owns the field is visible instead of silently won. Three actions change what
others own by their nature, as those of kubectl do: `scale`, for the number has a default, `undo` and `set_image`.
"""

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pavane_operator import kube
from pavane_operator.crds.base import Model
from pavane_operator.crds.common import pod_fields
from pavane_operator.crds.definitions import settled_spec, spec_model
from pavane_operator.crds.effects import effect
from pavane_operator.crds.rollout import parse_repair
from pavane_operator.kube.resources import CONTROLLER_REVISIONS

REPAIR = "pavane.dev/repair"
"""Annotation of a revision that a repair made; of several of one generation the last counts."""
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
    takes_number: bool = False
    """The value is the number of the attempt, which a caller may state to be sure."""
    of_rollout: bool = True
    """The field is one of ``spec.rollout``, else of ``spec``."""

    @property
    def path(self) -> str:
        """The field as users write it."""
        return f"spec.rollout.{self.field}" if self.of_rollout else f"spec.{self.field}"


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
    if not number or state in {"Idle", "Baking", "Aborting"}:
        raise Refused(f"There is nothing to abort: the rollout is {state}.")
    return number


def _failed(document: dict[str, Any], _: str | None) -> object:
    failed = _status(document).get("failed")
    if not failed:
        raise Refused("No attempt has failed, so there is nothing to try again.")
    return failed["generation"]


def _repair(document: dict[str, Any], _: str | None) -> object:
    status = _status(document)
    state = (status.get("rollout") or {}).get("state", "Idle")
    active = status.get("activeGeneration")
    number = status.get("nextGeneration") if state == "Promoting" else active
    if not number:
        raise Refused("No generation is active yet: correct the spec, which starts a new attempt.")
    former = parse_repair(((document.get("spec") or {}).get("rollout") or {}).get("repair"))
    return f"{number}.{former[1] + 1 if former is not None and former[0] == number else 1}"


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
        Action("pause", "paused", lambda _document, _reason: True),
        Action("resume", "paused", lambda _document, _reason: False),
        Action("abort", "abort", _abortable, takes_number=True),
        Action("retry", "retry", _failed, takes_number=True),
        Action("restart", "restart", _restart),
        Action("repair", "repair", _repair),
        Action("suspend", "suspend", lambda _document, _reason: True, of_rollout=False),
        Action("resume-resource", "suspend", lambda _document, _reason: False, of_rollout=False),
    )
}
"""Every action that sets one field, by its name."""


UNDO_MANAGER = "pavane-undo"
IMAGE_MANAGER = "pavane-image"
UNDO_AGAIN_MAX = 10
"""So often the status may be written between a look and a write; the operator writes texts every 5 s at most."""
ANNOTATION_MANAGER = "pavane-annotations"
_OF_UNDO = f'conflict with "{UNDO_MANAGER}" '


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
        # A manager of its own, and by force: the next action is another manager and writes other values. First, so
        # that they stand there when the operator sees the field.
        noted = {"metadata": {**metadata, "annotations": annotations}}
        await client.apply(resource, noted, namespace, manager=ANNOTATION_MANAGER, force=True)
    spec: dict[str, Any] = {action.field: value}
    body = {"metadata": metadata, "spec": {"rollout": spec} if action.of_rollout else spec}
    apply = functools.partial(client.apply, resource, body, namespace, manager=f"pavane-{action.field}")
    try:
        return await apply(), value
    except kube.Conflict as error:
        # What an undo wrote is ours too: without force the field could never be set again by its own action.
        if not error.causes or not all(cause.message.startswith(_OF_UNDO) for cause in error.causes):
            raise
        return await apply(force=True), value


async def scale(client: kube.KubeClient, resource: kube.Resource, namespace: str, name: str, replicas: int) -> str:
    """Set how many pods there are, whoever owns the field, and return its path.

    Raises ``kube.NotFound``, ``kube.Invalid`` for a number that the kind does not allow.
    """
    spec: dict[str, Any] = {"replicas": replicas}
    if "servers" in spec_model(resource.kind).model_fields:  # of a WaltzCluster; its storage nodes stay as many
        spec = {"servers": spec}
    await client.patch(resource, name, {"spec": spec}, namespace, manager="pavane-replicas")
    return "spec.servers.replicas" if "servers" in spec else "spec.replicas"


@dataclass(frozen=True, slots=True)
class Change:
    """What was changed, or with a dry run would be."""

    fields: dict[str, Any]
    """The fields of the spec, nested as there; None for one that is absent now."""
    effect: str
    """What becomes of the resource, in words."""
    generation: int | None = None
    """The one that an undo goes back to."""


async def undo(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    to: int | None = None,
    *,
    dry_run: bool = False,
) -> Change:
    """Give the pod-affecting fields of the spec the values of a former generation, by default the one before.

    Raises Refused where no such generation is known or nothing differs, ``kube.NotFound``, ``kube.Conflict`` when the
    spec changed meanwhile; a status that was written is looked at again. ``dry_run`` stores nothing.
    """

    async def of(document: kube.Object) -> Change:
        return await _undo(client, resource, namespace, document, to, dry_run)

    return await _while_spec_stays(client, resource, namespace, name, of)


async def set_image(
    client: kube.KubeClient, resource: kube.Resource, namespace: str, name: str, image: str, *, dry_run: bool = False
) -> Change:
    """Set the image of the pods, whoever owns the field; "" is the operator's default.

    Raises Refused where the spec has it already, ``kube.NotFound``, ``kube.Invalid``, ``kube.Conflict`` as ``undo``
    does. ``dry_run`` stores nothing.
    """

    async def of(document: kube.Object) -> Change:
        if document["spec"].get("image", "") == image:
            raise Refused(f"The spec names the image {image or 'of the operator'} already.")
        return await _change(client, resource, namespace, document, {"image": image}, IMAGE_MANAGER, dry_run)

    return await _while_spec_stays(client, resource, namespace, name, of)


async def _while_spec_stays(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    change: Callable[[kube.Object], Awaitable[Change]],
) -> Change:
    """Change the resource as it was read; again when its status was written meanwhile, which changes the version."""
    document = await client.get(resource, name, namespace)
    for _ in range(UNDO_AGAIN_MAX):
        try:
            return await change(document)
        except kube.Conflict:
            former, document = document, await client.get(resource, name, namespace)
            if document["metadata"]["generation"] != former["metadata"]["generation"]:
                raise
    return await change(document)


async def _change(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    document: kube.Object,
    fields: dict[str, Any],
    manager: str,
    dry_run: bool,
) -> Change:
    metadata = {"resourceVersion": document["metadata"]["resourceVersion"]}
    body, name = {"metadata": metadata, "spec": fields}, document["metadata"]["name"]
    after = await client.patch(resource, name, body, namespace, manager=manager, dry_run=dry_run)
    return Change(fields, effect(resource.kind, document, after))


async def _undo(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    document: kube.Object,
    to: int | None,
    dry_run: bool,
) -> Change:
    name = document["metadata"]["name"]
    number = to if to is not None else _former(document)
    told = {each["type"]: each for each in _status(document).get("conditions") or ()}.get("CanSwitchBack") or {}
    stands_by = [each["number"] for each in _status(document).get("generations") or () if each["role"] == "Standby"]
    if number in stands_by and told.get("status") == "False":
        raise Refused(
            f"Generation {number} cannot take over now: {told['message']}. Mend that, or wait until status.rollout no "
            "longer bakes: an undo then rolls it out anew."
        )
    labels = f"app.kubernetes.io/instance={name},pavane.dev/generation={number}"
    revisions = (await client.list_all(CONTROLLER_REVISIONS, namespace, labels=labels)).items
    if not revisions:
        raise Refused(f"What generation {number} was made of is not known any more: see `pavane rollout history`.")
    revision = max(revisions, key=lambda item: int((item["metadata"].get("annotations") or {}).get(REPAIR, 0)))
    changes = difference(settled_spec(resource.kind, document), revision["data"]["fields"])
    if not changes:
        raise Refused(f"The spec differs from generation {number} in no pod-affecting field.")
    change = await _change(client, resource, namespace, document, changes, UNDO_MANAGER, dry_run)
    return replace(change, generation=number)


def difference(spec: Model, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch after which the pod-affecting fields of ``spec`` are ``wanted``, as ``pod_fields`` gives them.

    A field that is not in ``wanted`` goes, and gets its default.
    """
    changes: dict[str, Any] = {}
    present = pod_fields(spec)
    for name, info in type(spec).model_fields.items():
        value, alias = getattr(spec, name), info.alias or name
        if isinstance(value, Model):
            inner = difference(value, wanted.get(alias) or {})
            changes |= {alias: inner} if inner else {}
        elif present.get(alias) != wanted.get(alias):
            changes[alias] = _replacement(value, wanted.get(alias))
    return changes


def _replacement(value: object, wanted: Any) -> Any:
    """What a merge patch has to say so that ``wanted`` stands there: of a map also which keys go."""
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return {**dict.fromkeys(value), **wanted}
    return wanted


def _former(document: dict[str, Any]) -> int:
    """The generation that was active before the present one; after an attempt that failed, the one that serves."""
    status = _status(document)
    active = status.get("activeGeneration")
    if status.get("failed") and active:
        return int(active)
    promoted: list[int] = [item["generation"] for item in status.get("history") or () if item["result"] == "Promoted"]
    former = [number for number in promoted if number != active]
    if not former:
        raise Refused("There is no former generation to go back to.")
    return max(former)

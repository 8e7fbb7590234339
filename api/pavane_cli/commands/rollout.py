"""``pavane rollout``: what a rollout does, and a user's decisions about it."""

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pavane_api.rollout import actions
from pavane_api.rollout.actions import ACTIONS, Refused
from pavane_cli import output
from pavane_cli.commands.resources import changes, condition, is_current, is_settled, summary, wait_ready, wait_until
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.gathering import One, about_pods, read
from pavane_cli.live import LiveView, state_of
from pavane_cli.options import Timeout, Wait
from pavane_cli.output import Format, Output
from pavane_cli.target import cluster, run
from pavane_operator import kube
from pavane_operator.crds.common import pod_fields
from pavane_operator.crds.definitions import settled_spec
from pavane_operator.kube.resources import CONTROLLER_REVISIONS

Generation = Annotated[int | None, typer.Option(help="Number of the attempt; fails if it is no longer current.")]


@about_pods
def status(
    one: One,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow until the rollout ends.")] = False,
    form: Output = Format.TABLE,
) -> None:
    """Show state, stages and blockers. Exit code 6 if the last attempt failed."""
    run(_status(one, watch, form))


async def _status(one: One, follow: bool, form: Format) -> None:
    async with cluster(one.where) as client:
        document = await client.get(one.resource, one.name, one.namespace)
        if form.structured:
            output.structured((document.get("status") or {}).get("rollout") or {}, form)
            return
        if not follow:
            output.say(summary(document))
        else:
            with LiveView(sys.stdout) as view:
                async with changes(client, one.resource, one.namespace, one.name) as seen:
                    async for change in seen:
                        document = change.object
                        view.update(document, summary(document))
                        if change.type == "DELETED" or is_current(document) or _failure(document):
                            break
            if change.type != "DELETED" and not _failure(document):
                output.say(view.closing(document))
        failed = _failure(document)
        if failed:
            raise UserError(f"generation {failed['generation']} failed: {failed['reason']}", ExitCode.ATTEMPT_FAILED)


def _failure(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the failed attempt that the present spec belongs to."""
    upto = condition(document, "UpToDate") or {}
    failed: dict[str, Any] | None = (document.get("status") or {}).get("failed")
    return failed if failed and state_of(document) == "Idle" and upto.get("status") == "False" else None


@about_pods
def promote(one: One, generation: Generation = None) -> None:
    """Approve the attempt that waits under strategy Manual."""
    run(decide(one, "promote", generation))


@about_pods
def pause(one: One, generation: Generation = None) -> None:
    """Start no new attempt, and do not promote the one that runs."""
    run(decide(one, "pause", generation))


@about_pods
def resume(one: One, generation: Generation = None) -> None:
    """Take a pause back."""
    run(decide(one, "resume", generation))


@about_pods
def abort(one: One, generation: Generation = None) -> None:
    """Give up the attempt; the active generation is untouched. Exit code 4 once it only goes forward."""
    run(decide(one, "abort", generation))


@about_pods
def retry(one: One, generation: Generation = None) -> None:
    """Try the failed attempt again under a new number."""
    run(decide(one, "retry", generation))


@about_pods
def force_promote(
    one: One,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm promotion of an attempt that has not caught up.")] = False,
    generation: Generation = None,
) -> None:
    """Promote the attempt even if it has not caught up; writes may pause until it has."""
    if not yes:
        raise UserError("this promotes a generation that is not caught up; add --yes if that is meant", ExitCode.USAGE)
    run(decide(one, "force-promote", generation))


@about_pods
def restart(
    one: One,
    reason: Annotated[str | None, typer.Option(help="Text that distinguishes this restart from the last one.")] = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
) -> None:
    """Roll out a new generation with an unchanged spec."""
    run(decide(one, "restart", None, reason, timeout if wait else None))


async def decide(
    one: One,
    action: str,
    generation: int | None = None,
    reason: str | None = None,
    wait_s: float | None = None,
    done: Callable[[dict[str, Any]], bool] = is_settled,
) -> None:
    """Set the field of an action of `ACTIONS` and say so; with ``wait_s`` return once the resource is ``done``.

    ``generation`` is the attempt that the user means, ``reason`` the text of a restart. Raises ``UserError``.
    """
    async with cluster(one.where) as client:
        with as_user_error(Refused, code=ExitCode.REFUSED):
            _, value = await actions.act(
                client, one.resource, one.namespace, one.name, ACTIONS[action], number=generation, reason=reason
            )
        output.say(f"{one.reference}: {ACTIONS[action].path} = {_shown(value)}")
        if wait_s is not None:
            await wait_until(client, one.resource, one.namespace, one.name, done, wait_s)


@about_pods
def repair(one: One, wait: Wait = False, timeout: Timeout = 300.0) -> None:
    """Re-render the pods of the active generation that are not Ready from the current spec, on their volumes."""
    run(decide(one, "repair", None, None, timeout if wait else None))


@about_pods
def undo(
    one: One,
    to: Annotated[
        int | None,
        typer.Option(help="Generation to go back to; default: the previous one, or after a failure the active one."),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
) -> None:
    """Restore the pod-affecting fields of an earlier generation: by one hand-over while it follows, else by a rollout.

    A GitOps tool that owns these fields overwrites this: change them in its source instead.
    """
    run(_undo(one, to, timeout if wait else None))


async def _undo(one: One, to: int | None, wait_s: float | None) -> None:
    async with cluster(one.where) as client:
        with as_user_error(Refused, code=ExitCode.REFUSED):
            change = await actions.undo(client, one.resource, one.namespace, one.name, to)
        output.say(f"{one.reference}: back to what generation {change.generation} was made of")
        for field, value in _flat(change.fields).items():
            output.say(f"  spec.{field} = {'<default>' if value is None else _shown(value)}")
        if wait_s is not None:
            await wait_ready(client, one.resource, one.namespace, one.name, wait_s)


@about_pods
def history(one: One, form: Output = Format.TABLE) -> None:
    """List finished attempts, newest first, with their write gaps."""
    document = run(read(one))
    attempts = (document.get("status") or {}).get("history") or []
    rows = [
        (
            item["generation"],
            item["result"],
            item.get("reason", ""),
            output.age(item["finishedAt"]),
            f"{item['writeGapMs']} ms" if "writeGapMs" in item else "",
            item.get("image", ""),
        )
        for item in attempts
    ]
    headers = ("GENERATION", "RESULT", "REASON", "FINISHED", "WRITE GAP", "IMAGE")
    output.listing(attempts, headers, rows, form, "No attempt has ended yet.")


@about_pods
def diff(
    one: One,
    to: Annotated[int | None, typer.Option(help="Compare with this generation; default: the active one.")] = None,
    form: Output = Format.TABLE,
) -> None:
    """Show the pod-affecting fields that differ between the spec and a generation, and what a bake costs."""
    rows = run(_diff(one, to))
    document = [{"field": field, "from": old, "to": new} for field, old, new in rows]
    cells = [(field, _shown(old), _shown(new)) for field, old, new in rows]
    none = "The spec differs in no pod-affecting field: nothing rolls."
    output.listing(document, ("FIELD", "FROM", "TO"), cells, form, none)


async def _diff(one: One, to: int | None) -> list[tuple[str, object, object]]:
    async with cluster(one.where) as client:
        document = await client.get(one.resource, one.name, one.namespace)
        number = to or (document.get("status") or {}).get("activeGeneration")
        if not number:
            raise UserError(f"{one.name} has no active generation yet", ExitCode.REFUSED)
        try:
            revision = await client.get(CONTROLLER_REVISIONS, f"{one.name}-g{number}", one.namespace)
        except kube.NotFound as error:
            raise UserError(
                f"what generation {number} was made of is not known: `pavane rollout history {one.reference}` lists "
                "those that there were",
                ExitCode.NOT_FOUND,
            ) from error
    wanted = _flat(pod_fields(settled_spec(one.resource.kind, document)))
    recorded = _flat(revision["data"]["fields"])
    rows = [
        (f"spec.{field}", recorded.get(field, "<default>"), wanted.get(field, "<default>"))
        for field in sorted(wanted.keys() | recorded.keys())
        if wanted.get(field) != recorded.get(field)
    ]
    spec, views = document["spec"], one.resource.kind == "ComputeCluster"  # these have a controller, too
    bake, pods = (spec.get("rollout") or {}).get("bake"), (spec.get("servers") or spec).get("replicas", 0) + views
    what = "pods" if views or "servers" in spec else "pods and volumes"  # the storage nodes of a log stay as many
    return rows + ([(f"{what}, for {bake}", pods, 2 * pods)] if rows and bake else [])


def _shown(value: object) -> str:
    """Return the value of a field as it is written in YAML, on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            found |= _flat(inner, f"{prefix}{key}.")
        else:
            found[prefix + key] = inner
    return found

"""``pavane rollout``: what a rollout does, and a user's decisions about it."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from pavane_api.rollout import actions
from pavane_api.rollout.actions import ACTIONS, Refused
from pavane_cli import output
from pavane_cli.commands.resources import Reference, changes, condition, is_current, summary, wait_ready, wait_until
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.output import Format, Output
from pavane_cli.target import Context, Kubeconfig, Namespace, Timeout, Wait, Where, cluster, required_reference, run
from pavane_operator import kube
from pavane_operator.crds.common import pod_fields
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kube.resources import CONTROLLER_REVISIONS

app = typer.Typer(help="Watch a rollout and decide about it.", no_args_is_help=True)

Generation = Annotated[int | None, typer.Option(help="The attempt you mean; refused if it is another one by now.")]


@app.command()
def status(
    reference: Reference,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow until the rollout has ended.")] = False,
    form: Output = Format.TABLE,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show state, stages and blockers. Exit code 6 when the last attempt failed."""
    resource, name = required_reference(reference)
    run(_status(Where(kubeconfig, context), resource, name, namespace, watch, form))


async def _status(where: Where, resource: kube.Resource, name: str, namespace: str, follow: bool, form: Format) -> None:
    async with cluster(where) as client:
        document = await client.get(resource, name, namespace)
        if form.structured:
            output.structured((document.get("status") or {}).get("rollout") or {}, form)
            return
        if not follow:
            output.say(summary(document))
        else:
            last = ""
            async for change in changes(client, resource, namespace, name):
                document, line = change.object, summary(change.object)
                if line != last:
                    output.say(line)
                    last = line
                if change.type == "DELETED" or is_current(document) or _failure(document):
                    break
        failed = _failure(document)
        if failed:
            raise UserError(f"generation {failed['generation']} failed: {failed['reason']}", ExitCode.ATTEMPT_FAILED)


def _failure(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the failed attempt that the present spec belongs to."""
    upto = condition(document, "UpToDate") or {}
    idle = ((document.get("status") or {}).get("rollout") or {}).get("state", "Idle") == "Idle"
    failed: dict[str, Any] | None = (document.get("status") or {}).get("failed")
    return failed if failed and idle and upto.get("status") == "False" else None


def _command(action: str, text: str) -> None:
    def command(
        reference: Reference,
        generation: Generation = None,
        namespace: Namespace = "default",
        context: Context = None,
        kubeconfig: Kubeconfig = None,
    ) -> None:
        run(decide(Where(kubeconfig, context), reference, namespace, action, generation))

    command.__doc__ = text
    app.command(action)(command)


_command("promote", "Approve the attempt that waits under strategy Manual.")
_command("pause", "Start no new attempt, and do not promote the one that runs.")
_command("resume", "Take a pause back.")
_command("abort", "Give up the attempt; the active generation is untouched. Exit code 4 once it only goes forward.")
_command("retry", "Try the failed attempt again under a new number.")


@app.command("force-promote")
def force_promote(
    reference: Reference,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, although it is not caught up.")] = False,
    generation: Generation = None,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Promote the attempt although it is not caught up; writes may pause until it has."""
    if not yes:
        raise UserError("this promotes a generation that is not caught up; add --yes if that is meant", ExitCode.USAGE)
    run(decide(Where(kubeconfig, context), reference, namespace, "force-promote", generation))


@app.command()
def restart(
    reference: Reference,
    reason: Annotated[str | None, typer.Option(help="Text that makes this restart another one than the last.")] = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Roll out a new generation without another difference."""
    run(decide(Where(kubeconfig, context), reference, namespace, "restart", None, reason, timeout if wait else None))


async def decide(
    where: Where,
    reference: str,
    namespace: str,
    action: str,
    generation: int | None = None,
    reason: str | None = None,
    wait_s: float | None = None,
    done: Callable[[dict[str, Any]], bool] = is_current,
) -> None:
    """Set the field of an action of `ACTIONS` and say so; with ``wait_s`` return once the resource is ``done``.

    ``generation`` is the attempt that the user means, ``reason`` the text of a restart. Raises ``UserError``.
    """
    resource, name = required_reference(reference)
    async with cluster(where) as client:
        try:
            _, value = await actions.act(
                client, resource, namespace, name, ACTIONS[action], number=generation, reason=reason
            )
        except Refused as error:
            raise UserError(str(error), ExitCode.REFUSED) from error
        output.say(f"{resource.kind.lower()}/{name}: {ACTIONS[action].path} = {value}")
        if wait_s is not None:
            await wait_until(client, resource, namespace, name, done, wait_s)


@app.command()
def repair(
    reference: Reference,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Replace the pods of the active generation that are not Ready by pods of the present spec, on their volumes."""
    run(decide(Where(kubeconfig, context), reference, namespace, "repair", None, None, timeout if wait else None))


@app.command()
def undo(
    reference: Reference,
    to: Annotated[int | None, typer.Option(help="Go back to this generation; default: the one before.")] = None,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Give the spec the pod-affecting fields of a former generation; it rolls out as a new one.

    A GitOps tool that owns these fields will set its own again: there change them at the source.
    """
    run(_undo(Where(kubeconfig, context), reference, namespace, to, timeout if wait else None))


async def _undo(where: Where, reference: str, namespace: str, to: int | None, wait_s: float | None) -> None:
    resource, name = required_reference(reference)
    async with cluster(where) as client:
        try:
            number, changes = await actions.undo(client, resource, namespace, name, to)
        except Refused as error:
            raise UserError(str(error), ExitCode.REFUSED) from error
        output.say(f"{resource.kind.lower()}/{name}: back to what generation {number} was made of")
        for field, value in _flat(changes).items():
            output.say(f"  spec.{field} = {'<default>' if value is None else value}")
        if wait_s is not None:
            await wait_ready(client, resource, namespace, name, wait_s)


@app.command()
def history(
    reference: Reference,
    form: Output = Format.TABLE,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List former attempts, newest first, with the time in which nobody could write."""
    resource, name = required_reference(reference)
    document = run(_read(Where(kubeconfig, context), resource, name, namespace))
    attempts = (document.get("status") or {}).get("history") or []
    if form.structured:
        output.structured(attempts, form)
    elif not attempts:
        output.note("No attempt has ended yet.")
    else:
        output.table(
            ("GENERATION", "RESULT", "REASON", "FINISHED", "WRITE GAP", "IMAGE"),
            [
                (
                    item["generation"],
                    item["result"],
                    item.get("reason", ""),
                    output.age(item["finishedAt"]),
                    f"{item['writeGapMs']} ms" if "writeGapMs" in item else "",
                    item.get("image", ""),
                )
                for item in attempts
            ],
        )


async def _read(where: Where, resource: kube.Resource, name: str, namespace: str) -> kube.Object:
    async with cluster(where) as client:
        return await client.get(resource, name, namespace)


@app.command()
def diff(
    reference: Reference,
    to: Annotated[int | None, typer.Option(help="Compare with this generation; default: the active one.")] = None,
    form: Output = Format.TABLE,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the pod-affecting fields in which the spec differs from a generation: what rolls, or would roll."""
    resource, name = required_reference(reference)
    rows = run(_diff(Where(kubeconfig, context), resource, name, namespace, to))
    if form.structured:
        output.structured([{"field": field, "from": old, "to": new} for field, old, new in rows], form)
    elif not rows:
        output.note("The spec differs in no pod-affecting field: nothing rolls.")
    else:
        output.table(("FIELD", "FROM", "TO"), rows)


async def _diff(
    where: Where, resource: kube.Resource, name: str, namespace: str, to: int | None
) -> list[tuple[str, object, object]]:
    async with cluster(where) as client:
        document = await client.get(resource, name, namespace)
        number = to or (document.get("status") or {}).get("activeGeneration")
        if not number:
            raise UserError(f"{name} has no active generation yet", ExitCode.REFUSED)
        revision = await client.get(CONTROLLER_REVISIONS, f"{name}-g{number}", namespace)
    wanted = _flat(pod_fields(RaftClusterSpec.model_validate(document["spec"])))
    recorded = _flat(revision["data"]["fields"])
    return [
        (f"spec.{field}", recorded.get(field, "<default>"), wanted.get(field, "<default>"))
        for field in sorted(wanted.keys() | recorded.keys())
        if wanted.get(field) != recorded.get(field)
    ]


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            found |= _flat(inner, f"{prefix}{key}.")
        else:
            found[prefix + key] = inner
    return found

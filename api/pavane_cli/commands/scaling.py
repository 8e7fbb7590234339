"""``pavane scale|suspend|resume-resource``: how many pods a resource has, and whether it runs."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from pavane_api.rollout.actions import ACTIONS, act
from pavane_api.rollout.actions import scale as set_replicas
from pavane_cli import output
from pavane_cli.commands.resources import Reference, condition, is_current, wait_ready, wait_until
from pavane_cli.target import Context, Kubeconfig, Namespace, Timeout, Wait, Where, cluster, required_reference, run

Replicas = Annotated[int, typer.Option(help="Number of members; odd for a RaftCluster.", min=1)]


def scale(
    reference: Reference,
    replicas: Replicas,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Add or remove members of a running resource; no pod that stays is restarted."""
    run(_scale(Where(kubeconfig, context), reference, namespace, replicas, timeout if wait else None))


async def _scale(where: Where, reference: str, namespace: str, replicas: int, wait_s: float | None) -> None:
    resource, name = required_reference(reference)
    async with cluster(where) as client:
        await set_replicas(client, resource, namespace, name, replicas)
        output.say(f"{resource.kind.lower()}/{name}: spec.replicas = {replicas}")
        if wait_s is not None:
            await wait_ready(client, resource, namespace, name, wait_s)


def suspend(
    reference: Reference,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Stop all pods and keep the volumes."""
    run(_act(Where(kubeconfig, context), reference, namespace, "suspend", is_suspended, timeout if wait else None))


def is_suspended(document: dict[str, Any]) -> bool:
    """Whether the status says that the resource is suspended and no pod is left."""
    status = document.get("status") or {}
    seen = status.get("observedGeneration") == document["metadata"].get("generation")
    return seen and (condition(document, "Ready") or {}).get("reason") == "Suspended" and not status.get("replicas")


def resume_resource(
    reference: Reference,
    wait: Wait = False,
    timeout: Timeout = 300.0,
    namespace: Namespace = "default",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Start a suspended resource again: the same generation, on its volumes."""
    run(
        _act(Where(kubeconfig, context), reference, namespace, "resume-resource", is_current, timeout if wait else None)
    )


async def _act(
    where: Where,
    reference: str,
    namespace: str,
    action: str,
    rests: Callable[[dict[str, Any]], bool],
    wait_s: float | None,
) -> None:
    resource, name = required_reference(reference)
    async with cluster(where) as client:
        _, value = await act(client, resource, namespace, name, ACTIONS[action])
        output.say(f"{resource.kind.lower()}/{name}: {ACTIONS[action].path} = {value}")
        if wait_s is not None:
            await wait_until(client, resource, namespace, name, rests, wait_s)

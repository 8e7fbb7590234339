"""``pavane scale|suspend|resume-resource``: how many pods a resource has, and whether it runs."""

from typing import Annotated, Any

import typer

from pavane_api.rollout.actions import scale as set_replicas
from pavane_cli import output
from pavane_cli.commands.resources import condition, is_settled, wait_ready
from pavane_cli.commands.rollout import decide
from pavane_cli.gathering import One, about_pods
from pavane_cli.options import Timeout, Wait
from pavane_cli.target import cluster, run

Replicas = Annotated[int, typer.Option(help="Number of members; odd for a RaftCluster.", min=1)]


@about_pods
def scale(one: One, replicas: Replicas, wait: Wait = False, timeout: Timeout = 300.0) -> None:
    """Add or remove members of a running resource. The other pods do not restart."""
    run(_scale(one, replicas, timeout if wait else None))


async def _scale(one: One, replicas: int, wait_s: float | None) -> None:
    async with cluster(one.where) as client:
        field = await set_replicas(client, one.resource, one.namespace, one.name, replicas)
        output.say(f"{one.reference}: {field} = {replicas}")
        if wait_s is not None:
            await wait_ready(client, one.resource, one.namespace, one.name, wait_s)


def is_suspended(document: dict[str, Any]) -> bool:
    """Whether the status says that the resource is suspended and no pod is left."""
    status = document.get("status") or {}
    seen = status.get("observedGeneration") == document["metadata"].get("generation")
    return seen and (condition(document, "Ready") or {}).get("reason") == "Suspended" and not status.get("replicas")


@about_pods
def suspend(one: One, wait: Wait = False, timeout: Timeout = 300.0) -> None:
    """Stop all pods and keep the volumes."""
    run(decide(one, "suspend", wait_s=timeout if wait else None, done=is_suspended))


@about_pods
def resume_resource(one: One, wait: Wait = False, timeout: Timeout = 300.0) -> None:
    """Start a suspended resource again: the same generation, on its volumes."""
    run(decide(one, "resume-resource", wait_s=timeout if wait else None, done=is_settled))

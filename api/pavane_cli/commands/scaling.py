"""``pavane scale|suspend|resume-resource``: how many pods a resource has, and whether it runs."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from pavane_api.rollout.actions import scale as set_replicas
from pavane_cli import output
from pavane_cli.commands.resources import Reference, condition, is_current, wait_ready
from pavane_cli.commands.rollout import decide
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


def is_suspended(document: dict[str, Any]) -> bool:
    """Whether the status says that the resource is suspended and no pod is left."""
    status = document.get("status") or {}
    seen = status.get("observedGeneration") == document["metadata"].get("generation")
    return seen and (condition(document, "Ready") or {}).get("reason") == "Suspended" and not status.get("replicas")


def _command(action: str, done: Callable[[dict[str, Any]], bool], text: str) -> Callable[..., None]:
    def command(
        reference: Reference,
        wait: Wait = False,
        timeout: Timeout = 300.0,
        namespace: Namespace = "default",
        context: Context = None,
        kubeconfig: Kubeconfig = None,
    ) -> None:
        wait_s = timeout if wait else None
        run(decide(Where(kubeconfig, context), reference, namespace, action, wait_s=wait_s, done=done))

    command.__doc__ = text
    return command


suspend = _command("suspend", is_suspended, "Stop all pods and keep the volumes.")
resume_resource = _command(
    "resume-resource", is_current, "Start a suspended resource again: the same generation, on its volumes."
)

"""``pavane helm``: what the hooks of the chart run; not for the shell (docs/specs/operator.md 7.2)."""

import asyncio
import secrets
from typing import Annotated

import typer

from pavane.runtime.process import write_termination_log
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli import output
from pavane_cli.failures import UserError
from pavane_cli.target import RESOURCES, Where, cluster, run
from pavane_operator import kube
from pavane_operator.kube.resources import NAMESPACES
from pavane_operator.plan.model import FINALIZER

SHOWN_MAX = 50
"""Resources named in the complaint: the log of a pod that keeps an uninstallation waiting is read by a person."""
LOOK_S = 1.0
SUFFIX_BYTES = 3
"""Two tests of one cluster at a time shall not meet."""
SAMPLE_STORAGE = "64Mi"

Namespaces = Annotated[
    list[str] | None, typer.Option("--namespace", "-n", help="Look only in this namespace; may be repeated.")
]
Scratch = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace to use; default: create one.")]
Timeout = Annotated[float, typer.Option(help="Longest wait in seconds for each of the two steps.")]


def pre_delete(namespaces: Namespaces = None) -> None:
    """Fail while resources still need the operator to clean up after them, and name them."""
    run(_pre_delete(Where(), namespaces or [None]))


async def _pre_delete(where: Where, namespaces: "list[str] | list[None]") -> None:
    waiting: list[str] = []
    async with cluster(where) as client:
        for resource in RESOURCES:
            for namespace in namespaces:
                waiting += await _finalized(client, resource, namespace)
    if not waiting:
        output.say("No resource needs the operator.")
        return
    shown = waiting[:SHOWN_MAX] + ([f"and {len(waiting) - SHOWN_MAX} more"] if len(waiting) > SHOWN_MAX else [])
    message = (
        f"{len(waiting)} resources would keep their finalizer, and nobody would be there to clean up after them:\n  "
        + "\n  ".join(shown)
        + "\nDelete them first with kubectl, then uninstall again; or leave them as they are: "
        "`helm uninstall --no-hooks`."
    )
    write_termination_log(message)
    raise UserError(message)


async def _finalized(client: kube.KubeClient, resource: kube.Resource, namespace: str | None) -> list[str]:
    try:
        items = (await client.list_all(resource, namespace)).items
    except kube.NotFound:
        return []  # its definition is gone, and so are all resources
    return [
        f"{resource.kind} {item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in items
        if FINALIZER in (item["metadata"].get("finalizers") or ())
    ]


def try_out(namespace: Scratch = None, timeout: Timeout = 120.0) -> None:
    """Create a cluster of one pod, wait until it is ready, and delete it."""
    run(_try_out(Where(), namespace, timeout))


async def _try_out(where: Where, namespace: str | None, timeout_s: float) -> None:
    name = f"helm-test-{secrets.token_hex(SUFFIX_BYTES)}"
    place = namespace or f"pavane-{name}"
    async with cluster(where) as client:
        if namespace is None:
            await client.create(NAMESPACES, _namespace(place))
        try:
            await client.create(RAFT_CLUSTERS, _sample(name), place)
            output.say(f"RaftCluster {place}/{name} made.")
            await _until_ready(client, name, place, timeout_s)
            await client.delete(RAFT_CLUSTERS, name, place)
            await _until_gone(client, name, place, timeout_s)
            output.say("It came up, and is gone.")
        finally:
            # Also after a failure; a deletion of what is gone is none.
            await client.delete(RAFT_CLUSTERS, name, place)
            if namespace is None:
                await client.delete(NAMESPACES, place)


def _namespace(name: str) -> kube.Object:
    """A namespace that admits only pods of the strictest security level."""
    return {"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


def _sample(name: str) -> kube.Object:
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 1, "storage": {"size": SAMPLE_STORAGE}, "deletionPolicy": "Delete"},
    }


async def _until_ready(client: kube.KubeClient, name: str, namespace: str, timeout_s: float) -> None:
    told = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                status = (await client.get(RAFT_CLUSTERS, name, namespace)).get("status") or {}
                ready = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), None)
                if ready is not None and ready["status"] == "True":
                    return
                told = "the operator has not said anything" if ready is None else str(ready.get("message"))
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise UserError(f"The cluster is not ready after {timeout_s:g} s: {told}") from None


async def _until_gone(client: kube.KubeClient, name: str, namespace: str, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if await client.get_or_none(RAFT_CLUSTERS, name, namespace) is None:
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise UserError(
            f"The cluster is not gone {timeout_s:g} s after its deletion: look at the operator's log."
        ) from None

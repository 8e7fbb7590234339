"""``pavane tree``: resource → generation → pod, with stage and progress."""

from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from pavane_cli.gathering import One, about_pods
from pavane_cli.live import stage_of, state_of
from pavane_cli.target import cluster, run
from pavane_operator import kube
from pavane_operator.kube.resources import PODS

GENERATION_LABEL = "pavane.dev/generation"
ROLE_LABEL = "app.kubernetes.io/component"


@about_pods
def tree(one: One) -> None:
    """Show a resource with its generations and pods."""
    document, pods = run(_read(one))
    Console(highlight=False).print(picture(document, pods))


async def _read(one: One) -> tuple[kube.Object, tuple[kube.Object, ...]]:
    labels = f"app.kubernetes.io/instance={one.name},app.kubernetes.io/name={one.resource.kind.lower()}"
    async with cluster(one.where) as client:
        document = await client.get(one.resource, one.name, one.namespace)
        pods = (await client.list_all(PODS, one.namespace, labels=labels)).items
    return document, pods


def picture(document: dict[str, Any], pods: tuple[dict[str, Any], ...]) -> Tree:
    """Return the tree of a resource and its pods."""
    status = document.get("status") or {}
    root = Tree(Text(f"{document['kind']} {document['metadata']['name']}  {state_of(document)}", style="bold"))
    blockers = {item.get("pod"): item for item in (status.get("rollout") or {}).get("blockers") or ()}
    for generation in status.get("generations") or ():
        branch = root.add(_generation_line(status, generation))
        own = [
            pod
            for pod in pods
            if (pod["metadata"].get("labels") or {}).get(GENERATION_LABEL) == str(generation["number"])
        ]
        for pod in sorted(own, key=lambda item: str(item["metadata"]["name"])):
            branch.add(_pod_line(pod, blockers.get(pod["metadata"]["name"])))
    return root


def _generation_line(status: dict[str, Any], generation: dict[str, Any]) -> str:
    parts = [
        f"generation {generation['number']}",
        generation["role"],
        stage_of(status, generation),
        f"{generation.get('podsReady', 0)}/{generation.get('pods', 0)} ready",
    ]
    if "progress" in generation:
        parts.append(f"progress {generation['progress']} of {generation.get('target', '–')}")
    return "  ".join((*parts, generation.get("image", ""))).rstrip()


def _pod_line(pod: dict[str, Any], blocker: dict[str, Any] | None) -> str:
    status = pod.get("status") or {}
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or ())
    restarts = sum(item.get("restartCount", 0) for item in status.get("containerStatuses") or ())
    role = (pod["metadata"].get("labels") or {}).get(ROLE_LABEL, "")
    parts = [pod["metadata"]["name"], role, status.get("phase", "Pending"), "ready" if ready else "not ready"]
    if restarts:
        parts.append(f"{restarts} restarts")
    if blocker:
        parts.append(f"waits: {blocker['reason']} {blocker.get('message', '')}".rstrip())
    return "  ".join(part for part in parts if part)

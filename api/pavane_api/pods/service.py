"""Composes the pods of a resource: what the cluster knows of them, and what each says on `/stage` of its ops port."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from typing import Any

import httpx2

from pavane.runtime import asking
from pavane.runtime.names import bracketed
from pavane.runtime.ops import OPS_PORT
from pavane.wire import Stage
from pavane_api.pods.schemas import Pod, PodBlocker, PodList
from pavane_operator import kube
from pavane_operator.kube.informer import Informer
from pavane_operator.kube.resources import PODS
from pavane_operator.plan.model import GENERATION_LABEL, parse_number

ASK_S = 1.0
"""A pod that needs longer is shown as one that does not answer."""
ANSWER_BYTES_MAX = 256 * 1024
"""Of one pod: the longest document names 1,024 peers of a coordinator. ASKED_MAX of them are in memory at once."""
ASKED_MAX = 64
"""Pods that are asked for their stage, first by generation and name; a page with more lanes tells nobody more."""
LOOK_S = 0.25
"""Between two looks at pods that are on their way; the shortest stage of a rollout is about as long."""
LOOK_AT_REST_S = 2.0
"""Between two looks when all have arrived; what the cluster knows of a pod is told at once."""


async def pods(client: kube.KubeClient, http: httpx2.AsyncClient, resource: kube.Object) -> PodList:
    """Return the pods of a resource; each is asked."""
    return await _composed(http, await bodies_of(client, resource))


async def bodies_of(client: kube.KubeClient, resource: kube.Object) -> list[kube.Object]:
    """Return the pods of a resource as the cluster has them, by generation and name."""
    found = await client.list_all(PODS, resource["metadata"]["namespace"], labels=_labels(resource))
    return _ordered(found.items)


def _ordered(bodies: Iterable[kube.Object]) -> list[kube.Object]:
    return sorted(bodies, key=lambda body: (generation_of(body) or 0, body["metadata"]["name"]))


async def events(
    client: kube.KubeClient, http: httpx2.AsyncClient, resource: kube.Object
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield an event `pods` with all of them, now and whenever one of them is another than it was.

    Ends when the cluster cannot be reached.
    """
    changed = asyncio.Event()
    bodies: dict[str, kube.Object] = {}
    watch = asyncio.create_task(_keep(client, resource, bodies, changed))
    last: PodList | None = None
    try:
        await asyncio.wait({watch, waiting := asyncio.ensure_future(changed.wait())}, return_when="FIRST_COMPLETED")
        waiting.cancel()
        while not watch.done():
            changed.clear()
            found = await _composed(http, _ordered(bodies.values()))
            if found != last:
                last = found
                yield {"event": "pods", "data_str": found.model_dump_json(by_alias=True)}
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AT_REST_S if _at_rest(found) else LOOK_S):
                    await changed.wait()
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _keep(
    client: kube.KubeClient, resource: kube.Object, bodies: dict[str, kube.Object], changed: asyncio.Event
) -> None:
    """Keep the pods as the cluster has them; returns when it cannot be reached."""
    namespace, labels = resource["metadata"]["namespace"], _labels(resource)
    with suppress(kube.KubeError):
        async for found in Informer(client, PODS, namespace, labels=labels).lists_and_changes():
            if isinstance(found, kube.ObjectList):
                bodies.clear()
                bodies.update((body["metadata"]["name"], body) for body in found.items)
            elif found.type == "DELETED":
                bodies.pop(found.object["metadata"]["name"], None)
            else:
                bodies[found.object["metadata"]["name"]] = found.object
            changed.set()


def _labels(resource: kube.Object) -> str:
    return (
        f"app.kubernetes.io/name={resource['kind'].lower()},app.kubernetes.io/instance={resource['metadata']['name']}"
    )


async def _composed(http: httpx2.AsyncClient, ordered: list[kube.Object]) -> PodList:
    told = await asyncio.gather(*(ask(http, body, "/stage") for body in ordered[:ASKED_MAX]))
    told += [None] * (len(ordered) - len(told))
    return PodList(items=[_pod(body, words) for body, words in zip(ordered, told, strict=True)])


async def ask(http: httpx2.AsyncClient, body: kube.Object, path: str) -> Mapping[str, Any] | None:
    """Return the JSON object that a pod of a generation has at a path of its ops port; None while it has none."""
    host = (body.get("status") or {}).get("podIP")
    if not host or generation_of(body) is None:
        return None
    try:
        url = f"http://{bracketed(host)}:{OPS_PORT}{path}"
        return (await asking.ask(http, "GET", url, within_s=ASK_S, bytes_max=ANSWER_BYTES_MAX)).document()
    except (httpx2.HTTPError, ValueError):
        return None


def _pod(body: kube.Object, told: Mapping[str, Any] | None) -> Pod:
    metadata, status = body["metadata"], body.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    waiting: Mapping[str, Any] = next(
        (one["state"]["waiting"] for one in containers if (one.get("state") or {}).get("waiting")), {}
    )
    reason = waiting.get("reason") or (conditions.get("PodScheduled") or {}).get("reason")
    said = " – ".join(filter(None, (reason, waiting.get("message"))))
    known = Pod(
        name=metadata["name"],
        role=(metadata.get("labels") or {}).get("app.kubernetes.io/component", ""),
        generation=generation_of(body),
        phase="Terminating" if "deletionTimestamp" in metadata else status.get("phase", "Pending"),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        restarts=sum(int(one.get("restartCount") or 0) for one in containers),
        waiting=said or None,
    )
    return known if told is None else known.model_copy(update=_stage(told, known.generation or 0))


def _stage(told: Mapping[str, Any], generation: int) -> dict[str, Any]:
    """Return the fields that the pod's own words give."""
    fence = told.get("fence")
    return {
        "stage": told["stage"] if told.get("stage") in {stage.title for stage in Stage} else None,
        "fenced": isinstance(fence, int) and fence > generation,
        "progress": _number(told.get("progress")),
        "target": _number(told.get("target")),
        "unit": str(told["unit"]) if told.get("unit") else None,
        "blockers": [
            PodBlocker(reason=str(each.get("reason", "")), text=str(each.get("text", "")))
            for each in told.get("blockers") or ()
            if isinstance(each, dict) and not each.get("info")
        ],
    }


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def generation_of(body: kube.Object) -> int | None:
    """Return the generation of a pod; None where it serves one after the other."""
    return parse_number((body["metadata"].get("labels") or {}).get(GENERATION_LABEL))


def _at_rest(found: PodList) -> bool:
    """Whether no pod is on its way anywhere."""
    staged = [each for each in found.items if each.generation is not None]
    arrived = all(each.ready and each.stage == Stage.READ_WRITE.title and not each.fenced for each in staged)
    return arrived and len({each.generation for each in staged}) <= 1

"""Which storage nodes cannot use their copies of partitions, as their ops ports tell (docs/specs/waltz.md 12.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import httpx2

from pavane.runtime import asking
from pavane.runtime.names import bracketed
from pavane_operator.objects.names import OPS_PORT
from pavane_operator.plan.model import Pod

PATH = "/storage"
ASK_TIMEOUT_S = 0.5
"""Per pod: one that takes longer tells nothing in this look."""

Faults = Mapping[str, Mapping[int, str]]
"""By pod and partition: why it is not used, in words."""


def faults_in(document: object) -> dict[int, str]:
    """The answer, checked. Raises ValueError for anything else than such a document."""
    faults = document.get("faults") if isinstance(document, Mapping) else None
    if not isinstance(faults, Mapping):
        raise ValueError(f"{PATH} answered no faults")
    return {int(partition): str(text) for partition, text in faults.items()}


async def faults_of(http: httpx2.AsyncClient, pods: Iterable[Pod]) -> dict[str, dict[int, str]]:
    """Ask the storage nodes that are not ready: one with a fault is never ready. Who does not answer is left out."""

    async def ask(pod: Pod) -> dict[int, str]:
        try:
            url = f"http://{bracketed(pod.address or '')}:{OPS_PORT}{PATH}"
            return faults_in((await asking.ask(http, "GET", url, within_s=ASK_TIMEOUT_S)).document())
        except (httpx2.HTTPError, ValueError):
            return {}

    asked = [pod for pod in pods if pod.address and not pod.ready and not pod.deleting]
    answers = await asyncio.gather(*map(ask, asked))
    return {pod.name: found for pod, found in zip(asked, answers, strict=True) if found}

"""What storage nodes tell on their ops ports: unusable copies, a full volume (docs/specs/waltz.md 12.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2

from pavane.runtime import asking
from pavane.runtime.names import bracketed
from pavane_operator.objects.names import OPS_PORT
from pavane_operator.plan.model import Pod

PATH = "/storage"
ASK_TIMEOUT_S = 0.5
"""Per pod: one that takes longer tells nothing in this look."""

Document = TypeVar("Document")

Faults = Mapping[str, Mapping[int, str]]
"""By pod and partition: why it is not used, in words."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one storage node has told."""

    faults: Mapping[int, str]
    full: bool
    """Its volume has no room for appends."""
    mended: Mapping[int, str] = field(default_factory=dict)
    """Copies that were rebuilt since its pod began, and what was wrong with them."""


def told_in(document: object) -> Told:
    """The answer, checked. Raises ValueError for anything else than such a document."""
    faults = document.get("faults") if isinstance(document, Mapping) else None
    if not isinstance(faults, Mapping):
        raise ValueError(f"{PATH} answered no faults")
    mended = document.get("mended", {}) if isinstance(document, Mapping) else {}
    if not isinstance(mended, Mapping):
        raise ValueError(f"{PATH} answered no rebuilt copies")
    found, whole = ({int(number): str(text) for number, text in each.items()} for each in (faults, mended))
    return Told(found, full=isinstance(document, Mapping) and document.get("full") is True, mended=whole)


async def told_by(
    http: httpx2.AsyncClient, pods: Iterable[Pod], path: str, read: Callable[[dict[str, Any]], Document]
) -> dict[str, Document]:
    """Ask pods for a document. Who does not answer, or something that `read` refuses (ValueError), is left out."""

    async def ask(pod: Pod) -> Document | None:
        try:
            url = f"http://{bracketed(pod.address or '')}:{OPS_PORT}{path}"
            return read((await asking.ask(http, "GET", url, within_s=ASK_TIMEOUT_S)).document())
        except (httpx2.HTTPError, ValueError):
            return None

    asked = [pod for pod in pods if pod.address and not pod.deleting]
    answers = await asyncio.gather(*map(ask, asked))
    return {pod.name: found for pod, found in zip(asked, answers, strict=True) if found is not None}

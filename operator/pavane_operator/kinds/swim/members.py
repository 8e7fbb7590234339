"""What a member tells of its group on the ops port of its pod, `/members` (docs/specs/swim.md 17.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from pavane.runtime import asking
from pavane.runtime.names import bracketed
from pavane.swim.wire.values import NodeStage, State
from pavane_operator.objects.names import OPS_PORT

PATH = "/members"
ANSWER_BYTES_MAX = 4 << 20
"""Some 30,000 members; one answer at a time is there as objects, which take 25 times as much at worst."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One member, as another one knows it."""

    id: int
    gen: int
    address: str | None
    """`host:port`; None while it is not known."""
    state: State
    stage: NodeStage
    rollout: int
    """0 = it belongs to none, or has not said so directly."""
    meta: str | None = None
    """What it says of itself beside; None while it is not known."""


@dataclass(frozen=True, slots=True)
class Table:
    """What one member knows."""

    id: int
    """Of that member."""
    digest: str | None
    """16 hexadecimal digits; equal at members that know the same. None while it knows more than it can hold."""
    dead: int
    """How many it remembers as dead."""
    key_ids: tuple[str, ...]
    """Ids of the keys that it has, the one that protects what it sends first."""
    members: Mapping[int, Entry]
    """By id, that member included."""
    dead_members: tuple[Entry, ...] = ()
    """Those who died last, newest first; a member of an earlier version tells none."""


def table_of(document: object) -> Table:
    """The answer, checked. Raises ValueError for anything else than such a document."""
    if not isinstance(document, Mapping):
        raise ValueError(f"{PATH} answered no object")
    try:
        entries = [_entry(one) for one in document["members"]]
        key_ids = tuple(str(each) for each in document["key_ids"])
        by_id = {one.id: one for one in entries}
        dead = tuple(_entry(one) for one in document.get("dead_members", ()))
        return Table(int(document["id"]), document["digest"], int(document["dead"]), key_ids, by_id, dead)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{PATH} lacks {error}") from error


async def ask(http: httpx2.AsyncClient, host: str, timeout_s: float) -> Table | None:
    """Ask the pod at an address; None when it does not answer in time, or has no member yet."""
    try:
        url = f"http://{bracketed(host)}:{OPS_PORT}{PATH}"
        answer = await asking.ask(http, "GET", url, within_s=timeout_s, bytes_max=ANSWER_BYTES_MAX)
        return table_of(answer.document())
    except (httpx2.HTTPError, ValueError):
        return None


def _entry(one: Mapping[str, Any]) -> Entry:
    return Entry(
        int(one["id"]),
        int(one["gen"]),
        one["address"],
        State[one["state"].upper()],
        NodeStage[one["stage"].upper()],
        int(one["rollout"]),
        one["meta"],
    )

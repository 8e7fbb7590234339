"""What pods without a stage stream say on their ops port, `/stage` (docs/specs/operator.md 5.8)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx2
import structlog

from pavane.parts.backoff import backoff_s
from pavane.runtime.asking import ask
from pavane.wire.stages import Stage
from pavane_operator.plan.model import PodBlocker, StageView
from pavane_operator.runtime.streams import socket_address

OPS_PORT = 7071
POLL_S = 30.0
"""Between two looks at a pod that answers. The pods of a resource take turns, so that of three one is asked every ten
seconds: whichever is asked tells that something has changed in the store."""
RETRY_MIN_S = 0.2
RETRY_MAX_S = 5.0
"""Between two looks at a pod that does not answer yet: it is starting, and somebody waits for it."""
POLL_TIMEOUT_S = 2.0
STAGE_BYTES_MAX = 64 * 1024
"""Of `/stage`: a stage, four numbers and a few sentences on what it waits for; it stays in memory."""

_STAGES = {stage.title: stage for stage in Stage}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PollTarget:
    """One run of one pod; a restart is another one, so that what it said before is forgotten."""

    uid: str
    address: str
    restarts: int


@dataclass(slots=True)
class _Poll:
    due: float
    asked: bool = False
    """Whether it was asked at least once, with or without an answer."""
    failures: int = 0
    view: StageView | None = None


class StagePolls:
    """Asks the pods of one resource; `wake` is called when one says something new."""

    def __init__(self, http: httpx2.AsyncClient, rng: random.Random, wake: Callable[[], None]) -> None:
        self._http = http
        self._rng = rng
        self._wake = wake
        self._polls: dict[PollTarget, _Poll] = {}
        self._targets_changed = asyncio.Event()
        self._asked = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="stage polls")

    def keep(self, targets: Mapping[PollTarget, StageView | None]) -> None:
        """Ask exactly these from now on, a new one at once; until it answers, what is known of it already counts.

        What is known comes from a stream, so it is newer than what one of them answered before: that one is asked anew.
        """
        if targets.keys() == self._polls.keys() and not any(targets.values()):
            return
        now = asyncio.get_running_loop().time()
        self._polls = {
            target: _Poll(due=now, view=known) if known or target not in self._polls else self._polls[target]
            for target, known in targets.items()
        }
        self._targets_changed.set()

    async def asked(self) -> None:
        """Wait until each of them was asked once, which takes at most POLL_TIMEOUT_S."""
        while not all(poll.asked for poll in self._polls.values()):
            self._asked.clear()
            await self._asked.wait()

    def view(self, uid: str) -> StageView | None:
        """What the present run of the pod said last; None before it said anything."""
        return next((poll.view for target, poll in self._polls.items() if target.uid == uid), None)

    async def close(self) -> None:
        """Ask no more."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._targets_changed.clear()
            due = [target for target, poll in self._polls.items() if poll.due <= loop.time()]
            await asyncio.gather(*(self._ask(target) for target in due))
            next_due = min((poll.due for poll in self._polls.values()), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_due):
                    await self._targets_changed.wait()

    async def _ask(self, target: PollTarget) -> None:
        poll = self._polls.get(target)
        view = await self._fetch(target)
        if poll is None or self._polls.get(target) is not poll:
            return
        poll.asked = True
        self._asked.set()
        poll.failures = 0 if view is not None else poll.failures + 1
        now = asyncio.get_running_loop().time()
        if view is None:
            poll.due = now + backoff_s(poll.failures, RETRY_MIN_S, RETRY_MAX_S, self._rng)
        else:
            poll.due = next_turn(now, [each.due for each in self._polls.values()], self._rng.uniform(0.8, 1.0))
        if view != poll.view:
            poll.view = view
            self._wake()

    async def _fetch(self, target: PollTarget) -> StageView | None:
        url = f"http://{socket_address(target.address, OPS_PORT)}/stage"
        try:
            answer = await ask(self._http, "GET", url, within_s=POLL_TIMEOUT_S, bytes_max=STAGE_BYTES_MAX)
            return stage_view(answer.document())
        except (httpx2.HTTPError, ValueError) as error:
            log.debug("pod does not report its stage", address=target.address, error=str(error))
        except Exception:
            log.exception("a pod could not be asked for its stage", address=target.address)
        return None


def next_turn(now: float, dues: Sequence[float], jitter: float) -> float:
    """When to ask a pod that has just answered: behind all pods of its resource, which are asked at `dues`."""
    return min(max(now, *dues) + POLL_S / len(dues) * jitter, now + POLL_S)


def stage_view(document: object) -> StageView:
    """The JSON of `/stage` as the planner sees it, without a stream.

    Raises ValueError for anything else than such a document.
    """
    if not isinstance(document, Mapping):
        raise ValueError("/stage answered no object")
    try:
        return StageView(
            stage=_STAGES[document["stage"]],
            connected=False,
            progress=document.get("progress"),
            target=document.get("target"),
            leads=bool(document.get("leads")),
            done=bool(document.get("done")),
            fence=document.get("fence"),
            mark=document.get("mark"),
            blockers=tuple(
                PodBlocker(str(one["reason"]), str(one.get("text") or ""), dict(one.get("detail") or {}))
                for one in document.get("blockers") or ()
                if not one.get("info")
            ),
            first_write_ms=document.get("firstWriteMs") or None,
            last_write_ms=document.get("lastWriteMs") or None,
            write_gap_ms=document.get("writeGapMs") or None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"/stage lacks {error}") from error

"""What an immortal wants done outside the log (docs/specs/ambrosia.md 18.2)."""

from dataclasses import dataclass
from typing import Any

from pavane.ambrosia.client.retries import Retry

REQUESTS_OPEN_MAX = 4096  # calls from outside that wait for their answers; more wait before they are logged
CALLED, FAILED, LATE = "called", "failed", "late"
"""What `Engine.counts` counts: calls handled as primary, handlers that ended with an exception, answers for nobody."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Something to do beside the log, by the primary only: ``kind`` is ``clock``, ``timer`` or ``run``."""

    kind: str
    flow: int
    step: int
    due: int = -1
    detail: Any = None
    attempt: int = -1
    """Of a run, and of the timer before its next attempt: how many have failed."""
    retry: Retry | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A request from outside has its answer."""

    token: str
    state: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler ended with an exception and nobody waits for its answer, or a message was dropped."""

    where: str
    text: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Long:
    """A flow has a long history, which it carries in every checkpoint."""

    where: str
    text: str

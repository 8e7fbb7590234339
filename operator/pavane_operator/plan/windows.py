"""Whether a window of a spec is open, and when the next one opens (docs/specs/operator.md 2.5)."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

from pavane_operator.crds.values import parse_duration
from pavane_operator.crds.windows import Window
from pavane_operator.cron import Schedule
from pavane_operator.plan.model import Problem

KEPT_ANSWERS = 256
"""Windows of which is known what a minute is to them: the planner asks with each event, and looks through days."""


def is_open(windows: Sequence[Window], now: datetime) -> bool:
    """Whether one of them is open; one that cannot be read never is."""
    return any(
        last is not None and now < last + parse_duration(window.duration)
        for window in windows
        for last, _ in (_around(window, now),)
    )


def opens_at(windows: Sequence[Window], now: datetime) -> datetime | None:
    """When the next of them opens, after `now`; None = never."""
    return min((at for window in windows if (at := _around(window, now)[1]) is not None), default=None)


def window_problem(windows: Sequence[Window], now: datetime) -> Problem | None:
    """`InvalidConfig` for one that cannot be read or never opens; None = all are fine."""
    for number, window in enumerate(windows):
        place = f"spec.rollout.windows[{number}]"
        try:
            Schedule.parse(window.schedule, window.time_zone)
        except ValueError as error:
            return Problem("InvalidConfig", f"{place}: {error}")
        if _around(window, now) == (None, None):
            return Problem("InvalidConfig", f"{place}: schedule {window.schedule!r} names no day that comes")
    return None


def _around(window: Window, now: datetime) -> tuple[datetime | None, datetime | None]:
    """When it opened last, and opens next; what is due is due on a whole minute."""
    try:
        return _due(window.schedule, window.time_zone, now.replace(second=0, microsecond=0))
    except ValueError:
        return None, None  # `window_problem` says so


@lru_cache(KEPT_ANSWERS)
def _due(schedule: str, time_zone: str, minute: datetime) -> tuple[datetime | None, datetime | None]:
    read = Schedule.parse(schedule, time_zone)
    return read.last(minute), read.next(minute)

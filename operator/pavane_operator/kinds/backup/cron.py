"""When something was due last: five fields of cron in a time zone, without a clock (docs/specs/operator.md 1.10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
"""What each is called, its least and greatest value, and names in the order of the values."""
HOURS = 24
DAYS_BACK = 8 * 366
"""A 29th of February is at most eight years ago."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times of day on some days. What is due at a time that a change of the clock leaves out is due an hour later;
    what is due at a time that comes twice is due the first time, unless it is due in every hour."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    """One of days and weekdays is enough: both are given."""
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str, zone: str) -> Self:
        """Read a schedule. Raises ValueError, in words for the user."""
        fields = text.split()
        if len(fields) != len(FIELDS):
            raise ValueError(f"schedule {text!r} has {len(fields)} fields; write five, as 30 2 * * *")
        try:
            known = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {zone!r}; write one as Europe/Berlin") from None
        minutes, hours, days, months, weekdays = map(_values, fields, FIELDS)
        either = not any(fields[at].startswith("*") for at in (2, 4))
        return cls(minutes, hours, days, months, frozenset(each % 7 for each in weekdays), either, known)

    def last(self, now: datetime) -> datetime | None:
        """Return when it was due last, `now` included, in UTC; None if it never was."""
        today = now.astimezone(self.zone).date()
        for back in range(DAYS_BACK):
            day = today - timedelta(days=back)
            found = max((at for at in self._on(day) if at <= now), default=None)
            if found is not None:
                return found
        return None

    def _on(self, day: date) -> Iterator[datetime]:
        both = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        if day.month not in self.months or not (any(both) if self.either else all(both)):
            return
        for hour, minute in product(self.hours, self.minutes):
            at = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone)
            yield at.astimezone(UTC)
            if len(self.hours) == HOURS:
                yield at.replace(fold=1).astimezone(UTC)


def _values(field: str, about: tuple[str, int, int, tuple[str, ...]]) -> frozenset[int]:
    name, least, greatest, words = about
    found: set[int] = set()
    for item in field.split(","):
        span, slash, every = item.partition("/")
        first, dash, last = span.partition("-")
        try:
            start = least if span == "*" else _number(first, words, least)
            end = _number(last, words, least) if dash else greatest if span == "*" or slash else start
            step = int(every) if slash else 1
            if not (least <= start <= end <= greatest and step > 0):
                raise ValueError(item)
        except ValueError:
            raise ValueError(f"{item!r} is no {name}: write {least} to {greatest}, *, 1-5, */2 or 1,3") from None
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, words: tuple[str, ...], least: int) -> int:
    return words.index(text.lower()) + least if text.lower() in words else int(text)

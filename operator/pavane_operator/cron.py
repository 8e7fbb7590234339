"""When something is due: five fields of cron in a time zone, without a clock (docs/specs/operator.md 1.10)."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
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
MINUTE = timedelta(minutes=1)
DAYS_MAX = 8 * 366
"""From one 29th of February to another are at most eight years."""


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
        return self._nearest(now, -1)

    def next(self, now: datetime) -> datetime | None:
        """Return when it is due next, after `now`, in UTC; None if it never is."""
        return self._nearest(now, 1)

    def _nearest(self, now: datetime, way: int) -> datetime | None:
        """The nearest time on that side of `now`: one of the first day on which there is any.

        A change of the clock at midnight moves a time to the day beside its own, so one more day is looked at on
        either side.
        """
        today = now.astimezone(self.zone).date()
        found: list[datetime] = []
        end = DAYS_MAX
        for distance in self._distances(today, way):
            if distance > end:
                break
            day = today + way * distance * timedelta(days=1)
            found += [at for hour in self.hours for at in self._in_hour(day, hour, now, way)]
            end = min(end, distance + 1) if found else end
        return min(found, key=lambda at: abs(at - now), default=None)

    def _distances(self, today: date, way: int) -> Iterator[int]:
        """How many days away the days are on which it is due, from the day on the other side of today."""
        distance = -1
        while distance < DAYS_MAX:
            day = today + way * distance * timedelta(days=1)
            if day.month not in self.months:
                distance += _left_of_month(day, way)
                continue
            both = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
            if any(both) if self.either else all(both):
                yield distance
            distance += 1

    def _in_hour(self, day: date, hour: int, now: datetime, way: int) -> Iterator[datetime]:
        """Its times of an hour on that side of `now`; of an hour without a change of the clock the nearest."""
        begin = datetime(day.year, day.month, day.day, hour, tzinfo=self.zone)
        ends = (begin, begin.replace(fold=1), begin.replace(minute=59), begin.replace(minute=59, fold=1))
        if len({each.utcoffset() for each in ends}) > 1:
            yield from (at for at in self._in_odd_hour(begin) if (at > now if way > 0 else at <= now))
            return
        first = begin.astimezone(UTC)
        past = (now - first) // MINUTE
        minutes = [minute for minute in self.minutes if (minute > past if way > 0 else minute <= past)]
        if minutes:
            yield first + MINUTE * (min(minutes) if way > 0 else max(minutes))

    def _in_odd_hour(self, begin: datetime) -> Iterator[datetime]:
        for minute in self.minutes:
            at = begin.replace(minute=minute)
            first, second = at.astimezone(UTC), at.replace(fold=1).astimezone(UTC)
            yield first
            if len(self.hours) == HOURS and second > first:  # of one that is left out the second is before the first
                yield second


def _left_of_month(day: date, way: int) -> int:
    """How many days it is to the next month, or to the former one."""
    return calendar.monthrange(day.year, day.month)[1] - day.day + 1 if way > 0 else day.day


def _values(field: str, about: tuple[str, int, int, tuple[str, ...]]) -> frozenset[int]:
    name, least, greatest, words = about
    found: set[int] = set()
    for item in field.split(","):
        span, slash, every = item.partition("/")
        first, dash, last = span.partition("-")
        try:
            start = least if span == "*" else _number(first, words, least)
            end = _number(last, words, least) if dash else greatest if span == "*" or slash else start
            step = _number(every) if slash else 1
            if not (least <= start <= end <= greatest and step > 0):
                raise ValueError(item)
        except ValueError:
            raise ValueError(f"{item!r} is no {name}: write {least} to {greatest}, *, 1-5, */2 or 1,3") from None
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, words: tuple[str, ...] = (), least: int = 0) -> int:
    if text.lower() in words:
        return words.index(text.lower()) + least
    if not (text.isascii() and text.isdigit()):  # int() takes signs, underscores and digits of other scripts too
        raise ValueError(text)
    return int(text)

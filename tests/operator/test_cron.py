"""When a schedule was and will be due, also on the days on which the clock changes."""

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane_operator.cron import Schedule

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)
"""Days in Berlin of 23 and of 25 hours: 02:30 does not come, and comes twice."""


def due(text: str, day: datetime, zone: str = BERLIN) -> list[str]:
    """All times of a day of the zone, as its clock shows them, at which something is due."""
    schedule = Schedule.parse(text, zone)
    begin = day.replace(tzinfo=schedule.zone).astimezone(UTC)
    end = (day + timedelta(days=1)).replace(tzinfo=schedule.zone).astimezone(UTC)
    found, now = [], begin
    while now < end:
        if schedule.last(now) == now:
            found.append(f"{now.astimezone(schedule.zone):%H:%M}")
        now += timedelta(minutes=15)
    return found


def test_a_run_a_night_is_one_run_on_the_days_on_which_the_clock_changes() -> None:
    for text in ("30 2 * * *", "30 2 * * sun", "30 2-2 29,25 mar,OCT *"):
        assert due(text, SPRING) == ["03:30"], "an hour later, for 02:30 does not come"
        assert due(text, AUTUMN) == ["02:30"]
    assert due("30 2,3 * * *", SPRING) == ["03:30"]
    assert due("30 2 * * *", SPRING, "Etc/UTC") == ["02:30"]


def test_what_is_due_every_hour_is_due_in_the_hour_that_comes_twice() -> None:
    assert len(due("15 * * * *", SPRING)) == 23
    assert due("15 * * * *", AUTUMN)[1:5] == ["01:15", "02:15", "02:15", "03:15"]
    assert len(due("*/15 * * * *", AUTUMN)) == 100


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("0 12 * * *", "2026-05-20T12:00"),
        ("1 12 * * *", "2026-05-19T12:01"),
        ("*/20 8-10/2 * * *", "2026-05-20T10:40"),
        ("5/25 0 * * *", "2026-05-20T00:55"),
        ("0 0 1 * *", "2026-05-01T00:00"),
        ("0 0 * * 7", "2026-05-17T00:00"),
        ("0 0 * * mon-tue", "2026-05-19T00:00"),
        ("0 0 1 * mon", "2026-05-18T00:00"),  # one of the two is enough
        ("0 0 */10 * mon", "2026-05-11T00:00"),  # both are asked for where one begins with a star
        ("0 0 29 2 *", "2024-02-29T00:00"),
        ("0 0 31 dec *", "2025-12-31T00:00"),
    ],
)
def test_when_it_was_due_last(text: str, last: str) -> None:
    now = datetime(2026, 5, 20, 12, 0, 30, tzinfo=UTC)
    assert Schedule.parse(text, "Etc/UTC").last(now) == datetime.fromisoformat(last).replace(tzinfo=UTC)


def test_a_day_that_never_comes() -> None:
    assert Schedule.parse("0 0 30 2 *", "Etc/UTC").last(SPRING) is None


@pytest.mark.parametrize(
    ("text", "zone", "words"),
    [
        ("30 2 * *", "Etc/UTC", "has 4 fields; write five"),
        ("60 2 * * *", "Etc/UTC", "'60' is no minute: write 0 to 59"),
        ("0 5-2 * * *", "Etc/UTC", "'5-2' is no hour"),
        ("0 */0 * * *", "Etc/UTC", "'\\*/0' is no hour"),
        ("0 0 0 * *", "Etc/UTC", "'0' is no day of the month"),
        ("0 0 * may-june *", "Etc/UTC", "'may-june' is no month"),
        ("0 0 * * , ", "Etc/UTC", "'' is no day of the week"),
        ("٣ 2 * * *", "Etc/UTC", "'٣' is no minute"),  # digits, but not those of cron
        ("+3 2 * * *", "Etc/UTC", "'\\+3' is no minute"),
        ("1_0 2 * * *", "Etc/UTC", "'1_0' is no minute"),
        ("*/² 2 * * *", "Etc/UTC", "'\\*/²' is no minute"),
        ("0 0 * * *", "Europe/Atlantis", "there is no time zone 'Europe/Atlantis'"),
        ("0 0 * * *", "../etc/passwd", "there is no time zone"),
    ],
)
def test_what_is_wrong_is_said(text: str, zone: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule.parse(text, zone)


# ---- beside a clock that is read every minute

MINUTE = timedelta(minutes=1)
CHANGES = {
    "Europe/Berlin": [SPRING, AUTUMN],
    "America/New_York": [datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)],
    "Australia/Lord_Howe": [datetime(2026, 4, 4, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)],  # by half an hour
    "Africa/Cairo": [datetime(2026, 4, 23, tzinfo=UTC), datetime(2026, 10, 29, tzinfo=UTC)],  # at midnight
    "America/St_Johns": [datetime(2010, 3, 14, tzinfo=UTC), datetime(2010, 11, 7, tzinfo=UTC)],  # at 00:01
    "Asia/Kathmandu": [SPRING],  # never
}


def wall_times(begin: datetime, minutes: int, zone: ZoneInfo) -> Iterator[tuple[datetime, list[datetime], bool]]:
    """Each minute with what a clock on the wall shows then, what it would show had it not just been put forward, and
    whether it shows that for the second time."""
    before = (begin - MINUTE).astimezone(zone).replace(tzinfo=None)
    left_out: list[datetime] = []
    for number in range(minutes):
        now = begin + number * MINUTE
        there = now.astimezone(zone)
        shown = there.replace(tzinfo=None)
        jump = (shown - before) // MINUTE - 1
        left_out += [before + (each + 1) * MINUTE for each in range(max(jump, 0))]
        yield now, [shown, *left_out[:1]], bool(there.fold)
        left_out, before = left_out[1:], shown


def matching(text: str) -> Callable[[datetime], bool]:
    """Whether cron is due at what a clock shows; for the fields that `field` below writes."""
    minute, hour, day, month, weekday = (value_of(each) for each in text.split())
    weekday |= {0} & {each % 7 for each in weekday}
    alternatives = "*" not in (text.split()[2], text.split()[4])

    def matches(shown: datetime) -> bool:
        if shown.minute not in minute or shown.hour not in hour or shown.month not in month:
            return False
        days, weekdays = shown.day in day, shown.isoweekday() % 7 in weekday
        return (days or weekdays) if alternatives else (days and weekdays)

    return matches


def value_of(field: str) -> set[int]:
    if field.startswith("*"):
        return set(range(0, 60, int(field[2:] or 1)))
    return {int(each) for each in field.split(",")}


def field(least: int, greatest: int, *stars: str) -> st.SearchStrategy[str]:
    numbers = st.lists(st.integers(least, greatest), min_size=1, max_size=3)
    return st.sampled_from(["*", *stars]) | numbers.map(lambda each: ",".join(map(str, each)))


SCHEDULES = st.tuples(field(0, 59, "*/20"), field(0, 23, "*/6"), field(1, 31), field(1, 12), field(0, 7)).map(" ".join)
PLACES = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])


@given(text=SCHEDULES, place=PLACES, offset=st.integers(0, 47 * 60), seconds=st.integers(0, 59))
@settings(max_examples=60, deadline=None)
def test_it_is_due_when_a_clock_on_the_wall_says_so(
    text: str, place: tuple[str, datetime], offset: int, seconds: int
) -> None:
    zone, day = place
    schedule = Schedule.parse(text, zone)
    every_hour = text.split()[1] == "*"
    matches, begin = matching(text), day - timedelta(days=1)
    found = [
        now
        for now, shown, again in wall_times(begin, 4 * 24 * 60, schedule.zone)
        if any(matches(each) for each in (shown if every_hour or not again else shown[1:]))
    ]
    now = day + offset * MINUTE + timedelta(seconds=seconds)
    last, following = schedule.last(now), schedule.next(now)
    past, coming = [at for at in found if at <= now], [at for at in found if at > now]
    assert (last if last is not None and last >= begin else None) == max(past, default=None)
    end = begin + 4 * 24 * 60 * MINUTE
    assert (following if following is not None and following < end else None) == min(coming, default=None)


def test_both_sides_of_a_day_that_never_comes() -> None:
    assert Schedule.parse("0 0 30 2 *", "Etc/UTC").next(SPRING) is None
    assert Schedule.parse("0 0 29 2 *", "Etc/UTC").next(SPRING) == datetime(2028, 2, 29, tzinfo=UTC)


class CountingZone(ZoneInfo):
    """Counts how often it is asked."""

    asked = 0

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        type(self).asked += 1
        return super().utcoffset(dt)


@pytest.mark.parametrize("text", ["* * * * *", "*/7 * * feb *", "0 0 30 2 *"])
@pytest.mark.parametrize("day", [SPRING, AUTUMN, datetime(2026, 6, 1, tzinfo=UTC)])
def test_the_nearest_time_is_found_without_all_times_of_a_day(text: str, day: datetime) -> None:
    usual = Schedule.parse(text, BERLIN)
    counting = dataclasses.replace(usual, zone=CountingZone(BERLIN))
    now = day + timedelta(hours=1, minutes=17)
    before = CountingZone.asked
    assert counting.last(now) == usual.last(now)
    assert counting.next(now) == usual.next(now)
    assert CountingZone.asked - before < 1000

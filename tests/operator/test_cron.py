"""When a schedule was due last, also on the days on which the clock changes."""

from datetime import UTC, datetime, timedelta

import pytest

from pavane_operator.kinds.backup.cron import Schedule

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
        ("0 0 * * *", "Europe/Atlantis", "there is no time zone 'Europe/Atlantis'"),
        ("0 0 * * *", "../etc/passwd", "there is no time zone"),
    ],
)
def test_what_is_wrong_is_said(text: str, zone: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule.parse(text, zone)

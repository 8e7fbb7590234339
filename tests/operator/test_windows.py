"""Windows of a spec: when one is open, beside a model of every minute, and what a user reads (operator.md 2.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane_cli.commands.why import explain
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.status import BLOCKERS_MAX_ITEMS, State
from pavane_operator.crds.windows import Window
from pavane_operator.plan.windows import is_open, opens_at, window_problem
from tests.operator.model_cluster import World
from tests.operator.model_cluster_bake import can_switch_back
from tests.operator.model_cluster_gates import gate
from tests.operator.model_cluster_windows import CLOSED, OPEN, OUTSIDE
from tests.operator.test_plan_status import Lab, blocker_of, conditions_of, reasons_of

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def window(schedule: str, duration: str, zone: str = "Etc/UTC") -> Window:
    return Window.read({"schedule": schedule, "duration": duration, "timeZone": zone})


# ---- when one is open


def opened(found: Window, begin: str, minutes: int) -> list[str]:
    """From when to when it is open, as a clock in its zone shows, read once a minute."""
    zone, now = ZoneInfo(found.time_zone), datetime.fromisoformat(begin).replace(tzinfo=UTC)
    told, former = [], False
    for _ in range(minutes):
        present = is_open([found], now)
        if present is not former:
            told.append(f"{now.astimezone(zone):%a %H:%M}")
        former, now = present, now + MINUTE
    return told


def test_a_window_spans_midnight_and_counts_real_time_when_the_clock_changes() -> None:
    night = window("0 23 * * sat", "4h", "Europe/Berlin")
    assert opened(night, "2026-05-16T12:00", 24 * 60) == ["Sat 23:00", "Sun 03:00"]
    assert opened(night, "2026-03-28T12:00", 24 * 60) == ["Sat 23:00", "Sun 04:00"]
    assert opened(night, "2026-10-24T12:00", 24 * 60) == ["Sat 23:00", "Sun 02:00"]


def test_a_window_whose_time_is_left_out_opens_an_hour_later_and_one_that_comes_twice_opens_once() -> None:
    early = window("30 2 * * *", "20m", "Europe/Berlin")
    assert opened(early, "2026-03-28T23:00", 6 * 60) == ["Sun 03:30", "Sun 03:50"]
    assert opened(early, "2026-10-24T22:00", 6 * 60) == ["Sun 02:30", "Sun 02:50"]


def test_a_window_longer_than_its_period_never_closes() -> None:
    assert opened(window("0 * * * *", "2h"), "2026-05-16T12:00", 7 * 60) == ["Sat 12:00"]


SCHEDULES = st.tuples(
    st.sampled_from(["0", "30", "*/15", "7,52"]),
    st.sampled_from(["*", "0", "2", "23", "1,13"]),
    st.sampled_from(["*", "1", "29,31"]),
    st.just("*"),
    st.sampled_from(["*", "0", "1,6"]),
).map(" ".join)
WINDOWS = st.lists(
    st.builds(
        lambda schedule, minutes, zone: window(schedule, f"{minutes}m", zone),
        SCHEDULES,
        st.sampled_from([1, 10, 90, 1500]),
        st.sampled_from(["Etc/UTC", "Europe/Berlin", "America/Los_Angeles"]),
    ),
    max_size=3,
)
BEGINNINGS = st.sampled_from(
    [datetime(2026, *day, tzinfo=UTC) for day in ((3, 7), (3, 28), (5, 30), (10, 24), (10, 31))]
)


def due(schedule: str, zone: ZoneInfo, now: datetime) -> bool:
    """Whether it is due in this minute, of clocks that are changed by an hour."""
    minute, hour, day, _, weekday = schedule.split()
    shown = [now.astimezone(zone)]
    if (now - 60 * MINUTE).astimezone(zone).utcoffset() != shown[0].utcoffset() and not shown[0].fold:
        shown.append((now - 60 * MINUTE).astimezone(zone) + 60 * MINUTE)  # as if it had not been put forward
    if shown[0].fold and hour != "*":
        shown = []
    minutes = range(0, 60, 15) if minute == "*/15" else [int(each) for each in minute.split(",")]

    def fits(field: str, value: int) -> bool:
        return field == "*" or str(value) in field.split(",")

    def on_day(at: datetime) -> bool:
        both = fits(day, at.day), fits(weekday, at.isoweekday() % 7)
        return all(both) if "*" in (day, weekday) else any(both)

    return any(each.minute in minutes and fits(hour, each.hour) and on_day(each) for each in shown)


@given(windows=WINDOWS, begin=BEGINNINGS, offset=st.integers(0, 24 * 60), seconds=st.integers(0, 59))
@settings(max_examples=40, deadline=None)
def test_one_is_open_for_its_time_from_each_minute_at_which_it_is_due(
    windows: list[Window], begin: datetime, offset: int, seconds: int
) -> None:
    now = begin + offset * MINUTE
    found = {
        number: [
            at
            for each in range(-1500, 2 * 24 * 60)
            if due(one.schedule, ZoneInfo(one.time_zone), at := begin + each * MINUTE)
        ]
        for number, one in enumerate(windows)
    }
    lasts = {number: timedelta(minutes=int(one.duration[:-1])) for number, one in enumerate(windows)}
    inside = any(at <= now < at + lasts[number] for number, times in found.items() for at in times)
    coming = min((at for times in found.values() for at in times if at > now), default=None)
    at = now + seconds * SECOND
    assert is_open(windows, at) is inside
    told = opens_at(windows, at)
    assert (told if told is not None and told < begin + 2 * 24 * 60 * MINUTE else None) == coming


@pytest.mark.parametrize(
    ("schedule", "zone", "words"),
    [
        ("61 * * * *", "Etc/UTC", "windows[0]: '61' is no minute"),
        ("0 0 * * *", "Mars/Base", "windows[0]: there is no time zone 'Mars/Base'"),
        ("0 0 30 2 *", "Etc/UTC", "windows[0]: schedule '0 0 30 2 *' names no day that comes"),
    ],
)
def test_a_window_that_cannot_be_read_or_never_opens_is_named_and_is_closed(
    schedule: str, zone: str, words: str
) -> None:
    now = datetime(2026, 2, 28, tzinfo=UTC)
    found = [window(schedule, "168h", zone)]
    problem = window_problem(found, now)
    assert problem is not None
    assert words in problem.message
    assert not is_open(found, now)
    assert opens_at(found, now) is None
    assert window_problem([window("0 0 * * *", "1h")], now) is None


# ---- what is a way back


def restarted(lab: Lab, restart: str, number: int, **rollout: Any) -> None:
    """Another spec, and the generation that serves it."""
    lab.world.rollout(restart=restart, **rollout)
    lab.active(number)


def undone() -> Lab:
    """Generation 2 was promoted in a window, and its undo, generation 3, outside of one."""
    lab = Lab()
    lab.active(1)
    restarted(lab, "1", 2, windows=[OPEN])
    restarted(lab, "", 3, windows=[CLOSED])
    return lab


def waits(world: World) -> bool:
    return world.condition("UpToDate") == ("Unknown", OUTSIDE)


def test_what_was_undone_waits_for_a_window_when_it_is_applied_again() -> None:
    lab = undone()
    lab.world.rollout(restart="1")
    assert lab.until(waits).status.active_generation == 3


def test_what_a_gate_sent_back_waits_for_a_window_although_it_had_been_promoted_before() -> None:
    lab = undone()
    lab.world.rollout(restart="1", windows=[OPEN], bake="10m", gates=[gate("SwitchBack")])
    lab.until(can_switch_back("True", "Following"))
    lab.world.rollout(windows=[CLOSED])
    lab.world.faults.answers["probe"] = False
    lab.active(3)
    lab.world.faults.answers.clear()
    lab.world.rollout(retry=4, bake="1s")
    assert lab.until(waits).status.active_generation == 3


def test_an_undo_leads_to_what_served_before_however_often_that_was() -> None:
    lab = undone()
    restarted(lab, "2", 4, windows=[OPEN])
    restarted(lab, "1", 5)
    restarted(lab, "2", 6, windows=[CLOSED])
    restarted(lab, "", 7)
    lab.world.rollout(restart="2")
    lab.until(waits)


def test_an_undo_to_a_spec_of_the_first_release_waits_for_no_window() -> None:
    lab = Lab()
    lab.world.change(resources={"requests": {"cpu": "1000m"}})
    lab.active(1)
    assert lab.world.stored_status is not None
    written = rollout_id("Model", lab.world.parsed_spec(), as_written=True)
    entry = lab.world.stored_status["history"][0]
    assert entry["id"] != written
    lab.world.stored_status = {**lab.world.stored_status, "history": [{**entry, "id": written}]}
    restarted(lab, "1", 2, windows=[OPEN])
    restarted(lab, "", 3, windows=[CLOSED])


# ---- what a user reads


def outside(**rollout: Any) -> Lab:
    lab = Lab(**rollout)
    lab.active(1)
    lab.world.rollout(**{"restart": "1", "windows": [CLOSED], **rollout})
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", OUTSIDE))
    return lab


def test_who_waits_for_a_window_is_told_when_it_opens_and_the_operator_wakes_then() -> None:
    lab = outside()
    status = lab.world.status
    assert reasons_of(status) == [(None, OUTSIDE)]
    text = "generation 2 waits for its window, which opens at 2026-01-01 12:00 UTC"
    assert blocker_of(status, OUTSIDE).message == text
    assert conditions_of(status)["CaughtUp"] == ("True", "CaughtUp")
    lab.until(lambda _: OUTSIDE in lab.told)
    lab.world.now = datetime(2026, 1, 1, 11, 59, 59, 500_000, tzinfo=UTC)
    assert lab.plan().wake_at == datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_history_says_how_long_it_waited_and_that_counts_towards_no_deadline() -> None:
    lab = outside(deadline="30s", onDeadline="Abort")
    lab.world.now += timedelta(hours=9)
    assert lab.status().rollout is not None
    assert lab.world.state is State.CAUGHT_UP
    lab.world.now = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
    world = lab.active(2)
    newest = world.status.history[0]
    assert (newest.generation, newest.reason) == (2, None)
    assert newest.message == "it waited for its window from 2026-01-01 00:00 to 2026-01-01 12:00 UTC"


def test_an_attempt_that_is_not_ready_outside_the_windows_has_its_whole_time_when_one_opens() -> None:
    lab = Lab(deadline="30s", onDeadline="Abort")
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1", windows=[CLOSED])
    world = lab.until(lambda world: world.state is State.CATCHING_UP)
    world.now += timedelta(hours=9)
    lab.until(lambda world: lab.plan().empty)
    assert (world.state, world.condition("CaughtUp")) == (State.CATCHING_UP, ("False", "Lagging"))
    assert world.condition("Stalled") is None
    world.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    lab.until(lambda world: world.status.failed is not None)
    assert world.status.failed is not None
    assert world.status.failed.reason == "DeadlineExceeded"
    assert world.status.failed.at >= datetime(2026, 1, 1, 12, 0, 25, tzinfo=UTC)
    assert world.status.history[0].message == world.status.failed.message


def test_a_pod_that_lags_outside_the_window_ends_no_wait() -> None:
    lab = outside(deadline="30s", onDeadline="Abort")
    lab.world.now += timedelta(hours=9)
    lab.world.faults.lagging.add(2)
    lab.world.restart(f"{lab.world.resource().name}-server-g2-0")
    world = lab.until(lambda world: world.state is State.CATCHING_UP)
    world.now += timedelta(hours=1)
    world.faults.lagging.clear()
    lab.until(lambda world: world.condition("UpToDate") == ("Unknown", OUTSIDE))
    world.now = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
    newest = lab.active(2).status.history[0]
    assert newest.message == "it waited for its window from 2026-01-01 00:00 to 2026-01-01 12:00 UTC"


def test_history_names_the_beginning_of_a_wait_that_one_window_did_not_end() -> None:
    lab = outside(gates=[gate("Hold", time="0s")])
    lab.world.faults.answers["probe"] = False
    lab.until(lambda world: (None, "GateFailed") in reasons_of(world.status))
    lab.world.now = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
    world = lab.until(lambda world: reasons_of(world.status) == [(None, "GateFailed")])
    world.now = datetime(2026, 1, 1, 13, 0, 5, tzinfo=UTC)
    lab.until(lambda world: (None, OUTSIDE) in reasons_of(world.status))
    world.faults.answers.clear()
    lab.until(lambda world: reasons_of(world.status) == [(None, OUTSIDE)])
    world.now = datetime(2026, 1, 2, 12, 0, 5, tzinfo=UTC)
    newest = lab.active(2).status.history[0]
    assert newest.message == "it waited for its window from 2026-01-01 00:00 to 2026-01-02 12:00 UTC"


def test_what_holds_an_attempt_is_stored_however_many_pods_lag() -> None:
    lab = Lab(strategy="Immediate", deadline="30s", onDeadline="Abort")
    lab.world.change(replicas=11)
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1", windows=[CLOSED])
    lab.until(lambda world: world.state is State.CATCHING_UP)
    world = lab.until(lambda world: len(reasons_of(world.status)) == BLOCKERS_MAX_ITEMS)
    world.now += timedelta(minutes=5)
    for _ in range(20):
        lab.operator.turn()
    assert world.state is State.CATCHING_UP
    assert reasons_of(world.status)[-1] == (None, OUTSIDE)


def test_a_gate_that_fails_outside_the_window_is_told_first() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.answers["probe"] = False
    asked = {"name": "probe", "for": "0s", "http": {"port": 1, "path": "/"}}
    lab.world.rollout(restart="1", windows=[CLOSED], gates=[asked])
    lab.until(lambda world: (None, "GateFailed") in reasons_of(world.status))
    assert reasons_of(lab.world.status) == [(None, "GateFailed"), (None, OUTSIDE)]


BAD = {**OPEN, "timeZone": "Mars/Base"}
NO_ZONE = "spec.rollout.windows[0]: there is no time zone 'Mars/Base'; write one as Europe/Berlin"


def test_a_window_that_never_opens_is_told_before_somebody_waits_for_it() -> None:
    lab = Lab(windows=[BAD])
    lab.active(1)
    world = lab.until(lambda world: world.condition("UpToDate") == ("False", "InvalidConfig"))
    assert world.condition("Stalled") == ("True", "InvalidConfig")
    assert world.condition("Ready") == ("True", "Serving")


def test_an_attempt_whose_window_never_opens_is_stalled_until_one_does() -> None:
    lab = Lab(deadline="30s", onDeadline="Abort")
    lab.active(1)
    lab.world.rollout(restart="1", windows=[BAD])
    world = lab.until(lambda world: world.state is State.CAUGHT_UP)
    lab.until(lambda world: world.condition("Stalled") == ("True", "InvalidConfig"))
    assert world.condition("UpToDate") == ("False", "InvalidConfig")
    assert NO_ZONE in next(each.message for each in world.status.conditions if each.type == "Stalled")
    text = f"generation 2 waits for its window, which never opens: {NO_ZONE}"
    assert blocker_of(world.status, "WindowNeverOpens").message == text
    told = explain({"metadata": {}, "status": world.stored_status}, "waltz/bank")
    assert "Correct spec.rollout.windows; `pavane rollout force-promote waltz/bank` does not wait." in told
    world.now += timedelta(hours=1)
    world.rollout(windows=[BAD, CLOSED])
    lab.until(waits)
    assert world.condition("Stalled") is None
    world.rollout(windows=[OPEN])
    newest = lab.active(2).status.history[0]
    assert newest.message == "it waited for its window from 2026-01-01 00:00 to 2026-01-01 01:00 UTC"


def test_a_window_that_never_opens_hides_no_attempt_that_failed() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.answers["probe"] = False
    lab.world.rollout(restart="1", gates=[gate("Abort")])
    lab.until(lambda world: world.condition("Stalled") == ("True", "GateFailed"))
    lab.world.rollout(windows=[BAD])
    lab.until(lambda world: world.status.observed_generation == world.metadata_generation and lab.plan().empty)
    assert lab.world.condition("UpToDate") == ("False", "GateFailed")
    lab.world.rollout(restart="")
    lab.until(lambda world: world.condition("Stalled") == ("True", "InvalidConfig"))

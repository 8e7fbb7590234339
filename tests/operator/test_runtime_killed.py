"""The operator is killed at its k-th write to the API, before or after that is delivered (docs/specs/operator.md 7.5).

Two kills per scenario in every run; `PAVANE_KILL_CALLS=all` (`make test-kills`) has all scenarios, tries every k and
prints the figures.
"""

import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pavane_cli import output
from tests.operator import killing_raft, killing_swim, killing_waltz
from tests.operator.api_proxy import Moment
from tests.operator.killing import Killing, killing

ALL = os.environ.get("PAVANE_KILL_CALLS") == "all"
SWIM_SAMPLE = WALTZ_SAMPLE = ("roll",)
"""What of these is in every run: members that others run keep the times of a network, and a log has many pods."""
SCENARIOS = {
    **{f"raft-{name}": scenario for name, scenario in killing_raft.SCENARIOS.items()},
    **({"raft-way back": killing_raft.WAY_BACK, "waltz-way back": killing_waltz.WAY_BACK} if ALL else {}),
    **{f"swim-{name}": killing_swim.SCENARIOS[name] for name in (killing_swim.SCENARIOS if ALL else SWIM_SAMPLE)},
    **{f"waltz-{name}": killing_waltz.SCENARIOS[name] for name in (killing_waltz.SCENARIOS if ALL else WALTZ_SAMPLE)},
}

pytestmark = [pytest.mark.platform, pytest.mark.timeout(0 if ALL else 300)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Killing]:
    async with killing(tmp_path) as running:
        yield running


def fates(calls: int) -> Iterator[tuple[int, Moment]]:
    """Which calls are deadly, of a scenario that makes so many."""
    if ALL:
        yield from ((call, moment) for call in itertools.count(1) for moment in Moment)
    else:
        # Every run makes a first call; how many follow depends on what is merged, so a slow machine may make fewer.
        yield 1, Moment.AFTER
        yield 1 + calls // 2, Moment.BEFORE


@pytest.mark.long  # the same kills on the model of a cluster: test_plan_model_cluster.py
@pytest.mark.parametrize("name", SCENARIOS)
async def test_whenever_the_operator_is_killed_the_end_is_the_same(cluster: Killing, name: str) -> None:
    scenario = SCENARIOS[name]
    began = time.monotonic()
    expected, calls, _ = await cluster.run(scenario)
    assert calls > 0
    kills = 0
    for call, moment in fates(calls):
        final, _, killed = await cluster.run(scenario, call, moment)
        assert final == expected, f"killed {moment} call {call}"
        if not killed:
            break  # this run needed fewer calls: there is no such k any more
        kills += 1
        if ALL:
            output.note(f"{name}: killed {moment} call {call}, same end ({time.monotonic() - began:.0f} s)")
    assert kills >= 1
    output.say(f"{name}: {calls} calls, {kills} kills, {time.monotonic() - began:.0f} s")

"""Flows that live for years: they begin anew, try again what failed outside, and say when they grow long."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.ambrosia import Immortal, RemoteError, Retry, first, method
from pavane.ambrosia.client import beside, flows
from pavane.ambrosia.client.about import about
from pavane.ambrosia.client.engine import Engine
from pavane.ambrosia.client.flows import RESTARTS_AT_ONCE_MAX, Flow, Origin, Step, remote
from pavane.ambrosia.client.retries import RETRY_ATTEMPTS_MAX, RETRY_DELAY_S_MAX
from pavane.ambrosia.client.values import pack
from pavane.ambrosia.testing import World, chaos, replay
from tests.services.ambrosia.desk import Desk, Place
from tests.services.ambrosia.former import Former
from tests.services.ambrosia.test_immortals_doc import typed
from tests.services.ambrosia.workers import POLICY, Script, played

KINDS = ("note", "take", "sleep", "call", "race", "both", "run", "restart")
SCRIPTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7)), max_size=12)
SCRIPT: Script = [
    ("race", 3), ("note", 1), ("run", 2), ("restart", 5), ("call", 4), ("take", 0), ("run", 3), ("both", 1),
    ("race", 9), ("restart", 7), ("restart", 1), ("sleep", 2), ("note", 2), ("run", 1), ("call", 6),
]  # fmt: skip


@settings(max_examples=60)
@given(SCRIPTS, st.integers(0, 10**6))
def test_a_flow_gives_what_its_script_says_whatever_is_killed(script: Script, seed: int) -> None:
    played(script, seed)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_kill_at_each_step_changes_nothing(checkpoint: bool) -> None:
    steps = played(SCRIPT, 1, kill_at=-1).steps
    assert steps > len(SCRIPT)
    for kill_at in range(steps):
        played(SCRIPT, 1, kill_at=kill_at, checkpoint=checkpoint)


def forget_who_waits(patch: pytest.MonkeyPatch) -> None:
    opened = Engine._opened

    def lost(self: Engine, method: Any, data: bytes, origin: Origin, *cause: Any) -> Flow | None:
        return opened(self, method, data, origin if cause else Origin(), *cause)

    patch.setattr(Engine, "_opened", lost)


def keep_the_number(patch: pytest.MonkeyPatch) -> None:
    close = Engine._close

    def same(self: Engine, flow: Flow) -> None:
        close(self, flow)
        self._flows_made = flow.number - 1

    patch.setattr(Engine, "_close", same)


def forget_the_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Step, "dump", lambda self: [getattr(self, name) for name in self.__slots__[:-1]])


def count_each_message(patch: pytest.MonkeyPatch) -> None:
    came = beside.came

    def any_attempt(flow: Flow, index: int, method: int, content: Any, clock: int) -> tuple[int, bool]:
        step = flow.steps[index]
        if method == beside.RAN and len(content) == 4:
            content = (*content[:2], step.attempts, content[3])
            step.due = -1
        return came(flow, index, method, content, clock)

    patch.setattr(beside, "came", any_attempt)


def try_at_once_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    load = Step.__init__

    def forget(self: Step, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        if self.kind == "run":
            self.due = -1

    patch.setattr(Step, "__init__", forget)


@pytest.mark.parametrize(
    "plant",
    [forget_who_waits, keep_the_number, forget_the_attempts, count_each_message, try_at_once_after_a_crash],
)
def test_a_rule_taken_out_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(30):
        try:
            played(SCRIPT, seed)
        except Exception:  # whatever the fault breaks
            return
    pytest.fail("30 seeds did not find the fault")


def test_files_of_the_time_before_replay_and_their_flows_go_on(tmp_path: Path) -> None:
    files = Path(__file__).parent / "former_log" / "former_0"
    shutil.copytree(files, tmp_path / "former_0")
    report = replay(Former, tmp_path / "former_0")
    assert (report.records, report.compared, report.uncompared) == (35, 3, 12)
    for number in (2, 3):  # from a checkpoint with open timers and runs
        for kind in ("serverchkpt", "serverlog"):
            for path in tmp_path.glob(f"former_0/{kind}{number - 1}*"):
                path.unlink()
        assert replay(Former, tmp_path / "former_0").compared == 4 - number


class Loop(Immortal):
    seen: list[str]

    @method
    async def watch(self, left: int, text: str = "") -> str:
        if left == 0:
            return f"{text} version {self.app_version}"
        drawn = self.random.randrange(10**9)
        try:
            await self.sleep(1)
            self.restart(Loop.watch, left - 1, f"{text}{drawn % 10}")
        except Exception:  # what a careless application writes
            self.saw("caught")
        finally:
            await self.sleep(1)
            self.saw(str(drawn))
        return "not restarted"

    @method
    async def spin(self, left: int) -> int:
        if left:
            self.restart(Loop.spin, left - 1)
        return 7

    @method
    async def other(self, how: int) -> str:
        if how == 0:
            self.restart(Loop.spin, 1)
        self.restart(Loop.watch, how - 1, "from other")

    @method
    async def grows(self, steps: int) -> int:
        for _ in range(steps):
            self.saw("")
        await self.sleep(1)
        return steps

    @method
    def wrong(self) -> None:
        self.restart(Loop.watch, 1)

    def saw(self, text: str) -> None:
        self.seen = [*self.seen, text] if text else self.seen


def looping() -> tuple[Desk, Place]:
    desk = Desk()
    return desk, desk.start(Loop, "loop")


def run_out(desk: Desk, place: Place) -> None:
    while place.outside:
        each = place.outside.pop(0)
        desk.clock = max(desk.clock, each.due)
        place.engine.done(each, *([desk.clock] if each.kind == "clock" else []))
        place.turn()
        desk.settle()


def failed(place: Place, token: str) -> RemoteError:
    return remote(place.results[token].value)


def test_a_run_that_ends_leaves_no_history_and_cleans_up_first() -> None:
    desk, place = looping()
    token = desk.request("loop", Loop.watch, 3)
    longest = 0
    while place.outside:
        longest = max(longest, *(len(each.steps) for each in place.engine.flows.values()))
        each = place.outside.pop(0)
        desk.clock = max(desk.clock, each.due)
        place.engine.done(each, *([desk.clock] if each.kind == "clock" else []))
        place.turn()
        desk.settle()
    seen = place.engine.state()["seen"]
    assert len(set(seen)) == 3  # each run has random numbers of its own, and nothing was caught
    assert Loop.watch.signature.result.unpack(place.results[token].value).startswith("".join(x[-1] for x in seen))
    assert longest == 3  # sleep, restart, sleep


def test_the_next_run_has_the_version_of_that_time() -> None:
    with World(seed=3) as world:
        world.start(Loop, "loop", version=1)
        begun = world.request("loop", Loop.watch, 3)
        world.run(2.5)
        world.start(Loop, "loop", version=2)
        assert world.result("loop", Loop.watch, begun).endswith("version 2")


def test_a_flow_that_begins_anew_without_end_ends() -> None:
    desk, place = looping()
    assert desk.call("loop", Loop.spin, RESTARTS_AT_ONCE_MAX - 1) == 7
    error = failed(place, desk.request("loop", Loop.spin, RESTARTS_AT_ONCE_MAX))
    assert "Loop.spin began anew 100 times (RESTARTS_AT_ONCE_MAX) without waiting" in error.message
    assert not place.engine.flows


def test_another_flow_of_the_class_may_follow_if_it_gives_the_same() -> None:
    desk, place = looping()
    assert desk.call("loop", Loop.other, 1) == "from other version 0"
    assert "self.restart(Loop.spin) gives another result" in failed(place, desk.request("loop", Loop.other, 0)).message
    assert "self.restart() belongs to flows" in failed(place, desk.request("loop", Loop.wrong)).message


def test_a_long_history_is_told_once_and_full_it_ends_the_flow() -> None:
    desk, place = looping()
    half = flows.FLOW_HISTORY_MAX // 2
    for _ in range(2):
        desk.request("loop", Loop.grows, half - 2)
    assert (place.long, about(place.engine)["flows_long"]) == ([], 0)
    for _ in range(2):
        desk.request("loop", Loop.grows, half)
    (told,) = place.long
    assert told.where == "Loop.grows"
    assert f"has {half + 1} steps" in told.text
    assert "FLOW_HISTORY_MAX (10000)" in told.text
    assert "self.restart(…)" in told.text
    assert about(place.engine)["flows_long"] == 2
    place.take_checkpoint()
    place.live()  # the next process says it again
    assert len(place.long) == 2
    full = failed(place, desk.request("loop", Loop.grows, flows.FLOW_HISTORY_MAX))
    assert "self.restart(…)" in full.message


def flaky(failing: list[int]) -> str:
    """Fail as often as the list has elements."""
    if failing:
        failing.pop()
        raise ConnectionResetError("gone")
    return "fetched"


BUSY: dict[int, int] = {}
"""How often each round will fail; that is outside, so no crash changes it."""


def line(number: int) -> str:
    if BUSY[number]:
        BUSY[number] -= 1
        raise ConnectionResetError("gone")
    return "fetched"


class Fetcher(Immortal):
    got: list[str]

    def note(self, text: str) -> None:
        self.got = [*self.got, text]

    @method
    async def fetch(self, times: int) -> str:
        return await self.run(POLICY, flaky, [0] * times)

    @method
    async def other_error(self) -> str:
        return await self.run(Retry(on=TimeoutError), flaky, [0])

    @method
    async def bounded(self) -> str:
        found = await first(self.run(Retry(first_s=100), flaky, [0]), self.sleep(1))
        return found or "gave up"

    @method
    async def rounds(self, left: int) -> int:
        self.note(f"{left} {await self.run(POLICY, line, left)}")
        if left:
            self.restart(Fetcher.rounds, left - 1)
        return 0


def test_attempts_end_with_a_result_or_with_the_last_exception() -> None:
    with World(seed=1) as world:
        world.start(Fetcher, "one")
        before = world.time
        assert world.call("one", Fetcher.fetch, POLICY.attempts - 1) == "fetched"
        assert world.time - before > 7  # 2 and 5 seconds
        before = world.time
        with pytest.raises(RemoteError, match="ConnectionResetError: gone"):
            world.call("one", Fetcher.other_error)
        assert world.time - before < 1
        assert world.call("one", Fetcher.bounded) == "gave up"


def test_rounds_with_retries_happen_once_and_in_order_in_chaos() -> None:
    ended = []

    @chaos(seeds=15)
    def rounds(world: World) -> None:
        BUSY.update({left: left % POLICY.attempts for left in range(7)})
        world.start(Fetcher, "one")
        begun = world.request("one", Fetcher.rounds, 6)
        world.run(60)
        if got := world.state("one")["got"]:  # else a crash came before the request was logged
            assert world.result("one", Fetcher.rounds, begun) == 0
            assert got == [f"{left} fetched" for left in range(6, -1, -1)]
            ended.append(world.seed)

    rounds()
    assert len(ended) > 3


PROGRAM = """
import asyncio
from pavane.ambrosia import Immortal, Retry, method, serve

failing = ["one", "two"]

def fetch() -> str:
    if failing:
        raise OSError(failing.pop())
    return "fetched"

class Real(Immortal):
    @method
    async def work(self, left: int) -> str:
        found = await self.run(Retry(first_s=0.01), fetch)
        if left:
            self.restart(Real.work, left - 1)
        return f"{found} at last"

async def main() -> None:
    async with serve(Real, name="real", log="log") as real:
        print(await real.call(Real.work, 2))

asyncio.run(main())
"""


async def test_a_process_tries_again_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text(PROGRAM)
    code, said = await typed([sys.executable, "real.py"], tmp_path)
    assert code == 0, said
    assert "fetched at last" in said
    assert said.count("an attempt failed, another one follows") == 2, said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, "RETRY_ATTEMPTS_MAX"),
        ({"attempts": RETRY_ATTEMPTS_MAX + 1}, "RETRY_ATTEMPTS_MAX"),
        ({"attempts": 2.5}, "whole number"),
        ({"first_s": -1}, "RETRY_DELAY_S_MAX"),
        ({"cap_s": RETRY_DELAY_S_MAX + 1}, "RETRY_DELAY_S_MAX"),
        ({"cap_s": float("nan")}, "RETRY_DELAY_S_MAX"),
        ({"factor": 0.5}, "1 or more"),
        ({"on": BaseException}, "classes of exceptions"),
        ({"on": ()}, "classes of exceptions"),
        ({"tries": 3}, "tries"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Retry(**options)


def test_delays_grow_to_their_cap() -> None:
    policy = Retry(attempts=2000, first_s=0.5, factor=3, cap_s=10)
    assert [policy.delay_ms(failed) for failed in (1, 2, 3, 4, 1999, 2000)] == [500, 1500, 4500, 10_000, 10_000, None]


def test_a_message_that_this_library_did_not_write_is_dropped() -> None:
    desk, place = looping()
    desk.request("loop", Loop.watch, 1)
    place.engine.send_impulse(beside.FIRED, pack([1, 0]))  # its clock has not answered, but a timer is a timer
    place.engine.send_impulse(beside.RAN, pack([1, 2, True]))
    place.turn()
    desk.settle()
    assert [each.where for each in place.failed] == ["method -16"]
    run_out(desk, place)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.integers(-2, 3), inner, max_size=5),
    max_leaves=10,
)
LIKE_OURS = st.tuples(st.integers(-2, 2) | ANYTHING, st.integers(-3, 3) | ANYTHING, ANYTHING, ANYTHING)
REQUEST_LIKE = st.tuples(st.text(), st.text(), st.integers(-(1 << 63), (1 << 64) - 1) | ANYTHING, ANYTHING)


@given(
    st.sampled_from((beside.RAN, beside.FIRED, beside.CLOCK, beside.INGRESS)),
    ANYTHING.map(pack) | LIKE_OURS.map(pack) | REQUEST_LIKE.map(pack) | st.binary(max_size=20),
)
def test_whatever_a_message_to_oneself_holds_the_next_request_is_served(number: int, content: bytes) -> None:
    """A peer can send one, and it is in the log then: what ended the process would end it at each start."""
    desk, place = looping()
    desk.request("loop", Loop.watch, 1)
    place.engine.send_impulse(number, content)
    place.turn()
    desk.settle()
    token = desk.request("loop", Loop.watch, 2)
    run_out(desk, place)
    assert token in place.results or place.engine.flows

"""Flows that live for years: they begin anew, try again what failed outside, and say when they grow long."""

import asyncio
import contextlib
import gc
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.ambrosia import Immortal, ImmortalError, RemoteError, Retry, first, method, serve
from pavane.ambrosia.client import beside, flows
from pavane.ambrosia.client import engine as engine_module
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


async def pairs(owner: "Stubborn") -> AsyncIterator[int]:
    try:
        while True:
            await owner.sleep(1)
            yield 1
    finally:
        owner.saw("later")


SPUN: list[int] = []
OVER: set[int] = set()


class Stubborn(Immortal):
    seen: list[str]

    def saw(self, text: str) -> None:
        self.seen = [*self.seen, text]

    @method
    async def forever(self, how: int) -> None:
        sleep = self.sleep
        for _ in range(1000):
            if how in OVER:  # else Python says, whenever it collects this, that the code ignored its end
                return
            try:
                if how == 0:
                    await self.sleep(1000)
                elif how == 1:
                    await sleep(1000)
                else:
                    await first(self.sleep(1000), self.call(Stubborn.forever, "nobody", 0))
            except:  # noqa: E722, S110 -- what a careless application writes
                pass
        SPUN.append(how)  # with `while True` it would never have ended

    @method
    async def leaves(self, left: int) -> int:
        async for _ in pairs(self):
            self.saw(str(left))
            if left:
                self.restart(Stubborn.leaves, left - 1)
            return 5
        return 6

    @method
    async def forbidden(self) -> None:
        saw = self.saw
        with contextlib.suppress(Exception):
            time.time()
        try:
            await self.sleep(1)
        finally:
            await self.sleep(2)
            saw("later")


class Later(Stubborn):
    more: int = 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", [0, 1, 2])
def test_a_flow_that_catches_everything_does_not_stop_a_change_of_version(how: int) -> None:
    SPUN.clear()
    stubborn(how)
    OVER.add(how)
    gc.collect()
    assert not SPUN


def stubborn(how: int) -> None:
    with World(seed=1) as world:
        world.start(Stubborn, "one")
        world.request("one", Stubborn.forever, how)
        world.run(5)
        world.start(Stubborn, "one", version=1, upgrade=Later)
        world.run(5)
        assert world.state("one") == {"seen": [], "more": 0}


async def test_what_an_ended_run_left_behind_changes_nothing_later() -> None:
    with World(seed=1) as world:
        world.start(Stubborn, "one")
        assert world.call("one", Stubborn.leaves, 2) == 5
        before = world.state("one")
        for _ in range(5):  # the loop ends forgotten generators in tasks of their own
            gc.collect()
            await asyncio.sleep(0)
        assert world.state("one") == before == {"seen": ["2", "1", "0"]}


def test_a_flow_that_fails_where_it_waits_ends_without_its_finally() -> None:
    with World(seed=1) as world:
        world.start(Stubborn, "one")
        with pytest.raises(RemoteError, match=r"time\.time"):
            world.call("one", Stubborn.forbidden)
        world.run(5)
        assert world.state("one") == {"seen": []}


def test_flows_that_have_ended_are_not_kept() -> None:
    desk, place = looping()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            assert desk.call("loop", Loop.spin, 1) == 7
        assert sum(isinstance(each, Flow) for each in gc.get_objects()) < 10
    finally:
        gc.enable()
    assert not place.engine.flows


class Elsewhere(Immortal):
    @method(7)
    async def other(self) -> int:
        return 1


class Wrong(Immortal):
    left: int = 0

    @method(7)
    def plain(self) -> int:
        return 5

    @method
    async def starts(self, how: int) -> int:
        if how:
            self.start(Elsewhere.other)
        else:
            self.start(Wrong.plain)
        return 1

    @method
    async def restarts(self) -> int:
        await self.sleep(1)
        self.restart(Elsewhere.other)

    @method
    async def lacks(self, left: int, more: int) -> int:
        await self.sleep(1)
        try:
            self.restart(Wrong.lacks, left)  # type: ignore[call-arg]
        except TypeError:
            return left + more


def test_what_is_no_flow_of_the_class_cannot_begin_one() -> None:
    with World(seed=1) as world:
        world.start(Wrong, "one")
        for flow, *arguments in ((Wrong.starts, 0), (Wrong.starts, 1), (Wrong.restarts,)):
            with pytest.raises(RemoteError, match="it begins a flow of Wrong"):
                world.call("one", flow, *arguments)
        world.crash("one")
        assert world.call("one", Wrong.plain) == 5


def test_arguments_that_do_not_fit_are_told_to_the_run_that_gives_them() -> None:
    desk = Desk()
    place = desk.start(Wrong, "one")
    token = desk.request("one", Wrong.lacks, 2, 3)
    run_out(desk, place)
    assert Wrong.lacks.signature.result.unpack(place.results[token].value) == 5


def test_the_result_of_a_long_flow_is_kept_as_long_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "KEYS_KEPT", 3)
    desk, place = looping()
    desk.request("loop", Loop.watch, 1, key="long")
    for number in range(5):
        desk.request("loop", Loop.spin, 0, key=str(number))
    run_out(desk, place)
    made = place.engine.snapshot().flows_made
    place.take_checkpoint()
    place.live()
    assert desk.call("loop", Loop.watch, 1, key="long").endswith("version 0")
    assert place.engine.snapshot().flows_made == made
    for number in range(3):
        desk.request("loop", Loop.spin, 0, key=f"later {number}")
    assert not desk.places["loop"].engine.flows
    desk.request("loop", Loop.watch, 1, key="long")  # forgotten by now
    assert place.engine.flows
    run_out(desk, place)


class Unwritable(Immortal):
    @method
    def handler(self, text: str) -> int:
        raise ValueError(json.loads(text))

    @method
    async def flow(self, text: str) -> int:
        raise ValueError(json.loads(text))


@pytest.mark.parametrize("key", ["", "k"])
def test_an_error_that_is_no_text_is_told_all_the_same(key: str) -> None:
    desk = Desk()
    place = desk.start(Unwritable, "one")
    for each in (Unwritable.handler, Unwritable.flow):
        error = failed(place, desk.request("one", each, '"caf\\udce9"', key=key and each.name))
        assert str(error) == r"ValueError: caf\udce9"
    place.take_checkpoint()
    place.live()
    assert not place.engine.flows


POSTED: list[int] = []


def posted() -> int:
    POSTED.append(1)
    return "not a number"  # type: ignore[return-value]


class Poster(Immortal):
    @method
    async def post(self) -> int:
        return await self.run(Retry(attempts=4, first_s=0.001), posted)


def test_a_result_that_cannot_be_written_is_no_reason_to_try_again() -> None:
    POSTED.clear()
    with World(seed=1) as world:
        world.start(Poster, "one")
        with pytest.raises(RemoteError):
            world.call("one", Poster.post)
    assert len(POSTED) == 1


async def test_a_process_does_not_try_again_either(tmp_path: Path) -> None:
    POSTED.clear()
    async with serve(Poster, name="poster", log=tmp_path) as poster:
        with pytest.raises(RemoteError):
            await poster.call(Poster.post)
    assert len(POSTED) == 1


class Full(Immortal):
    seen: list[int]

    def saw(self, left: int) -> None:
        self.seen = [*self.seen, left]

    @method
    async def fills(self, left: int) -> int:
        try:
            while left:
                await self.sleep(1)
        except ImmortalError:
            self.restart(Full.fills, left - 1)
        finally:
            self.saw(left)
        return 9

    @method
    async def holds(self, text: str) -> None:
        await self.sleep(1)


def test_a_full_flow_that_begins_anew_may_still_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "FLOW_HISTORY_MAX", 5)
    with World(seed=1) as world:
        world.start(Full, "one")
        assert world.call("one", Full.fills, 2) == 9
        assert world.state("one") == {"seen": [2, 1, 0]}


def test_long_arguments_are_told_like_a_long_history() -> None:
    desk = Desk()
    place = desk.start(Full, "one")
    desk.request("one", Full.holds, "x" * flows.FLOW_HISTORY_BYTES_MAX)
    assert len(place.long) == about(place.engine)["flows_long"] == 1
    place.take_checkpoint()
    place.live()
    assert len(place.long) == 2
    run_out(desk, place)
    assert not place.failed


class Many(Immortal):
    @method
    def echo(self, number: int) -> int:
        return number

    @method
    async def races(self, left: int) -> int:
        _ = self.call(Many.echo, "nobody", left)
        await first(self.call(Many.echo, self.name, left), self.sleep(1000))
        if left:
            self.restart(Many.races, left - 1)
        return 1


def test_what_ended_flows_waited_for_leaves_nothing() -> None:
    with World(seed=1) as world:
        world.start(Many, "one")
        assert world.call("one", Many.races, 20) == 1
        before = about(world._alive("one").engine)
        assert not world._alive("one").engine._calls
        world.run(2000)
        assert about(world._alive("one").engine)["seq"] == before["seq"]  # no timer of a flow that is gone was logged


def test_a_request_that_waits_twice_waits_once() -> None:
    desk, place = looping()
    for _ in range(3):
        place.engine.request("same", "k", Loop.watch, Loop.watch.signature.pack((1,), {}))
        place.turn()
        desk.settle()
    (flow,) = place.engine.flows.values()
    assert flow.origin.tokens == ("same",)
    run_out(desk, place)


def test_delays_of_extreme_policies() -> None:
    assert [Retry(attempts=2000, first_s=0).delay_ms(failed) for failed in (1, 1024, 1999)] == [0, 0, 0]
    with pytest.raises(ValueError, match="1 or more"):
        Retry(factor=10**400)


class Older(Immortal):
    times: int = 0

    def restart(self) -> None:  # type: ignore[override]
        self.times += 1

    @method
    async def go(self) -> int:
        self.restart()
        await self.sleep(1)
        return self.times


class OlderState(Immortal):
    restart: int  # type: ignore[assignment]

    @method
    def count(self) -> None:
        self.restart += 1

    @method
    async def go(self) -> int:
        await self.sleep(1)
        return self.restart


class OlderMethod(Immortal):
    @method
    def restart(self) -> int:  # type: ignore[override]
        return 3


def test_an_application_may_have_a_restart_of_its_own() -> None:
    with World(seed=1) as world:
        for kind in (Older, OlderState, OlderMethod):
            world.start(kind, kind.__name__)
        world.call("OlderState", OlderState.count)
        assert [world.call("Older", Older.go), world.call("OlderState", OlderState.go)] == [1, 1]
        assert world.call("OlderMethod", OlderMethod.restart) == 3

"""Flows that end: what they leave behind, and what cannot begin, be written or be kept."""

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pavane.ambrosia import Immortal, ImmortalError, RemoteError, Retry, first, method, serve
from pavane.ambrosia.client import OutsideHandler, flows
from pavane.ambrosia.client import engine as engine_module
from pavane.ambrosia.client.about import about
from pavane.ambrosia.client.flows import Flow
from pavane.ambrosia.testing import World
from tests.services.ambrosia.desk import Desk
from tests.services.ambrosia.test_long_flows import Loop, failed, looping, run_out


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
    async def fails(self) -> None:
        LEFT.append(self)
        raise ValueError("left")

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


LEFT: list["Stubborn"] = []


def test_a_line_of_the_log_may_look_at_what_an_ended_flow_left() -> None:
    with World(seed=1) as world:
        world.start(Stubborn, "one")
        with pytest.raises(RemoteError, match="left"):
            world.call("one", Stubborn.fails)
    left, *_ = LEFT
    assert getattr(left, "__rich_repr__", None) is getattr(left, "what_a_printer_looks_for", None) is None
    with pytest.raises(OutsideHandler, match="has ended"):
        _ = left.seen


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

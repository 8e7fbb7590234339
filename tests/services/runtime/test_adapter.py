"""A core behind its adapter: outputs in order, one timer, one failure, no task left."""

import asyncio
import heapq
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from pavane.runtime.adapter import CoreAdapter

WAIT_S = 30.0


class Plan:
    """A core that puts out names, some of them at a time."""

    def __init__(self) -> None:
        self.gathered: list[str] = []
        self.planned: list[tuple[float, str]] = []
        self.fired: list[float] = []

    def say(self, *names: str) -> Callable[[float], None]:
        return lambda _: self.gathered.extend(names)

    def say_at(self, after_s: float, name: str) -> Callable[[float], None]:
        return lambda now: heapq.heappush(self.planned, (now + after_s, name))

    def outputs(self) -> list[str]:
        gathered, self.gathered = self.gathered, []
        return gathered

    def handle_timer(self, now: float) -> None:
        self.fired.append(now)
        while self.planned and self.planned[0][0] <= now:
            self.gathered.append(heapq.heappop(self.planned)[1])

    def next_timer(self) -> float | None:
        return self.planned[0][0] if self.planned else None


class Bench:
    def __init__(self) -> None:
        self.core = Plan()
        self.executed: list[str] = []
        self.failures: list[Exception] = []
        self.changed = asyncio.Event()
        self.adapter = CoreAdapter(self.core, self.execute, self.failed)

    def execute(self, output: str) -> None:
        self.executed.append(output)
        self.changed.set()
        if output == "again":
            self.adapter.call(self.core.say("nested"))
        elif output == "fail":
            raise ValueError(output)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.adapter.close()


async def test_outputs_are_executed_in_order_also_those_of_inputs_that_an_output_brings(bench: Bench) -> None:
    bench.adapter.call(bench.core.say("again", "second"))
    assert bench.executed == ["again", "second", "nested"]


async def test_the_timer_fires_for_the_earliest_time_and_is_armed_again(bench: Bench) -> None:
    bench.adapter.call(bench.core.say_at(0.02, "later"))
    bench.adapter.call(bench.core.say_at(0.01, "sooner"))
    await bench.until(lambda: len(bench.executed) == 2)
    assert bench.executed == ["sooner", "later"]


async def test_another_thread_gives_input_on_the_loop(bench: Bench) -> None:
    thread = threading.Thread(target=bench.adapter.call_from_thread, args=(bench.core.say("stored"),))
    thread.start()
    await bench.until(lambda: bench.executed == ["stored"])
    thread.join()


async def test_the_first_failure_ends_everything_and_is_told_once(bench: Bench) -> None:
    ended = asyncio.Event()

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    bench.adapter.begin(child(), name="child")
    await asyncio.sleep(0)  # it has begun
    bench.adapter.call(bench.core.say_at(0.0, "never"))
    bench.adapter.call(bench.core.say("fail", "never"))
    bench.adapter.fail(OSError("too late"))
    bench.adapter.call(bench.core.say("never"))
    await bench.adapter.close()
    assert ended.is_set()
    assert bench.adapter.ended
    assert bench.executed == ["fail"]
    assert [repr(error) for error in bench.failures] == ["ValueError('fail')"]


async def test_a_core_that_raises_is_a_failure(bench: Bench) -> None:
    def wrong(_: float) -> None:
        raise KeyError("a bug")

    bench.adapter.call(wrong)
    assert [repr(error) for error in bench.failures] == ["KeyError('a bug')"]


async def test_a_child_that_fails_is_a_failure_and_one_that_ends_is_none(bench: Bench) -> None:
    async def ends() -> None:
        bench.adapter.call(bench.core.say("ended"))

    async def fails() -> None:
        raise OSError("no more")

    bench.adapter.begin(ends(), name="ends")
    await bench.until(lambda: bench.executed == ["ended"])
    assert bench.failures == []
    bench.adapter.begin(fails(), name="fails")
    await bench.until(lambda: bool(bench.failures))
    assert [repr(error) for error in bench.failures] == ["OSError('no more')"]


async def test_nothing_happens_after_close(bench: Bench) -> None:
    bench.adapter.call(bench.core.say_at(0.0, "never"))
    await bench.adapter.close()
    bench.adapter.call(bench.core.say("never"))
    bench.adapter.begin(asyncio.Event().wait(), name="late")  # type: ignore[arg-type]
    await bench.adapter.close()
    assert bench.executed == []
    assert bench.core.fired == []
    assert bench.failures == []

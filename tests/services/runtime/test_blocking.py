"""Ctrl-C while a program without asyncio waits: whenever it comes, what it waited for has ended then."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from pavane.runtime.blocking import run_on


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


Work = Coroutine[Any, Any, Any]
HandOver = Callable[[Work, asyncio.AbstractEventLoop], "concurrent.futures.Future[Any]"]
hand_over: HandOver = asyncio.run_coroutine_threadsafe


class Interrupted(concurrent.futures.Future[Any]):
    def result(self, timeout: float | None = None) -> Any:
        raise KeyboardInterrupt


def before(work: Work, loop: asyncio.AbstractEventLoop) -> "concurrent.futures.Future[Any]":
    work.close()
    raise KeyboardInterrupt


def behind(work: Work, loop: asyncio.AbstractEventLoop) -> "concurrent.futures.Future[Any]":
    hand_over(work, loop)
    raise KeyboardInterrupt


def waiting(work: Work, loop: asyncio.AbstractEventLoop) -> "concurrent.futures.Future[Any]":
    hand_over(work, loop)
    return Interrupted()


async def waits_for_ever() -> AsyncGenerator[int, None]:
    yield 1
    await asyncio.Event().wait()


async def following(items: AsyncGenerator[int, None]) -> int:
    return await anext(items)


@pytest.mark.parametrize("interrupt", [before, behind, waiting])
def test_a_generator_can_be_closed_after_it(
    loop: asyncio.AbstractEventLoop, interrupt: HandOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = waits_for_ever()
    assert run_on(loop, following(items)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_on(loop, following(items))
    run_on(loop, items.aclose())


def test_what_fails_by_itself_is_raised_at_once(loop: asyncio.AbstractEventLoop) -> None:
    async def fails() -> None:
        raise ValueError("by itself")

    with pytest.raises(ValueError, match="by itself"):
        run_on(loop, fails())

"""What requests share is made once, closed when nobody uses it, and never under a user's hands."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest

from pavane_api.lending import Pool


class Shop:
    """Makes numbers, and notes which of them were closed."""

    def __init__(self) -> None:
        self.made = 0
        self.closed: list[int] = []

    async def make(self) -> AbstractAsyncContextManager[int]:
        self.made += 1
        return self._open(self.made)

    @asynccontextmanager
    async def _open(self, number: int) -> AsyncIterator[int]:
        yield number
        self.closed.append(number)


async def one(pool: Pool[int], shop: Shop, name: str, *made_of: object) -> int:
    async with pool.lend(("default", name), made_of, shop.make) as number:
        return number


async def test_it_is_made_once_and_kept() -> None:
    shop, pool = Shop(), Pool[int](2)
    assert [await one(pool, shop, "a", "uid", "here") for _ in range(3)] == [1, 1, 1]
    assert await one(pool, shop, "a", "uid", None) == 1  # where it is now is not known
    assert shop.closed == []
    await pool.close()
    assert shop.closed == [1]


async def test_of_something_else_it_is_made_anew_and_the_old_one_closed_after_its_last_user() -> None:
    shop, pool = Shop(), Pool[int](2)
    async with pool.lend(("default", "a"), ("uid",), shop.make) as old:
        assert await one(pool, shop, "a", "other") == 2
        assert (old, shop.closed) == (1, [])
    assert shop.closed == [1]
    await pool.close()
    assert shop.closed == [1, 2]


async def test_what_was_dropped_is_made_anew() -> None:
    shop, pool = Shop(), Pool[int](2)
    await one(pool, shop, "a")
    await pool.drop(("default", "a"))
    await pool.drop(("default", "a"))
    assert shop.closed == [1]
    assert await one(pool, shop, "a") == 2


async def test_the_one_not_used_for_longest_goes_first_and_none_that_is_used() -> None:
    shop, pool = Shop(), Pool[int](2)
    async with AsyncExitStack() as users:
        for name in "abc":
            await users.enter_async_context(pool.lend(("default", name), (), shop.make))
        assert shop.closed == []
        assert await one(pool, shop, "a") == 1
    assert shop.closed == [3]  # the first to be returned, and one too many
    await one(pool, shop, "b")
    assert await one(pool, shop, "d") == 4
    assert shop.closed == [3, 1]


async def test_all_that_nobody_uses_goes_while_it_is_too_much() -> None:
    shop, pool = Shop(), Pool[int](9, too_much=lambda numbers: sum(numbers) > 3)
    assert [await one(pool, shop, name) for name in "abc"] == [1, 2, 3]
    assert shop.closed == [1, 2]


async def test_what_cannot_be_made_is_tried_again() -> None:
    shop, pool = Shop(), Pool[int](2)

    async def fail() -> AbstractAsyncContextManager[int]:
        raise OSError("no such host")

    with pytest.raises(OSError, match="no such host"):
        async with pool.lend(("default", "a"), (), fail):
            pass
    assert await one(pool, shop, "a") == 1

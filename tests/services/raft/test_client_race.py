"""The first answer of several peers counts."""

import asyncio
from typing import Any

import pytest

from pavane.raft.client.race import first_answer
from pavane.raft.errors import Behind, Code, Refused, Unreachable


async def silent() -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def says(text: str) -> str:
    return text


async def fails(error: Exception) -> str:
    raise error


def asking(*peers: Any) -> Any:
    return [lambda peer=peer: peer for peer in peers]


async def test_a_peer_that_says_nothing_holds_nobody_up() -> None:
    assert await first_answer(asking(silent(), silent(), says("here")), 0.01) == "here"


async def test_a_peer_that_fails_is_followed_by_the_next_at_once() -> None:
    gone = Unreachable((), 1.0)
    assert await first_answer(asking(fails(gone), says("here")), 3600.0) == "here"


async def test_a_refusal_is_an_answer() -> None:
    with pytest.raises(Refused):
        await first_answer(asking(silent(), fails(Refused(Code.BAD_COMMAND, "no"))), 0.01)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_where_none_serves_one_that_is_behind_is_told_of(order: tuple[int, int]) -> None:
    errors = (Behind(7), Unreachable((), 1.0))
    with pytest.raises(Behind):
        await first_answer(asking(*(fails(errors[each]) for each in order)), 3600.0)

"""The bank of the examples as processes: money survives kill -9 of application, coordinator and both."""

import asyncio
import contextlib
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.services.ambrosia.bank import WAIT_S, Account
from tests.services.eventually import eventually

NAMES = ("alice", "bob")
OPENING = 1000


async def total(accounts: list[Account]) -> tuple[int, int]:
    """Return the money at rest and the money on its way."""
    found = [(await account.ask("GET", "/query/money"))["result"] for account in accounts]
    return sum(each["balance"] for each in found), sum(each["on_the_way"] for each in found)


def moved(tasks: "asyncio.Future[Any]", done: list[int], enough: int) -> bool:
    return tasks.done() or done[0] >= enough


@pytest.mark.timeout(240)  # five starts of two processes each, on a machine that does other things too
async def test_transfers_under_kills_keep_the_total(tmp_path: Path) -> None:
    accounts = [Account(tmp_path, name) for name in NAMES]
    rng = random.Random(16)
    done = [0]
    try:
        for account in accounts:
            await account.start()
        for account in accounts:
            assert await account.ask("POST", "/call/open", "open", [OPENING]) == {"result": OPENING}
        stop = asyncio.Event()

        async def transfers(source: Account, to: Account, worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                body = [to.name, rng.randint(1, 5)]
                answer = await source.ask("POST", "/call/transfer", f"{source.name}-{worker}-{number}", body)
                assert answer.get("result") in (True, False), answer
                done[0] += 1

        alice, bob = accounts
        tasks = asyncio.gather(*(transfers(*pair, n) for n in range(2) for pair in ((alice, bob), (bob, alice))))
        for victims, what in (
            ([alice], ["application"]),
            ([bob], ["coordinator"]),
            ([alice, bob], ["application", "coordinator"]),
        ):
            enough = done[0] + 5
            await asyncio.gather(*(victim.kill(*what) for victim in victims))
            for victim in victims:
                await victim.start()
            await eventually(partial(moved, tasks, done, enough), WAIT_S)
        stop.set()
        await tasks
        assert await total(accounts) == (len(NAMES) * OPENING, 0)
        assert (await alice.ask("POST", "/call/open", "open", [OPENING]))["result"] == OPENING  # a key is remembered
        assert await total(accounts) == (len(NAMES) * OPENING, 0)
    finally:
        for account in accounts:
            if account.process is not None:
                with contextlib.suppress(FileNotFoundError):
                    await account.kill("application", "coordinator")

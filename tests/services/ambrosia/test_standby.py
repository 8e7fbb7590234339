"""Two processes of one immortal: one leads, the other one follows its log and leads when it ends (spec 14)."""

import asyncio
import contextlib
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.services.ambrosia.bank import WAIT_S, Account, alive
from tests.services.eventually import eventually

KILLS = 2
CALLERS, CALLS = 4, 20


def leader(account: Account) -> str:
    """Return the process that leads, as the registry names it."""
    row = json.loads((account.folder / "registry" / f"{account.name}.json").read_text())
    return str(row["process"])


def follows(account: Account, times: int) -> bool:
    """Whether a coordinator has said so many times that it follows."""
    said = (account.folder / f"{account.name}.coordinator.log").read_text()
    return said.count("I'm a secondary") >= times


async def kill_the_leader(folder: Path, kills: int) -> list[float]:
    """Kill application and coordinator of the one that leads, again and again; return the seconds until an answer."""
    one, other = (Account(folder, "alice", options=["--standby"]) for _ in range(2))
    gaps: list[float] = []
    total = 0
    try:
        await one.start()
        assert await one.ask("POST", "/call/open", "open", [100]) == {"result": 100}
        total = 100
        await other.start()
        for number in range(kills):
            await eventually(partial(follows, one, number + 1), WAIT_S)
            before = leader(one)
            began = time.monotonic()
            await one.kill("application", "coordinator")
            answer = await other.ask("POST", "/call/open", f"open-{number}", [1])
            gaps.append(time.monotonic() - began)
            total += 1
            assert answer == {"result": total}
            assert leader(one) != before
            await one.start()
            one, other = other, one
        money = await one.ask("GET", "/query/money")
        assert money == {"result": {"balance": total, "on_the_way": 0}}
    finally:
        await end(one, other)
    return gaps


async def end(*accounts: Account) -> None:
    """Kill what still runs."""
    for account in accounts:
        if account.process is not None and account.process.returncode is None:
            account.process.kill()
            await account.process.wait()
    with contextlib.suppress(FileNotFoundError):
        await accounts[0].kill("coordinator")


@pytest.mark.timeout(240)  # four starts of two processes each, on a machine that does other things too
async def test_a_follower_leads_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    await kill_the_leader(tmp_path, KILLS)


@pytest.mark.timeout(240)
async def test_a_leader_that_stands_still_is_overtaken_and_ends_as_soon_as_it_goes_on(tmp_path: Path) -> None:
    one, other = (Account(tmp_path, "alice", options=["--standby"]) for _ in range(2))
    stopped: tuple[int, ...] = ()
    answered = 0

    async def call(caller: int) -> None:
        nonlocal answered
        for number in range(CALLS):
            await one.ask("POST", "/call/open", f"{caller}/{number}", [1])
            answered += 1

    try:
        await one.start()
        await one.ask("POST", "/call/open", "open", [100])
        await other.start()
        await eventually(partial(follows, one, 1), WAIT_S)
        assert one.process is not None
        before, stopped = leader(one), (one.coordinator(), one.process.pid)
        callers = [asyncio.create_task(call(number)) for number in range(CALLERS)]
        await eventually(lambda: answered > CALLERS, WAIT_S)  # more are on their way
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: leader(one) != before, WAIT_S)
        await eventually(lambda: "NOW I'm Primary" in (tmp_path / "alice.coordinator.log").read_text(), WAIT_S)
        assert all(alive(pid) for pid in stopped)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        await one.process.wait()
        await eventually(lambda: not alive(stopped[0]), WAIT_S)
        await asyncio.gather(*callers)
        money = {"result": {"balance": 100 + CALLERS * CALLS, "on_the_way": 0}}
        assert await other.ask("GET", "/query/money") == money
        await one.start()  # what the log holds is what was answered
        await eventually(partial(follows, one, 2), WAIT_S)
        await other.kill("application", "coordinator")
        assert await one.ask("GET", "/query/money") == money
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        await end(one, other)

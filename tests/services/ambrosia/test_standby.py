"""Two processes of one immortal: one leads, the other one follows its log and leads when it ends (spec 14)."""

import contextlib
import json
import time
from functools import partial
from pathlib import Path

import pytest

from tests.services.ambrosia.bank import WAIT_S, Account
from tests.services.eventually import eventually

KILLS = 2


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
        for account in (one, other):
            if account.process is not None and account.process.returncode is None:
                account.process.kill()
                await account.process.wait()
        with contextlib.suppress(FileNotFoundError):
            await one.kill("coordinator")
    return gaps


@pytest.mark.timeout(240)  # four starts of two processes each, on a machine that does other things too
async def test_a_follower_leads_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    await kill_the_leader(tmp_path, KILLS)

"""The bank of the examples as processes: money survives kill -9 of application, coordinator and both."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.services.eventually import eventually

BANK = Path(__file__).parents[3] / "examples" / "bank"
NAMES = ("alice", "bob")
OPENING = 1000
WAIT_S = 60.0


class Account:
    """One account: `pavane ambrosia run`, and its coordinator."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "pavane_cli.main", "ambrosia", "run", "bank:Account", "--name", self.name]
        with (self.folder / f"{self.name}.out").open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                "--log",
                str(self.folder),
                cwd=BANK,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            )

    def coordinator(self) -> int:
        row = json.loads((self.folder / "registry" / f"{self.name}.json").read_text())
        return int(row["process"].rpartition(":")[2])

    async def kill(self, *what: str) -> None:
        """Kill, and wait until both have ended: each ends when it loses the other."""
        coordinator = self.coordinator()
        if "coordinator" in what:
            kill(coordinator)
        if "application" in what and self.process is not None:
            self.process.kill()
        if self.process is not None:
            await self.process.wait()
        await eventually(lambda: not alive(coordinator), WAIT_S)

    async def ask(self, verb: str, path: str, key: str = "", body: Any = None) -> Any:
        """Repeat until it answers, as a client with a key may."""
        async with asyncio.timeout(WAIT_S), httpx2.AsyncClient(trust_env=False, timeout=WAIT_S) as client:
            while True:
                with contextlib.suppress(httpx2.HTTPError, FileNotFoundError):
                    address = (self.folder / f"{self.name}.http").read_text().strip()
                    headers = {"Idempotency-Key": key} if key else {}
                    answer = await client.request(verb, f"http://{address}{path}", headers=headers, json=body)
                    if answer.status_code != 503:
                        return answer.json()
                await asyncio.sleep(0.05)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


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

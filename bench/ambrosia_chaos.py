"""Four immortals that call each other under SIGKILL of applications, coordinators and both (ambrosia.md 21.1).

Each call carries its number of its pair. Its receiver counts whatever is not the next one, so a call that is lost,
doubled or overtaken is found there; at the end each log is handled again, from each checkpoint.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure
from pavane.ambrosia import Immortal, gather, method, query
from pavane.ambrosia.testing import replay

NAMES = ("one", "two", "three", "four")
WINDOW = 8
"""Calls of a pair that are under way together."""
ROUNDS = 40
"""Of a flow; its history is part of each checkpoint, so another one goes on."""
PAUSE_S = (0.5, 2.0)
PATIENCE_S = 120.0
POLL_S = 0.1
TARGETS = (("application",), ("coordinator",), ("application", "coordinator"))


class Caller(Immortal):
    """Calls the others for ever, and counts what they call."""

    made: dict[str, int]
    answered: dict[str, int]
    seen: dict[str, int]
    wrong: int = 0
    open: int = 0
    stopping: bool = False

    @method
    def begin(self, peers: list[str]) -> None:
        """Start a flow for each of them."""
        for peer in peers:
            self.again(peer)

    @method
    def stop(self) -> None:
        """Have the flows end."""
        self.stopping = True

    @method
    def take(self, sender: str, number: int) -> int:
        """Count a call; the answer is its number."""
        self.wrong += number != self.seen.get(sender, 0) + 1
        self.seen[sender] = number
        return number

    def numbers(self, peer: str) -> list[int]:
        """Number the next calls, none when it is to end."""
        first = self.made.get(peer, 0) + 1
        if self.stopping:
            return []
        self.made[peer] = first + WINDOW - 1
        return list(range(first, first + WINDOW))

    def finished(self, peer: str, asked: list[int], told: list[int]) -> None:
        """Count answers."""
        self.wrong += asked != told
        self.answered[peer] = asked[-1]

    def again(self, peer: str) -> None:
        """Go on with a flow that has no history yet."""
        self.open += 1
        self.start(Caller.work, peer)

    def ended(self) -> None:
        """A flow has ended."""
        self.open -= 1

    @method
    async def work(self, peer: str) -> None:
        """Call in rounds."""
        for _ in range(ROUNDS):
            asked = self.numbers(peer)
            if not asked:
                break
            told = await gather(*(self.call(Caller.take, peer, self.name, number) for number in asked))
            self.finished(peer, asked, list(told))
        else:
            self.again(peer)
        self.ended()

    @query
    def count(self) -> dict[str, Any]:
        """Return all that is counted."""
        return {
            "made": self.made,
            "answered": self.answered,
            "seen": self.seen,
            "wrong": self.wrong,
            "open": self.open,
        }


class Member:
    """One immortal: its process is started again whenever it ends, as a kubelet would."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Start it for ever."""
        while True:
            with (self._folder / f"{self.name}.out").open("ab") as out:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "pavane_cli.main", "ambrosia", "run", "bench.ambrosia_chaos:Caller"),
                    *("--name", self.name, "--log", str(self._folder)),
                    stdout=out,
                    stderr=out,
                    env={**os.environ, "PYTHONHASHSEED": "0"},
                )
            try:
                await self._process.wait()
            except asyncio.CancelledError:
                self._process.terminate()
                await self._process.wait()
                raise

    async def kill(self, *what: str) -> None:
        """Kill application, coordinator or both, whatever they are doing."""
        if "coordinator" in what:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                row = json.loads((self._folder / "registry" / f"{self.name}.json").read_bytes())
                os.kill(int(row["process"].rpartition(":")[2]), signal.SIGKILL)
        if "application" in what and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def ask(self, verb: str, path: str, body: Any = None, key: str = "") -> Any:
        """Repeat until it answers."""
        async with asyncio.timeout(PATIENCE_S), httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
            while True:
                with contextlib.suppress(httpx2.HTTPError, FileNotFoundError):
                    address = (self._folder / f"{self.name}.http").read_text().strip()
                    headers = {"Idempotency-Key": key} if key else {}
                    answer = await client.request(verb, f"http://{address}{path}", headers=headers, json=body)
                    if answer.is_success:
                        return answer.json()["result"]
                await asyncio.sleep(POLL_S)


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Kill, let everything arrive, compare both ends of each pair, and handle the logs again."""
    loop = asyncio.get_running_loop()
    members = [Member(folder, name) for name in NAMES]
    async with _kept(members):
        for member in members:
            peers = [name for name in NAMES if name != member.name]
            await member.ask("POST", "/call/begin", [peers], "begin")
        began, before = loop.time(), await _answered(members)
        for _ in range(options.kills):
            await asyncio.sleep(random.uniform(*PAUSE_S))
            await random.choice(members).kill(*random.choice(TARGETS))
        for member in members:
            await member.ask("POST", "/call/stop", [], "stop")
        seconds = loop.time() - began
        counts = await _settled(members)
    made = sum(sum(count["made"].values()) for count in counts.values())
    answered = sum(sum(count["answered"].values()) for count in counts.values())
    received = sum(sum(count["seen"].values()) for count in counts.values())
    differ = sum(
        abs(count["made"].get(peer, 0) - counts[peer]["seen"].get(name, 0))
        for name, count in counts.items()
        for peer in NAMES
        if peer != name
    )
    handled = await asyncio.to_thread(_replayed, folder)
    return [
        Measure("kills of applications, coordinators and both", options.kills, ""),
        Measure("calls between four immortals meanwhile", (answered - before) / seconds, "/s"),
        Measure("calls made", made, ""),
        Measure("answers that are missing", made - answered, "", 0, vital=True),
        Measure("calls lost or doubled", differ, "", 0, vital=True),
        Measure("calls or answers out of order", sum(each["wrong"] for each in counts.values()), "", 0, vital=True),
        Measure("records handled again with the same state and output", handled, "", least=1),
        Measure("calls received", received, ""),
    ]


@contextlib.asynccontextmanager
async def _kept(members: list[Member]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(member.keep()) for member in members]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answered(members: list[Member]) -> int:
    return sum([sum((await member.ask("GET", "/query/count"))["answered"].values()) for member in members])


async def _settled(members: list[Member]) -> dict[str, Any]:
    """Wait until no flow is open and return what each of them has counted."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                counts = {member.name: await member.ask("GET", "/query/count") for member in members}
                if not any(count["open"] for count in counts.values()):
                    return counts
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise BenchError(f"calls are not answered within {PATIENCE_S:.0f} s: {counts}") from error


def _replayed(folder: Path) -> int:
    """Handle each log again from each of its checkpoints; raises ``Diverged``."""
    return sum(replay(Caller, folder / f"{name}_0").records for name in NAMES)

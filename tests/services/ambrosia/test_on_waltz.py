"""An immortal whose log is a partition of Waltz: kills, takeovers, and what a stopped writer may do (spec 14.8)."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane.pods.coordinator_settings import RECEIVE_PORT, SEND_PORT
from pavane.waltz.client import Waltz
from tests.services.ambrosia.bank import BANK, WAIT_S
from tests.services.eventually import eventually
from tests.services.waltz.running import Log, running_log

ROOT = Path(__file__).parents[3]
NET = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200 + 20}"
CALLERS, CALLS = 4, 15
KILLS = 2


class Pod:
    """A coordinator and its application, each a process."""

    def __init__(self, folder: Path, number: int) -> None:
        self.host = f"{NET}.{number}"
        self.folder = folder / self.host
        self.client = folder / "client"
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, generation: int = 1, *, follow: bool = False) -> None:
        self.folder.mkdir(exist_ok=True)
        words = [self.host, str(self.folder), str(self.client), str(generation), *(["follow"] if follow else [])]
        await self._run("coordinator", ROOT, ["-m", "tests.services.ambrosia.instance", *words])
        run = ["-m", "pavane_cli.main", "ambrosia", "run", "bank:Account", "--name", "alice"]
        await self._run("application", BANK, [*run, "--http", f"{self.host}:8080"])

    async def _run(self, name: str, folder: Path, words: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                cwd=folder,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "PAVANE_AMBROSIA": f"{self.host}:{RECEIVE_PORT},{SEND_PORT}",
                    "PYTHONHASHSEED": "0",
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
            )

    def said(self) -> str:
        return (self.folder / "coordinator.out").read_text()

    def now(self) -> str:
        return (self.said().splitlines() or [""])[-1]

    def signal(self, number: int) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        for process in self.processes.values():
            await process.wait()


class Bank:
    """Whoever calls `alice`, at any of the pods; each key is called until it is answered, and counts once."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = list(pods)
        self.total = 0

    async def ask(self, verb: str, path: str, key: str = "", body: Any = None) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        async with asyncio.timeout(WAIT_S), httpx2.AsyncClient(trust_env=False, timeout=3.0) as client:
            while True:
                for pod in [*self.pods]:
                    with contextlib.suppress(httpx2.HTTPError):
                        url = f"http://{pod.host}:8080{path}"
                        answer = await client.request(verb, url, headers=headers, json=body)
                        if answer.status_code == 200:
                            return answer.json()["result"]
                await asyncio.sleep(0.02)

    async def open(self, key: str, amount: int = 1) -> None:
        await self.ask("POST", "/call/open", key, [amount])
        self.total += amount

    async def callers(self, calls: int) -> None:
        async def one(name: int) -> None:
            for number in range(calls):
                await self.open(f"{self.total}/{name}/{number}")

        await asyncio.gather(*(one(name) for name in range(CALLERS)))

    async def more(self, calls: int) -> None:
        """Wait for calls that are answered from now on."""
        before = self.total
        await eventually(lambda: self.total >= before + calls, WAIT_S)

    async def holds(self) -> bool:
        """Whether what was answered is there, once."""
        found = await self.ask("GET", "/query/money")
        assert found == {"balance": self.total, "on_the_way": 0}
        return True


@contextlib.asynccontextmanager
async def ledger(folder: Path, *, servers: int = 1) -> AsyncIterator[Log]:
    """A log in this process, and the Secret of its clients."""
    async with running_log(folder / "waltz", servers=servers) as log:
        await log.settled()
        (folder / "client").mkdir()
        tell(folder, log)
        yield log


def tell(folder: Path, log: Log) -> None:
    """Write down where the servers are."""
    (folder / "client" / "servers").write_text("\n".join(f"127.0.0.1:{server.port}" for server in log.servers))


async def move(folder: Path, log: Log) -> None:
    """Stop the server that has the partition, and start another one."""
    owner = next(server for server in log.servers if server.running.owned)
    await owner.stop()
    log.servers.remove(owner)
    await log.start_server()
    tell(folder, log)


@contextlib.asynccontextmanager
async def two_pods(folder: Path) -> AsyncIterator[tuple[Pod, Pod]]:
    pods = Pod(folder, 1), Pod(folder, 2)
    try:
        yield pods
    finally:
        for pod in pods:
            pod.signal(signal.SIGCONT)
            await pod.kill()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_kills_of_the_coordinator_and_moves_of_the_partition_lose_and_double_nothing(tmp_path: Path) -> None:
    async with ledger(tmp_path, servers=2) as log, two_pods(tmp_path) as (pod, _):
        bank = Bank(pod)
        await pod.start()
        for number in range(KILLS):
            calling = asyncio.create_task(bank.callers(CALLS))
            await bank.more(CALLERS)
            await pod.kill()
            await pod.start()
            await bank.more(1)
            await move(tmp_path, log)
            await calling
            assert bank.total == (number + 1) * CALLERS * CALLS
            assert await bank.holds()
        # Nothing of it was on a disk of the pod.
        await pod.kill()
        shutil.rmtree(pod.folder)
        await pod.start()
        assert await bank.holds()


@pytest.mark.timeout(240)
async def test_a_later_generation_takes_over_at_one_moment_and_the_stopped_one_commits_nothing(tmp_path: Path) -> None:
    async with ledger(tmp_path) as log, two_pods(tmp_path) as (old, new):
        bank = Bank(old)
        await old.start(1)
        await bank.callers(2)
        await new.start(2, follow=True)
        await eventually(lambda: new.now().startswith("ReadOnly"), WAIT_S)
        assert "leads=True" in old.now()
        await bank.callers(2)  # beside the one that follows
        calling = asyncio.create_task(bank.callers(CALLS))
        await bank.more(1)
        old.signal(signal.SIGSTOP)
        bank.pods = [new]
        new.processes["coordinator"].send_signal(signal.SIGUSR1)
        await eventually(lambda: "leads=True" in new.now(), WAIT_S)
        await calling
        assert await bank.holds()
        async with Waltz((old.client / "servers").read_text().split()) as client:
            taken = await client.hwm(0)
            old.signal(signal.SIGCONT)
            async with asyncio.timeout(WAIT_S):
                assert await old.processes["coordinator"].wait() == 0
            assert old.now() == "fenced"
            assert await client.hwm(0) == taken
        await bank.callers(1)
        await new.kill()
        await new.start(2)
        assert await bank.holds()
        assert log.servers

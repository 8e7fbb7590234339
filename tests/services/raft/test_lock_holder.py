"""A holder that is stopped past its lease cannot write under its old token (docs/specs/raft.md 12.7, 20 A17).

``PAVANE_CONTENDERS`` and ``PAVANE_GRANTS`` make it larger; the specification asks for 50 contenders.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient, guard
from pavane.raft.config import Config
from pavane.raft.machines.commands import Put
from pavane.raft.server import RaftServer
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT

HOLDER = Path(__file__).with_name("lock_holder.py")
CONTENDERS = int(os.environ.get("PAVANE_CONTENDERS", "3"))
GRANTS = int(os.environ.get("PAVANE_GRANTS", "12"))
STOP_ONE_IN = 4
PIPE = asyncio.subprocess.PIPE


async def test_a_holder_that_was_stopped_writes_nothing_under_its_old_token(tmp_path: Path) -> None:
    [url] = free_urls(1)
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), machine="KeyValue")
    server = RaftServer(config, data=tmp_path / "1", bind=url)
    await server.start()
    holder = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), url, IDENT.decode(), stdin=PIPE, stdout=PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        async with asyncio.timeout(40), RaftClient([url], IDENT) as client, client.kv.lease(20.0) as lease:
            old = int(await holder.stdout.readline())
            holder.send_signal(signal.SIGSTOP)
            new = await client.kv.lock(b"lock", lease.id)
            assert new > old
            assert (await client.kv.txn([guard(b"lock", new)], [Put(b"data", b"holder")])).succeeded
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write(b"\n")
            assert await holder.stdout.readline() == b"refused\n"
            item = await client.kv.get(b"data")
            assert item is not None
            assert item.value == b"holder"
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()
        await server.stop()


class Contenders:
    """Programs that take one lock in turn, and the store outside that keeps the greatest token it has seen."""

    def __init__(self, stop_one_in: int) -> None:
        self._stop_one_in = stop_one_in
        self._stopped: list[tuple[int, asyncio.subprocess.Process]] = []
        self.tokens: list[int] = []
        self.accepted: list[int] = []
        self.refused: list[int] = []
        self.in_cluster: dict[int, str] = {}
        self.changed = asyncio.Event()

    async def follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode().split():
            token = int(line[1])
            if line[0] == "got":
                self._got(token, process)
            else:
                self.in_cluster[token] = line[2]
                self._write(token)
            self.changed.set()

    def _got(self, token: int, process: asyncio.subprocess.Process) -> None:
        self.tokens.append(token)
        if len(self.tokens) % self._stop_one_in == 0:
            process.send_signal(signal.SIGSTOP)
            self._stopped.append((token, process))
        self._go_on(process)

    def _write(self, token: int) -> None:
        if self.accepted and token < self.accepted[-1]:
            self.refused.append(token)
            return
        self.accepted.append(token)
        while self._stopped and self._stopped[0][0] < token:  # another has written since
            self._stopped.pop(0)[1].send_signal(signal.SIGCONT)

    @staticmethod
    def _go_on(process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.write(b"\n")


@pytest.mark.timeout(60 + 6 * CONTENDERS + 6 * GRANTS // STOP_ONE_IN)
async def test_who_was_stopped_while_it_held_a_fair_lock_writes_nowhere_any_more(tmp_path: Path) -> None:
    [url] = free_urls(1)
    server = RaftServer(
        Config(id="1", ident=IDENT, url=url, peers=(("1", url),), machine="KeyValue"), data=tmp_path / "1", bind=url
    )
    await server.start()
    contenders = Contenders(STOP_ONE_IN)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.services.raft.contender", url, IDENT.decode(), stdin=PIPE, stdout=PIPE
        )
        for _ in range(CONTENDERS)
    ]
    following = [asyncio.create_task(contenders.follow(process)) for process in processes]
    try:
        while len(contenders.tokens) < GRANTS or len(contenders.refused) < GRANTS // STOP_ONE_IN - 1:
            contenders.changed.clear()
            await contenders.changed.wait()
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*following, *(process.wait() for process in processes))
        await server.stop()
    print(f"{len(contenders.tokens)} tokens, {len(contenders.accepted)} writes, {contenders.refused} refused")  # noqa: T201
    assert contenders.tokens == sorted(set(contenders.tokens)), "tokens grow in the order in which the lock is taken"
    assert {contenders.in_cluster[token] for token in contenders.refused} == {"no"}
    written = [token for token, answer in contenders.in_cluster.items() if answer == "yes"]
    assert written == sorted(written)
    assert len(written) > len(contenders.refused)

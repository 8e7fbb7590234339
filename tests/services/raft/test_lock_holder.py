"""A holder that is stopped past its lease cannot write under its old token (docs/specs/raft.md 12.7, A17)."""

import asyncio
import signal
import sys
from pathlib import Path

from pavane.raft.client import RaftClient, guard
from pavane.raft.config import Config
from pavane.raft.machines.commands import Put
from pavane.raft.server import RaftServer
from tests.services.raft.test_client_cluster import IDENT, free_urls

HOLDER = Path(__file__).with_name("lock_holder.py")
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

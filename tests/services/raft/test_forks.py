"""A client that was made, or opened, before its process forked (docs/specs/raft.md 11.1)."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient, prefix_range
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from tests.services.raft import forked
from tests.services.raft.peers import IDENT, free_url, started

WAIT_S = 60

pytestmark = pytest.mark.timeout(3 * WAIT_S)


async def cluster(stack: AsyncExitStack, folder: Path) -> str:
    url = free_url()
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), machine="KeyValue")
    await started(stack, RaftServer(config, data=folder / "1", bind=url))
    return url


async def run(url: str, what: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        forked.__name__,
        url,
        IDENT.decode(),
        what,
        cwd=Path(__file__).parents[3],
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    return sorted(said.decode().splitlines())


async def test_children_of_one_client_lose_no_acknowledged_put(tmp_path: Path, stack: AsyncExitStack) -> None:
    url = await cluster(stack, tmp_path)
    assert await run(url, "puts") == [f"acknowledged {forked.PUTS}"] * forked.CHILDREN
    async with RaftClient([url], IDENT) as client:
        there = await client.kv.list(*prefix_range(b"k/"))
    assert len(there.items) == forked.CHILDREN * forked.PUTS


async def test_one_child_of_four_has_the_lock(tmp_path: Path, stack: AsyncExitStack) -> None:
    url = await cluster(stack, tmp_path)
    said = await run(url, "locks")
    assert [line.split()[0] for line in said] == ["holds", "waits", "waits", "waits"]


async def test_an_open_client_is_refused_at_once_in_a_child_and_works_on_in_its_parent(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    url = await cluster(stack, tmp_path)
    said = await run(url, "inherited")
    assert said.pop(0) == "parent b'2'"
    assert len(said) == 3
    assert all(line.startswith("refused") and "before this process was forked" in line for line in said), said

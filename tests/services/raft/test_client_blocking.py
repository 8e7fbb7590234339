"""The client of programs without an event loop (docs/specs/raft.md 11.1)."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pavane.raft.client import BlockingRaftClient
from pavane.raft.config import Config
from pavane.raft.errors import Closed, TooLarge
from pavane.raft.server import RaftServer
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT


@pytest.fixture
def client(tmp_path: Path) -> Iterator[BlockingRaftClient]:
    """A client of one peer, which has an event loop in a thread of its own."""
    (url,) = free_urls(1)

    async def serve() -> None:
        server = RaftServer(Config(id="1", ident=IDENT, url=url, peers=(("1", url),)), data=tmp_path, bind=url)
        await server.start()
        await asyncio.to_thread(ended.wait)
        await server.stop()

    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        with BlockingRaftClient([url], IDENT) as opened:
            yield opened
    finally:
        ended.set()
        thread.join()


def test_what_is_written_is_read(client: BlockingRaftClient) -> None:
    indices = [client.update(b"%d" % number) for number in range(10)]

    assert [(entry.index, bytes(entry.data)) for entry in client.entries(after=indices[0] - 1)] == [
        (index, b"%d" % number) for number, index in enumerate(indices)
    ]
    assert [entry.index for entry in itertools.islice(client.entries(), 2)] == [1, 2], "an iterator may be left early"
    assert client.configuration().is_leader
    assert client.log_info().commit_index >= indices[-1]


def test_threads_share_it(client: BlockingRaftClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        indices = list(threads.map(lambda number: client.update(b"%d" % number), range(200)))
    assert len(set(indices)) == 200


def test_errors_are_those_of_the_client(client: BlockingRaftClient) -> None:
    with pytest.raises(TooLarge):
        client.update(bytes(11 << 20))


def test_outside_its_block_it_says_that_it_is_closed() -> None:
    client = BlockingRaftClient(["tcp://127.0.0.1:1"], IDENT)
    with pytest.raises(Closed, match="with"):
        client.update(b"data")
    with client:
        pass
    with pytest.raises(Closed, match="closed; make a new one by `with"):
        client.update(b"data")
    with pytest.raises(Closed, match="make a new BlockingRaftClient"), client:
        pass
    assert not any(thread.name == "pavane-raft-client" for thread in threading.enumerate())

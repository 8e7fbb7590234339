"""A server that takes a connection and says nothing, or half of it, holds up none of our clients for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest

from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.wire.commands import CreateInstance
from pavane.compute.wire.common import Epoch
from pavane.raft.client import RaftClient
from pavane.raft.errors import Unreachable
from pavane.stage.client import StageStream
from pavane.stage.errors import StageUnreachable
from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.aio.links import StorageLink
from pavane.waltz.aio.zookeeper import ZooKeeperMetadata
from pavane.waltz.client import Waltz
from pavane.waltz.errors import Unavailable
from pavane.waltz.state.metadata import MetadataError
from pavane.waltz.wire.frame import LOG_SERVER, STORAGE_SERVER, Channel
from tests.services.eventually import eventually

WAIT_S = 30.0
PATIENCE_S = 0.3
KEY = UUID(int=7)
EPOCH = Epoch(1, 1)


@contextlib.asynccontextmanager
async def silent(said: bytes = b"") -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A server at ``host:port``, and the connections that it took."""
    taken: list[asyncio.StreamWriter] = []

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        writer.write(said)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", taken
    finally:
        server.close()
        for writer in taken:
            writer.transport.abort()


async def log(address: str) -> None:
    async with Waltz([address], patience=PATIENCE_S) as client:
        await client.hwm(0)


async def tool(address: str) -> None:
    await StorageAdmin.connect(address, KEY, 1, None)


async def tree(address: str) -> None:
    async with ZooKeeperMetadata(address) as metadata:
        await metadata.get("/")


async def keys(address: str) -> None:
    async with RaftClient([f"tcp://{address}"], b"secret") as client:
        await client.configuration(timeout_s=PATIENCE_S)


async def stage(address: str) -> None:
    async with StageStream(address, epoch=EPOCH, kind="raft", generation=1):
        pass


async def replica(address: str) -> None:
    async with ReplicaStream(address, EPOCH, CreateInstance("compute", 1)):
        pass


CLIENTS: list[tuple[Callable[[str], Awaitable[None]], type[Exception], bytes]] = [
    (log, Unavailable, b""),
    (log, Unavailable, Channel(LOG_SERVER).hello()[:-1]),
    (log, Unavailable, Channel(LOG_SERVER).hello()),
    (tool, Unavailable, b""),
    (tool, Unavailable, Channel(STORAGE_SERVER).hello()[:-1]),
    (tree, MetadataError, b""),
    (keys, Unreachable, b""),
    (keys, Unreachable, b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"),
    (stage, StageUnreachable, b""),
    (replica, StreamEnded, b""),
]


@pytest.mark.parametrize(("client", "error", "said"), CLIENTS, ids=lambda each: getattr(each, "__name__", None))
async def test_a_client_of_a_silent_server_gives_up(
    client: Callable[[str], Awaitable[None]], error: type[Exception], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.waltz.client.link.CONNECT_SECONDS", PATIENCE_S)
    monkeypatch.setattr("pavane.waltz.client.directory.ANSWER_SECONDS", PATIENCE_S)
    monkeypatch.setattr("pavane.waltz.aio.admin.ANSWER_S", PATIENCE_S)
    monkeypatch.setattr("pavane.waltz.aio.zookeeper.CALL_S", PATIENCE_S)
    monkeypatch.setattr("pavane.stage.client.CALL_SECONDS_MAX", PATIENCE_S)
    monkeypatch.setattr("pavane.compute.client.CALL_SECONDS_MAX", PATIENCE_S)
    async with silent(said) as (address, taken), asyncio.timeout(WAIT_S):
        with pytest.raises(error):
            await client(address)
        await eventually(lambda: taken, WAIT_S)


@pytest.mark.parametrize("said", [b"", Channel(STORAGE_SERVER).hello()], ids=["nothing", "a Hello"])
async def test_a_server_of_the_log_dials_a_silent_storage_node_again(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.waltz.aio.links.CONNECT_S", PATIENCE_S)
    async with silent(said) as (address, taken):
        link = StorageLink(address, KEY, 1, tls=None, up=pytest.fail, down=pytest.fail, heard=lambda *_: None)
        running = asyncio.create_task(link.run())
        await eventually(lambda: len(taken) > 2, WAIT_S)
        assert link.fault == "no answer in time"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

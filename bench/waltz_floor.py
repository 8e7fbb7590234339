"""The least that an append of a log costs in Python: the same processes, sockets, TLS and syncs, and nothing else.

``node FOLDER PORT`` writes and syncs what comes, then answers; ``server PORT NODE_PORT…`` sends what comes to all nodes
and answers as soon as two of three have. One message is under way at a time.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.waltz_node import HOST, certificates, until_terminated

REQUEST_BYTES, ANSWER_BYTES = 157, 36  # of an append of 100 B, and of its feed item
VOTE_BYTES, QUORUM, RETRY_S = 27, 2, 0.05


class End(asyncio.BufferedProtocol):
    """One end of a connection; ``heard`` gets each whole message."""

    def __init__(self, size: int, heard: Callable[["End", bytes], None]) -> None:
        self._size, self._heard = size, heard
        self._buffer, self._at = memoryview(bytearray(size)), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        self._at += nbytes
        if self._at == self._size:
            self._at = 0
            self._heard(self, bytes(self._buffer))


async def node(folder: Path, port: int) -> None:
    """Write, sync, answer."""
    tls = certificates()
    folder.mkdir(parents=True)
    file = os.open(folder / "log", os.O_RDWR | os.O_CREAT, 0o600)
    end = 0

    def heard(connection: End, message: bytes) -> None:
        nonlocal end
        end += os.pwrite(file, message, end)
        os.fdatasync(file)
        connection.transport.write(bytes(VOTE_BYTES))

    make = lambda: End(REQUEST_BYTES, heard)  # noqa: E731
    async with await asyncio.get_running_loop().create_server(make, HOST, port, ssl=tls.mutual_port if tls else None):
        await until_terminated()


async def server(port: int, node_ports: list[int]) -> None:
    """Pass on what comes, and answer when a quorum has."""
    loop, tls = asyncio.get_running_loop(), certificates()
    votes, asking = Counter[End](), list[End]()
    done = 0

    def voted(link: End, _: bytes) -> None:
        nonlocal done
        votes[link] += 1
        if asking and sum(count > done for count in votes.values()) >= QUORUM:
            done += 1
            asking.pop().transport.write(bytes(ANSWER_BYTES))

    def asked(connection: End, message: bytes) -> None:
        asking.append(connection)
        for link in links:
            link.transport.write(message)

    async def dial(to: int) -> End:
        options: dict[str, Any] = {"ssl": tls.dialling, "server_hostname": ""} if tls else {}
        while True:
            with suppress(OSError):
                _, link = await loop.create_connection(lambda: End(VOTE_BYTES, voted), HOST, to, **options)
                return link
            await asyncio.sleep(RETRY_S)

    links = [await dial(each) for each in node_ports]
    make = lambda: End(REQUEST_BYTES, asked)  # noqa: E731
    async with await loop.create_server(make, HOST, port, ssl=tls.open_port if tls else None):
        await until_terminated()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "node":
        asyncio.run(node(Path(rest[0]), int(rest[1])))
    else:
        asyncio.run(server(int(rest[0]), [int(each) for each in rest[1:]]))

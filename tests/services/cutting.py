"""A way to a TCP server that a test can cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Way:
    """Forwards to ``port``; ``cut`` ends every connection, new ones are taken at once."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_forward(reader, back), _forward(there, writer))
        finally:
            self._writers -= {writer, back}


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def cuttable(port: int) -> AsyncIterator[Way]:
    """Run a way to ``port`` until the test is over."""
    way = Way(port)
    await way.start()
    try:
        yield way
    finally:
        await way.stop()

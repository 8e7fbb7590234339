"""A way to a TCP server that a test can cut, or silence."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Way:
    """Forwards to ``port``; ``cut`` ends every connection, new ones are taken at once.

    After ``silence`` those that stand go on to stand, and take everything without carrying it anywhere.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._served: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._stopped = False
        self.connections = 0
        self.left = 0
        """How many of them were ended by who had made them."""

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._stopped = True
        for served in self._served:
            served.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def silence(self) -> None:
        self._silent |= self._writers

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped:  # it was accepted just before the server was closed
            writer.transport.abort()
            return
        self.connections += 1
        served = asyncio.create_task(self._serve(reader, writer))
        self._served.add(served)
        served.add_done_callback(self._served.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back: asyncio.StreamWriter | None = None
        try:
            with suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
            if back is None:
                return
            self._writers |= {writer, back}
            await asyncio.gather(self._forward_from(reader, back), self._forward(there, writer))
        finally:
            for each in (writer, back):
                if each is not None:
                    self._writers.discard(each)
                    self._silent.discard(each)
                    each.transport.abort()

    async def _forward_from(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._forward(reader, writer)
        self.left += 1

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if writer not in self._silent:
                    writer.write(data)
                    await writer.drain()
        if writer not in self._silent:
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

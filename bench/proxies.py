"""Proxies between programs under test, whose connections are cut or go silent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

Address = tuple[str, int]
_AT_ONCE_BYTES = 1 << 16


class Proxies:
    """Each ``listen`` is passed on to where its target is when a connection comes."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.cut = 0  # connections, both sides counted

    async def listen(self, here: Address, target: Callable[[], Address]) -> None:
        """Accept connections until ``close``; ``target`` may raise ``KeyError`` while there is none."""
        self._servers.append(await asyncio.start_server(partial(self._serve, target), *here))

    def abort(self) -> None:
        """Cut all connections."""
        for writer in [*self._writers]:
            writer.transport.abort()
            self.cut += 1

    @contextlib.asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """Pass nothing on meanwhile, and end nothing."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    async def close(self) -> None:
        """End all."""
        for server in self._servers:
            server.close()
        self._flowing.set()
        self.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(
        self, target: Callable[[], Address], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            upward = await asyncio.open_connection(*target())
            self._writers |= {writer, upward[1]}
            await asyncio.gather(self._pump(reader, upward[1]), self._pump(upward[0], writer))
            self._writers -= {writer, upward[1]}
        except (OSError, KeyError):
            writer.transport.abort()
        finally:
            self._serving.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_AT_ONCE_BYTES):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

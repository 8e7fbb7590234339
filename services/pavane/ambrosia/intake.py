"""What a connection brings, handed on in the turn of the loop in which it comes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the other side has ended a stream of which nothing is left to read, in order or by a reset."""
    return reader.at_eof() or reader.exception() is not None


class Intake(asyncio.BufferedProtocol):
    """Reads a connection in place of its ``StreamReader``, which needs a task, another turn and memory for each read.

    ``take`` gets what came, valid while it runs, and says whether more may come. ``buffer`` may be shared in a loop.
    """

    def __init__(self, connection: Connection, buffer: memoryview, take: Callable[[memoryview], bool]) -> None:
        self._reader, writer = connection
        self._transport = cast("asyncio.Transport", writer.transport)
        self._before: Any = self._transport.get_protocol()  # writers wait by it
        self._buffer = buffer
        self._take = take
        self._stopped = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    async def run(self, room: Callable[[], Awaitable[None]]) -> None:
        """Return at the end of the stream; ``room`` waits until more may come. Raises what ``take`` and reading do."""
        await room()
        while not self._reader.at_eof() and (data := await self._reader.read(len(self._buffer))):
            if not self._take(memoryview(data)):
                await room()
            elif len(data) < len(self._buffer) and not self._reader.at_eof() and self._reader.exception() is None:
                break  # nothing is left in the reader
        else:
            return
        self._transport.set_protocol(self)
        while not self._ended:
            await self._stopped.wait()
            self._stopped.clear()
            if self._error is not None:
                raise self._error
            if not self._ended:
                await room()
                self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return what is read into; whoever reads calls ``buffer_updated`` before anybody else reads."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand it on."""
        more = False
        try:
            more = self._take(self._buffer[:nbytes])
        except BaseException as error:  # the transport would only log it
            self._error = error
        if not more:
            self._transport.pause_reading()
            self._stopped.set()

    def eof_received(self) -> bool | None:
        """The other side sends no more."""
        self._end()
        found: bool | None = self._before.eof_received()
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end()
        self._before.connection_lost(exc)

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._before.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._before.resume_writing()

    def _end(self) -> None:
        self._ended = True
        self._stopped.set()

"""One stream while a replica or a stage port serves it (docs/specs/compute.md 2.1)."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

from pavane.compute.wire import decode_command
from pavane.wire import RemoteProtocolError

FIRST_MESSAGE_SECONDS_MAX = 10.0  # for each of the messages that a stream begins with
FIRST_MESSAGES = 2  # CreateTimely and CreateInstance
STOP_SECONDS_MAX = 0.2  # for streams to hear that the pod goes

Take = Callable[["Session", Any, str], Awaitable[None]]


class Session:
    """A stream with its number in the core. Set ``changed`` when there may be something to send."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.changed = asyncio.Event()
        self.ended: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self.accepted = False
        self.closing = False

    def end(self, code: str, text: str) -> None:
        """End the stream with a gRPC status."""
        if not self.ended.done():
            self.ended.set_result((grpc.StatusCode[code], text))

    def abort(self) -> None:
        """End the stream of somebody whose certificate does not count any more."""
        self.end("UNAUTHENTICATED", "the authority of this certificate is not trusted any more: dial with a new one")

    def close(self) -> None:
        """Make the sender stop."""
        self.closing = True
        self.changed.set()

    async def serve(
        self, context: Any, take: Take, send: Coroutine[Any, Any, None], closed: Callable[[int], None]
    ) -> None:
        """Serve until either side ends: ``take`` gets (session, command, traceparent), ``closed`` the number."""
        receiver = asyncio.create_task(self._receive(context, take), name=f"commands of stream {self.stream}")
        sender = asyncio.create_task(send, name=f"responses of stream {self.stream}")
        tasks: set[asyncio.Future[Any]] = {receiver, sender}
        try:
            await asyncio.wait({self.ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed(self.stream)
            self.close()
            receiver.cancel()
            # gRPC never delivers the status of a call whose write was cancelled, so a write may end first.
            await asyncio.wait({sender}, timeout=STOP_SECONDS_MAX)
            sender.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self.ended.done():
            await context.abort(*self.ended.result())

    async def _receive(self, context: Any, take: Take) -> None:
        """Read commands until the controller ends its side or the stream is to end."""
        for taken in itertools.count():
            try:
                async with asyncio.timeout(FIRST_MESSAGE_SECONDS_MAX if taken < FIRST_MESSAGES else None):
                    data = await context.read()
            except TimeoutError:
                self.end("DEADLINE_EXCEEDED", f"no message within {FIRST_MESSAGE_SECONDS_MAX:g} s")
                return
            if data is grpc.aio.EOF:
                return
            try:
                command, traceparent = decode_command(data)
            except RemoteProtocolError as error:
                self.end("INVALID_ARGUMENT", str(error))
                return
            await take(self, command, traceparent)
            self.changed.set()

"""The port of a pod over gRPC: what a stage port and a replica's have in common (docs/specs/compute.md 2.1)."""

import asyncio
import contextlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import grpc

from pavane.compute.tls import server_credentials, watch
from pavane.compute.transport import ACCEPTED, SERVER_OPTIONS
from pavane.compute.wire.codec import METHOD, SERVICE, decode_command, encode_response
from pavane.compute.wire.commands import Command
from pavane.compute.wire.common import PROTOCOL_MAJOR
from pavane.compute.wire.responses import Response
from pavane.runtime.certificates import Certificates
from pavane.runtime.names import bracketed
from pavane.wire import RemoteProtocolError

if TYPE_CHECKING:
    from pavane.compute.core.streams import StreamsCore

FIRST_MESSAGE_SECONDS_MAX = 10.0  # for each of the messages that a stream begins with
FIRST_MESSAGES = 2  # CreateTimely and CreateInstance
STOP_SECONDS_MAX = 0.2  # for streams to hear that the pod goes

STREAMS_MAX = 32  # one controller, its predecessor and some that are mistaken; more are refused
PAUSE_SECONDS = 0.02  # between two looks at a pod that reports: a busy one changes thousands of times a second
EXIT_FAILED = 1

Take = Callable[[int, Command, str], Awaitable[None]]
Look = Callable[[], tuple[Iterable[Response], float | None]]
"""What to send on a stream now, and when to look again by the loop's clock; ``None`` = not before it is woken."""

_logger = logging.getLogger(__name__)


class StreamSession:
    """A new stream of ``core``. Set ``changed`` when there may be something to send."""

    def __init__(self, core: "StreamsCore[Any]") -> None:
        self.stream = core.open()
        self.changed = asyncio.Event()
        self.ended: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self._core = core
        self._closing = False

    def end(self, code: str, text: str) -> None:
        """End the stream with a gRPC status."""
        if not self.ended.done():
            self.ended.set_result((grpc.StatusCode[code], text))

    def abort(self) -> None:
        """End the stream because the certificate of the other end is not trusted any more."""
        self.end("UNAUTHENTICATED", "the authority of this certificate is not trusted any more: dial with a new one")

    async def serve(self, context: Any, take: Take, look: Look, closed: Callable[[int], None]) -> None:
        """Serve until either side ends: ``take`` gets (stream, command, traceparent), ``closed`` the number."""
        receiver = asyncio.create_task(self._receive(context, take), name=f"commands of stream {self.stream}")
        sender = asyncio.create_task(self._send(context, look), name=f"responses of stream {self.stream}")
        tasks: set[asyncio.Future[Any]] = {receiver, sender}
        try:
            await asyncio.wait({self.ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed(self.stream)
            self._closing = True
            self.changed.set()
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
            await take(self.stream, command, traceparent)
            self.changed.set()

    async def _send(self, context: Any, look: Look) -> None:
        due: float | None = None
        accepted = False
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self.changed.wait()
            self.changed.clear()
            if not accepted and self._core.greeted(self.stream):
                accepted = True
                await context.send_initial_metadata(((ACCEPTED, str(PROTOCOL_MAJOR)),))
            responses, due = look()
            for response in responses:
                if self._closing:
                    return
                await context.write(encode_response(response))
            if due is not None:
                await asyncio.sleep(PAUSE_SECONDS)


class StreamServer(ABC):
    """Serves the streams of ``core`` on ``host``, with mutual TLS if ``certificates`` are given."""

    TAKEN: ClassVar[str]
    """What is said of an address that is in use, in place of ``{}``."""
    STOPS: ClassVar[str]
    """What streams hear when the port closes."""

    def __init__(self, core: "StreamsCore[Any]", *, host: str, port: int, certificates: Certificates | None) -> None:
        self.port = port
        self._streams_of = core
        self._address = f"{bracketed(host)}:{port}"
        self._certificates = certificates
        self._sessions: dict[int, StreamSession] = {}
        self._server: grpc.aio.Server | None = None

    @property
    def streams(self) -> int:
        """Streams that are open at this moment."""
        return len(self._sessions)

    def notify(self) -> None:
        """Let every stream look again whether there is something to send, soon."""
        for stream in self._sessions:
            self.wake(stream)

    def wake(self, stream: int) -> None:
        """Let one stream look again, if it is open still."""
        if (session := self._sessions.get(stream)) is not None:
            session.changed.set()

    def end(self, stream: int, code: str, text: str) -> None:
        """End one stream with the gRPC status of the name ``code``, if it is open still."""
        _logger.info("stream %d ends: %s: %s", stream, code, text)
        if (session := self._sessions.get(stream)) is not None:
            session.end(code, text)

    def end_all(self, text: str) -> None:
        """End all streams, because nobody serves them any more."""
        for session in self._sessions.values():
            session.end("UNAVAILABLE", text)

    async def start(self) -> None:
        """Bind and serve. Raises ``OSError`` when the address is not free."""
        credentials = None if self._certificates is None else server_credentials(self._certificates)
        self._server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        handler: Any = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, credentials)
        except RuntimeError as error:
            raise OSError(self.TAKEN.format(self._address)) from error
        await self._server.start()

    async def stop(self) -> None:
        """End all streams and close the port; the pod's state is kept."""
        if self._server is not None:
            self.end_all(self.STOPS)
            await self._server.stop(STOP_SECONDS_MAX)
            self._server = None

    @abstractmethod
    async def _take(self, stream: int, command: Command, traceparent: str) -> None:
        """Give one command to the core and carry out what it leads to."""

    @abstractmethod
    def _looking(self, stream: int) -> Look:
        """Return what tells a new stream what to send."""

    async def _serve(self, _: Any, context: Any) -> None:
        session = StreamSession(self._streams_of)
        self._sessions[session.stream] = session
        watch(self._certificates, session, context)
        await session.serve(context, self._take, self._looking(session.stream), self._closed)

    def _closed(self, stream: int) -> None:
        self._streams_of.close(stream)
        del self._sessions[stream]

"""A replica's port: gRPC around ``ReplicaCore`` (docs/specs/compute.md 2.1).

Everything runs in one event loop: commands of all streams and results of the engine are taken one at a time, and each
one's effects are carried out before the next. Responses wait in the core's outbox until a stream can take them.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc

from pavane.compute.core.ports import Effect, EndStream, ExitProcess, Request, Wake
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.session import STOP_SECONDS_MAX, Session
from pavane.compute.tls import server_credentials, watch
from pavane.compute.transport import ACCEPTED, SERVER_OPTIONS, STAGE_PORT, exit_text
from pavane.compute.wire import METHOD, PROTOCOL_MAJOR, SERVICE, Command, encode_response
from pavane.runtime.certificates import Certificates
from pavane.runtime.names import bracketed

STREAMS_MAX = 32  # one controller, its predecessor and some that are mistaken; more are refused
EXIT_FAILED = 1

_logger = logging.getLogger(__name__)


class Engine(Protocol):
    """What maintains the dataflows. Results go to ``ReplicaServer.carry_out`` as calls of its core."""

    def carry_out(self, request: Request) -> None:
        """Begin what is asked for and return at once; called in order."""


class ReplicaServer:
    """Serves the compute protocol for ``engine`` on ``host``, with mutual TLS if ``certificates`` are given.

    ``exit_process(code, reason)`` is called when the protocol demands the end of the process; it returns at once.
    """

    def __init__(
        self,
        core: ReplicaCore,
        engine: Engine,
        exit_process: Callable[[int, str], None],
        *,
        host: str,
        port: int = STAGE_PORT,
        certificates: Certificates | None = None,
    ) -> None:
        self.core = core
        self.port = port
        self._engine = engine
        self._exit_process = exit_process
        self._address = f"{bracketed(host)}:{port}"
        self._certificates = certificates
        self._sessions: dict[int, Session] = {}
        self._effects: deque[Effect] = deque()
        self._carrying_out = False
        self._server: grpc.aio.Server | None = None

    @property
    def streams(self) -> int:
        """Streams that are open at this moment."""
        return len(self._sessions)

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
            raise OSError(f"the replica cannot listen on {self._address}: is another one running there?") from error
        await self._server.start()

    async def stop(self) -> None:
        """End all streams and close the port."""
        if self._server is not None:
            for session in self._sessions.values():
                session.end("UNAVAILABLE", "the replica stops")
            await self._server.stop(STOP_SECONDS_MAX)
            self._server = None

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what a call of the core has led to. An engine that answers from inside waits its turn."""
        self._effects.extend(effects)
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._effects:
                self._carry_out(self._effects.popleft())
        finally:
            self._carrying_out = False

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case EndStream(stream, code, text):
                _logger.info("stream %d ends: %s: %s", stream, code, text)
                if (session := self._sessions.get(stream)) is not None:
                    session.end(code, text)
            case ExitProcess(code, reason):
                for session in self._sessions.values():
                    session.end("UNAVAILABLE", exit_text(code, reason))
                self._exit_process(code, reason)
            case Wake(stream):
                if (session := self._sessions.get(stream)) is not None:
                    session.changed.set()
            case _:
                try:
                    self._engine.carry_out(effect)
                except Exception as error:
                    _logger.exception("the engine failed at %s", type(effect).__name__)
                    self._exit_process(EXIT_FAILED, f"{type(effect).__name__} failed: {error}")

    async def _serve(self, _: Any, context: Any) -> None:
        session = Session(self.core.open())
        self._sessions[session.stream] = session
        watch(self._certificates, session, context)
        await session.serve(context, self._take, self._send(session, context), self._closed)

    def _closed(self, stream: int) -> None:
        self.core.close(stream)
        del self._sessions[stream]

    async def _take(self, session: Session, command: Command, _: str) -> None:
        self.carry_out(self.core.receive(session.stream, command))

    async def _send(self, session: Session, context: Any) -> None:
        accepted = False
        while not session.closing:
            await session.changed.wait()
            session.changed.clear()
            if not accepted and self.core.greeted(session.stream):
                accepted = True
                await context.send_initial_metadata(((ACCEPTED, str(PROTOCOL_MAJOR)),))
            outbox = self.core.outbox(session.stream)
            while not session.closing and (response := outbox.take()) is not None:
                await context.write(encode_response(response))

"""The stage port of a pod: gRPC around ``StageCore`` (docs/specs/compute.md 2.1, 6).

Streams are read side by side, their commands are carried out one at a time and to the end. Responses are made from the
pod's present state when a stream can take them, so nothing queues up for a slow reader.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
from opentelemetry.semconv._incubating.attributes.rpc_attributes import (
    RPC_METHOD,
    RPC_SYSTEM_NAME,
    RpcSystemNameValues,
)
from opentelemetry.trace import SpanKind, get_tracer

from pavane.compute.session import STOP_SECONDS_MAX, Session
from pavane.compute.tls import server_credentials, watch
from pavane.compute.transport import ACCEPTED, RPC_NAME, SERVER_OPTIONS, STAGE_PORT, UNTRACED
from pavane.compute.wire import (
    METHOD,
    PROTOCOL_MAJOR,
    SERVICE,
    STAGE_COLLECTION,
    Command,
    Frontiers,
    StageReport,
    Token,
    encode_response,
)
from pavane.runtime.certificates import Certificates
from pavane.runtime.names import bracketed
from pavane.stage.core import (
    OWN,
    Configure,
    Effect,
    EndStream,
    EnterReadOnly,
    EnterReadWrite,
    ExitProcess,
    Report,
    StageCore,
)
from pavane.stage.role import Role
from pavane.telemetry import remote_parent
from pavane.wire import Stage

REPORT_SECONDS = 2.0  # a report at least this often (docs/specs/compute.md 6)
REPORT_PAUSE_SECONDS = 0.02  # between two responses: a busy role changes thousands of times a second
STREAMS_MAX = 32  # one controller, its predecessor and some that are mistaken; more are refused
EXIT_FAILED = 1

_logger = logging.getLogger(__name__)
_tracer = get_tracer(__name__)


class StageServer:
    """Serves the stage port for ``role`` on ``host``, with mutual TLS if ``certificates`` are given.

    ``exit_process(code, reason)`` is called when the protocol demands the end of the process; it returns at once and
    the caller of ``start`` stops everything in order. Call ``notify`` whenever the role's report may have changed.
    """

    def __init__(
        self,
        role: Role,
        exit_process: Callable[[int, str], None],
        *,
        host: str,
        port: int = STAGE_PORT,
        certificates: Certificates | None = None,
    ) -> None:
        self._role = role
        self._certificates = certificates
        self._exit_process = exit_process
        self._address = f"{bracketed(host)}:{port}"
        self._core = StageCore(
            role.kind, role.generation, live=role.live_settings, told=role.told_settings, token=role.token
        )
        self._sessions: dict[int, Session] = {}
        self._turn = asyncio.Lock()
        self._turns: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self.port = port

    @property
    def stage(self) -> Stage:
        """The pod's present stage."""
        return self._core.stage

    @property
    def ignored_settings(self) -> int:
        """How many settings of UpdateConfiguration were not known, or came too late."""
        return self._core.ignored_settings

    @property
    def streams(self) -> int:
        """Streams that are open at this moment."""
        return len(self._sessions)

    def report(self) -> StageReport:
        """The pod's present state, as streams and ``/stage`` tell it."""
        role = self._role.report()
        return StageReport(
            stage=self._core.stage,
            generation=self._core.generation,
            fence_seen=self._core.token,
            progress=role.progress,
            target=role.target,
            unit=self._role.unit,
            blockers=(*self._core.blockers, *role.blockers),
            leads=role.leads and self._core.stage is Stage.READ_WRITE,
            done=role.done,
            last_write_ms=role.last_write_ms,
            first_write_ms=role.first_write_ms,
            write_gap_ms=role.write_gap_ms,
        )

    def notify(self) -> None:
        """Let every stream look at the report again, soon."""
        for session in self._sessions.values():
            session.changed.set()

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
            raise OSError(f"the stage port cannot listen on {self._address}: is another pod running there?") from error
        await self._server.start()

    async def stop(self) -> None:
        """End all streams and close the port; the pod's stage is kept."""
        if self._server is not None:
            for session in self._sessions.values():
                session.end("UNAVAILABLE", "the pod stops")
            await self._server.stop(STOP_SECONDS_MAX)
            self._server = None
        await asyncio.gather(*self._turns, return_exceptions=True)

    async def walk(self, *, to_read_write: bool = True) -> None:
        """Walk the stages without an operator, because the pod's own store says that it may (operator 2.12).

        With ``to_read_write`` false it ends in ReadOnly. Stages already passed are not entered again.
        """
        async with self._turn:
            for command in self._core.own_walk(to_read_write=to_read_write):
                await self._carry_out_all(self._core.receive(OWN, command))

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case EndStream(stream, code, text):
                _logger.info("stage stream %d ends: %s: %s", stream, code, text)
                if (session := self._sessions.get(stream)) is not None:
                    session.end(code, text)
            case ExitProcess(code, reason):
                self._exit_process(code, reason)
            case Configure(settings):
                self._role.configure(settings)
            case EnterReadOnly():
                await self._role.read_only()
                await self._entered(Stage.READ_ONLY)
            case EnterReadWrite(token, told):
                if await self._role.read_write(token, told):
                    await self._entered(Stage.READ_WRITE, token)
                else:
                    self.notify()
            case Report():
                self.notify()

    async def _entered(self, stage: Stage, token: Token | None = None) -> None:
        await self._carry_out_all(self._core.entered(stage, token))
        _logger.info("stage %s%s", stage.title, "" if token is None else f" by token {token}")

    async def _carry_out_all(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            await self._carry_out(effect)

    async def _serve(self, _: Any, context: Any) -> None:
        session = Session(self._core.open())
        self._sessions[session.stream] = session
        watch(self._certificates, session, context)
        await session.serve(context, self._take, self._send(session, context), self._closed)

    def _closed(self, stream: int) -> None:
        self._core.close(stream)
        del self._sessions[stream]

    async def _take(self, session: Session, command: Command, traceparent: str) -> None:
        turn = asyncio.create_task(self._take_turn(session.stream, command, traceparent))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        await asyncio.shield(turn)  # a stream that breaks must not stop half-way what it has begun
        session.accepted = not session.ended.done()

    async def _take_turn(self, stream: int, command: Command, traceparent: str) -> None:
        name = type(command).__name__
        with contextlib.ExitStack() as stack:
            if not isinstance(command, UNTRACED):
                stack.enter_context(
                    _tracer.start_as_current_span(
                        f"stage/{name}",
                        context=remote_parent(traceparent),
                        kind=SpanKind.SERVER,
                        attributes={RPC_SYSTEM_NAME: RpcSystemNameValues.GRPC.value, RPC_METHOD: RPC_NAME},
                    )
                )
            async with self._turn:
                try:
                    await self._carry_out_all(self._core.receive(stream, command))
                except Exception as error:
                    _logger.exception("a hook of the role failed at %s", name)
                    self._exit_process(EXIT_FAILED, f"{name} failed: {error}")

    async def _send(self, session: Session, context: Any) -> None:
        """Send progress when it changes, and a report when anything else does or ``REPORT_SECONDS`` have passed."""
        now = asyncio.get_running_loop().time
        last, due, frontiers = None, now(), (-1, -1)
        accepted = False
        while not session.closing:
            session.changed.clear()
            if session.accepted and not accepted:
                accepted = True
                await context.send_initial_metadata(((ACCEPTED, str(PROTOCOL_MAJOR)),))
            if self._core.instance_created(session.stream):
                report = self.report()
                latest = (max(frontiers[0], report.progress), max(frontiers[1], report.target))
                essence = replace(report, progress=0, target=0, last_write_ms=0)
                if essence != last or now() >= due:
                    last, due = essence, now() + REPORT_SECONDS
                    await context.write(encode_response(replace(report, progress=latest[0], target=latest[1])))
                if latest != frontiers:
                    frontiers = latest
                    moved = Frontiers(STAGE_COLLECTION, output=latest[0], input=latest[1])
                    await context.write(encode_response(moved))
                await asyncio.sleep(REPORT_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if last is None else max(due - now(), REPORT_PAUSE_SECONDS)):
                    await session.changed.wait()

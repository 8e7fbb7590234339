"""The stage port of a pod: gRPC around ``StageCore`` (docs/specs/compute.md 2.1, 6).

Streams are read side by side, their commands are carried out one at a time and to the end. Responses are made from the
pod's present state when a stream can take them, so nothing queues up for a slow reader.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from opentelemetry.semconv._incubating.attributes.rpc_attributes import (
    RPC_METHOD,
    RPC_SYSTEM_NAME,
    RpcSystemNameValues,
)
from opentelemetry.trace import SpanKind, get_tracer

from pavane.compute.core.ports import EndStream, ExitProcess
from pavane.compute.session import EXIT_FAILED, Look, StreamServer
from pavane.compute.transport import RPC_NAME, STAGE_PORT, UNTRACED
from pavane.compute.wire.commands import Command
from pavane.compute.wire.common import STAGE_COLLECTION, Token
from pavane.compute.wire.responses import Frontiers, Response, StageReport
from pavane.runtime.certificates import Certificates
from pavane.stage.core import OWN, Configure, Effect, EnterReadOnly, EnterReadWrite, Report, StageCore
from pavane.stage.role import Role
from pavane.telemetry import remote_parent
from pavane.wire import Stage

TURN_SECONDS_MAX = 5.0  # for a command to be carried out when the pod stops: it may wait for a log that is gone
REPORT_SECONDS = 2.0  # a report at least this often (docs/specs/compute.md 6)

_logger = logging.getLogger(__name__)
_tracer = get_tracer(__name__)


class StageServer(StreamServer):
    """Serves the stage port for ``role`` on ``host``, with mutual TLS if ``certificates`` are given.

    ``exit_process(code, reason)`` is called when the protocol demands the end of the process; it returns at once and
    the caller of ``start`` stops everything in order. Call ``notify`` whenever the role's report may have changed.
    """

    TAKEN = "the stage port cannot listen on {}: is another pod running there?"
    STOPS = "the pod stops"

    def __init__(
        self,
        role: Role,
        exit_process: Callable[[int, str], None],
        *,
        host: str,
        port: int = STAGE_PORT,
        certificates: Certificates | None = None,
    ) -> None:
        self._core = StageCore(
            role.kind, role.generation, live=role.live_settings, told=role.told_settings, token=role.token
        )
        super().__init__(self._core, host=host, port=port, certificates=certificates)
        self._role = role
        self._exit_process = exit_process
        self._turn = asyncio.Lock()
        self._turns: set[asyncio.Task[None]] = set()

    @property
    def stage(self) -> Stage:
        """The pod's present stage."""
        return self._core.stage

    @property
    def ignored_settings(self) -> int:
        """How many settings of UpdateConfiguration were not known, or came too late."""
        return self._core.ignored_settings

    def report(self) -> StageReport:
        """The pod's present state, as streams and ``/stage`` tell it."""
        role = self._role.report()
        return StageReport(
            stage=self._core.stage,
            generation=self._core.generation,
            fence_seen=role.fence or self._core.token,
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

    async def stop(self) -> None:
        """End all streams and close the port; the pod's stage is kept. A command in hand is given up after a while."""
        await super().stop()
        if self._turns:
            await asyncio.wait(self._turns, timeout=TURN_SECONDS_MAX)
        for turn in self._turns:
            turn.cancel()
        await asyncio.gather(*self._turns, return_exceptions=True)

    async def walk(self, *, to_read_write: bool = True) -> None:
        """Walk the stages without an operator, because the pod's own store says that it may (operator 2.12).

        With ``to_read_write`` false it ends in ReadOnly. Stages already passed are not entered again.
        """
        async with self._turn:
            for command in self._core.own_walk(to_read_write=to_read_write):
                await self._carry_out_all(self._core.receive(OWN, command))

    async def begin_anew(self, why: str) -> None:
        """Begin with Creation again: the store has taken the right to write from this pod (operator 2.7)."""
        async with self._turn:
            await self._carry_out_all(self._core.begin_anew(why))

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case EndStream(stream, code, text):
                self.end(stream, code, text)
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

    async def _take(self, stream: int, command: Command, traceparent: str) -> None:
        turn = asyncio.create_task(self._take_turn(stream, command, traceparent))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        await asyncio.shield(turn)  # a stream that breaks must not stop half-way what it has begun

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

    def _looking(self, stream: int) -> Look:
        """Send progress when it changes, and a report when anything else does or ``REPORT_SECONDS`` have passed."""
        now = asyncio.get_running_loop().time
        last: StageReport | None = None
        due, frontiers = now(), (-1, -1)

        def look() -> tuple[list[Response], float | None]:
            nonlocal last, due, frontiers
            if not self._core.instance_created(stream):
                return [], None
            responses: list[Response] = []
            report = self.report()
            latest = (max(frontiers[0], report.progress), max(frontiers[1], report.target))
            essence = replace(report, progress=0, target=0, last_write_ms=0)
            if essence != last or now() >= due:
                last, due = essence, now() + REPORT_SECONDS
                responses.append(replace(report, progress=latest[0], target=latest[1]))
            if latest != frontiers:
                frontiers = latest
                responses.append(Frontiers(STAGE_COLLECTION, output=latest[0], input=latest[1]))
            return responses, due

        return look

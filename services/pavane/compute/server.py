"""A replica's port: gRPC around ``ReplicaCore`` (docs/specs/compute.md 2.1).

Everything runs in one event loop: commands of all streams and results of the engine are taken one at a time, and each
one's effects are carried out before the next. Responses wait in the core's outbox until a stream can take them.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from pavane.compute.core.ports import Effect, EndStream, ExitProcess, Request, Wake
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.effects import EffectLoop
from pavane.compute.session import EXIT_FAILED, Look, StreamServer
from pavane.compute.transport import STAGE_PORT, exit_text
from pavane.compute.wire.commands import Command
from pavane.runtime.certificates import Certificates

_logger = logging.getLogger(__name__)


class Engine(Protocol):
    """What maintains the dataflows. Results go to ``ReplicaServer.carry_out`` as calls of its core."""

    def carry_out(self, request: Request) -> None:
        """Begin what is asked for and return at once; called in order."""


class ReplicaServer(StreamServer):
    """Serves the compute protocol for ``engine`` on ``host``, with mutual TLS if ``certificates`` are given.

    ``exit_process(code, reason)`` is called when the protocol demands the end of the process; it returns at once.
    ``carry_out`` does what a call of the core has led to; an engine that answers from inside waits its turn.
    """

    TAKEN = "the replica cannot listen on {}: is another one running there?"
    STOPS = "the replica stops"

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
        super().__init__(core, host=host, port=port, certificates=certificates)
        self.core = core
        self.carry_out = EffectLoop(self._carry_out)
        self._engine = engine
        self._exit_process = exit_process

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case EndStream(stream, code, text):
                self.end(stream, code, text)
            case ExitProcess(code, reason):
                self.end_all(exit_text(code, reason))
                self._exit_process(code, reason)
            case Wake(stream):
                self.wake(stream)
            case _:
                try:
                    self._engine.carry_out(effect)
                except Exception as error:
                    _logger.exception("the engine failed at %s", type(effect).__name__)
                    self._exit_process(EXIT_FAILED, f"{type(effect).__name__} failed: {error}")

    async def _take(self, stream: int, command: Command, _: str) -> None:
        self.carry_out(self.core.receive(stream, command))

    def _looking(self, stream: int) -> Look:
        return lambda: (iter(self.core.outbox(stream).take, None), None)

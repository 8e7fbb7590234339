"""The operator's end of one stage stream: dial, lead a pod through its stages, watch its reports.

Usage::

    async with StageStream("127.64.0.9:7070", epoch=Epoch(4, 17), kind="raft", generation=3) as stream:
        await stream.lead_up({"bootstrap": "entry", "initial": members})
        await stream.allow_writes(Token(3, 4))
        report = await stream.wait_for(lambda report: report.leads)

A stream is used once. When it ends, every waiting and every later call raises the reason; a new stream needs an epoch
that is greater (docs/specs/compute.md 2.3).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from opentelemetry.semconv._incubating.attributes.rpc_attributes import (
    RPC_METHOD,
    RPC_SYSTEM_NAME,
    RpcSystemNameValues,
)
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS
from opentelemetry.trace import SpanKind, get_tracer

from pavane.compute.client import CALL_SECONDS_MAX, ReplicaStream, StreamEnded
from pavane.compute.tls import StageCredentials
from pavane.compute.transport import CLIENT_OPTIONS, RECEIVES, RPC_NAME
from pavane.compute.wire.commands import (
    AllowWrites,
    CreateInstance,
    InitializationComplete,
    Lifecycle,
    UpdateConfiguration,
)
from pavane.compute.wire.common import STAGE_COLLECTION, Epoch, Token
from pavane.compute.wire.responses import Frontiers, Response, StageReport
from pavane.stage.errors import StageStreamError, StageSuperseded, StageUnreachable, StaleEpoch
from pavane.telemetry import current_traceparent
from pavane.wire import Stage

ANSWER_BYTES_MAX = 1 << 20  # of a report; an operator keeps streams to many pods, of people who do not know each other
OPTIONS = (*(each for each in CLIENT_OPTIONS if each[0] != RECEIVES), (RECEIVES, ANSWER_BYTES_MAX))

_tracer = get_tracer(__name__)

Answer = TypeVar("Answer")

_UNREACHABLE = frozenset(
    {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "UNAUTHENTICATED"}
)


class StageStream:
    """One stream to the stage port of one pod.

    ``address`` is ``host:port``. ``kind`` and ``generation`` must be the pod's own: a pod that is something else exits
    with code 3. ``credentials`` are needed where the pod has a certificate; without them the stream is in clear.
    ``settings`` are those of CreateInstance, which may not change while the pod's process lives.
    ``on_change`` is called without arguments after every new report and once when the stream has ended; it must
    return at once.
    """

    def __init__(
        self,
        address: str,
        *,
        epoch: Epoch,
        kind: str,
        generation: int,
        credentials: StageCredentials | None = None,
        settings: Mapping[str, str] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.epoch = epoch
        instance = CreateInstance(kind, generation, dict(settings or {}))
        self._stream = ReplicaStream(address, epoch, instance, credentials=credentials, options=OPTIONS)
        self._on_change = on_change
        self._report: StageReport | None = None
        self._closed: StageStreamError | None = None
        self._change = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._led_up = False
        self._told: dict[str, str] = {}
        self._attributes = {
            RPC_SYSTEM_NAME: RpcSystemNameValues.GRPC.value,
            RPC_METHOD: RPC_NAME,
            SERVER_ADDRESS: address,
        }

    @property
    def report(self) -> StageReport | None:
        """The latest report, with the latest progress and target; ``None`` before the first one."""
        return self._report

    @property
    def closed(self) -> StageStreamError | None:
        """Why the stream is over, ``None`` while it lives."""
        return self._closed

    async def open(self) -> StageReport:
        """Dial, send CreateTimely and CreateInstance, and return the pod's first report: its present stage.

        Raises ``StageUnreachable``, ``StaleEpoch`` (with the epoch that the pod has accepted), ``StageSuperseded`` or
        another ``StageStreamError``; the stream is closed then.
        """
        try:
            await self._stream.open()
            self._reader = asyncio.create_task(self._read(), name=f"stage stream {self.address}")
            return await self._within(self.wait_for(lambda _: True))
        except StreamEnded as ended:
            raise self._end(ended) from None
        except BaseException:
            await self.close()
            raise

    async def lead_up(self, configuration: Mapping[str, str] | None = None) -> StageReport:
        """Send the expected state and InitializationComplete; return the report of a pod that is ReadOnly or beyond.

        ``configuration`` holds live settings and, in a bootstrap, ``bootstrap`` and ``initial`` (raft 8.4). The state
        is told once per stream: a second call tells other settings than the last one, and waits.
        """
        if configuration and configuration != self._told:
            self._told = dict(configuration)
            await self._send(UpdateConfiguration(self._told))
        if not self._led_up:
            self._led_up = True
            await self._send(InitializationComplete())
        return await self._within(self.wait_for(lambda report: report.stage >= Stage.READ_ONLY))

    async def update_configuration(self, settings: Mapping[str, str]) -> None:
        """Send live settings; a pod ignores and counts those that it does not know."""
        await self._send(UpdateConfiguration(dict(settings)))

    async def allow_writes(self, token: Token) -> None:
        """Send the permission to write; repeating it has no effect. The report tells when the pod is ReadWrite."""
        await self._send(AllowWrites(token))

    async def wait_for(self, predicate: Callable[[StageReport], bool]) -> StageReport:
        """Return the first report, the present one included, for which ``predicate`` holds.

        Waits for ever; raises the reason when the stream ends.
        """
        while True:
            if self._closed is not None:
                raise self._closed
            if self._report is not None and predicate(self._report):
                return self._report
            await self._change.wait()

    async def close(self) -> None:
        """End the stream. The pod keeps its stage and goes on."""
        self._end(StreamEnded(self.address, "CANCELLED", "closed on this side"))
        if self._reader is not None:
            self._reader.cancel()
            # Not awaited itself: a cancellation of ours would be taken for the reader's, and be lost.
            await asyncio.wait({self._reader})
        await self._stream.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _within(self, answer: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                return await answer
        except TimeoutError:
            text = f"no answer within {CALL_SECONDS_MAX:g} s"
            raise StageUnreachable(self.address, "DEADLINE_EXCEEDED", text) from None

    async def _send(self, command: Lifecycle) -> None:
        if self._closed is not None:
            raise self._closed
        name = f"stage/{type(command).__name__}"
        with _tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=self._attributes):
            try:
                await self._stream.send(command, current_traceparent())
            except StreamEnded as ended:
                raise self._end(ended) from None

    async def _read(self) -> None:
        try:
            while True:
                self._receive(await self._stream.receive())
        except StreamEnded as ended:
            self._end(ended)
        finally:
            # Also gRPC cancels: a stream never ends unnoticed.
            self._end(StreamEnded(self.address, "CANCELLED", "the call was cancelled"))

    def _receive(self, response: Response) -> None:
        if isinstance(response, StageReport):
            self._report = response
        elif isinstance(response, Frontiers) and response.id == STAGE_COLLECTION and self._report is not None:
            progress, target = response.output, response.input
            self._report = replace(
                self._report,
                progress=self._report.progress if progress is None else progress,
                target=self._report.target if target is None else target,
            )
        else:
            return
        self._wake()

    def _end(self, ended: StreamEnded) -> StageStreamError:
        if self._closed is None:
            self._closed = _error(ended)
            self._wake()
        return self._closed

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
        if self._on_change is not None:
            self._on_change()


def _error(ended: StreamEnded) -> StageStreamError:
    """Return the error that says the same of a stage stream."""
    if ended.accepted is not None:
        return StaleEpoch(ended.address, ended.text, ended.accepted)
    if ended.superseded:
        return StageSuperseded(ended.address, ended.code, ended.text)
    kind = StageUnreachable if ended.code in _UNREACHABLE else StageStreamError
    return kind(ended.address, ended.code, ended.text)

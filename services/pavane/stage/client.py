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
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from opentelemetry.semconv._incubating.attributes.rpc_attributes import (
    RPC_METHOD,
    RPC_SYSTEM_NAME,
    RpcSystemNameValues,
)
from opentelemetry.semconv.attributes.server_attributes import SERVER_ADDRESS
from opentelemetry.trace import SpanKind, get_tracer

from pavane.compute.tls import StageCredentials
from pavane.compute.transport import ACCEPTED, CALL, CLIENT_OPTIONS, RPC_NAME, SUPERSEDED, UNTRACED, stale_epoch
from pavane.compute.wire import (
    NONCE_BYTES,
    STAGE_COLLECTION,
    AllowWrites,
    CreateInstance,
    CreateTimely,
    Epoch,
    Frontiers,
    InitializationComplete,
    Lifecycle,
    Response,
    StageReport,
    Token,
    UpdateConfiguration,
    decode_response,
    encode_command,
)
from pavane.stage.errors import StageStreamError, StageSuperseded, StageUnreachable, StaleEpoch
from pavane.telemetry import TRACEPARENT, current_traceparent
from pavane.wire import LocalProtocolError, RemoteProtocolError, Stage

CALL_SECONDS_MAX = 10.0  # of dialling and of one command (docs/specs/operator.md 3)
ANSWER_BYTES_MAX = 1 << 20  # of a report; an operator keeps streams to many pods, of people who do not know each other
_RECEIVE = "grpc.max_receive_message_length"
OPTIONS = (*(each for each in CLIENT_OPTIONS if each[0] != _RECEIVE), (_RECEIVE, ANSWER_BYTES_MAX))

_tracer = get_tracer(__name__)

Answer = TypeVar("Answer")

_UNREACHABLE = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "UNAUTHENTICATED"})


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
        self._credentials = credentials
        self.epoch = epoch
        self._instance = CreateInstance(kind, generation, dict(settings or {}))
        self._on_change = on_change
        self._report: StageReport | None = None
        self._closed: StageStreamError | None = None
        self._change = asyncio.Event()
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        self._led_up = False
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
        self._channel = _channel(self.address, self._credentials)
        traceparent = current_traceparent()
        metadata = ((TRACEPARENT, traceparent),) if traceparent else ()
        self._call = self._channel.stream_stream(CALL)(metadata=metadata)
        self._reader = asyncio.create_task(self._read(), name=f"stage stream {self.address}")
        try:
            await self._send(CreateTimely(self.epoch, os.urandom(NONCE_BYTES)))
            # gRPC loses the status of a call that is refused while a message is on its way: wait for the acceptance.
            if ACCEPTED not in dict(await self._within(self._call.initial_metadata()) or ()):
                await self._within(self.wait_for(lambda _: False))
            await self._send(self._instance)
            return await self._within(self.wait_for(lambda _: True))
        except BaseException:
            await self.close()
            raise

    async def lead_up(self, configuration: Mapping[str, str] | None = None) -> StageReport:
        """Send the expected state and InitializationComplete; return the report of a pod that is ReadOnly or beyond.

        ``configuration`` holds live settings and, in a bootstrap, ``bootstrap`` and ``initial`` (raft 8.4). The state
        is told once per stream: a second call only waits.
        """
        if not self._led_up:
            self._led_up = True
            if configuration:
                await self._send(UpdateConfiguration(dict(configuration)))
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
        if self._closed is None:
            self._end(StageUnreachable(self.address, "CANCELLED", "closed on this side"))
        if self._reader is not None:
            self._reader.cancel()
            # Not awaited itself: a cancellation of ours would be taken for the reader's, and be lost.
            await asyncio.wait({self._reader})
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            await self._channel.close()

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
        if isinstance(command, UNTRACED):
            await self._write(encode_command(command))
            return
        name = f"stage/{type(command).__name__}"
        with _tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=self._attributes):
            await self._write(encode_command(command, current_traceparent()))

    async def _write(self, data: bytes) -> None:
        async with self._write_lock:
            if self._closed is not None:
                raise self._closed
            if self._call is None:
                raise LocalProtocolError("the stream was not opened: use `async with StageStream(…)` or open()")
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await self._call.write(data)
            except TimeoutError:
                text = f"the pod has read nothing for {CALL_SECONDS_MAX:g} s"
                raise StageUnreachable(self.address, "DEADLINE_EXCEEDED", text) from None
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The stream ended meanwhile. Its reader knows the status and the words, and raises them here.
                await self._within(self.wait_for(lambda _: False))

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._receive(decode_response(data))
            self._end(StageUnreachable(self.address, "OK", "the pod ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._end(self._reason(error.code().name, error.details() or ""))
        except RemoteProtocolError as error:
            self._end(StageStreamError(self.address, "INVALID_ARGUMENT", f"the pod's answer is broken: {error}"))
        finally:
            # Also gRPC cancels: a stream never ends unnoticed.
            self._end(StageUnreachable(self.address, "CANCELLED", "the call was cancelled"))

    def _reason(self, code: str, text: str) -> StageStreamError:
        accepted = stale_epoch(text) if code == "FAILED_PRECONDITION" else None
        if accepted is not None:
            return StaleEpoch(self.address, text, accepted)
        if code == "ABORTED" and text == SUPERSEDED:
            return StageSuperseded(self.address, code, text)
        if code in _UNREACHABLE:
            return StageUnreachable(self.address, code, text)
        return StageStreamError(self.address, code, text)

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

    def _end(self, reason: StageStreamError) -> None:
        if self._closed is None:
            self._closed = reason
            self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
        if self._on_change is not None:
            self._on_change()


def _channel(address: str, credentials: StageCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    options = (*OPTIONS, *credentials.channel_options())
    return grpc.aio.secure_channel(address, credentials.channel_credentials(), options=options)

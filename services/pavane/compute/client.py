"""A controller's end of one stream to a replica, as it is on the wire (docs/specs/compute.md 2).

Usage::

    async with ReplicaStream("127.64.0.9:7070", Epoch(4, 17), instance) as stream:
        await stream.send(InitializationComplete())
        response = await stream.receive()
"""

import asyncio
import os
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from pavane.compute.tls import StageCredentials
from pavane.compute.transport import (
    ACCEPTED,
    CALL,
    CLIENT_OPTIONS,
    SUPERSEDED,
    ChannelOptions,
    exit_code,
    stale_epoch,
)
from pavane.compute.wire.codec import decode_response, encode_command
from pavane.compute.wire.commands import Command, CreateInstance, CreateTimely, RuntimeConfig
from pavane.compute.wire.common import NONCE_BYTES, Epoch
from pavane.compute.wire.responses import Response
from pavane.telemetry import TRACEPARENT, current_traceparent
from pavane.wire import LocalProtocolError, RemoteProtocolError

CALL_SECONDS_MAX = 10.0  # of dialling, and of one message that the replica does not take

Answer = TypeVar("Answer")


class StreamEnded(Exception):
    """The stream is over. ``code`` is the gRPC status by name, ``text`` what the replica said.

    ``accepted`` is the epoch that it had accepted before, if ours was not greater. ``superseded`` means that another
    controller has taken over: one that knows of no successor should stop. ``exit_code`` is that of a replica's process
    that said farewell.
    """

    def __init__(self, address: str, code: str, text: str) -> None:
        super().__init__(f"stream to {address} ended: {code}: {text}")
        self.address = address
        self.code = code
        self.text = text
        self.accepted = stale_epoch(text) if code == "FAILED_PRECONDITION" else None
        self.superseded = code == "ABORTED" and text == SUPERSEDED
        self.exit_code = exit_code(text) if code == "UNAVAILABLE" else None


class ReplicaStream:
    """One stream to the replica at ``address`` (``host:port``), used once. A new one needs a greater epoch.

    Several tasks may send, one receives.
    """

    def __init__(
        self,
        address: str,
        epoch: Epoch,
        instance: CreateInstance,
        *,
        config: RuntimeConfig | None = None,
        credentials: StageCredentials | None = None,
        options: ChannelOptions = CLIENT_OPTIONS,
    ) -> None:
        self.address = address
        self.epoch = epoch
        self._instance = instance
        self._config = config or RuntimeConfig()
        self._credentials = credentials
        self._options = options
        self._writing = asyncio.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None

    async def open(self) -> None:
        """Dial, send CreateTimely, wait until it is accepted, send CreateInstance. Raises ``StreamEnded``."""
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=self._options)
        else:
            options = (*self._options, *self._credentials.channel_options())
            credentials = self._credentials.channel_credentials()
            self._channel = grpc.aio.secure_channel(self.address, credentials, options=options)
        traceparent = current_traceparent()
        self._call = self._channel.stream_stream(CALL)(metadata=((TRACEPARENT, traceparent),) if traceparent else ())
        try:
            await self.send(CreateTimely(self.epoch, os.urandom(NONCE_BYTES), self._config))
            # gRPC loses the status of a call that is refused while a message is on its way: wait for the acceptance.
            if ACCEPTED not in dict(await self._within(self._call.initial_metadata()) or ()):
                await self._within(self._refusal())
            await self.send(self._instance)
        except BaseException:
            await self.close()
            raise

    async def send(self, command: Command, traceparent: str = "") -> None:
        """Send one command; returns when gRPC has taken it. Raises ``StreamEnded``."""
        call = self._opened()
        async with self._writing:
            try:
                await self._within(call.write(encode_command(command, traceparent)))
            except asyncio.InvalidStateError:  # the stream has ended meanwhile
                await self._within(self._status())

    async def receive(self) -> Response:
        """Return the next response. Raises ``StreamEnded``; bytes that are no response end the stream, too."""
        call = self._opened()
        try:
            data = await call.read()
            if data is grpc.aio.EOF:
                await self._status()
            return decode_response(data)
        except grpc.aio.AioRpcError as error:
            raise self._ended(error) from None
        except RemoteProtocolError as error:
            call.cancel()
            text = f"the pod's answer is broken: {error}"
            raise StreamEnded(self.address, "INVALID_ARGUMENT", text) from error

    async def close(self) -> None:
        """End the stream. The replica's dataflows run on."""
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

    def _opened(self) -> Any:
        if self._call is None:
            raise LocalProtocolError("the stream was not opened: use it by `async with`, or call open()")
        return self._call

    async def _refusal(self) -> None:
        """Raise why CreateTimely was not accepted; what the pod says else does not count."""
        while True:
            await self.receive()

    async def _status(self) -> None:
        """Raise why the call has ended, as soon as it has."""
        code = await self._call.code()
        raise StreamEnded(self.address, code.name, await self._call.details() or "the pod ended the stream")

    async def _within(self, answer: Awaitable[Answer]) -> Answer:
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                return await answer
        except TimeoutError:
            text = f"the pod took nothing for {CALL_SECONDS_MAX:g} s"
            raise StreamEnded(self.address, "DEADLINE_EXCEEDED", text) from None
        except grpc.aio.AioRpcError as error:
            raise self._ended(error) from None

    def _ended(self, error: grpc.aio.AioRpcError) -> StreamEnded:
        return StreamEnded(self.address, error.code().name, error.details() or "")

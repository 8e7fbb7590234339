"""Numbers, phases and epochs of the streams to one pod (docs/specs/compute.md 2.2, 2.3)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from pavane.compute.core.ports import EndStream
from pavane.compute.transport import SUPERSEDED, stale_text
from pavane.compute.wire.commands import Command, CreateTimely
from pavane.compute.wire.common import PROTOCOL_MAJOR, Epoch


class Phase(IntEnum):
    """How far one stream has come. ``OPENED`` and ``GREETED`` are the two halves of stage Creation."""

    OPENED = 0  # nothing was received
    GREETED = 1  # CreateTimely was
    EXPECTING = 2  # CreateInstance was; the expected state is being told
    COMPLETE = 3  # InitializationComplete was: stages ReadOnly and ReadWrite


@dataclass(slots=True)
class Stream:
    """What every core knows of a stream."""

    phase: Phase = Phase.OPENED


StreamT = TypeVar("StreamT", bound=Stream)


class StreamsCore(Generic[StreamT]):
    """The streams of one core; ``new`` makes what it keeps of each. The one with the greatest epoch is served."""

    def __init__(self, new: Callable[[], StreamT]) -> None:
        self.accepted: Epoch | None = None
        self._new = new
        self._streams: dict[int, StreamT] = {}
        self._current: int | None = None
        self._last_stream = 0

    def open(self) -> int:
        """Return the number of a new stream, which may begin to send."""
        self._last_stream += 1
        self._streams[self._last_stream] = self._new()
        return self._last_stream

    def close(self, stream: int) -> None:
        """Forget ``stream``; the pod keeps its stage, and dataflows run on."""
        self._streams.pop(stream, None)
        if self._current == stream:
            self._current = None

    def greeted(self, stream: int) -> bool:
        """Whether the stream's CreateTimely was accepted and it was not ended since."""
        state = self._streams.get(stream)
        return state is not None and state.phase >= Phase.GREETED

    def _follow(self, stream: int, command: CreateTimely) -> tuple[EndStream, ...]:
        """Serve ``stream`` from now on. Returns what ends: its predecessor, or itself when its epoch is refused."""
        if command.protocol_major != PROTOCOL_MAJOR:
            text = f"protocol version {command.protocol_major} is not supported, {PROTOCOL_MAJOR} is"
            return (self._end(stream, "UNIMPLEMENTED", text),)
        if self.accepted is not None and command.epoch <= self.accepted:
            return (self._end(stream, "FAILED_PRECONDITION", stale_text(self.accepted)),)
        ended = () if self._current is None else (self._end(self._current, "ABORTED", SUPERSEDED),)
        self.accepted, self._current = command.epoch, stream
        return ended

    def _out_of_order(self, stream: int, command: Command, phase: Phase) -> EndStream:
        text = f"{type(command).__name__} may not follow in phase {phase.name.lower()} of a stream"
        return self._end(stream, "FAILED_PRECONDITION", text)

    def _end(self, stream: int, code: str, text: str) -> EndStream:
        self.close(stream)
        return EndStream(stream, code, text)

"""A world whose streams may go silent: they stand and carry nothing until the system at an end gives them up."""

from collections.abc import Callable
from typing import Any

from pavane.ambrosia import aio
from pavane.ambrosia.client.simulated import LINK_S, Process, Stream
from pavane.ambrosia.testing import World
from tests.sim.kit.silence import Line, noticing

SHARE = 0.25  # of the faults
DIRECTIONS = ((0, 1), (0, 1), (0,), (1,))


class SilentWorld(World):
    """As ``World``, and ``trouble`` lets streams go silent too."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        rule = noticing(aio._prepare)
        self._rules = (rule, rule)
        self._lines: dict[int, Line] = {}

    def silence(self, share: float = 1.0) -> None:
        """Let the streams that stand, or some of them, carry nothing any more, in one or both directions."""
        for number in self._streams:
            if self.rng.random() < share:
                self._line(number).silence(*self.rng.choice(DIRECTIONS))

    def settle(self, seconds: float, doing: Callable[[], bool] = lambda: True) -> float:
        """Wait until all that was sent has arrived and been acknowledged; return after how long."""
        began = self.time
        self._until(lambda: doing() and self._silent(), seconds, "no progress: calls do not arrive")
        return self.time - began

    def _fault(self) -> None:
        if self._faulty and self.rng.random() < SHARE:
            self.silence(self.rng.choice((0.3, 1.0)))
        super()._fault()

    def _line(self, number: int) -> Line:
        line = self._lines.get(number)
        if line is None:
            line = Line(self.at, lambda: self.time, self._rules, lambda end: self._end(number, end))
            self._lines[number] = line
        return line

    def send(self, source: Process, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            for _ in range(2):  # pieces
                self._line(number).sent(stream.ends.index(source))
        super().send(source, number, data)

    def _arrive(self, stream: Stream, target: Process, data: bytes) -> None:
        if self._line(stream.number).arrives(1 - stream.ends.index(target)):
            super()._arrive(stream, target, data)

    def break_off(self, number: int) -> None:
        """End a stream. Of one that is silent only the end that closes it knows, and who can still be told."""
        stream = self._streams.get(number)
        if stream is None or not self._line(number).half_open:
            super().break_off(number)
            return
        for end, process in enumerate(stream.ends):
            if not process.alive or not process.coordinator.links.peer(number):
                self._end(number, end)

    def _end(self, number: int, end: int) -> None:
        stream, line = self._streams.get(number), self._line(number)
        if stream is None or line.over[end]:
            return
        line.over[end] = True
        _, peer, channel = self._dialled[number]
        process = stream.ends[end]
        process.at(LINK_S, lambda: process.ended(number, peer, channel if end == 0 else None))
        if not line.silent[end]:
            self._end(number, 1 - end)
        if all(line.over):
            self._streams.pop(number, None)
            self._dialled.pop(number, None)

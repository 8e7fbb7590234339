"""Connections without gaps, as TCP has: what was sent arrives in order, or the connection ends for both."""

from collections.abc import Callable
from typing import Protocol

from tests.sim.kit.network import Network

NOTICED_S = (0.001, 0.5)  # until an end hears that the connection is gone


class Reader(Protocol):
    """What a process does with one end of a connection."""

    def received(self, data: bytes) -> None:
        """Take bytes; they may be a part of what was sent at once, or more than that."""
        ...

    def ended(self) -> None:
        """Hear that the connection is gone; nothing follows."""
        ...


class End:
    """One end: ``send`` until it ``ended``. The process that opened it sets ``reader`` before it sends."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self.name = name
        self.other: End
        self.reader: Reader | None = None
        self.open = True
        self._arrives_at = 0.0  # at the other end

    def send(self, data: bytes) -> None:
        """Send bytes. A cut or a loss ends the connection, and a part of them may arrive before that."""
        network, rng = self._network, self._network.scheduler.rng
        if not self.open:
            return
        lost = (self.name, self.other.name) in network.cuts
        if lost or (network.weather.loss > 0 and rng.random() < network.weather.loss):
            self._deliver(data[: rng.randint(0, max(0, len(data) - 1))])
            self.break_off()
            return
        split = rng.randint(0, len(data))
        self._deliver(data[:split])
        self._deliver(data[split:])

    def break_off(self) -> None:
        """End the connection: nothing is sent any more, what is under way arrives, and both ends hear of it."""
        for end in (self, self.other):
            if end.open:
                end.open = False
                heard = self._network.scheduler.time + self._network.scheduler.rng.uniform(*NOTICED_S)
                self._network.scheduler.schedule(max(heard, end.other._arrives_at), end.hear_end)

    def hear_end(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.ended()

    def close(self) -> None:
        """Close this end, or end its process: it reads nothing any more, and the other one hears of it."""
        self.reader = None
        self.break_off()

    def _deliver(self, data: bytes) -> None:
        if data:
            other = self.other
            self._arrives_at = max(self._arrives_at, self._network.scheduler.time + self._network.delay())
            self._network.scheduler.schedule(self._arrives_at, lambda: other.take(data))

    def take(self, data: bytes) -> None:
        if self.reader is not None:
            self.reader.received(data)


def connect(network: Network, source: str, target: str, accept: Callable[[End], None]) -> End | None:
    """Open a connection; ``accept`` is called with the end of the target. ``None`` if a cut is between them."""
    if {(source, target), (target, source)} & network.cuts:
        return None
    near, far = End(network, source), End(network, target)
    near.other, far.other = far, near
    accept(far)
    return near

"""Why a stage stream ended, as the driving side sees it."""

from pavane.compute.wire.common import Epoch


class StageStreamError(Exception):
    """The stream is over. ``code`` is the gRPC status by name, ``text`` what the pod said."""

    def __init__(self, address: str, code: str, text: str) -> None:
        super().__init__(f"stage stream to {address} ended: {code}: {text}")
        self.address = address
        self.code = code
        self.text = text


class StageUnreachable(StageStreamError):
    """Nobody answered on the stage port, or the connection broke. Dial again."""


class StageSuperseded(StageStreamError):
    """Another stream with a greater epoch took over. A driver that knows of no successor should stop."""


class StaleEpoch(StageStreamError):
    """The pod has accepted ``accepted`` before, which is not smaller than our epoch (docs/specs/compute.md 2.3).

    The holder of the Lease goes on with a greater epoch, any other driver stops.
    """

    def __init__(self, address: str, text: str, accepted: Epoch) -> None:
        super().__init__(address, "FAILED_PRECONDITION", text)
        self.accepted = accepted

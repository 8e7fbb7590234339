"""The peer's state machine without I/O (docs/specs/raft.md 5.2).

Duties of whoever drives it (5.3), after each batch of inputs: take ``outputs()``; handle ``Disconnect`` events; execute
``store`` in order and report ``stored`` after the fsync; release every ``Send`` once its ticket is durable, each group
(with the same ticket, or none) in order; give ``apply`` to the machine in order and report ``applied``; then arm one
timer for ``next_timer()`` and call ``handle_timer`` with the true time, however late. A failed write or fsync ends the
process: no retry, no more answers.
"""

import random
from collections.abc import Sequence

from pavane.raft.config import Config
from pavane.raft.core.outputs import Applied, Channel, Now, Outputs, Route
from pavane.raft.core.status import Fence, Status
from pavane.raft.state.commands import EntrySource, Recovered, Stored
from pavane.raft.state.configuration import Members
from pavane.raft.wire.entry import EntryType
from pavane.raft.wire.frames import Frames
from pavane.wire import Stage


class Core:
    """One peer: voter, learner or removed. Every input takes the time; no method blocks or raises for a peer's mistake."""

    def __init__(
        self,
        config: Config,
        recovered: Recovered,
        source: EntrySource,
        rng: random.Random,
        now: Now,
        stage: Stage = Stage.READ_WRITE,
    ) -> None:
        """Start from what the store found. ``stage`` is ReadWrite for a peer without a platform, Creation in a pod."""
        raise NotImplementedError

    def receive(self, route: Route, frames: Frames, now: Now) -> None:
        """Take a message from the ROUTER: ``frames`` begin with the id frame, ``route`` is its connection."""
        raise NotImplementedError

    def reply(self, peer: str, channel: Channel, frames: Frames, now: Now) -> None:
        """Take a message from one of our DEALERs; ``peer`` as in ``PeerChannel`` (for ``SEED`` the url)."""
        raise NotImplementedError

    def connection(self, peer: str, channel: Channel, up: bool, now: Now) -> None:
        """Learn that a DEALER's connection came up or went down."""
        raise NotImplementedError

    def stored(self, done: Stored, now: Now) -> None:
        """Learn that every storage command up to a ticket is durable."""
        raise NotImplementedError

    def applied(self, results: Sequence[Applied], now: Now) -> None:
        """Learn how far the machine has applied entries."""
        raise NotImplementedError

    def propose(self, reqid: bytes, kind: EntryType, data: bytes, ticket: int, now: Now) -> None:
        """Append an entry on behalf of a local caller; event ``ProposalDone`` with ``ticket`` tells the end."""
        raise NotImplementedError

    def set_stage(self, stage: Stage, now: Now) -> None:
        """Walk forward to ``stage``; going back is refused with ``LocalProtocolError``."""
        raise NotImplementedError

    def bootstrap(self, initial: Members, now: Now) -> None:
        """Remember the members of a new cluster; entry 1 is written when the stage becomes ReadWrite (8.4 ``entry``).

        Ignored where the log is not empty. Raises ``ValueError`` for a list that is no configuration.
        """
        raise NotImplementedError

    def transfer(self, target: str | None, now: Now) -> None:
        """Hand leadership to ``target``, or to the best voter of ours; events ``TransferChanged`` tell the course.

        Raises ``LocalProtocolError`` when this peer does not lead.
        """
        raise NotImplementedError

    def handle_timer(self, now: Now) -> None:
        """Do what is due."""
        raise NotImplementedError

    def next_timer(self) -> float | None:
        """Return the monotonic second at which ``handle_timer`` wants to be called, ``None`` for never."""
        raise NotImplementedError

    def outputs(self) -> Outputs:
        """Return everything to be done since the last call, and forget it."""
        raise NotImplementedError

    def status(self, now: Now) -> Status:
        """Return a picture of the peer; cheap and without effect."""
        raise NotImplementedError

    def fence(self) -> Fence:
        """Return what is known about this peer's right to take part (8.6); it asks its seeds by itself."""
        raise NotImplementedError

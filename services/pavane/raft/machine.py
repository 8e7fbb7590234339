"""What applies committed entries (docs/specs/raft.md 12.1), and the machine that applies nothing (12.10)."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from pavane.raft.config import BROADCAST, MACHINES
from pavane.raft.machines.keyvalue import KeyValue, Tree
from pavane.raft.state.configuration import Configuration
from pavane.raft.wire.frames import Frames

_logger = logging.getLogger(__name__)

ENTRY_POINTS = "pavane.raft.machines"
"""The group in which an installed package offers machines of its own, each under its name (12.10)."""


class UnknownMachine(ValueError):
    """No machine can be made of a name; the message says why and what to do."""


@runtime_checkable
class StateMachine(Protocol):
    """A deterministic function of the committed entries; an exception out of it ends the process.

    What inherits from ``Broadcast`` is the log itself; of any other a snapshot is taken by ``freeze`` every so many
    entries, but never where a member may be of the original program (9.1).
    """

    name: str
    level_max: int

    def apply(self, index: int, reqid: bytes, data: memoryview) -> object:
        """Apply the STATE entry at ``index``; indices grow, every entry comes once."""
        ...

    def configuration(self, index: int, configuration: Configuration) -> None:
        """Take note of the committed CONFIG entry at ``index``."""
        ...

    @property
    def level(self) -> int:
        """The level of the present state (12.2)."""
        ...

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment in slices, which are taken while the machine goes on (9.1)."""
        ...

    def restore(self, data: Iterable[bytes | memoryview], index: int) -> None:
        """Begin from what ``freeze`` returned at ``index``; may run in a thread, so it replaces the state at its end.

        Raises an exception that names what is wrong if the data are none of this machine, and changes nothing then.
        """
        ...

    def digest(self) -> bytes:
        """Return a hash of the replicated state, equal at all peers that applied the same; empty if there is none."""
        ...


@runtime_checkable
class Dispatcher(Protocol):
    """What a machine has in addition if clients may send it requests of its own (10.7)."""

    def dispatch(self, kind: bytes, arguments: Frames, *, leads: bool) -> Sequence[bytes] | None:
        """Return the frames of the answer to a request of type ``kind``, ``None`` to stay silent.

        It may come at any peer and is no entry of the log: ``leads`` says whether this peer believes to lead.
        """
        ...


@runtime_checkable
class Compactor(Protocol):
    """What a machine Broadcast has in addition if snapshots are to be taken by themselves (9.1)."""

    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        """Return what stands for ``previous`` and the ``entries`` behind it, as clients shall get it in their place.

        ``entries`` are index and data of the STATE entries, in order; ``previous`` is what was returned for all before
        them, here or at another peer, ``None`` if there were none or it was empty. It runs in a thread beside ``apply``
        and may take its time. An exception ends the process.
        """
        ...


class Broadcast:
    """Applies nothing: the log itself is the service, subscribers get its entries by PUB."""

    name = BROADCAST
    level_max = 1

    def apply(self, index: int, reqid: bytes, data: memoryview) -> None:
        """Do nothing with the entry."""

    def configuration(self, index: int, configuration: Configuration) -> None:
        """Do nothing with the configuration."""

    @property
    def level(self) -> int:
        """There is one level only."""
        return self.level_max

    def freeze(self) -> Iterator[bytes]:
        """Return nothing: this machine has no state."""
        return iter(())

    def restore(self, data: Iterable[bytes | memoryview], index: int) -> None:
        """Leave the data of the snapshot where they are: they are the application's, and ``<`` serves them."""

    def digest(self) -> bytes:
        """Return nothing: this machine has no state."""
        return b""


def machine_of(name: str) -> StateMachine:
    """Return a new machine: one of ours, or what an installed package offers under this name (12.10).

    Raises ``UnknownMachine`` if there is none, or if it cannot be made.
    """
    for ours in (Broadcast, KeyValue, Tree):
        if ours.name == name:
            return ours()
    offered = tuple(entry_points(group=ENTRY_POINTS, name=name))
    if not offered:
        raise UnknownMachine(
            f"machine: {name!r} is none of {', '.join(MACHINES)}, and no package that is installed here offers it "
            f"(entry points of group {ENTRY_POINTS}); correct the name or install the package"
        )
    if len(offered) > 1:
        places = ", ".join(sorted(point.value for point in offered))
        raise UnknownMachine(f"machine: {name!r} is offered more than once, by {places}; keep one of these packages")
    [point] = offered
    try:
        machine = point.load()()
    except Exception as error:
        raise UnknownMachine(f"machine: {name!r}, {point.value}, cannot be made: {error!r}") from error
    if not isinstance(machine, StateMachine) or machine.name != name:
        raise UnknownMachine(
            f"machine: {point.value} makes no state machine with the name {name!r}; it needs the attributes of "
            "pavane.raft.machine.StateMachine"
        )
    return machine


def dispatched(machine: Dispatcher, kind: bytes, arguments: Frames, leads: bool) -> Sequence[bytes] | None:
    """Let the application answer; a request that it fails at is dropped, for a client must not end a peer."""
    try:
        return machine.dispatch(kind, arguments, leads=leads)
    except Exception as error:
        _logger.error("the application's state machine failed at a request", exc_info=error)
        return None

"""What applies committed entries (docs/specs/raft.md 12.1), and the machine that applies nothing (12.10)."""

from typing import Protocol

from pavane.raft.config import BROADCAST
from pavane.raft.machines import KeyValue, Tree
from pavane.raft.state.configuration import Configuration


class StateMachine(Protocol):
    """A deterministic function of the committed entries; an exception out of it ends the process."""

    name: str
    level_max: int

    def apply(self, index: int, reqid: bytes, data: memoryview) -> object:
        """Apply the STATE entry at ``index``; indices grow, every entry comes once."""
        ...

    def configuration(self, index: int, configuration: Configuration) -> None:
        """Take note of the committed CONFIG entry at ``index``."""
        ...


class Broadcast:
    """Applies nothing: the log itself is the service, subscribers get its entries by PUB."""

    name = BROADCAST
    level_max = 1

    def apply(self, index: int, reqid: bytes, data: memoryview) -> None:
        """Do nothing with the entry."""

    def configuration(self, index: int, configuration: Configuration) -> None:
        """Do nothing with the configuration."""


def machine_of(name: str) -> StateMachine:
    """Return a new machine of a name that ``Config.validate`` takes."""
    return {machine.name: machine for machine in (Broadcast, KeyValue, Tree)}[name]()

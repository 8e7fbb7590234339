"""What a controller knows of one collection: how far replicas are, and who still reads it."""

from dataclasses import dataclass, field

from pavane.compute.wire.commands import CopyTo, DataflowDescription, MaterializedView, Subscribe
from pavane.compute.wire.common import CLOSED
from pavane.compute.wire.responses import Frontiers


class BrokenReplica(Exception):
    """A replica said what it may not say in its state."""


@dataclass(slots=True)
class Seen:
    """What one connection has said about a collection; -1 = nothing."""

    write: int = -1
    input: int = -1
    output: int = -1

    @property
    def closed(self) -> bool:
        """Whether nothing more is owed."""
        return self.write == self.input == self.output == CLOSED


@dataclass(slots=True)
class Collection:
    """One export. ``since`` is what was allowed to be compacted to, ``write`` the greatest that any replica said.

    ``number`` counts collections in the order of their creation: importers have a greater one than what they import.
    """

    id: str
    description: DataflowDescription
    sink: MaterializedView | Subscribe | CopyTo | None
    seen: dict[str, Seen] = field(default_factory=dict)
    number: int = 0
    importers: list["Collection"] = field(default_factory=list)
    holds: dict[bytes, int] = field(default_factory=dict)
    wanted: bool = True
    write: int = 0
    since: int = -1

    def __post_init__(self) -> None:
        self.since = max(self.since, self.description.as_of)

    @property
    def dropped(self) -> bool:
        """Whether replicas were told to drop it."""
        return self.since == CLOSED

    @property
    def output(self) -> int:
        """How far the best connected replica has computed."""
        return max((seen.output for seen in self.seen.values()), default=-1)

    @property
    def hydrated(self) -> bool:
        """Whether a connected replica is beyond as_of; where there is none, nobody waits for it."""
        return not self.seen or self.output > self.description.as_of

    @property
    def input_hold(self) -> int:
        """The tick from which its inputs must stay readable: a replay begins at since, a replica at its input."""
        inputs = (seen.input for seen in self.seen.values() if seen.input >= 0)
        return min([self.since, *inputs])

    def take(self, replica: str, response: Frontiers) -> None:
        """Take what a connection says. Raises ``BrokenReplica``."""
        seen = self.seen[replica]
        if isinstance(self.sink, Subscribe | CopyTo):
            raise BrokenReplica(f"frontiers of {self.id}, which has none")
        for name in ("write", "input", "output"):
            frontier = getattr(response, name)
            if frontier is None:
                continue
            former = getattr(seen, name)
            if former == CLOSED or frontier < former or frontier < self.description.as_of:
                raise BrokenReplica(f"{name} of {self.id} is {frontier} after {max(former, self.description.as_of)}")
            setattr(seen, name, frontier)
        if not self.dropped:
            # A dropped collection's last word is that it is closed; that says nothing about its contents.
            self.write = max(self.write, seen.write)
        elif seen.closed:
            del self.seen[replica]

"""What a replica keeps of one dataflow and of each of its exports, and what it has told of them."""

from dataclasses import dataclass, field

from pavane.compute.wire.commands import CopyTo, DataflowDescription, MaterializedView, SinkExport, Subscribe
from pavane.compute.wire.common import CLOSED, Failure, Rows
from pavane.compute.wire.responses import Batch, CopyToResponse, Dropped, Frontiers, Response, SubscribeResponse


@dataclass(slots=True)
class Export:
    """One export of a live dataflow. Frontiers only rise, whatever the engine says, and begin at as_of."""

    id: str
    flow: int
    as_of: int
    sink: MaterializedView | Subscribe | CopyTo | None = None
    chain: str | None = None
    since: int = 0
    dropped: bool = False
    write: int = 0
    input: int = 0
    computed: int = 0
    upper: int = 0  # of the batches of a subscribe
    failure: Failure | None = None
    told: dict[str, int] = field(default_factory=dict)

    @property
    def reports(self) -> bool:
        """Whether it tells frontiers: an index or a materialized view."""
        return self.sink is None or isinstance(self.sink, MaterializedView)

    @property
    def ended(self) -> bool:
        """Whether it came to its end by itself, and that was told."""
        if not self.reports:
            return self.upper == CLOSED
        return all(self.told.get(name) == CLOSED for name in ("write", "input", "output"))

    def moved(self, *, writes: bool) -> Frontiers | None:
        """Return what there is to tell that was not told yet; ``writes`` is whether its sink may write."""
        if self.dropped or not self.reports:
            return None
        # A read-only view's chain belongs to others, so its own work shows in what is computed alone.
        follows = self.sink is None or writes
        output = min(self.write, self.computed) if follows else self.computed
        new = {}
        for name, frontier in (("write", self.write), ("input", self.input), ("output", output)):
            if (known := max(frontier, self.as_of)) > self.told.get(name, -1):
                new[name] = self.told[name] = known
        return Frontiers(self.id, new.get("write"), new.get("input"), new.get("output")) if new else None

    def progress(self, write: int | None, input_: int | None, computed: int | None) -> None:
        """Take what the engine says; what is lower than before changes nothing."""
        self.write = max(self.write, write or 0)
        self.input = max(self.input, input_ or 0)
        self.computed = max(self.computed, computed or 0)

    def batch(self, upper: int, content: Rows | Failure) -> Response | None:
        """Return the next batch of a subscribe, ``None`` when the engine says nothing new."""
        if self.dropped or upper <= self.upper or upper < self.as_of:
            return None
        if isinstance(content, Failure) and self.failure is None:
            self.failure = content
        lower, self.upper = self.upper, upper
        return SubscribeResponse(self.id, Batch(lower, upper, content if self.failure is None else self.failure))

    def drop(self) -> Response | None:
        """Drop it; return the last thing that is owed for it."""
        self.dropped = True
        if isinstance(self.sink, Subscribe):
            return None if self.upper == CLOSED else SubscribeResponse(self.id, self.upper)
        if isinstance(self.sink, CopyTo):
            return None if self.upper == CLOSED else CopyToResponse(self.id, Dropped())
        open_ = [name for name in ("write", "input", "output") if self.told.get(name) != CLOSED]
        self.told |= dict.fromkeys(open_, CLOSED)
        return Frontiers(self.id, **dict.fromkeys(open_, CLOSED)) if open_ else None


@dataclass(slots=True)
class Dataflow:
    """One incarnation of a dataflow."""

    number: int
    description: DataflowDescription
    exports: dict[str, Export]
    unscheduled: set[str]
    importers: set[int] = field(default_factory=set)
    failure: Failure | None = None

    @classmethod
    def of(cls, number: int, description: DataflowDescription) -> "Dataflow":
        """Return a new incarnation."""
        as_of = description.as_of
        exports = {each.id: Export(each.id, number, as_of, since=as_of) for each in description.index_exports}
        exports |= {each.id: _sink(number, as_of, each) for each in description.sink_exports}
        return cls(number, description, exports, set(exports))

    @property
    def dropped(self) -> bool:
        """Whether no export is left."""
        return all(export.dropped for export in self.exports.values())


def _sink(number: int, as_of: int, sink: SinkExport) -> Export:
    connection = sink.connection
    chain = connection.chain if isinstance(connection, MaterializedView) else None
    return Export(sink.id, number, as_of, connection, chain, since=as_of)

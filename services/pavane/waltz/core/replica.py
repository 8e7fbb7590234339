"""What a store session keeps of each storage node, of each batch and of each question."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from pavane.waltz.state.recovery import Plan
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import Shared

Step = tuple[Any, ...] | None
Work = Generator[Step, Any, None]


@dataclass(slots=True)
class Replica:
    """One storage node in this session."""

    node: str
    work: Work | None = None
    waiting: bool = False
    failed: bool = False
    plan: Plan | None = None
    hwm: int = -1  # what it holds, durably
    stamped: bool = False
    rebuilding: bool = False
    """Its copy was given up, and what it holds since is not verified: it neither counts nor serves."""
    partial: bool = False
    """Its copy is damaged; what can be read of it is what the last session has written."""
    noted: int | None = None
    """It joins, all others that do are complete too, and so much of it will not be cut by the next session."""
    left: bool = False
    """It does not count any more."""
    recovered: bool = False
    declared: bool = False
    """A metadata write of this session, begun after it was stamped, says that it takes part: so it may vote."""
    receiving: bool = False
    """Batches are sent to it; it votes on those that begin after ``voting``."""
    voting: bool = False
    owed: int = 0
    """Batches that it has not answered."""


@dataclass(slots=True)
class Batch:
    """Appends that are sent together, and who has to vote on them."""

    first: int
    records: Shared[s.Record]
    voters: set[str]
    votes: set[str] = field(default_factory=set)

    @property
    def last(self) -> int:
        """Its last transaction."""
        return self.first + len(self.records) - 1


@dataclass(slots=True)
class Asked:
    """A question to a storage node: until when its answer is waited for, and who gets it."""

    node: str
    due: float
    answer: Callable[[Any], None]


def holders(replicas: Iterable[Replica], up: set[str], txid: int) -> list[str]:
    """Return the nodes that hold ``txid`` for certain, those that hold most last."""
    able = [one for one in replicas if one.hwm >= txid and not one.failed and one.plan is not None and one.node in up]
    able = [one for one in able if not one.rebuilding]
    stamped = [replica for replica in able if replica.stamped] or able
    return [replica.node for replica in sorted(stamped, key=lambda replica: (replica.owed, replica.node))]

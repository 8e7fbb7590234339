"""What the parts of the data pipeline ask of each other (docs/specs/compute.md 1).

Updates travel as Arrow tables: the columns of a relation, then `__time` (uint64, a tick) and `__diff` (int64). They are
consolidated: no two rows are equal in all columns and the time, no diff is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pavane.dataflow.entries import Token

if TYPE_CHECKING:  # Who only checks scripts needs no PyArrow.
    import pyarrow as pa

TIME = "__time"
DIFF = "__diff"
CLOCK = "now()"
"""What a view with `now()` reads beside tables and views: for each tick of a step its time and `WALL`.

No user's name has brackets."""
WALL = "wall_ms"
MEMORY_MIB = 512
"""For the state of a script where nobody says how much there is; the rest is on disk."""


class Format(StrEnum):
    """How the rows of a transaction are written."""

    JSON = "json"
    ARROW = "arrow"
    RAW = "raw"


class Mode(StrEnum):
    """What happens to a row that cannot be decoded; Spark's words and meanings."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation; `type` is one of Spark's names, as `BIGINT` or `DECIMAL(12,2)`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Table:
    """A `CREATE TABLE … USING waltz` of a script: rows of the log."""

    name: str
    columns: tuple[Column, ...]
    partitions: tuple[int, ...]
    format: Format
    mode: Mode
    diff: bool = False
    """The rows bring their own `__diff`; without it each row counts 1."""
    key: tuple[str, ...] = ()
    """A row replaces the one with the same key; with a key alone it deletes it."""


@dataclass(frozen=True, slots=True)
class SqlView:
    """A `CREATE MATERIALIZED VIEW` of a script. `plan` is canonical JSON; equal bytes are equal plans."""

    name: str
    sql: str
    columns: tuple[Column, ...]
    tables: tuple[str, ...]
    """What it reads: tables, and views that stand before it in the script."""
    plan: bytes


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed and checked script."""

    tables: tuple[Table, ...]
    views: tuple[SqlView, ...]


class SqlError(Exception):
    """A script that is refused: where (both from 1), what is wrong, and what to write instead."""

    def __init__(self, line: int, column: int, text: str, instead: str = "") -> None:
        self.line, self.column, self.text, self.instead = line, column, text, instead
        super().__init__(f"line {line}, column {column}: {text}" + (f". {instead}" if instead else ""))


class Engine(Protocol):
    """Keeps the state of views. Blocks; not thread-safe."""

    def open(self, script: Script) -> State:
        """Make the state of a script's views, or open what was kept of it. Raises `EngineError`."""

    def close(self) -> None:
        """Let go of processes and memory."""


class EngineError(Exception):
    """The engine could not evaluate a batch; it may be tried again on a new engine."""


class ViewError(Exception):
    """A view has no right contents from some tick on, for example because a sum is out of range. It stays as it is."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A tick: which transactions of each partition are at or before it (`next`: one behind the last).

    `wall_ms`, which never falls from one tick to the next, is what `now()` is at it.
    """

    tick: int
    next: Mapping[int, int]
    wall_ms: int


class Flow(Protocol):
    """The state of one view: what it must remember of its inputs to turn changes into changes."""

    @property
    def at(self) -> Binding | None:
        """Where it was opened: it has all rows up to there. None: it begins with nothing."""

    def step(self, inputs: Mapping[str, pa.Table], upper: int, *, more: bool = False) -> pa.Table:
        """Take all updates of the inputs with times below `upper` that came since the last step; return the updates of
        the view in the same range, right at *every* tick in it. Rows of tables with `diff` or `key` come as they are
        in the log. Raises `EngineError` and is then to be built anew, and `ViewError`.

        With `more`, at the beginning only, further updates of the same single tick follow in the next step: what comes
        of these may wait until then.
        """

    @property
    def due_ms(self) -> int | None:
        """The wall time from which on a tick changes the view though nothing came, as far as the last step knows."""

    def contents(self, tick: int) -> pa.Table:
        """Return the whole view where it was opened, as updates of a tick. Raises `EngineError`."""

    def forget(self) -> None:
        """Begin with nothing instead of what was opened. Raises `EngineError`."""


@runtime_checkable
class Builder(Flow, Protocol):
    """A flow that can read the tables by itself while it begins with nothing."""

    bad: dict[Table, list[tuple[int, int]]]
    """Partition and transaction of what could not be decoded of a table while it was built."""

    @property
    def builds(self) -> bool:
        """Whether it is to read them itself."""

    def build(self, start: Binding, inputs: Mapping[str, pa.Table]) -> pa.Table:
        """Take all rows of the tables up to a binding, and of the views it reads these; return the whole view as
        updates of its tick. Raises as `step`."""


class State(Protocol):
    """What the views of one script must remember. Blocks; not thread-safe."""

    def flow(self, view: SqlView) -> Flow:
        """Return the state of one of its views; the same for each call."""

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""

    def checkpoint(self, at: Mapping[str, Binding]) -> None:
        """Keep what these views are where they are now, in place of what was kept before, until it is opened by another
        process with equal plans. Views that are not named have failed. Raises `EngineError`."""

    def close(self) -> None:
        """Let go of memory and files."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be decoded."""

    table: str
    tick: int
    partition: int
    txid: int
    reason: str


class BadRowError(ViewError):
    """A row cannot be decoded, and its table's mode is FAILFAST."""


class Fenced(Exception):
    """Somebody with a greater token writes here now; this writer must stop."""


class TickLog(Protocol):
    """The clock of a pipeline: bindings in a partition of the log that holds nothing else."""

    async def last(self) -> int:
        """Return the last tick there is now, 0 before the first."""

    async def start(self, tick: int) -> None:
        """Begin to read at the first binding with this tick or a later one."""

    async def at(self, tick: int) -> Binding | None:
        """Return the binding of a tick, None where there is none."""

    async def read_on(self) -> Sequence[Binding]:
        """Return the bindings that came since the last call, in order; empty when there are none."""

    async def fence(self, token: Token) -> None:
        """Take the right to mint for a token. Raises `Fenced`."""

    async def mint(self, *, at_rest: bool = False) -> None:
        """Append the next tick if a high-water mark moved, or `at_rest`, and the first one. Raises `Fenced`."""


class Source(Protocol):
    """Reads tables from the log."""

    async def reach(self, after: Mapping[int, int], upto: Mapping[int, int]) -> Mapping[int, int]:
        """Return up to where of these partitions one step takes them: as many bytes as it can hold, and at least one
        transaction of each. Both are bindings' `next`. Waits for a server that lags."""

    async def read(self, table: Table, after: Binding | None, upto: Binding, ticks: Sequence[Binding]) -> pa.Table:
        """Return the updates of a table between two bindings, each with the tick that `ticks` gives it (rows before
        the first of them get its tick). Waits for a server that lags. Bad rows go where the source was told to put
        them."""

    async def note(self, table: Table, places: Sequence[tuple[int, int]], upto: Binding) -> None:
        """Take note of bad rows up to a binding that somebody else read: they are in these transactions. Raises
        `BadRowError` in mode FAILFAST."""

    def forget(self) -> None:
        """Let go of rows that are kept for others who read the same."""


class Sink(Protocol):
    """A materialized view's chain in its home partition: self-correcting, fenced."""

    async def open(self, as_of: int) -> int:
        """Read the chain to its end and return its upper; `as_of` where there is no chain yet."""

    def desire(self, updates: pa.Table, upper: int) -> None:
        """What the view is, up to a tick; also while nothing may be written."""

    async def allow(self, token: Token) -> None:
        """Append the fence of this writer, unless the chain's rank is its own already. Raises `Fenced`."""

    async def advance(self, *, at_once: bool = False) -> int:
        """Write what is desired and not there, if allowed; read back; return the chain's upper. Raises `Fenced`.

        With `at_once` it also writes that nothing changed, which can wait otherwise.
        """

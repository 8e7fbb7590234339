"""The state of a stage on Spark's executors: runs of rows, and recent changes beside them (docs/specs/compute.md 16.3).

A run is Parquet, sorted by the hash of its keys, and cached in the executors' memory, or on their disks: who loses one
reads it again. Runs are merged when the last one is half as large as the one before it, so a row is merged as often as
the logarithm of their number says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pavane.dataflow.deltas import Stage

RECENT_ROWS = 10_000
"""So many rows of changes in the driver become a run."""
HASHES_MAX = 200
"""So many keys are looked for by their hashes, by which Spark passes over batches of a run; more by a join. Spark makes
of each hash another level of a condition; of 2,000 the stack of an executor overflowed, which ends its JVM."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of a stage in a folder. `check` is made of all their columns."""

    name: str
    rows: int
    check: int
    frame: DataFrame = field(compare=False, repr=False)


@dataclass(slots=True)
class Store:
    """Where runs are. `forget` takes those that no stage needs any more."""

    session: SparkSession
    folder: str
    forget: Callable[[str], None]

    def put(self, name: str, table: pa.Table) -> str:
        """Let SQL know a table by a name: on one executor, so that little work is one task."""
        self.session.createDataFrame(signed(table)).coalesce(1).createOrReplaceTempView(name)
        return name

    def laid_by(self, table: pa.Table) -> str:
        """Write a table where no memory has to hold it; return what `put_again` and `forget` know it by."""
        name = uuid4().hex
        self.session.createDataFrame(signed(table)).coalesce(1).write.parquet(f"{self.folder}/{name}")
        return name

    def put_again(self, name: str, laid: Sequence[str]) -> str:
        """Let SQL know tables that were laid by as one."""
        self.session.read.parquet(*(f"{self.folder}/{each}" for each in laid)).createOrReplaceTempView(name)
        return name


class Runs:
    """The rows of a stage."""

    def __init__(self, store: Store, stage: Stage) -> None:
        self.stage = stage
        self.runs: list[Run] = []
        self._store = store
        self.label = f"s{uuid4().hex}"
        self._recent: list[pa.Table] = []
        self._recent_rows = 0
        self.needed = "true"
        """The condition on rows that go into further runs."""

    def open(self, name: str, known: tuple[int, int] | None = None) -> None:
        """Take a run that is there. Raises ValueError where it is not as it was."""
        store = self._store
        frame = store.session.read.schema(self.stage.state.ddl).parquet(f"{store.folder}/{name}")
        frame.persist(StorageLevel.MEMORY_AND_DISK).createOrReplaceTempView(f"r{name}")
        ((rows, check),) = store.session.sql(
            f"SELECT count(*), coalesce(bit_xor(xxhash64({self.stage.state.names})), 0L) FROM r{name}"
        ).collect()
        self.runs.append(Run(name, rows, check, frame))
        if known is not None and known != (rows, check):
            raise ValueError(f"run {name} is not as it was written")

    def write(self, select: str) -> None:
        """Make a run of rows, one for each key."""
        name = uuid4().hex
        frame = self._store.session.sql(select).sortWithinPartitions("h")
        frame.write.parquet(f"{self._store.folder}/{name}")
        self.open(name)

    def _write_sums(self, source: str) -> None:
        """Make a run of the sums of rows: of all that there are, also of those that say that one is there no more."""
        state = self.stage.state
        sums = state.summed(source) if self.runs else state.joined(source)
        self.write(f"SELECT * FROM ({sums}) WHERE {self.needed}")

    def touched(self, delta: pa.Table, view: str) -> str:
        """SELECT what there is of the keys of a delta, which SQL knows as `view`, at time -1."""
        hashes = pc.unique(delta.column("h"))
        wanted = (
            ", ".join(f"{each}L" for each in hashes.to_pylist()) or "NULL"
            if len(hashes) <= HASHES_MAX
            else f"SELECT h FROM {view}"
        )
        columns = f"{self.stage.state.names}, -1L AS t"
        parts = [f"SELECT {columns} FROM r{run.name} WHERE h IN ({wanted})" for run in self.runs]
        if self._recent:
            recent = pa.concat_tables(self._recent)
            found = recent.filter(pc.is_in(recent.column("h"), hashes))
            if found.num_rows:
                parts.append(f"SELECT {columns} FROM {self._store.put(f'{self.label}_recent', found)}")
        return f"({' UNION ALL '.join(parts)})" if parts else f"(SELECT {columns} FROM {view} WHERE false)"

    def add(self, delta: pa.Table) -> None:
        """Add the rows of a delta."""
        self._recent.append(delta.select([*self.stage.state.key_names, *self.stage.state.sum_names]))
        self._recent_rows += delta.num_rows
        if self._recent_rows > RECENT_ROWS:
            self.flush()

    def flush(self) -> None:
        """Make a run of the recent changes."""
        if not self._recent:
            return
        view = self._store.put(f"{self.label}_flushed", pa.concat_tables(self._recent))
        self._write_sums(view)
        self._recent, self._recent_rows = [], 0
        while len(self.runs) > 1 and 2 * self.runs[-1].rows >= self.runs[-2].rows:
            self._merge(2)

    def whole(self) -> str:
        """Return a relation of all rows, one for each key."""
        self.flush()
        if len(self.runs) == 1:
            return f"r{self.runs[0].name}"
        return f"({self.stage.state.joined(f'({self._union(self.runs)})')})"

    def rows(self) -> str:
        """Return a relation of all rows, several of a key among them."""
        parts = [self._union(self.runs)]
        if self._recent:
            view = self._store.put(f"{self.label}_all", pa.concat_tables(self._recent))
            parts.append(f"SELECT {self.stage.state.names} FROM {view}")
        return f"({' UNION ALL '.join(parts)})"

    def keep_needed(self) -> None:
        """Let go of rows that are not needed."""
        former, self.runs = self.runs, []
        self._write_sums(f"({self._union(former)})")
        self.drop(former)

    def _union(self, runs: list[Run]) -> str:
        return (
            " UNION ALL ".join(f"SELECT {self.stage.state.names} FROM r{run.name}" for run in runs)
            or f"SELECT * FROM ({self.stage.state.row('NULL')}) WHERE false"
        )

    def _merge(self, count: int) -> None:
        merged = self.runs[-count:]
        del self.runs[-count:]
        self._write_sums(f"({self._union(merged)})")
        self.drop(merged)

    def drop(self, runs: list[Run]) -> None:
        """Let go of runs."""
        for run in runs:
            run.frame.unpersist()
            self._store.session.catalog.dropTempView(f"r{run.name}")
            self._store.forget(run.name)


def signed(table: pa.Table) -> pa.Table:
    """Spark has no unsigned numbers; ticks are far below 2^63."""
    for place, each in enumerate(table.schema):
        if pa.types.is_uint64(each.type):
            table = table.set_column(place, each.with_type(pa.int64()), table.column(place).cast(pa.int64()))
    return table

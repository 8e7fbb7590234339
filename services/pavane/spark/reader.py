"""Reading of the log by Spark: a range of transactions per task, as a batch or from trigger to trigger.

Spark makes one object of these for planning and sends it to the tasks, each in a process of its own; the source of a
stream lives in one process as long as the query.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pavane.spark import chain as chains
from pavane.spark import offsets
from pavane.spark.decode import Decoder, check_ordinary
from pavane.spark.errors import DataLossError, OptionError
from pavane.spark.log import BlockingLog, Connect, connect
from pavane.spark.options import ReadOptions
from pavane.spark.schema import Columns

BEHIND_SECONDS_MAX = 30.0  # A new owner may still be reading the log's end when it is asked for it.
BEHIND_RETRY_SECONDS = 0.2
TXID_MAX = 2**63 - 1

Bounds = tuple[int, int]


@dataclass
class Task(InputPartition):
    """What one task reads: a range, or pieces of a chain; nothing if neither."""

    range: offsets.Range | None = None
    pieces: tuple[chains.Piece, ...] = ()


class _Reading:
    """What reads of both kinds share."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def _log(self) -> BlockingLog:
        return BlockingLog(self._connect())

    def _connect(self) -> Connect:
        return connect(self._options.servers, self._options.tls, self._options.store)

    def _partitions(self, log: BlockingLog) -> Sequence[int]:
        held = log.partitions()
        wanted = held if self._options.partitions is None else self._options.partitions
        if missing := sorted(set(wanted) - set(held)):
            raise OptionError(f"the log has no partition {missing[0]}; it has {held[0]} to {held[-1]}.")
        return wanted

    def _ends(self, log: BlockingLog) -> offsets.Offset:
        return log.ends(self._partitions(log))

    def _tasks(self, log: BlockingLog, start: offsets.Offset, stop: offsets.Offset) -> list[Task]:
        options = self._options
        if options.chain is None:
            ranges = offsets.split(start, stop, options.min_partitions, options.max_records_per_partition)
            return [Task(r) for r in ranges]
        home = next(iter(stop))
        pieces = chains.committed(log, home, options.chain, start.get(home, 0), stop[home])
        by_partition: dict[int, list[chains.Piece]] = {}
        for piece in pieces:
            by_partition.setdefault(piece.partition, []).append(piece)
        return [Task(pieces=tuple(found)) for _, found in sorted(by_partition.items())]

    def _read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(task, Task):
            raise TypeError(f"{task!r} is no task of this reader")
        with self._log() as log:
            if task.range is not None:
                yield from self._read_range(log, task.range)
            for piece in task.pieces:
                decoder = Decoder(self._columns, self._options.mode, piece.partition)
                for kind, records in chains.data_of(log, piece, str(self._options.chain)):
                    yield from decoder.batches(records, kind)

    def _read_range(self, log: BlockingLog, wanted: offsets.Range) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(self._columns, self._options.mode, wanted.partition)
        raw = self._options.format.value == "raw"
        fail = self._options.fail_on_data_loss
        for records in log.read(wanted.partition, wanted.start, wanted.stop, fail=fail):
            if not raw:
                check_ordinary(records, wanted.partition, chains.CHAIN_HEADER)
            yield from decoder.batches(records, self._options.format)


class BatchReader(_Reading, DataSourceReader):
    """`spark.read.format("waltz")`."""

    def partitions(self) -> list[InputPartition]:
        """Return what the tasks read. The log's end counts as it is now."""
        options = self._options
        with self._log() as log:
            ends = self._ends(log)
            firsts = log.firsts(ends)
            start = offsets.resolve("startingOffsets", options.starting, firsts, ends)
            stop = offsets.resolve("endingOffsets", options.ending, firsts, ends)
            start = offsets.check_held(start, ends, fail=options.fail_on_data_loss)
            stop = offsets.check_held(stop, ends, fail=options.fail_on_data_loss)
            offsets.check_order(start, stop, firsts, fail=options.fail_on_data_loss)
            return [*self._tasks(log, *self._wanted(start, stop))] or [Task()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._read(partition)

    def _wanted(self, start: offsets.Offset, stop: offsets.Offset) -> tuple[offsets.Offset, offsets.Offset]:
        return start, stop


class FilteringReader(BatchReader):
    """A batch that leaves out what the query's filters on the rows' place exclude.

    Spark refuses every read of a class with `pushFilters` while ``spark.sql.python.filterPushdown.enabled`` is false,
    its default, so this is a class of its own, behind option `pushdown`.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._bounds: dict[str, list[Bounds]] = {"partition": [], "txid": []}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what the filters say about `partition` and `txid`. Spark applies all of them again."""
        for each in filters:
            known = self._bounds.get(".".join(getattr(each, "attribute", ())))
            if known is not None and (bounds := bounds_of(each)) is not None:
                known.append(bounds)
        return filters

    def _wanted(self, start: offsets.Offset, stop: offsets.Offset) -> tuple[offsets.Offset, offsets.Offset]:
        partitions = [p for p in start if all(low <= p <= high for low, high in self._bounds["partition"])]
        first = max((low for low, _ in self._bounds["txid"]), default=0)
        last = min((high for _, high in self._bounds["txid"]), default=TXID_MAX)
        begin = {p: max(start[p], first) for p in partitions}
        return begin, {p: max(begin[p], min(stop[p], last + 1)) for p in partitions}


def bounds_of(condition: Filter) -> Bounds | None:
    """Return the least and the greatest number that meet a condition, None for one that says neither."""
    match condition:
        case EqualTo(value=int(number)):
            return number, number
        case GreaterThan(value=int(number)):
            return number + 1, TXID_MAX
        case GreaterThanOrEqual(value=int(number)):
            return number, TXID_MAX
        case LessThan(value=int(number)):
            return 0, number - 1
        case LessThanOrEqual(value=int(number)):
            return 0, number
        case In(value=values) if values and all(isinstance(each, int) for each in values):
            return min(values), max(values)
    return None


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("waltz")`. Progress belongs to the query's checkpoint, never to the log."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._initial: dict[str, int] | None = None
        self._target: offsets.Offset | None = None
        self._latest: offsets.Offset = {}

    def initialOffset(self) -> dict[str, int]:
        """Return where a query without a checkpoint begins; it stays the same while the query lives."""
        if self._initial is None:
            with self._log() as log:
                ends = self._ends(log)
                start = offsets.resolve("startingOffsets", self._options.starting, log.firsts(ends), ends)
            start = offsets.check_held(start, ends, fail=self._options.fail_on_data_loss)
            self._initial = offsets.to_json(start)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return option `maxOffsetsPerTrigger` in Spark's words; a row is a transaction here."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return where the next trigger ends: never before `start`, and within the limit."""
        begin = offsets.from_json(start)
        ends = self._target if self._target is not None else self._ends_from(begin)
        ends = {p: max(ends.get(p, 0), begin.get(p, 0)) for p in ends.keys() | begin.keys()}
        self._latest = ends
        if isinstance(limit, ReadMaxRows):
            ends = offsets.limited(begin, ends, limit.max_rows)
        return offsets.to_json(ends)

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return the log's end as it was last seen, for the query's progress."""
        return offsets.to_json(self._latest) if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query that reads what is there and stops."""
        with self._log() as log:
            self._target = self._ends(log)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return what the tasks of a trigger read."""
        with self._log() as log:
            return [*self._tasks(log, offsets.from_json(start), offsets.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return self._read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: the log keeps no progress of readers."""

    def stop(self) -> None:
        """Nothing to do: nothing stays open between calls."""

    def _ends_from(self, begin: offsets.Offset) -> offsets.Offset:
        deadline = time.monotonic() + BEHIND_SECONDS_MAX
        with self._log() as log:
            while True:
                ends = self._ends(log)
                try:
                    known = {p: position for p, position in begin.items() if p in ends}
                    offsets.check_held(known, ends, fail=self._options.fail_on_data_loss)
                except DataLossError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(BEHIND_RETRY_SECONDS)
                else:
                    return ends

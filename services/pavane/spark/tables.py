"""Tables of a script as Spark's executors read them: what the driver would read, by the same code.

Rows have the table's columns, `__diff` where the table has it (each column costs as much as a sum), and `__bad`: one
row for each transaction with a bad one names it.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count

from pavane.dataflow.entries import CHAIN_HEADER
from pavane.dataflow.log import Transaction
from pavane.dataflow.plan import read
from pavane.dataflow.ports import DIFF, TIME, Binding, Column, Mode, Table
from pavane.dataflow.source import Decoding
from pavane.dataflow.types import arrow_schema
from pavane.spark import offsets
from pavane.spark.log import BlockingLog, Connect
from pavane.spark.options import read_options
from pavane.spark.reader import BatchReader
from pavane.spark.schema import Columns

TABLE, TLS = "table", "tls"
"""Options of `format("waltz")` for views alone: the table as JSON, and `Place.tls`."""
BAD = "__bad"
ROWS_MAX = 65_536  # of one Arrow batch
SEEN_TRIES, SEEN_S = 100, 0.05
"""How long Spark is waited for to tell what it counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a log is."""

    servers: tuple[str, ...]
    tls: str = ""
    """The folder with the files of its Secret for clients, or the file with its authority, which executors see too;
    empty: it is in clear."""


class TableReader(BatchReader):
    """`format("waltz")` with the meaning that views give to rows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        others = {name: value for name, value in options.items() if name.lower() not in (TABLE, TLS)}
        self._table: Table = read(Table, json.loads(options[TABLE]))
        self._tls = options.get(TLS)
        schema = arrow_schema(_columns(self._table))
        super().__init__(read_options(others, streaming=False), Columns(schema, schema, None))

    def _connect(self) -> Connect:
        from pavane.runtime.certificates import client_of, trusting  # noqa: PLC0415 - in tasks only, never in a user's session
        from pavane.waltz.client import Waltz  # noqa: PLC0415

        path = Path(self._tls) if self._tls else None
        tls = None if path is None else client_of(path) if path.is_dir() else trusting(path.read_text(encoding="utf-8"))
        return lambda: Waltz(list(self._options.servers), tls=tls)

    def _read_range(self, log: BlockingLog, wanted: offsets.Range) -> Iterator[pa.RecordBatch]:
        decoding = _Decoding()
        for records in log.read(wanted.partition, wanted.start, wanted.stop):
            rows = [each for each in records if each.header != CHAIN_HEADER]
            made = decoding.decoded(self._table, wanted.partition, rows, [0] * len(rows)).drop_columns([TIME])
            made = made.append_column(BAD, pa.nulls(made.num_rows, pa.string()))
            noted = {name: pa.nulls(len(decoding.bad_in), made.schema.field(name).type) for name in made.column_names}
            noted[BAD] = pa.array([f"{wanted.partition}:{txid}" for txid in decoding.bad_in], pa.string())
            decoding.bad_in.clear()
            whole = pa.concat_tables([made, pa.table(noted, schema=made.schema)]).select(self._columns.output.names)
            yield from (batch for batch in whole.to_batches(max_chunksize=ROWS_MAX) if batch.num_rows)


class _Decoding(Decoding):
    """Decodes and lists the transactions with bad rows: what happens because of them the driver decides."""

    def __init__(self) -> None:
        super().__init__()
        self.bad_in: list[int] = []

    def _kept(self, table: Table, partition: int, transaction: Transaction, time: int, problem: str) -> bool:
        if self.bad_in[-1:] != [transaction.id]:
            self.bad_in.append(transaction.id)
        kept = replace(table, mode=Mode.DROPMALFORMED) if table.mode is Mode.FAILFAST else table
        return super()._kept(kept, partition, transaction, time, problem)


class Counted:
    """All rows of a table up to a binding, and its bad ones, which are looked for if there are any."""

    def __init__(self, session: SparkSession, place: Place, table: Table, upto: Binding) -> None:
        self.table = table
        self._seen = Observation()
        self._read = frame(session, place, table, upto, session.sparkContext.defaultParallelism)
        self.frame = self._read.observe(self._seen, count(BAD).alias("bad"))

    def bad(self) -> list[tuple[int, int]]:
        """Return partition and transaction of bad rows, once the rows were read."""
        for _ in range(SEEN_TRIES):  # Spark tells it a moment later, and never if it had no need of the rows
            if self._seen._jo.future().isCompleted():
                if not self._seen.get["bad"]:
                    return []
                break
            time.sleep(SEEN_S)
        places = [row[0].split(":") for row in self._read.where(f"{BAD} IS NOT NULL").select(BAD).collect()]
        return [(int(partition), int(txid)) for partition, txid in places]


def frame(session: SparkSession, place: Place, table: Table, upto: Binding, tasks: int) -> DataFrame:
    """Return all rows of a table up to a binding."""
    partitions = sorted(table.partitions)
    options = {
        TABLE: json.dumps(asdict(table)),
        "servers": ",".join(place.servers),
        "partitions": ",".join(map(str, partitions)),
        "startingOffsets": json.dumps(dict.fromkeys(map(str, partitions), 0)),
        "endingOffsets": json.dumps({str(each): upto.next.get(each, 0) for each in partitions}),
        "minPartitions": str(tasks),
    }
    if place.tls:
        options[TLS] = place.tls
    schema = ", ".join(f"`{each.name.replace('`', '``')}` {each.type}" for each in _columns(table))
    return session.read.format("waltz").options(**options).schema(schema).load()


def _columns(table: Table) -> tuple[Column, ...]:
    diff = (Column(DIFF, "BIGINT"),) if table.diff else ()
    return (*table.columns, *diff, Column(BAD, "STRING"))

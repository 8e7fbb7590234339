"""Writing to the log by Spark: tasks append records, the commit makes those of a chain count.

Spark makes a writer for planning and sends it to the tasks; the commit of a stream runs on another one, in a process of
its own. All that they share are the options and the messages of the tasks.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pavane.dataflow.ports import Format
from pavane.spark import chain as chains
from pavane.spark.encode import Packer, Record
from pavane.spark.errors import OptionError, WaltzSourceError
from pavane.spark.log import Appender, BlockingLog, connect
from pavane.spark.options import Delivery, WriteOptions


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote: where its rows lie if they belong to a chain."""

    pieces: tuple[chains.Piece, ...] = ()


@dataclass
class _Open:
    """The rows of one task in one partition, while they are written."""

    id: str
    chunks: int = 0
    acknowledged: list[int] = field(default_factory=list)


class _Writing:
    """What writers of both kinds share."""

    def __init__(self, options: WriteOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def _log(self) -> BlockingLog:
        return BlockingLog(connect(self._options.servers, self._options.tls))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        options = self._options
        with self._log() as log:
            held = log.partitions()
            targets = options.partitions or held
            if missing := sorted(set(targets) - set(held)):
                raise OptionError(f"the log has no partition {missing[0]}; it has {held[0]} to {held[-1]}.")
            plain = options.delivery is Delivery.PLAIN
            if "partition" in self._schema.names:
                targets = held if options.partitions in (None, (0,)) else targets
            packer = Packer(options.format, tuple(targets), options.partition_by, rows_apart=plain)
            appender = log.appender()
            entries: dict[int, _Open] = {}
            for batch in batches:
                self._append(appender, packer.add(batch), entries)
            self._append(appender, packer.rest(), entries)
            appender.finish()
        if plain:
            return Written()
        return Written(
            tuple(
                chains.Piece(partition, min(entry.acknowledged), max(entry.acknowledged), entry.id, entry.chunks)
                for partition, entry in sorted(entries.items())
            )
        )

    def _append(self, appender: Appender, records: Iterator[Record], entries: dict[int, _Open]) -> None:
        options = self._options
        for record in records:
            if options.delivery is Delivery.PLAIN:
                header = options.header if record.header is None else record.header
                appender.append(record.partition, record.data, header, _forget)
                continue
            entry = entries.setdefault(record.partition, _Open(uuid4().hex))
            # Raw rows inside of a chain travel as an Arrow stream with their headers.
            kind = Format.ARROW if options.format is Format.RAW else options.format
            data = chains.DataEntry(options.chain, entry.id, entry.chunks, kind, record.data).encode()
            entry.chunks += 1
            appender.append(record.partition, data, chains.CHAIN_HEADER, entry.acknowledged.append)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], writer: str, batch: int) -> None:
        if self._options.delivery is Delivery.PLAIN:
            return
        pieces: list[chains.Piece] = []
        for message in messages:
            if not isinstance(message, Written):
                raise WaltzSourceError("a task ended without saying what it wrote: repeat the write.")
            pieces.extend(message.pieces)
        with self._log() as log:
            home = self._options.partitions[0] if self._options.partitions else 0
            chains.commit(log, home, self._options.chain, writer, batch, tuple(pieces))


def _forget(_txid: int) -> None:
    """A plain write keeps nothing of its acknowledgements."""


class BatchWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("waltz")`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of a task; return once all are durable."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of a chain count."""
        options = self._options
        self._commit(messages, options.writer_id or "", options.batch_id or 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: entries that no batch names are never read, and plain rows stay."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("waltz")`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of a task; return once all are durable."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the rows of a batch count, unless they did before a restart."""
        self._commit(messages, writer_id(self._options), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: entries that no batch names are never read, and plain rows stay."""


def writer_id(options: WriteOptions) -> str:
    """Return the name under which a stream's batches are counted: option `writerId`, or the query's id.

    Never the place of the checkpoint: after it was deleted batches count from 0 again, and would be taken for repeats.
    Raises OptionError if neither is to be had.
    """
    if options.writer_id is not None:
        return options.writer_id
    place = urlparse(options.checkpoint or "")
    if options.checkpoint and place.scheme in {"", "file"}:
        try:
            return str(json.loads((Path(unquote(place.path)) / "metadata").read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError):
            pass
    raise OptionError(
        f"the query's id cannot be read from its checkpoint ({options.checkpoint or 'none is given'}): give option "
        "'writerId', a name that belongs to this query and this checkpoint alone."
    )

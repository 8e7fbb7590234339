"""The format `waltz` for Spark: options and schema in, readers and writers out (docs/specs/compute.md 15)."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pavane.dataflow.ports import Format
from pavane.spark.errors import OptionError
from pavane.spark.options import Delivery, WriteOptions, read_options, write_options
from pavane.spark.schema import RAW_SCHEMA, arrow_schema, check_written, columns


class WaltzDataSource(DataSource):
    """The log as a source and a sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "waltz"

    def schema(self) -> str:
        """Return the columns of a read that declares none: format `raw` has them, the others need a schema."""
        options = {name.lower(): value for name, value in self.options.items()}
        if options.get("format", Format.RAW).lower() != Format.RAW or "chain" in options:
            raise OptionError(
                "the log does not know the columns of its records: declare them, .schema('id BIGINT, …')."
            )
        return RAW_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch. Raises OptionError."""
        from pavane.spark.reader import BatchReader, FilteringReader  # noqa: PLC0415 - in the processes that need it, not in the look-up of sources

        if "table" in self.options:
            from pavane.spark.tables import TableReader  # noqa: PLC0415 - in the processes that need it, not in the look-up of sources

            return TableReader(self.options)
        options = read_options(self.options, streaming=False)
        reader = FilteringReader if options.pushdown else BatchReader
        return reader(options, columns(arrow_schema(schema), options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream. Raises OptionError."""
        from pavane.spark.reader import StreamReader  # noqa: PLC0415 - in the processes that need it, not in the look-up of sources

        options = read_options(self.options, streaming=True)
        return StreamReader(options, columns(arrow_schema(schema), options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch. Raises OptionError."""
        from pavane.spark.writer import BatchWriter  # noqa: PLC0415 - in the processes that need it, not in the look-up of sources

        if overwrite:
            raise OptionError("a log is only ever appended to: use mode('append').")
        return BatchWriter(*self._writing(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes a stream. Raises OptionError."""
        from pavane.spark.writer import StreamWriter, writer_id  # noqa: PLC0415 - in the processes that need it, not in the look-up of sources

        if overwrite:
            raise OptionError("a log is only ever appended to: use outputMode('append') or 'update'.")
        options, written = self._writing(schema, streaming=True)
        if options.delivery is Delivery.CHAIN:
            writer_id(options)  # Before anything is written.
        return StreamWriter(options, written)

    def _writing(self, schema: StructType, *, streaming: bool) -> tuple[WriteOptions, object]:
        options = write_options(self.options, streaming=streaming)
        written = arrow_schema(schema)
        check_written(written, options.format)
        if missing := [name for name in options.partition_by if name not in written.names]:
            raise OptionError(f"option 'partitionBy' names {missing[0]!r}, which is no column.")
        return options, written

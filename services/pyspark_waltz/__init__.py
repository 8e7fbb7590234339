"""The name under which Spark finds the source `waltz` by itself: it imports every installed `pyspark_*`."""

from pavane.spark.source import WaltzDataSource

__all__ = ["DefaultSource"]


class DefaultSource(WaltzDataSource):
    """The source and sink `waltz`."""

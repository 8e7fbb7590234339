"""Brings a log to Parquet, for example for an archive: each run adds what came since the last one.

    python examples/spark/replay.py --servers HOST:PORT --partitions 0-1 --to FOLDER --checkpoint FOLDER

Each row has its place in the log: partition, txid, header, data.
"""

import argparse
from collections.abc import Sequence

from pavane.spark.session import builder


def main(arguments: Sequence[str] | None = None) -> None:
    """Write what there is that was not written before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="host:port,… of the log")
    parser.add_argument("--partitions", default="0", help="for example 0-2,5")
    parser.add_argument("--to", required=True, help="folder for Parquet files")
    parser.add_argument("--checkpoint", required=True, help="folder that remembers how far the replay is; keep it")
    given = parser.parse_args(arguments)

    spark = builder("replay").getOrCreate()
    reader = spark.readStream.format("waltz").options(servers=given.servers, partitions=given.partitions)
    rows = reader.option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("parquet").option("path", given.to).option("checkpointLocation", given.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()

"""Copies orders from one partition of a log to another, exactly once however often it is killed.

    python examples/spark/copy_orders.py --servers HOST:PORT --from 0 --to 1 --checkpoint FOLDER

Kill it and start it again with the same checkpoint: it goes on where it was. Readers name the chain: `chain="copy"`.
"""

import argparse
from collections.abc import Sequence

from pavane.spark.session import builder

SCHEMA = "id BIGINT, customer STRING, cents BIGINT"


def main(arguments: Sequence[str] | None = None) -> None:
    """Copy what there is, and with --forever what comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="host:port,… of the log")
    parser.add_argument("--from", dest="source", required=True, help="partition to read")
    parser.add_argument("--to", dest="target", required=True, help="partition to write")
    parser.add_argument("--checkpoint", required=True, help="folder that remembers how far the copy is; keep it")
    parser.add_argument("--repartition", type=int, default=0, help="shuffle the rows into so many tasks")
    parser.add_argument("--forever", action="store_true", help="go on with what comes")
    given = parser.parse_args(arguments)

    spark = builder("copy").getOrCreate()
    stream = spark.readStream.format("waltz").options(servers=given.servers, partition=given.source, format="json")
    rows = stream.option("startingOffsets", "earliest").schema(SCHEMA).load()
    if given.repartition:
        rows = rows.repartition(given.repartition)
    copy = rows.writeStream.format("waltz").options(servers=given.servers, partition=given.target, format="arrow")
    copy = copy.options(chain="copy", checkpointLocation=given.checkpoint)
    (copy if given.forever else copy.trigger(availableNow=True)).start().awaitTermination()


if __name__ == "__main__":
    main()

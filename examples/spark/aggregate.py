"""Adds up orders by customer, once, and prints the result as JSON.

    python examples/spark/aggregate.py --servers HOST:PORT --partitions 0-1

For a result that is kept up to date see docs/compute.md.
"""

import argparse
import json
from collections.abc import Sequence

from pyspark.sql import functions as f

from pavane.spark.session import builder

SCHEMA = "id BIGINT, customer STRING, cents BIGINT"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the whole log as a batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="host:port,… of the log")
    parser.add_argument("--partitions", default="0", help="for example 0-2,5")
    given = parser.parse_args(arguments)

    spark = builder("aggregate").getOrCreate()
    reader = spark.read.format("waltz").options(servers=given.servers, partitions=given.partitions, format="json")
    orders = reader.schema(SCHEMA).load()
    totals = orders.groupBy("customer").agg(f.count("*").alias("n"), f.sum("cents").alias("total")).orderBy("customer")
    for row in totals.collect():
        print(json.dumps(row.asDict()))


if __name__ == "__main__":
    main()

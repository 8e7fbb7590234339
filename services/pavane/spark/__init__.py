"""The log as a source and a sink of Apache Spark: `format("waltz")` in any PySpark job.

Spark finds the format by itself (`pyspark_waltz`): a job needs no code for it. `docs/spark.md` shows how to use it.
"""

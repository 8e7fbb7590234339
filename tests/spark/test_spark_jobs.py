"""What a user's job does with `format("waltz")`, on a real Spark and a real log."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROWS = 30_000
SCHEMA = "id BIGINT, customer STRING, cents BIGINT"
LOST = "failed to connect back"  # Spark gives a new worker 10 s, which a starved machine may exceed.


def orders(spark: Any, rows: int = ROWS) -> Any:
    return spark.range(rows).selectExpr("id", "concat('c', id % 7) customer", "id * 3 cents")


def read(spark: Any, servers: object, **options: object) -> Any:
    return spark.read.format("waltz").options(servers=servers, **options)


def same(one: Any, other: Any) -> bool:
    return bool(one.count() == other.count() and one.exceptAll(other).isEmpty())


def run(stream: Any, checkpoint: Path) -> Any:
    """Run a stream over what there is, again from its checkpoint where Spark gave up on a slow worker."""
    for _ in range(5):
        query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            if LOST not in str(error) and "CANNOT_OPEN_SOCKET" not in str(error):
                raise
        else:
            return query
    raise AssertionError("Spark gave up on its workers five times")


@pytest.mark.parametrize("kind", ["json", "arrow"])
def test_what_is_appended_is_read_back_by_batch_and_by_stream(
    spark: Any, servers: str, partition: int, tmp_path: Path, kind: str
) -> None:
    written = orders(spark)
    place = {"servers": servers, "partition": partition, "format": kind}
    written.write.format("waltz").options(**place).mode("append").save()
    assert same(read(spark, **place).schema(SCHEMA).load(), written)
    stream = spark.readStream.format("waltz").options(**place, startingOffsets="earliest", maxOffsetsPerTrigger=1)
    run(
        stream.schema(SCHEMA).load().writeStream.format("parquet").option("path", str(tmp_path / "out")), tmp_path / "c"
    )
    assert same(spark.read.parquet(str(tmp_path / "out")), written)
    assert len(list((tmp_path / "c" / "commits").glob("[0-9]*"))) > 1  # One transaction at a time.


def test_raw_rows_are_transactions_with_header(
    spark: Any, servers: str, partitions: Callable[[int], list[int]]
) -> None:
    first, second = partitions(2)
    rows = [(bytes([n]) * n, n, first if n % 2 else second) for n in range(20)]
    frame = spark.createDataFrame(rows, "data BINARY, header INT, partition INT").coalesce(1)
    place = {"servers": servers, "partitions": f"{first},{second}"}
    frame.write.format("waltz").options(**place).mode("append").save()
    found = read(spark, **place).load().orderBy("partition", "txid").collect()
    assert [(r.partition, r.txid, r.header, bytes(r.data)) for r in found] == sorted(
        (p, i, n, bytes([n]) * n) for p in (first, second) for i, n in enumerate(n for _, n, q in rows if q == p)
    )
    half = read(
        spark,
        **place,
        startingOffsets=json.dumps({first: 3, second: -1}),
        endingOffsets=json.dumps({first: 5, second: -1}),
    )
    assert sorted(r.txid for r in half.load().collect()) == [3, 4]


def test_filters_on_the_place_of_rows_decide_what_is_read(
    spark: Any, servers: str, partitions: Callable[[int], list[int]]
) -> None:
    first, second = partitions(2)
    place = {"servers": servers, "partitions": f"{first},{second}"}
    rows = [(b"no JSON" if n < 2 else b"{}", first if n % 2 else second) for n in range(24)]
    frame = spark.createDataFrame(rows, "data BINARY, partition INT").coalesce(1)
    frame.write.format("waltz").options(**place).mode("append").save()
    wanted = read(spark, **place, format="json", mode="FAILFAST", pushdown="true").schema("id BIGINT, txid BIGINT")
    assert wanted.load().where("txid > 0").count() == 22
    with pytest.raises(Exception, match="does not fit the schema"):
        wanted.load().count()
    with pytest.raises(Exception, match="option 'pushdown' is of no use with 'chain'"):
        read(spark, servers, partition=first, chain="c", pushdown="true").schema("id BIGINT").load().count()

    everything = read(spark, **place).load().select("partition", "txid").localCheckpoint()
    for clause in (
        f"txid > 1 AND 9 >= txid AND partition = {first}",
        f"txid >= 3 AND txid < 11 AND partition IN ({first}, {second}, 65535) AND NOT txid = 7",
        f"txid = 4 AND partition <=> {second}",
        f"(txid < 2 OR partition = {first}) AND partition > {first - 1} AND partition <= {second}",
        "txid IN (-1, 11, 12) AND txid > 3.5",
        f"txid > {2**63 - 1} AND partition < {second}",
    ):
        found = read(spark, **place, pushdown="true").load().select("partition", "txid").where(clause).collect()
        assert sorted(found) == sorted(everything.where(clause).collect()), clause


def test_a_copy_is_exactly_once_and_its_readers_name_the_chain(
    spark: Any, servers: str, partitions: Callable[[int], list[int]], tmp_path: Path
) -> None:
    source, target = partitions(2)
    written = orders(spark)
    written.write.format("waltz").options(servers=servers, partition=source, format="json").mode("append").save()
    rows = spark.readStream.format("waltz").options(servers=servers, partition=source, format="json").schema(SCHEMA)
    copy = rows.options(startingOffsets="earliest").load().writeStream.format("waltz")
    copy = copy.options(servers=servers, partition=target, format="arrow", chain="copies")
    run(copy, tmp_path / "c")
    chain = read(spark, servers, partition=target, chain="copies").schema(SCHEMA)
    assert same(chain.load(), written)
    # The commit log is what Spark writes last: without it, it repeats the batch, as after a kill.
    for done in (tmp_path / "c" / "commits").iterdir():
        done.unlink()
    run(copy, tmp_path / "c")
    assert same(chain.load(), written)
    with pytest.raises(Exception, match="is an entry of a chain: read it with option 'chain'"):
        read(spark, servers, partition=target, format="json").schema(SCHEMA).load().count()


def test_a_batch_is_written_once_under_its_name(spark: Any, servers: str, partition: int) -> None:
    written = orders(spark, 10)
    for _ in range(2):
        options = {"servers": servers, "partition": partition, "chain": "c", "writerId": "w", "batchId": 5}
        written.write.format("waltz").options(**options, format="json").mode("append").save()
    assert same(read(spark, servers, partition=partition, chain="c").schema(SCHEMA).load(), written)


def test_bad_records_are_told_from_good_ones_in_sql(spark: Any, servers: str, partition: int) -> None:
    rows = [(b'{"id":1}',), (b"null",), (b'{"id":"x"}',), (b'{"id":2}\n{"id":3}',)]
    frame = spark.createDataFrame(rows, "data BINARY").coalesce(1)
    frame.write.format("waltz").options(servers=servers, partition=partition).mode("append").save()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW bad (id BIGINT, txid BIGINT, seq INT, _corrupt_record STRING) USING waltz "
        f"OPTIONS (servers '{servers}', partition '{partition}', format 'json')"
    )
    found = spark.sql("SELECT * FROM bad ORDER BY txid, seq").collect()
    assert [tuple(r) for r in found] == [
        (1, 0, 0, None), (None, 1, 0, "null"), (None, 2, 0, '{"id":"x"}'), (2, 3, 0, None), (3, 3, 1, None),
    ]  # fmt: skip
    with pytest.raises(Exception, match="transaction 1 does not fit the schema"):
        read(spark, servers, partition=partition, format="json", mode="FAILFAST").schema("id BIGINT").load().collect()


def test_a_position_that_the_log_does_not_have_is_a_loss_unless_it_is_accepted(
    spark: Any, servers: str, partition: int
) -> None:
    place = {"servers": servers, "partition": partition, "startingOffsets": json.dumps({partition: 7})}
    with pytest.raises(Exception, match="ends before transaction 0, but the read must go on at 7"):
        read(spark, **place).load().count()
    assert read(spark, **place, failOnDataLoss="false").load().count() == 0


def test_a_batch_that_ends_before_it_begins_is_refused(spark: Any, servers: str, partition: int) -> None:
    frame = spark.createDataFrame([(b"a",), (b"b",), (b"c",)], "data BINARY").coalesce(1)
    frame.write.format("waltz").options(servers=servers, partition=partition).mode("append").save()
    begin, end = ({name: json.dumps({partition: at})} for name, at in (("startingOffsets", 2), ("endingOffsets", 1)))
    with pytest.raises(Exception, match="nothing would be read"):
        read(spark, servers, partition=partition, **begin, **end).load().count()
    assert read(spark, servers, partition=partition, **begin).load().count() == 1


def test_what_is_not_offered_is_refused_in_words(spark: Any, servers: str) -> None:
    with pytest.raises(Exception, match="Did you mean 'startingOffsets'"):
        read(spark, servers, startingOffset="latest").load().count()
    with pytest.raises(Exception, match="declare them"):
        read(spark, servers, format="json").load()
    with pytest.raises(Exception, match="only ever appended to"):
        orders(spark, 1).write.format("waltz").options(servers=servers, format="json").mode("overwrite").save()
    with pytest.raises(Exception, match="the log has no partition 999"):
        read(spark, servers, partition=999).load().count()

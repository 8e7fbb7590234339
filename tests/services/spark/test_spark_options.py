"""Options and offsets of the format `waltz`: what a user may write, and what each means."""

from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.dataflow.ports import Format, Mode
from pavane.spark import offsets
from pavane.spark.errors import DataLossError, OptionError
from pavane.spark.offsets import Range
from pavane.spark.options import Delivery, parse_partitions, read_options, write_options

SERVERS = {"servers": "a:1, b:2"}


def test_names_have_no_case_and_defaults_are_sparks() -> None:
    found = read_options({"SERVERS": "a:1,b:2", "FORMAT": "Json", "MODE": "failfast"}, streaming=False)
    assert (found.servers, found.format, found.mode) == (("a:1", "b:2"), Format.JSON, Mode.FAILFAST)
    assert (found.starting, found.ending, found.fail_on_data_loss) == ("earliest", "latest", True)
    assert read_options(SERVERS, streaming=True).starting == "latest"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the addresses of servers"),
        ({"servers": "host"}, "an address is host:port"),
        (SERVERS | {"startingOffset": "latest"}, "Did you mean 'startingOffsets'"),
        (SERVERS | {"colour": "red"}, "It knows: "),
        (SERVERS | {"format": "csv"}, "one of: json, arrow, raw"),
        (SERVERS | {"mode": "strict"}, "PERMISSIVE, DROPMALFORMED, FAILFAST"),
        (SERVERS | {"failOnDataLoss": "maybe"}, "true or false"),
        (SERVERS | {"minPartitions": "0"}, "between 1"),
        (SERVERS | {"maxRecordsPerPartition": "many"}, "whole number"),
        (SERVERS | {"partitions": "3-1"}, "'3-1'"),
        (SERVERS | {"partition": "1", "partitions": "2"}, "exclude each other"),
        (SERVERS | {"maxOffsetsPerTrigger": "5"}, "no option 'maxoffsetspertrigger' for reading"),
        (SERVERS | {"chain": "c", "format": "json"}, "each entry of a chain says"),
        (SERVERS | {"chain": "c", "partitions": "0-1"}, "home partition"),
        (SERVERS | {"tls.key": "k"}, "'tls.ca' is missing"),
        (SERVERS | {"tls.ca": "c", "tls.key": "k"}, "belong together"),
    ],
)
def test_wrong_options_of_a_read_are_refused_in_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_options(options, streaming=False)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("options", "streaming", "words"),
    [
        (SERVERS, True, "name it with option 'chain'"),
        (SERVERS | {"chain": "c"}, False, "give options 'writerId' and 'batchId'"),
        (SERVERS | {"chain": "c", "delivery": "plain"}, True, "needs option 'delivery' = 'chain'"),
        (SERVERS | {"writerId": "w"}, False, "belong to option 'chain'"),
        (SERVERS | {"chain": "c", "header": "1"}, True, "belongs to delivery 'plain'"),
        (SERVERS | {"header": str(2**31)}, False, "between"),
        (SERVERS | {"mode": "FAILFAST"}, False, "no option 'mode' for writing"),
    ],
)
def test_wrong_options_of_a_write_are_refused_in_words(options: dict[str, str], streaming: bool, words: str) -> None:
    with pytest.raises(OptionError) as refused:
        write_options(options, streaming=streaming)
    assert words in str(refused.value)


def test_a_stream_is_written_exactly_once_and_a_batch_at_least_once_unless_said_otherwise() -> None:
    stream = write_options(SERVERS | {"chain": "c", "checkpointLocation": "/c"}, streaming=True)
    assert (stream.delivery, stream.partitions, stream.checkpoint) == (Delivery.CHAIN, (0,), "/c")
    assert write_options(SERVERS, streaming=False).delivery is Delivery.PLAIN
    assert write_options(SERVERS | {"partitionBy": "a, b"}, streaming=False).partitions is None


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_partitions("5, 0-2,1") == (0, 1, 2, 5)


def test_offsets_are_words_or_json_for_each_partition() -> None:
    ends = {0: 10, 1: 20}
    firsts = {0: 0, 1: 7}
    assert offsets.resolve("startingOffsets", "earliest", firsts, ends) == firsts
    assert offsets.resolve("endingOffsets", "LATEST", firsts, ends) == ends
    assert offsets.resolve("startingOffsets", '{"0": -1, "1": -2}', firsts, ends) == {0: 10, 1: 7}
    assert offsets.from_json(offsets.to_json(ends)) == ends
    for wrong in ("soon", "[]", '{"0": "1", "1": 2}', '{"0": -3, "1": 1}', '{"x": 1}', '{"0": true, "1": 1}'):
        with pytest.raises(OptionError, match="it must be earliest, latest or JSON"):
            offsets.resolve("startingOffsets", wrong, firsts, ends)
    with pytest.raises(OptionError, match="must name each of them"):
        offsets.resolve("startingOffsets", '{"0": 1}', firsts, ends)


def test_a_log_that_ends_before_the_position_is_a_loss() -> None:
    with pytest.raises(DataLossError, match="partition 1 ends before transaction 20"):
        offsets.check_held({0: 1, 1: 30}, {0: 10, 1: 20}, fail=True)
    assert offsets.check_held({0: 1, 1: 30}, {0: 10, 1: 20}, fail=False) == {0: 1, 1: 20}


@settings(derandomize=True)
@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1),
    st.integers(1, 2000),
)
def test_a_trigger_takes_no_more_than_its_limit_and_reaches_the_end(
    held: dict[int, tuple[int, int]], most: int
) -> None:
    position = {p: start for p, (start, _) in held.items()}
    ends = {p: start + count for p, (start, count) in held.items()}
    while position != ends:
        after = offsets.limited(position, ends, most)
        taken = sum(after[p] - position[p] for p in ends)
        assert 0 < taken <= most
        assert all(position[p] <= after[p] <= ends[p] for p in ends)
        position = after


@settings(derandomize=True)
@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 9), st.integers(0, 500))),
    st.integers(1, 20),
    st.none() | st.integers(1, 100),
)
def test_tasks_share_a_range_without_gap_or_overlap(
    held: dict[int, tuple[int, int]], least: int, most: int | None
) -> None:
    start = {p: a for p, (a, _) in held.items()}
    stop = {p: a + n for p, (a, n) in held.items()}
    found = offsets.split(start, stop, least, most)
    assert [(r.partition, x) for r in found for x in range(r.start, r.stop)] == [
        (p, x) for p in sorted(stop) for x in range(start[p], stop[p])
    ]
    assert all(0 < r.stop - r.start <= (most or 500) for r in found)
    assert offsets.split({}, {0: 3}, 9, None) == [Range(0, 0, 1), Range(0, 1, 2), Range(0, 2, 3)]


@pytest.mark.parametrize(
    ("start", "stop", "first", "fail", "error"),
    [
        (17, 5, 0, True, OptionError),
        (17, 5, 0, False, OptionError),
        (10, 5, 10, True, DataLossError),
        (10, 5, 10, False, None),
        (5, 5, 0, True, None),
        (0, 5, 0, True, None),
    ],
)
def test_a_batch_that_ends_before_it_begins_is_no_empty_one(
    start: int, stop: int, first: int, fail: bool, error: type[Exception] | None
) -> None:
    with pytest.raises(error, match="partition 3") if error is not None else nullcontext():
        offsets.check_order({3: start}, {3: stop}, {3: first}, fail=fail)

"""Spark's blocking reads of a log that was trimmed: an error that says so, or what is left."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pavane.spark.errors import DataLossError
from pavane.spark.log import BlockingLog
from pavane.waltz.client import Transaction
from pavane.waltz.errors import RejectCode, Trimmed
from pavane.waltz.wire.fields import ReqId

FIRST, END = 5, 9


class TrimmedLog:
    """Keeps ``FIRST`` to ``END`` - 1."""

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Transaction]:
        if start < FIRST:
            raise Trimmed(RejectCode.TRIMMED, FIRST, f"partition {partition} begins with transaction {FIRST}")
        for txid in range(start, min(stop, END)):
            yield Transaction(txid, 0, b"", ReqId(1, 1, partition, txid))

    async def first(self, partition: int) -> int:
        return FIRST


def opened() -> BlockingLog:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        yield TrimmedLog()

    return BlockingLog(connect)


def ids(log: BlockingLog, start: int, stop: int, *, fail: bool = True) -> list[int]:
    return [record.id for records in log.read(0, start, stop, fail=fail) for record in records]


def test_a_read_below_the_first_transaction_fails_in_words_or_begins_there() -> None:
    with opened() as log:
        assert log.firsts([0, 1]) == {0: FIRST, 1: FIRST}
        assert ids(log, FIRST, END) == [5, 6, 7, 8]
        with pytest.raises(
            DataLossError, match=r"begins with transaction 5, but the read must go on at 2\. Begin anew"
        ):
            ids(log, 2, END)
        assert ids(log, 2, END, fail=False) == [5, 6, 7, 8]
        assert ids(log, 2, 4, fail=False) == []

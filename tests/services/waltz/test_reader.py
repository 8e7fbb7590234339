"""Reads of a server that may not write: how many there may be, and what becomes of them once it may."""

import pytest

from pavane.waltz.core import outputs as o
from pavane.waltz.core import reader
from pavane.waltz.core.connection import Connection
from pavane.waltz.core.reader import Reader
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import UNRESOLVED, PartitionMetadata, ReplicaState
from pavane.waltz.wire.fields import ReqId

HWM = 9


def reading(version: int = 5) -> tuple[Reader, list[o.Output], Connection]:
    """A partition of which the owner has told the HWM and the metadata a storage node, and a client that reads."""
    out: list[o.Output] = []
    found, connection = Reader(0, out, lambda: "owner:1"), Connection(1, version)
    found.message(0.0, connection, m.HighWaterMarkRequest(ReqId(1, 0, 0, 0)))
    owner_says(out, 0.0)
    found.metadata(0.0, -1, PartitionMetadata(1, 3, (ReplicaState(0, "node:1", 3, UNRESOLVED),)))
    out.clear()
    return found, out, connection


def owner_says(out: list[o.Output], now: float) -> None:
    [asked] = [each for each in out if isinstance(each, o.AskOwner)]
    asked.answer(now, HWM)


def ask(of: Reader, connection: Connection, number: int) -> None:
    of.message(0.0, connection, m.TransactionDataRequest(ReqId(1, 0, 0, number), number))


def answers(out: list[o.Output]) -> list[bytes | str]:
    return [each.message.result for each in out if isinstance(each, o.Reply)]


@pytest.mark.parametrize("version", [4, 5])
def test_a_read_that_is_under_way_is_answered_when_the_server_may_write(version: int) -> None:
    found, out, connection = reading(version)
    ask(found, connection, 1)
    assert [type(each) for each in out] == [o.ReadStorage]
    found.close()
    assert answers(out) == ["the storage nodes cannot be read"]


def test_one_connection_has_so_many_reads_under_way_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PARKED_MAX", 2)
    found, out, connection = reading()
    for number in range(3):
        ask(found, connection, number)
    assert sum(isinstance(each, o.ReadStorage) for each in out) == 2
    assert answers(out) == ["too many requests wait"]
    [first, *_] = [each for each in out if isinstance(each, o.ReadStorage)]
    first.answer(0.0, 3, None)
    out.clear()
    ask(found, connection, 3)
    assert [type(each) for each in out] == [o.ReadStorage]


def test_what_was_trimmed_since_the_metadata_were_read_is_said_to_be() -> None:
    """It may still be in a file, or in none; the server looks again after a read that failed."""
    found, out, connection = reading()
    ask(found, connection, 2)
    [read] = [each for each in out if isinstance(each, o.ReadStorage)]
    read.answer(0.0, 3, None)
    assert answers(out) == ["the storage nodes cannot be read"]
    due = found.next_due()
    assert due is not None
    found.tick(due)
    owner_says(out, due)
    found.metadata(due, -2, PartitionMetadata(1, 3, (ReplicaState(0, "node:1", 3, UNRESOLVED),), 5))
    out.clear()
    ask(found, connection, 2)
    [said] = answers(out)
    assert "partition 0 begins with transaction 5" in str(said)

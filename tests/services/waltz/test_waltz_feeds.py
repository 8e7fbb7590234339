"""Feeds of one partition: what many readers get is made once, and each gets what its own credit and frame allow."""

import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from pavane.waltz.core import feed
from pavane.waltz.core.connection import Connection
from pavane.waltz.core.feed import CREDIT_MAX, Feeds
from pavane.waltz.core.outputs import Output, Reply
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId, Shared
from pavane.waltz.wire.storage import Record
from pavane.waltz.wire.tables import RESPONSES

DATA = bytes(1000)


def _records(first: int, count: int) -> list[Record]:
    return [Record.of(txid, ReqId(1, 1, 0, txid), 7, DATA) for txid in range(first, first + count)]


class Readers:
    """Readers of one partition; ``got`` has the batches of each, as they travel."""

    def __init__(self) -> None:
        self._out: list[Output] = []
        self.feeds = Feeds(self._out, lambda txid, limit, answer: answer(None))
        self.feeds.opened(-1)
        self._count = 0

    def open(self, items: int = 1000, data_bytes: int = CREDIT_MAX, frame_bytes: int = 0, inline: int = -1) -> int:
        self._count += 1
        request = m.FeedBatchRequest(ReqId(9, 1, 0, -1), -1, items, data_bytes, frame_bytes, inline, 0)
        self.feeds.request_batches(Connection(self._count, 5), request)
        return self._count

    def sent(self) -> list[tuple[int, m.FeedBatch]]:
        found = [(output.connection, output.message) for output in self._out if isinstance(output, Reply)]
        self._out.clear()
        return found


def test_items_for_many_readers_are_encoded_once() -> None:
    readers = Readers()
    for _ in range(3):
        readers.open()
    readers.feeds.commit(_records(0, 4))
    batches = [batch for _, batch in readers.sent()]
    bodies = {bytes(RESPONSES[5].encode(batch)) for batch in batches}
    assert len(batches) == 3
    assert len(bodies) == 1
    assert RESPONSES[5].decode(bodies.pop()) == batches[0]
    shared = {id(batch.items.encoded) for batch in batches if isinstance(batch.items, Shared)}
    assert len(shared) == 1


def test_each_reader_gets_what_its_own_request_allows() -> None:
    readers = Readers()
    whole, few, little, small, bare = (
        readers.open(),
        readers.open(items=3),
        readers.open(data_bytes=2500),
        readers.open(frame_bytes=4096),
        readers.open(inline=999),
    )
    last = readers.open()
    readers.feeds.commit(_records(0, 5))
    found: dict[int, list[tuple[int, list[bool]]]] = {}
    for connection, batch in readers.sent():
        found.setdefault(connection, []).append((batch.first_txid, [item.data is not None for item in batch.items]))
    assert found == {
        whole: [(0, [True] * 5)],
        few: [(0, [True] * 3)],
        little: [(0, [True] * 2), (2, [True])],
        small: [(0, [True] * 3), (3, [True] * 2)],
        bare: [(0, [False] * 5)],
        last: [(0, [True] * 5)],
    }


@pytest.mark.parametrize("size", [100, 1000])
def test_the_newest_transactions_take_as_much_memory_as_they_are_given(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by Python itself, and with what an object takes beside its data: it stands still once it is full."""
    monkeypatch.setattr(feed, "TAILS_BYTES_MAX", 4 << 20)
    feeds = Feeds([], lambda txid, limit, answer: answer(None))
    feeds.opened(-1)
    count, kept = (4 << 20) // (size + 200), []
    tracemalloc.start()
    try:
        for first in range(1_000_000, 1_000_000 + 3 * count, count):  # numbers that Python does not share
            feeds.commit(
                Record.of(txid, ReqId(70_000, 1000, 0, txid), 7, b"%*d" % (size, txid))
                for txid in range(first, first + count)
            )
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert all(3 << 20 < each < 4.2 * (1 << 20) for each in kept), kept


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("stored", [False, True])
def test_large_transactions_of_many_partitions_take_no_more_memory_than_all_together_may(
    stored: bool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is at the end is sent one from memory, however large; whoever comes later has it from storage."""
    monkeypatch.setattr(feed, "TAILS_BYTES_MAX", 1 << 20)
    size, partitions = 1 << 18, 16  # each has room for a quarter of one
    asked: list[int] = []
    out: list[Output] = []

    def read(txid: int, limit: int, answer: Callable[[Sequence[Record] | None], None]) -> None:
        asked.append(txid)
        answer([Record.of(txid, ReqId(1, 1, 0, txid), 7, bytes(size))])

    every = [Feeds(out, read) for _ in range(partitions)]
    tracemalloc.start()
    try:
        for number, feeds in enumerate(every):
            feeds.share(partitions)
            feeds.opened(0 if stored else -1)
            if version == 5:
                feeds.request_batches(Connection(number, 5), _batches())
            else:
                feeds.request(Connection(number, version), m.FeedRequest(ReqId(9, 1, 0, -1), -1))
            if not stored:
                feeds.commit([Record.of(0, ReqId(1, 1, 0, 0), 7, bytes(size))])
            (sent,) = [output.message for output in out if isinstance(output, Reply)]
            assert version == 4 or len(RESPONSES[5].encode(sent)) > size
            out.clear()
            del sent
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert asked == ([0] * partitions if stored else [])
    assert kept < 1 << 20


@pytest.mark.parametrize("version", [4, 5])
def test_a_partition_that_is_given_up_or_has_less_room_keeps_nothing_for_its_readers(version: int) -> None:
    size = 1 << 20
    out: list[Output] = []
    feeds = Feeds(out, lambda *_: None)
    tracemalloc.start()
    try:
        for end in (lambda: feeds.share(1 << 20), feeds.close):
            feeds.share(1)
            feeds.opened(-1)
            feeds.commit([Record.of(0, ReqId(1, 1, 0, 0), 7, bytes(size))])
            if version == 5:
                feeds.request_batches(Connection(1, 5), _batches())
            else:
                feeds.request(Connection(1, version), m.FeedRequest(ReqId(9, 1, 0, -1), -1))
            assert [output for output in out if isinstance(output, Reply)]
            out.clear()
            assert tracemalloc.get_traced_memory()[0] > size
            end()
            assert tracemalloc.get_traced_memory()[0] < size
    finally:
        tracemalloc.stop()


def _batches() -> m.FeedBatchRequest:
    return m.FeedBatchRequest(ReqId(9, 1, 0, -1), -1, 1000, CREDIT_MAX, 0, -1, 0)

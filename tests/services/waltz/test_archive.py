"""What is archived is read back below the log's start, whatever happens to the store, to pieces and to owners."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Waltz
from pavane.waltz.core import feed, partition, storing
from pavane.waltz.core.retention import Policy
from pavane.waltz.errors import ArchiveError, Rejected, Trimmed
from pavane.waltz.server import archiving
from pavane.waltz.state.archived import Archived, Piece, folder_of
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage.piece import cut, records_of
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from pavane_operator.kinds.waltz.archives import Owned
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, KEY, Log, RawClient, running_log

KEPT = Policy(bytes_max=40_000, archives=True)
DATA = [b"%d" % number + bytes(2000) for number in range(60)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "LOOK_S", 0.05)
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    monkeypatch.setattr(feed, "TAILS_BYTES_MAX", 10_000)  # else what was dropped is still in memory


class Store:
    """A folder as an archive, that can be away, and can fail at a write with or without having done it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}"
        self.away = self.mute = False
        self.fails: Callable[[bool], bool] = lambda written: False
        self.reading: Callable[[Piece], Awaitable[object]] = lambda piece: asyncio.sleep(0)
        self.written: Callable[[int], Awaitable[object]] = lambda partition: asyncio.sleep(0)

    def __call__(self) -> Archive:
        store = self

        class Opened(Archive):
            async def pieces(self, partition: int) -> list[Piece]:
                store.look()
                return await super().pieces(partition)

            async def read(self, partition: int, piece: Piece) -> list[Record]:
                if store.mute:
                    raise ArchiveError("it gives nothing")
                await store.reading(piece)
                return await super().read(partition, piece)

            async def put(self, partition: int, piece: Piece, data: bytes) -> None:
                store.look()
                for written in (False, True):
                    if store.fails(written):
                        raise ArchiveError("the power went")
                    if not written:
                        await super().put(partition, piece, data)
                await store.written(partition)

        return Opened(self.url, {})

    def look(self) -> None:
        if self.away:
            raise ArchiveError("it is away")

    def pieces(self, partition: int = 0) -> list[Path]:
        return sorted((self.folder / str(partition)).glob("*.seg"))


def archived(log: Log, server: int = 0) -> Archived:
    found = log.servers[server].running.owned[0].keeping.archive
    assert found is not None
    return found


def start(log: Log, server: int = 0) -> int:
    return log.servers[server].running.owned[0].first


def small_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(archiving, "PIECE_BYTES", size)


async def fill(client: Waltz, data: list[bytes] = DATA) -> None:
    for one in data:
        await client.append(0, one)


async def read(client: Waltz, from_: int = 0, stop: int = 1 << 40) -> list[bytes]:
    return [transaction.data async for transaction in client.read(0, from_, stop)]


async def test_the_whole_history_is_read_after_the_storage_nodes_have_dropped_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
            assert start(log) <= await client.start(0) <= start(log)  # it may move on meanwhile
            assert await read(client) == DATA
            assert (await client.get(0, 3)).data == DATA[3]
            assert await client.first(0) == 0
            fed = []
            async for transaction in client.feed(0):
                fed.append(transaction.data)
                if len(fed) == len(DATA):
                    break
            assert fed == DATA
            await client.append(0, b"more")
            await eventually(lambda: archived(log).end == 61, ANSWER_S)
            assert archived(log).first == 0
        found = [piece for path in store.pieces() if (piece := Piece.named(path.name))]
        assert [piece.first for piece in found[1:]] == [piece.last + 1 for piece in found[:-1]]


async def test_who_reads_little_below_the_start_does_not_wait_for_all_that_another_has_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything read any more for a client that has gone, and who asks for too much at once is told so."""
    small_pieces(monkeypatch, 2000)
    monkeypatch.setattr(partition, "PARKED_MAX", 10)
    store, begun, slow = Store(tmp_path / "archive"), list[int](), asyncio.Event()

    async def reading(piece: Piece) -> None:
        begun.append(piece.first)
        await slow.wait()

    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
            many, few, gone = [await RawClient.connect(log.servers[0].port, (5,), number) for number in (7, 8, 9)]
            store.reading = reading
            for one, wanted in ((many, range(10)), (gone, range(10, 19)), (few, range(19, 20))):
                for txid in wanted:
                    one.send(m.TransactionDataRequest(one.reqid(), txid))
                await eventually(lambda first=wanted[0]: first in begun, ANSWER_S)  # type: ignore[misc]
            assert sorted(begun) == [0, 10, 19]
            many.send(m.TransactionDataRequest(many.reqid(), 0))
            assert (await many.next()).result == "too many requests wait"
            gone.abort("gone")
            await eventually(lambda: len(log.servers[0]._clients) == 3, ANSWER_S)
            slow.set()
            assert (await few.next()).result == DATA[19]
            assert [(await many.next()).result for _ in range(10)] == DATA[:10]
            assert sorted(begun) == [*range(11), 19]


async def test_a_piece_ends_after_so_many_transactions_too_however_small_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PIECE_RECORDS", 10)
    monkeypatch.setattr(archiving, "READ_RECORDS", 5)
    store = Store(tmp_path / "archive")
    store.away = True
    async with running_log(tmp_path, policy=Policy(archives=True), archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client, [b""] * 40)
            store.away = False
            await eventually(lambda: archived(log).end == 40, ANSWER_S)
    found = [piece for path in store.pieces() if (piece := Piece.named(path.name))]
    assert [(piece.first, piece.last) for piece in found] == [(0, 9), (10, 19), (20, 29), (30, 39)]


async def test_while_the_store_is_away_appends_go_on_and_nothing_is_dropped_that_is_not_archived(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client, DATA[:30])
            await eventually(lambda: archived(log).end == 30, ANSWER_S)
            store.away, began_ms = True, time.time_ns() // 1_000_000
            await fill(client, DATA[30:])
            await eventually(lambda: archived(log).fault, ANSWER_S)
            assert archived(log).fault == "it is away"
            kept = log.servers[0].running.owned[0].keeping
            await eventually(lambda: kept._wanted > 30, ANSWER_S)
            assert start(log) <= 30
            document = log.servers[0].partitions_json()
            (told_to_operator,) = Owned.model_validate(document).partitions
            assert told_to_operator.archive is not None
            assert told_to_operator.archive.fault == "it is away"
            assert began_ms <= told_to_operator.archive.faulty_ms <= time.time_ns() // 1_000_000
            state = document["partitions"][0]["archive"]
            assert (state["end"], state["waiting"]) == (30, 30)
            assert state["waiting_bytes"] == sum(map(len, DATA[30:]))
            assert state["faulty_s"] > 0
            told = {one.name: one.value for one in log.servers[0].metrics()}
            assert told["pavane_waltz_archive_end"] == 30
            assert told["pavane_waltz_archive_waiting_bytes"] == state["waiting_bytes"]
            assert told["pavane_waltz_archive_failing_seconds"] > 0
            store.away = False
            await eventually(lambda: start(log) > 30, ANSWER_S)
            assert not archived(log).fault
            assert await read(client) == DATA


async def test_with_drop_retention_goes_on_while_the_store_is_away_and_readers_are_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "archive")
    policy = Policy(bytes_max=40_000, archives=True, drops=True)
    async with running_log(tmp_path, policy=policy, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await client.append(0, b"first")
            await eventually(lambda: archived(log).end == 1, ANSWER_S)
            store.away = True
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
            before = start(log)
            with pytest.raises(Trimmed) as told:
                await client.get(0, 0)
            assert before <= told.value.first <= start(log)
            await eventually(lambda: archived(log).end >= before, ANSWER_S)  # a look in hand may have begun earlier
            store.away = False
            await eventually(lambda: archived(log).end == 61, ANSWER_S)
            gap = await client.first(0)  # more may have been dropped before the archive had anything again
            assert archived(log).first <= gap
            later = [piece for path in store.pieces() if (piece := Piece.named(path.name)) is not None and piece.first]
            assert min(piece.first for piece in later) >= before, "what had expired meanwhile is not uploaded first"
            assert await read(client, gap) == [b"first", *DATA][gap:]


async def test_a_damaged_or_missing_piece_gives_no_row_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "archive")
    small_pieces(monkeypatch, 10_000)  # else a store that is slow at first gets all in one
    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        address = f"127.0.0.1:{log.servers[0].port}"
        async with Waltz([address]) as client:
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
        async with Waltz([address], patience=0.5) as client:
            first, second, *_ = store.pieces()
            whole = first.read_bytes()
            flipped = bytearray(whole)
            flipped[500] ^= 1
            first.write_bytes(flipped)
            with pytest.raises(Rejected, match="does not match its SHA-256"):
                await client.get(0, 0)
            first.unlink()
            with pytest.raises(Rejected, match="not found"):
                await client.get(0, 0)
            first.write_bytes(whole)
            assert (await client.get(0, 0)).data == DATA[0]
            behind = Piece.named(second.name)
            assert behind is not None
            second.unlink()
            await log.servers.pop().stop()
            await log.start_server()
            await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            with pytest.raises(Trimmed) as told:
                await read(client)
            assert behind.first < told.value.first
            assert await read(client, told.value.first) == DATA[told.value.first :]


@pytest.mark.parametrize("written", [False, True])
async def test_a_crash_at_any_write_leaves_an_archive_that_the_next_owner_goes_on_with(
    tmp_path: Path, written: bool
) -> None:
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await client.append(0, DATA[0])
            await eventually(lambda: archived(log).end == 1, ANSWER_S)
        for end in range(10, 60, 10):
            store.fails = lambda when: when is written
            async with Waltz([f"127.0.0.1:{log.servers[-1].port}"]) as client:
                for one in DATA[1 if end == 10 else end - 10 : end]:
                    await client.append(0, one)
                await eventually(lambda: archived(log).fault, ANSWER_S)
            await log.servers.pop().stop()
            (store.folder / "0" / f"{store.pieces()[0].name}#1").write_bytes(b"what an interrupted write leaves")
            store.fails = lambda when: False
            await log.start_server()
            await log.settled()
            await eventually(lambda end=end: archived(log).end == end, ANSWER_S)  # type: ignore[misc]
            assert archived(log).first == 0
        async with Waltz([f"127.0.0.1:{log.servers[-1].port}"]) as client:
            assert await read(client) == DATA[:50]


async def test_two_owners_that_cut_differently_do_no_harm(tmp_path: Path) -> None:
    """The old one wakes up late, and writes what it had in hand, of which the new one has written more."""
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
            late = Archive(store.url, {})
            records = [one for piece in archived(log).pieces()[:6] for one in await late.read(0, piece)]
            for first, last in [(0, 3), (2, 5), (5, len(records) - 1)]:
                piece, data = cut(KEY, 0, records[first : last + 1])
                await late.put(0, piece, data)
                await late.put(0, piece, data)
            await log.servers.pop().stop()
            await log.start_server()
            await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert await read(client) == DATA


async def test_a_trim_by_hand_goes_as_far_as_the_archive_unless_it_is_forced(tmp_path: Path) -> None:
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=Policy(archives=True), archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client, DATA[:10])
            await eventually(lambda: archived(log).end == 10, ANSWER_S)
            store.away = True
            await fill(client, DATA[10:20])
            assert (await client.trim(0, 15, dry_run=True)).first == 10
            assert (await client.trim(0, 15)).first == 10
            assert await read(client) == DATA[:20]
            assert (await client.trim(0, 15, force=True)).first == 15
            with pytest.raises(Trimmed):
                await client.get(0, 12)


async def test_a_piece_that_the_start_has_passed_while_it_was_written_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=Policy(archives=True), archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:

            async def trim(_: int) -> None:
                if not start(log):
                    await client.trim(0, 1, force=True)

            store.written = trim
            await fill(client, DATA[:10])
            await eventually(lambda: archived(log).end == 10, ANSWER_S)
            assert (start(log), archived(log).first) == (1, 0)
            assert await read(client) == DATA[:10]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_mount_that_waits_for_the_archive_goes_on_when_that_answers(tmp_path: Path, version: int) -> None:
    """Nothing is appended meanwhile, which would have it try again as well."""
    store = Store(tmp_path / "archive")
    async with running_log(tmp_path, policy=KEPT, archive=store) as log:
        await log.settled()
        port = log.servers[0].port
        async with Waltz([f"127.0.0.1:{port}"]) as client:
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
        store.mute = True
        old = await RawClient.connect(port, versions=[version])
        old.send(m.MountRequest(old.reqid(), -1, 0))
        await eventually(lambda: archived(log).unread, ANSWER_S)
        store.mute = False
        assert (await old.next(m.MountResponse)).state == m.MountState.READY


@pytest.mark.parametrize("count", [9, 100])
async def test_of_an_archive_of_another_log_nothing_counts_also_when_this_one_has_grown_beyond_it(
    tmp_path: Path, count: int
) -> None:
    store = Store(tmp_path / "archive")
    piece, data = cut(KEY, 0, [Record.of(number, ReqId(1, 1, 0, 1), 0, b"another log") for number in range(count)])
    await store().put(0, piece, data)
    async with running_log(tmp_path, partitions=2, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await client.append(0, DATA[0])
            await client.append(1, b"the other partition goes on")
            await eventually(lambda: archived(log).fault, ANSWER_S)
            await fill(client, DATA[1:])
            kept = log.servers[0].running.owned[0].keeping
            await eventually(lambda: kept._wanted > 20, ANSWER_S)
            await eventually(lambda: "than the log" in archived(log).fault or count > len(DATA), ANSWER_S)
            await client.consumer("behind").start(0, len(DATA))  # the metadata are written, so retention has its turn
            assert start(log) == 0
            assert "it is not the archive of this log" in archived(log).fault
            await eventually(lambda: store.pieces(1), ANSWER_S)
            other = log.servers[0].running.owned[1].keeping.archive
            assert other is not None
            await eventually(lambda: not other.fault, ANSWER_S)
            assert store.pieces() == [store.folder / "0" / piece.name]
            assert await read(client) == DATA


async def test_a_partition_whose_archive_is_at_fault_holds_up_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "archive")
    piece, data = cut(KEY, 0, [Record.of(number, ReqId(1, 1, 0, 1), 0, b"another log") for number in range(9)])
    await store().put(0, piece, data)
    async with running_log(tmp_path, partitions=2, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await client.append(0, b"here")
            await client.append(1, b"there")
            await eventually(lambda: archived(log).fault, ANSWER_S)
            await eventually(lambda: len(store.pieces(1)) == 1, ANSWER_S)
            other = log.servers[0].running.owned[1].keeping.archive
            assert other is not None
            assert not other.fault


async def test_a_partition_that_never_stops_growing_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of partition 0 a piece more is there whenever one was written."""
    store = Store(tmp_path / "archive")
    small_pieces(monkeypatch, 1000)
    async with running_log(tmp_path, partitions=2, policy=KEPT, archive=store) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            store.written = lambda partition: client.append(0, DATA[0]) if partition == 0 else asyncio.sleep(0)
            await client.append(0, DATA[0])
            await client.append(1, DATA[1])
            await eventually(lambda: len(store.pieces(0)) > 3, ANSWER_S)
            await eventually(lambda: len(store.pieces(1)) == 1, ANSWER_S)


async def test_a_piece_that_cannot_be_read_is_no_reason_to_drop_what_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "archive")
    policy = Policy(bytes_max=40_000, archives=True, drops=True)
    async with running_log(tmp_path, policy=policy, archive=store) as log:
        await log.settled()
        address = f"127.0.0.1:{log.servers[0].port}"
        async with Waltz([address]) as client:
            await fill(client)
            await eventually(lambda: start(log) > 20, ANSWER_S)
        monkeypatch.setattr(archiving, "STEP_S", 3600)
        store.pieces()[0].unlink()
        async with Waltz([address], patience=0.5) as client:
            with pytest.raises(Rejected, match="not found"):
                await client.get(0, 0)
            assert not archived(log).fault


def test_every_byte_of_a_piece_counts() -> None:
    records = [Record.of(number, ReqId(1, 1, 4, number), 7, b"data") for number in range(5, 8)]
    piece, data = cut(KEY, 4, records)
    assert Piece.named(piece.name) == piece
    assert records_of(piece, data, 4) == (KEY, records)
    for at in range(len(data)):
        with pytest.raises(Damaged):
            records_of(piece, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 4)
        with pytest.raises(Damaged):
            records_of(piece, data[:at], 4)
    for other in (piece._replace(last=8), piece._replace(first=4)):
        with pytest.raises(Damaged):
            records_of(other, data, 4)
    with pytest.raises(Damaged):
        records_of(piece, data, 3)


def test_what_is_joined_to_the_log_can_be_read_and_nothing_before_a_gap() -> None:
    def listed(ranges: list[tuple[int, int]], begins: int) -> Archived:
        found = Archived()
        assert found.begins(begins) == 0
        found.listed([Piece(first, last, "0" * 64) for first, last in ranges], begins)
        return found

    def state(found: Archived, begins: int) -> tuple[int, int, int]:
        return found.first, found.end, found.begins(begins)

    assert state(listed([], 0), 0) == (0, 0, 0)
    assert state(listed([], 7), 7) == (7, 7, 7)
    assert state(listed([(0, 4), (5, 9)], 7), 7) == (0, 10, 0)
    assert state(listed([(5, 9), (0, 4)], 10), 10) == (0, 10, 0)
    assert state(listed([(0, 4), (6, 9)], 7), 7) == (6, 10, 6)
    assert state(listed([(0, 4)], 7), 7) == (7, 7, 7)
    assert state(listed([(0, 4), (6, 9)], 3), 3) == (0, 5, 0)
    assert state(listed([(0, 4), (6, 9)], 5), 5) == (0, 5, 0)
    assert state(listed([(6, 9)], 3), 3) == (3, 3, 3)
    overlapping = listed([(0, 4), (0, 2), (3, 3), (2, 8), (5, 6), (9, 9)], 0)
    assert state(overlapping, 0) == (0, 10, 0)
    for txid in range(10):
        piece = overlapping.piece(txid)
        assert piece is not None
        assert piece.first <= txid <= piece.last
    assert overlapping.piece(10) is None


async def test_each_log_has_a_folder_of_its_own_whatever_its_name(tmp_path: Path) -> None:
    piece, data = cut(KEY, 0, [Record.of(0, ReqId(1, 1, 0, 1), 0, b"data")])
    for name in ("plain", "odd?a", "odd#a", "odd%2Fa", "é ü"):
        archive = Archive(f"file://{tmp_path}/{folder_of(name, KEY)}", {})
        assert await archive.pieces(0) == []
        await archive.put(0, piece, data)
        assert (tmp_path / f"{name}-{KEY.hex[:8]}" / "0" / piece.name).read_bytes() == data


def test_options_and_urls_that_no_store_has_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="a store is at s3://"):
        Archive("ftp://there/x", {})
    with pytest.raises(ArchiveError, match="s3://\\[bucket/x: Invalid"):
        Archive("s3://[bucket/x", {})
    with pytest.raises(ArchiveError, match="option password"):
        Archive("s3://bucket/x", {"password": "secret"})
    with pytest.raises(ArchiveError, match="aws_nothing"):
        Archive("s3://bucket/x", {"aws_nothing": "secret"})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArchiveError, match="file"):
        Archive(f"file://{tmp_path}/file", {})
    shutil.rmtree(tmp_path)

"""A log that begins somewhere: what readers of every version are told, and what becomes of replicas that lag behind."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pavane.waltz.aio import storage
from pavane.waltz.client import Rejected, Trimmed, Waltz
from pavane.waltz.client import waltz as waltz_client
from pavane.waltz.core import retention, storing
from pavane.waltz.core.connection import Connection
from pavane.waltz.core.feed import Feeds
from pavane.waltz.core.outputs import Hangup, Output, Reply
from pavane.waltz.errors import RejectCode
from pavane.waltz.state.metadata import BadVersion
from pavane.waltz.storage.directory import DROPPED_MAX
from pavane.waltz.wire import blobs
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import STORAGE_SERVER, FeedBurst
from pavane.waltz.wire.storage import Record
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, Log, RawClient, running_log

COUNT, FIRST = 12, 8


async def filled(log: Log) -> Waltz:
    await log.settled()
    client = Waltz([f"127.0.0.1:{log.servers[0].port}"])
    await client.__aenter__()
    for number in range(COUNT):
        await client.append(0, b"%d" % number)
    return client


async def test_everybody_is_told_with_which_transaction_the_log_begins(tmp_path: Path) -> None:
    """Also where the files still hold what was trimmed, and after the next owner has taken over."""
    async with running_log(tmp_path) as log:
        client = await filled(log)
        assert await client.first(0) == 0
        assert await client.trim(0, FIRST, dry_run=True) == (0, FIRST, COUNT - 1)
        assert await client.first(0) == 0
        with pytest.raises(Rejected, match="CLIENT_AHEAD"):
            await client.trim(0, COUNT + 1)
        assert await client.trim(0, FIRST) == (0, FIRST, COUNT - 1)
        assert await client.trim(0, 3) == (FIRST, FIRST, COUNT - 1), "it never goes back"
        for _ in range(2):
            for read in (client.feed(0, from_=FIRST - 1), client.read(0, 0, COUNT)):
                with pytest.raises(Trimmed, match=f"partition 0 begins with transaction {FIRST}") as told:
                    await anext(read)
                assert told.value.first == FIRST
            assert [tx.id async for tx in client.read(0, FIRST, COUNT)] == list(range(FIRST, COUNT))
            await log.servers.pop().stop()
            await log.start_server()
            await client.__aexit__(None, None, None)
            await log.settled()
            client = Waltz([f"127.0.0.1:{log.servers[0].port}"])
            await client.__aenter__()
        await client.__aexit__(None, None, None)


@pytest.mark.parametrize(("version", "state"), [(2, m.MountState.NOT_READY), (4, m.MountState.CLIENT_AHEAD)])
async def test_a_client_of_the_original_gets_the_answer_that_ends_its_mount(
    tmp_path: Path, version: int, state: m.MountState
) -> None:
    async with running_log(tmp_path) as log:
        client = await filled(log)
        await client.trim(0, FIRST)
        raw = await RawClient.connect(log.servers[0].port, (version,), client=77)
        raw.send(m.MountRequest(raw.reqid(), FIRST - 2, 0))
        assert (await raw.next(m.MountResponse)).state == state
        raw.send(m.TransactionDataRequest(raw.reqid(), FIRST - 1))
        text = (await raw.next(m.TransactionDataResponse)).result
        assert text.endswith(
            f"transactionId={FIRST - 1} (partition 0 begins with transaction {FIRST}: older ones were trimmed)"
        )
        await raw.mount(FIRST - 1)
        raw.send(m.FeedRequest(raw.reqid(), FIRST - 2))
        assert await raw.next(m.FeedSuspended) is None, "the connection ends, as for a client that is ahead"
        await client.__aexit__(None, None, None)


async def test_a_replica_that_was_away_or_is_empty_begins_where_the_log_does(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await filled(log)
        await log.until_all_vote()
        await log.stop_node(2)
        for number in range(COUNT, 2 * COUNT):
            await client.append(0, b"%d" % number)
        await client.trim(0, COUNT + 5)
        await log.start_node(2)
        await client.append(0, b"last")
        await log.until_all_vote()
        files = log.nodes[2].directory.partition(0)
        assert files is not None
        assert (files.first, files.max_txid) == (COUNT + 5, 2 * COUNT)
        assert [record.data for record in files.read(COUNT + 5, 100)][:-1] == [b"%d" % n for n in range(17, 24)]
        await client.__aexit__(None, None, None)


CONNECTION, ASKED = 5, ReqId(1, 1, 0, 1)


def fed(outputs: list[Output], connection: int) -> list[object]:
    """What a reader gets: numbers of transactions, then with what its feed or mount ends."""
    found: list[object] = []
    for one in outputs:
        if isinstance(one, Hangup) and one.connection == connection:
            found.append("hangup")
        elif isinstance(one, Reply) and one.connection == connection:
            match one.message:
                case m.FeedBatch() as batch:
                    found += range(batch.first_txid, batch.first_txid + len(batch.items))
                case FeedBurst() as burst:
                    found += [record.txid for record in burst]
                case m.Reject() as refusal:
                    found.append((refusal.code, refusal.request_type, refusal.detail))
                case m.MountResponse() as response:
                    found.append(response.state)
    return found


TRIMMED = {32: (RejectCode.TRIMMED, 32, FIRST), 0: (RejectCode.TRIMMED, 0, FIRST)}


@pytest.mark.parametrize("before", [0, 3], ids=["nothing was read", "some was read"])
@pytest.mark.parametrize(
    ("version", "ask", "end"),
    [
        (5, m.FeedBatchRequest(ASKED, -1, 1000, 1 << 20, 0, -1, 0), TRIMMED[32]),
        (5, m.MountRequest(ASKED, -1, 0), TRIMMED[0]),
        (4, m.MountRequest(ASKED, -1, 0), m.MountState.CLIENT_AHEAD),
        (4, m.FeedRequest(ASKED, -1), "hangup"),
        (0, m.FeedRequest(ASKED, -1), "hangup"),
    ],
    ids=["batches", "mount", "mount of V4", "feed of V4", "feed of V0"],
)
def test_a_reader_that_is_overtaken_while_it_reads_gets_what_was_read_and_is_told(
    version: int, ask: m.FeedBatchRequest | m.MountRequest | m.FeedRequest, end: object, before: int
) -> None:
    """Never fewer transactions, and no silence; what the storage node finds after that is sent to nobody."""
    out: list[Output] = []
    reads: dict[int, Callable[[Sequence[Record] | None], None]] = {}
    feeds = Feeds(out, lambda txid, _limit, answer: reads.__setitem__(txid, answer))
    feeds.opened(COUNT - 1)
    records = [Record.of(number, ASKED, 0, b"%d" % number) for number in range(COUNT)]
    behind, level = Connection(CONNECTION, version), Connection(CONNECTION + 1, 5)
    match ask:
        case m.FeedBatchRequest():
            feeds.request_batches(behind, ask)
        case m.MountRequest():
            feeds.mount(behind, ask)
        case m.FeedRequest():
            feeds.request(behind, ask)
    feeds.request_batches(level, m.FeedBatchRequest(ASKED, FIRST - 1, 1000, 1 << 20, 0, -1, 0))
    if before:
        reads[0](records[:before])
    feeds.begin_with(FIRST)
    reads[before](records[before:])
    assert fed(out, CONNECTION) == [*range(before), end]
    reads[FIRST](records[FIRST:])
    assert fed(out, CONNECTION + 1) == [*range(FIRST, COUNT)]
    assert len(feeds) == 1


@pytest.mark.parametrize("how", ["feed", "read"])
async def test_a_slow_program_gets_what_it_was_sent_and_then_hears_of_the_trim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(waltz_client, "CREDIT_ITEMS", 3)
    async with running_log(tmp_path) as log:
        client = await filled(log)
        reading = client.feed(0) if how == "feed" else client.read(0, 0, COUNT)
        assert (await anext(reading)).id == 0
        await client.trim(0, FIRST)
        assert [(await anext(reading)).id for _ in range(2)] == [1, 2]
        with pytest.raises(Trimmed) as told:
            await anext(reading)
        assert told.value.first == FIRST
        await client.__aexit__(None, None, None)


async def test_an_owner_that_is_replaced_while_it_trims_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_log(tmp_path) as log:
        client = await filled(log)
        path, set_ = f"{log.config.root}/store/partition/0", log.metadata.set

        async def overtaken(at: str, data: bytes, version: int) -> int:
            if at != path:
                return await set_(at, data, version)
            meta = blobs.PARTITION_METADATA.decode(data)
            newer = meta._replace(generation=meta.generation + 1, session=meta.session + 1, start=0)
            await set_(path, blobs.PARTITION_METADATA.encode(newer), version)
            raise BadVersion(path)

        raw = await RawClient.connect(log.servers[0].port, (5,), client=77)
        with monkeypatch.context() as patch:
            patch.setattr(log.metadata, "set", overtaken)
            raw.send(m.TrimRequest(raw.reqid(), FIRST, 0))
            answer = await raw.next()
        assert (answer.code, answer.request_type) == (RejectCode.UNAVAILABLE, 47)
        assert "generation" in answer.message or "session" in answer.message
        await client.__aexit__(None, None, None)


async def test_trims_that_wait_for_the_metadata_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "CHANGES_MAX", 2)  # and one is under way
    async with running_log(tmp_path) as log:
        client = await filled(log)
        may = asyncio.Event()
        set_ = log.metadata.set

        async def late(at: str, data: bytes, version: int) -> int:
            await may.wait()
            return await set_(at, data, version)

        raw = await RawClient.connect(log.servers[0].port, (5,), client=77)
        monkeypatch.setattr(log.metadata, "set", late)
        for before in range(1, 6):
            raw.send(m.TrimRequest(raw.reqid(), before, 0))
        assert [(await raw.next()).code for _ in range(2)] == [RejectCode.UNAVAILABLE] * 2
        may.set()
        assert [(await raw.next()).start for _ in range(3)][-1] >= 3
        await client.__aexit__(None, None, None)


async def test_all_segments_that_are_trimmed_go_soon_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node drops few at a time, so that appends go on between; it does not wait for the next look."""
    monkeypatch.setattr(storing, "LOOK_S", 3600.0)
    count = 4 * DROPPED_MAX
    async with running_log(tmp_path) as log:
        await log.settled()
        await log.until_all_vote()
        files = [node.directory.partition(0) for node in log.nodes.values()]
        for one in files:
            assert one is not None
            one._segment_bytes = 0  # each append begins a segment
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            for number in range(count):
                await client.append(0, b"%d" % number)
            await client.trim(0, count - 1)
            await eventually(lambda: all(one is not None and one.first == count - 1 for one in files), ANSWER_S)


async def test_metadata_that_were_set_back_do_not_bring_back_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that was restored knows an older start: a feed below the true one would wait for ever."""
    monkeypatch.setattr(storing, "LOOK_S", 0.1)
    async with running_log(tmp_path) as log:
        await log.settled()
        await log.until_all_vote()
        files = [node.directory.partition(0) for node in log.nodes.values()]
        for one in files:
            assert one is not None
            one._segment_bytes = 0  # each append begins a segment
        client = await filled(log)
        await client.trim(0, FIRST)
        await eventually(lambda: all(one is not None and one.first == FIRST for one in files), ANSWER_S)
        await client.__aexit__(None, None, None)
        await log.servers.pop().stop()
        path = f"{log.config.root}/store/partition/0"
        known = await log.metadata.get(path)
        assert known is not None
        older = blobs.PARTITION_METADATA.decode(known.data)._replace(start=3)
        await log.metadata.set(path, blobs.PARTITION_METADATA.encode(older), known.version)
        await log.start_server()
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client, asyncio.timeout(ANSWER_S):
            with pytest.raises(Trimmed) as told:
                await anext(client.feed(0, from_=3))
            assert told.value.first == FIRST


async def test_storage_nodes_of_the_original_keep_all_and_the_log_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends, hears = STORAGE_SERVER.sends[0], STORAGE_SERVER.hears[0]
    monkeypatch.setattr(storage, "STORAGE_SERVER", STORAGE_SERVER._replace(sends={0: sends}, hears={0: hears}))
    async with running_log(tmp_path) as log:
        client = await filled(log)
        await client.trim(0, FIRST)
        assert set(log.servers[0].running.owned[0].untrimmed.values()) == {
            "it speaks version 0 only, in which nothing is ever dropped or rebuilt"
        }
        await client.__aexit__(None, None, None)
        await log.servers.pop().stop()
        await log.start_server()
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert await client.append(0, b"on") == COUNT
            assert await client.first(0) == FIRST

"""How many turns and threads an append goes through: it is answered in the turn in which it comes (16)."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pavane.waltz.aio import storage
from pavane.waltz.aio.stream import KEPT_BYTES_MIN, Stream, turn_of
from pavane.waltz.core.connection import Connection
from pavane.waltz.core.feed import Feeds
from pavane.waltz.core.node import Node
from pavane.waltz.core.outputs import Output, Reply
from pavane.waltz.server import StorageNode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_CLIENT, LOG_SERVER, STORAGE_CLIENT, Channel, FeedBurst
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, RawClient, running_log

KEY = UUID(int=7)
ASKED = m.HighWaterMarkRequest(ReqId(1, 0, 0, 1))


class Wire(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Answering(Stream):
    """Answers each question as soon as all that came with it was read."""

    def __init__(self) -> None:
        super().__init__(LOG_SERVER, connecting=False)
        self.asked: list[Any] = []
        self.wire = Wire()
        self._transport = self.wire
        self.peer_channel = Channel(LOG_CLIENT, (4,))
        self.channel.receive(self.peer_channel.hello())
        self.channel.message()
        self.peer_channel.receive(self.channel.hello())
        self.peer_channel.message()

    def heard(self, message: Any) -> None:
        self.asked.append(message)

    def turned(self) -> None:
        while self.asked:
            self.send(m.HighWaterMarkResponse(self.asked.pop().reqid, 7))

    def arrives(self, *messages: Any) -> None:
        data = b"".join(self.peer_channel.encode(message) for message in messages)
        self.get_buffer(-1)[: len(data)] = data
        self.buffer_updated(len(data))


async def test_an_answer_leaves_in_the_turn_of_its_question_and_two_leave_together() -> None:
    answering = Answering()
    answering.arrives(ASKED)
    assert len(answering.wire.written) == 1
    answering.arrives(ASKED, ASKED)
    assert len(answering.wire.written) == 2


async def test_where_more_is_to_be_done_in_a_turn_the_answer_leaves_at_its_end() -> None:
    first, second = Answering(), Answering()
    asyncio.get_running_loop().call_soon(second.arrives, ASKED)
    asyncio.get_running_loop().call_soon(first.arrives, ASKED)
    first.arrives(ASKED)
    second.arrives(ASKED)
    assert not turn_of(asyncio.get_running_loop()).alone
    assert first.wire.written == second.wire.written == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(first.wire.written) == len(second.wire.written) == 1


class Owner(Stream):
    """A server, as far as a storage node sees it."""

    def __init__(self) -> None:
        super().__init__(STORAGE_CLIENT, connecting=True)
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.txid = 0

    def heard(self, message: Any) -> None:
        self.answers.put_nowait(message)

    async def ask(self, message: Any) -> Any:
        self.send(message)
        async with asyncio.timeout(ANSWER_S):
            return await self.answers.get()

    async def append(self, data: bytes = b"data") -> None:
        await self.append_together(data)

    async def append_together(self, *data: bytes) -> None:
        """Each is an append of its own, and all come in one piece."""
        appends = []
        for one in data:
            record = s.Record.of(self.txid, ReqId(1, 1, 0, self.txid), 0, one)
            appends.append(s.Append(s.Head(1, self.txid, 0), (record,), False))
            self.txid += 1
        assert self._transport is not None
        self._transport.write(b"".join(self.channel.encode(append) for append in appends))
        async with asyncio.timeout(ANSWER_S):
            answers = [await self.answers.get() for _ in appends]
        assert answers == [s.Success(append.head) for append in appends]


@asynccontextmanager
async def owner_of(folder: Path) -> AsyncIterator[Owner]:
    node = StorageNode(folder, KEY, 1, disk_reserve_bytes=0)
    await node.start("127.0.0.1", 0)
    assert node.server is not None
    node.server._scrubbing.cancel()  # type: ignore[union-attr]  # it shares the disk's thread
    _, owner = await asyncio.get_running_loop().create_connection(Owner, "127.0.0.1", node.port)
    try:
        await owner.greeted()
        assert isinstance(await owner.ask(s.Open(s.OPEN_HEAD, KEY, 1)), s.Success)
        yield owner
    finally:
        owner.abort("done")
        await node.stop()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On which threads a storage node carries messages out."""
    found: list[int] = []
    execute = Node.execute

    def noted(node: Node, messages: Sequence[Any]) -> list[Any]:
        found.append(threading.get_ident())
        return execute(node, messages)

    monkeypatch.setattr(Node, "execute", noted)
    monkeypatch.setattr("pavane.wal.times.STALL_S", 60.0)  # a busy machine's disk may
    monkeypatch.setattr(storage, "MARK_SYNC_S", 60.0)  # while the thread syncs marks it gets what comes
    return found


async def test_a_storage_node_with_a_quick_disk_hands_no_small_append_to_a_thread(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    async with owner_of(tmp_path) as owner:
        monkeypatch.setattr(storage, "HERE_S", 60.0)
        for _ in range(3):
            await owner.append()
        assert threads == [here] * 3
        await owner.append(bytes(storage.HERE_BYTES + 1))
        assert threads[-1] != here
        await owner.append()
        assert threads[-1] == here


async def test_an_append_that_begins_a_segment_syncs_it_on_the_thread(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    async with owner_of(tmp_path) as owner:
        monkeypatch.setattr(storage, "HERE_S", 60.0)
        kept = await owner.ask(s.Retain(s.Head(1, 0, 0), 0, 8 * 1000, -1))  # segments of a thousand bytes
        assert isinstance(kept, s.Retained)
        del threads[:]
        for _ in range(5):
            await owner.append(bytes(500))
        assert [thread == here for thread in threads] == [True, True, False, True, False]
        assert len(list((tmp_path / "0").glob("*.seg"))) == 3


async def test_appends_that_come_together_are_synced_on_the_thread_where_a_later_one_begins_a_segment(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    async with owner_of(tmp_path) as owner:
        monkeypatch.setattr(storage, "HERE_S", 60.0)
        assert isinstance(await owner.ask(s.Retain(s.Head(1, 0, 0), 0, 8 * 1000, -1)), s.Retained)
        del threads[:]
        await owner.append_together(bytes(300), bytes(200))
        assert [thread == here for thread in threads] == [True]
        await owner.append_together(bytes(100), bytes(300), bytes(1))
        assert [thread == here for thread in threads] == [True, False]
        assert len(list((tmp_path / "0").glob("*.seg"))) == 2


async def test_an_append_to_a_copy_that_is_rebuilt_syncs_a_new_segment_on_the_thread(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    async with owner_of(tmp_path) as owner:
        await owner.append(bytes(500))
    [segment] = (tmp_path / "0").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(data)
    async with owner_of(tmp_path) as owner:
        monkeypatch.setattr(storage, "HERE_S", 60.0)
        begun = await owner.ask(s.Repair(s.Head(1, 0, 0), s.RepairStep.BEGIN))
        assert isinstance(begun, s.Repaired)
        assert begun.state == s.CopyState.REBUILDING
        assert isinstance(await owner.ask(s.Retain(s.Head(1, 0, 0), 0, 8 * 1000, -1)), s.Retained)
        del threads[:]
        for _ in range(3):
            await owner.append(bytes(500))
        assert [thread == here for thread in threads] == [True, True, False]


async def test_after_a_slow_sync_the_next_append_waits_for_no_disk_in_the_loop(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, slow_s = threading.get_ident(), 0.5
    execute, clock, passed_s = Node.execute, time.perf_counter, 0.0

    def slowly(node: Node, messages: Sequence[Any]) -> list[Any]:
        nonlocal passed_s
        passed_s += slow_s
        return execute(node, messages)

    async with owner_of(tmp_path) as owner:
        monkeypatch.setattr("pavane.wal.times.time.perf_counter", lambda: clock() + passed_s)
        monkeypatch.setattr("pavane.wal.times.SLOW_S", slow_s)
        monkeypatch.setattr(storage, "HERE_S", 0.9 * slow_s)
        await owner.append()
        with monkeypatch.context() as slow:
            slow.setattr(Node, "execute", slowly)
            await owner.append()
        await owner.append()
        assert [thread == here for thread in threads] == [True, True, False]


async def test_what_comes_alone_is_carried_out_in_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a storage node and by a server; now and then something else may be to be done in that turn."""
    loop = asyncio.get_running_loop()
    put_off: list[str] = []
    call_soon = loop.call_soon

    def noted(callback: Any, *arguments: Any, **more: Any) -> asyncio.Handle:
        put_off.append(getattr(callback, "__name__", ""))
        return call_soon(callback, *arguments, **more)

    async with owner_of(tmp_path / "node") as owner, running_log(tmp_path / "log") as log:
        client = await RawClient.connect(log.servers[0].port)
        await client.mount()
        await log.until_all_vote()
        with monkeypatch.context() as watched:
            watched.setattr(loop, "call_soon", noted)
            for _ in range(20):
                await owner.append()
                client.send(m.HighWaterMarkRequest(client.reqid()))
                assert await client.next(m.HighWaterMarkResponse) is not None
        client.hang_up("done")
    assert put_off.count("_work") < 10
    assert put_off.count("_take_heard") < 10


async def test_an_append_is_carried_out_although_garbage_came_with_it(tmp_path: Path, threads: list[int]) -> None:
    async with owner_of(tmp_path) as owner:
        record = s.Record.of(0, ReqId(1, 1, 0, 0), 0, b"data")
        owner.send(s.Append(s.Head(1, 0, 0), (record,), False))
        owner._pending += bytes(100)
        owner.flush()
        await eventually(lambda: threads, ANSWER_S)
        assert owner.answers.empty()


async def test_what_a_connection_leaves_unfinished_that_has_ended_is_not_counted() -> None:
    answering = Answering()
    answering.strangers = True
    garbage = bytes(KEPT_BYTES_MIN + 1)
    answering.get_buffer(-1)[: len(garbage)] = garbage
    answering.buffer_updated(len(garbage))
    assert answering.closed
    assert answering not in answering.turn._kept


@pytest.mark.parametrize("version", range(5))
def test_a_burst_is_the_frames_of_its_transactions_encoded_once_for_all_readers_of_a_version(version: int) -> None:
    records = [s.Record.of(n, ReqId(n, 1, 2, -n), 7 - n, b"data") for n in range(3)]
    channels = [Channel(LOG_SERVER, (version,)) for _ in range(2)]
    for channel in channels:
        channel.receive(Channel(LOG_CLIENT).hello())
        channel.message()
    burst = FeedBurst(records)
    one_by_one = b"".join(channels[0].encode(m.FeedData(r.reqid, r.txid, r.header)) for r in records)
    assert channels[0].encode(burst) == one_by_one
    assert channels[0].encode(burst) is channels[1].encode(burst)


def test_readers_of_old_versions_share_what_they_are_sent() -> None:
    out: list[Output] = []
    feeds = Feeds(out, lambda *_: None)
    for number in range(3):
        feeds.request(Connection(number, 4), m.FeedRequest(ReqId(number, 1, 0, 1), -1))
    feeds.commit([s.Record.of(n, ReqId(1, 1, 0, n), 0, b"") for n in range(5)])
    sent = [one.message for one in out if isinstance(one, Reply)]
    assert len(sent) == 3
    assert len({id(burst) for burst in sent}) == 1
    assert [record.txid for record in sent[0]] == [0, 1, 2, 3, 4]

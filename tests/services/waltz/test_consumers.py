"""Consumers: their positions stay, retention waits for them, and one that was removed is told so."""

import asyncio
from pathlib import Path

import pytest

from pavane.waltz.client import NoConsumer, Rejected, Trimmed, Waltz
from pavane.waltz.core import retention, storing
from pavane.waltz.core.retention import Change, Keeping, Policy
from pavane.waltz.errors import RejectCode
from pavane.waltz.state.metadata import BadVersion
from pavane.waltz.wire import blobs
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from pavane.wire import RemoteProtocolError
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, Log, running_log

COUNT = 12
BYTES_MAX = 40_000
YEAR_S = 365 * 86_400.0


async def filled(log: Log, count: int = COUNT, size: int = 1) -> Waltz:
    await log.settled()
    client = Waltz([f"127.0.0.1:{log.servers[0].port}"])
    await client.__aenter__()
    for number in range(count):
        await client.append(0, b"%d" % number * size)
    return client


async def test_a_position_is_given_on_request_kept_and_handed_out_by_the_next_owner(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await filled(log)
        billing = client.consumer("billing", who="pod-1")
        for ask in (billing.position(0), billing.commit(0, 3)):
            with pytest.raises(NoConsumer, match=r"consumer billing of partition 0 is not there.*start"):
                await ask
        assert await billing.start(0, 2) == 2
        assert await billing.start(0, 9) == 2, "it stays where it is"
        feed = billing.feed(0)
        assert [(await anext(feed)).data for _ in range(3)] == [b"2", b"3", b"4"]
        await feed.aclose()
        await billing.commit(0, 4)
        await billing.commit(0, 3)
        assert await billing.position(0) == 5, "it never goes back"
        with pytest.raises(Rejected, match="CLIENT_AHEAD"):
            await billing.commit(0, COUNT)
        (shown,) = await client.consumers(0)
        assert (shown.name, shown.position, shown.lag, shown.who, shown.held_seconds) == (
            "billing",
            5,
            7,
            "pod-1",
            None,
        )
        assert 0 <= shown.idle_seconds < 600
        await log.servers.pop().stop()
        await log.start_server()
        await client.__aexit__(None, None, None)
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as again:
            assert await again.consumer("billing").position(0) == 5
            assert (await again.consumers(0))[0].who == "pod-1"


async def test_one_that_was_removed_or_moved_is_told_and_starts_nowhere_by_itself(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await filled(log)
        running, operator = client.consumer("billing"), client.consumer("billing")
        await running.start(0, 0)
        await running.commit(0, 5)
        assert await operator.move(0, 1) == 1
        with pytest.raises(NoConsumer, match="was given another position since"):
            await running.commit(0, 6)
        assert await running.position(0) == 1
        await running.commit(0, 6)
        await operator.remove(0)
        for ask in (running.commit(0, 7), running.position(0), anext(running.feed(0))):
            with pytest.raises(NoConsumer, match="was removed"):
                await ask
        assert await client.consumers(0) == []
        await client.__aexit__(None, None, None)


async def test_a_trim_by_hand_passes_no_consumer_unless_it_is_told_to(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await filled(log)
        await client.consumer("billing").start(0, 4)
        await client.consumer("audit").start(0, 11)
        for dry_run in (True, False):
            with pytest.raises(Rejected, match=r"before transaction 8: billing \(from 4\)") as told:
                await client.trim(0, 8, dry_run=dry_run)
            assert (told.value.code, told.value.detail) == (RejectCode.CONSUMER_NEEDS, 4)
        assert await client.trim(0, 8, dry_run=True, force=True) == (0, 8, COUNT - 1)
        assert await client.first(0) == 0
        assert await client.trim(0, 4) == (0, 4, COUNT - 1)
        assert await client.trim(0, 8, force=True) == (4, 8, COUNT - 1)
        with pytest.raises(Trimmed):
            await anext(client.consumer("billing").feed(0))
        with pytest.raises(Trimmed):
            await client.consumer("new").start(0, 7)
        await client.__aexit__(None, None, None)


@pytest.mark.parametrize("respect", [True, False])
async def test_retention_waits_for_consumers_and_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, respect: bool
) -> None:
    monkeypatch.setattr(storing, "LOOK_S", 0.05)
    async with running_log(tmp_path, policy=Policy(bytes_max=BYTES_MAX, respect=respect)) as log:
        client = await filled(log, 1)
        billing = client.consumer("billing")
        await billing.start(0, 1)
        for _ in range(2 * BYTES_MAX // 1000):
            await client.append(0, bytes(1000))
        owned = log.servers[0].running.owned[0]
        if respect:
            await eventually(lambda: owned.consumers()[0].held_ms >= 0, ANSWER_S)
            assert owned.first == 1
            await billing.commit(0, 20)
            await eventually(lambda: owned.first == 21, ANSWER_S)
            assert [tx.id async for tx in client.read(0, 21, 23)] == [21, 22]
            await billing.remove(0)
        await eventually(lambda: owned.first > 21, ANSWER_S)
        assert all(each.held_ms == -1 for each in owned.consumers())
        await client.__aexit__(None, None, None)


class Table:
    """What is kept of a partition whose metadata somebody writes."""

    def __init__(self, policy: Policy = retention.KEEP_ALL) -> None:
        self.keeping = Keeping(policy)
        self.meta = blobs.EMPTY_METADATA._replace(generation=1, session=1)
        self.told: list[retention.Fault | None] = []
        self.keeping.begin(self.meta)

    def ask(self, action: m.ConsumerAction, name: str, position: int = 0, at_ms: int = 5, since: int = 5) -> None:
        request = m.ConsumerRequest(ReqId(1, 1, 0, 1), action, name, position, since, "me")
        self.keeping.ask(Change(request, self.told.append, at_ms))

    def trim(self, before: int, flags: int = 0) -> None:
        self.keeping.ask(Change(m.TrimRequest(ReqId(1, 1, 0, 1), before, flags), self.told.append))

    def want(self, first: int) -> None:
        """Storage can do without what is before ``first``."""
        self.keeping.told.take("node", s.Retained(s.Head(1, 1, 0), 0, 100, first, 0))
        self.keeping.look(1, 100)

    def write(self, hwm: int = 100, now: float = 0.0) -> list[RejectCode | None]:
        if self.keeping.prepare(now, hwm):
            self.meta = self.keeping.next(1, 1, ())
            self.keeping.written()
        told, self.told = self.told, []
        return [None if fault is None else fault[0] for fault in told]


START, COMMIT, SET, REMOVE = (m.ConsumerAction[name] for name in ("START", "COMMIT", "SET", "REMOVE"))


def test_what_comes_together_is_judged_in_order_and_written_once() -> None:
    table = Table()
    table.ask(START, "a", 10)
    table.trim(20)
    table.ask(COMMIT, "a", 30)
    table.trim(25)
    table.ask(START, "late", 24)
    assert table.write() == [RejectCode.CONSUMER_NEEDS, RejectCode.UNAVAILABLE, None, None, None]
    assert (table.meta.start, [(one.name, one.position) for one in table.meta.consumers]) == (25, [("a", 30)])
    table.ask(START, "late", 24)
    assert table.write() == [RejectCode.TRIMMED]


def test_a_write_that_may_have_been_done_is_judged_again_by_what_the_metadata_say() -> None:
    table = Table()
    table.ask(START, "a", 10)
    assert table.keeping.prepare(0.0, 100)
    table.ask(COMMIT, "a", 20)
    table.keeping.again(table.meta)  # it was not
    assert table.write() == [None, None]
    table.ask(COMMIT, "a", 30)
    assert table.keeping.prepare(0.0, 100)
    table.keeping.again(table.keeping.next(1, 1, ()))  # it was, and the answer was lost
    assert table.write() == [None]
    assert [one.position for one in table.meta.consumers] == [30]


def test_names_and_numbers_of_consumers_are_bounded() -> None:
    table = Table()
    for number in range(retention.CONSUMERS_MAX + 1):
        table.ask(START, f"c{number}")
    assert table.write().count(None) == retention.CONSUMERS_MAX
    table.ask(REMOVE, "c0")
    table.ask(START, "c-more")
    assert table.write() == [None, None]
    size = len(blobs.PARTITION_METADATA.encode(table.meta))
    longest = table.meta.consumers[0]._replace(name="n" * 127, who="w" * 64)
    most = table.meta._replace(consumers=(longest,) * retention.CONSUMERS_MAX)
    assert size < len(blobs.PARTITION_METADATA.encode(most)) <= 15 * 1024
    for _ in range(retention.CHANGES_MAX + 1):
        table.ask(REMOVE, "c1")
    assert table.write() == [RejectCode.UNAVAILABLE, *[None] * retention.CHANGES_MAX]


@pytest.mark.parametrize("name", ["", "a/b", "-a", "n" * 128, "a b", "ä"])
async def test_a_name_that_cannot_stand_in_a_path_is_refused(tmp_path: Path, name: str) -> None:
    async with running_log(tmp_path, nodes=1) as log:
        client = await filled(log, 1)
        with pytest.raises(Rejected, match="BAD_REQUEST"):
            await client.consumer(name).start(0, 0)
        await client.__aexit__(None, None, None)


def test_a_consumer_that_is_idle_for_a_year_keeps_its_position_and_is_late_from_when_there_is_something() -> None:
    table = Table()
    table.ask(START, "a", 100)
    table.write(99)
    keeping, now = table.keeping, 0.0
    while now < YEAR_S:
        keeping.sample(now, 99)
        now += 3600.0
    keeping.sample(now, 120)
    assert len(keeping._samples) <= retention.SAMPLES_MAX
    (state,) = keeping.states(now + 60.0, 120)
    assert (state.position, state.idle_ms) == (100, int(1000 * (now + 60.0)) - 5)
    assert 60_000 <= state.lag_ms <= 60_000 + 3_600_000


def test_held_is_counted_while_the_consumer_stands_still() -> None:
    table = Table(Policy(bytes_max=1))
    table.ask(START, "a", 10)
    table.write()
    table.want(50)
    for now in (100.0, 200.0):
        table.write(now=now)
    assert [state.held_ms for state in table.keeping.states(260.0, 100)] == [160_000]
    following = Keeping(Policy(bytes_max=1))
    following.begin(table.meta)
    assert not following.prepare(300.0, 100), "the next owner counts on"
    assert [state.held_ms for state in following.states(360.0, 100)] == [260_000]
    table.ask(COMMIT, "a", 20)
    table.write(now=300.0)
    assert [state.held_ms for state in table.keeping.states(360.0, 100)] == [60_000], "it has moved"
    assert table.meta.start == 20
    table.ask(COMMIT, "a", 60)
    table.write()
    assert [state.held_ms for state in table.keeping.states(360.0, 100)] == [-1]
    assert table.meta.start == 50


@pytest.mark.parametrize("policy", [retention.KEEP_ALL, Policy(bytes_max=1 << 40), Policy(1 << 40, respect=False)])
def test_another_policy_drops_nothing_that_only_the_former_one_did_not_want(policy: Policy) -> None:
    """Nor does a consumer count as held any more, once a majority of storage has told what the new policy wants."""
    table = Table(Policy(bytes_max=1))
    table.ask(START, "slow", 10)
    table.ask(START, "slower", 5)
    table.want(50)
    table.write(now=100.0)
    assert table.meta.start == 5
    table.keeping = Keeping(policy)
    table.keeping.begin(table.meta)
    table.ask(REMOVE, "slower")
    table.write(now=200.0)
    assert table.meta.start == 5
    table.want(0)
    table.write(now=300.0)
    assert table.meta.start == 5
    assert [(state.name, state.held_ms) for state in table.keeping.states(300.0, 100)] == [("slow", -1)]


def test_metadata_without_consumers_have_the_bytes_of_before_and_others_are_told_apart() -> None:
    meta = blobs.PartitionMetadata(3, 9, (), 0)
    consumer = blobs.Consumer("billing", 7, 1, 2, "pod", 3)
    for one in (
        meta,
        meta._replace(start=5),
        meta._replace(consumers=(consumer,)),
        meta._replace(start=5, consumers=(consumer,) * 2),
    ):
        assert blobs.PARTITION_METADATA.decode(blobs.PARTITION_METADATA.encode(one)) == one
    assert blobs.PARTITION_METADATA.encode(meta).hex() == "0100000003000000000000000900000000"
    with pytest.raises(RemoteProtocolError):
        blobs.PARTITION_METADATA.decode(blobs.PARTITION_METADATA.encode(meta._replace(start=5)) + b"\x82")


async def test_an_owner_that_is_replaced_while_a_commit_waits_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client asks the next owner, which has what was committed before and nothing else."""
    async with running_log(tmp_path) as log:
        client = await filled(log)
        billing = client.consumer("billing")
        await billing.start(0, 3)
        first, write = log.servers[0], log.metadata.set
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def slow(path: str, data: bytes, version: int) -> int:
            if path == "/ledger/store/partition/0" and not go_on.is_set():
                entered.set()
                await go_on.wait()
                raise BadVersion("too late")
            return await write(path, data, version)

        monkeypatch.setattr(log.metadata, "set", slow)
        commit = asyncio.create_task(billing.commit(0, 6))
        await entered.wait()
        go_on.set()
        await first.stop()
        log.servers.remove(first)
        server = await log.start_server()
        client._directory._seeds.append(("127.0.0.1", server.port))
        await commit
        assert await billing.position(0) == 7
        await client.__aexit__(None, None, None)

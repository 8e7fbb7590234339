"""Clocks that are set while a client is open (docs/specs/raft.md 11.3)."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from pavane.raft import aio
from pavane.raft.client import RaftClient
from pavane.raft.client.client import NEW_IDS
from pavane.raft.config import Config
from pavane.raft.errors import Expired, ReqidTaken
from pavane.raft.server import RaftServer
from pavane.raft.wire.pv import PvHello, PvHelloReply
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from pavane.raft.wire.requests import RequestUpdate
from tests.services.raft.ensemble import WALL_S, Ensemble, decoded, reqid
from tests.services.raft.peers import IDENT, free_url, places, started, written

MINUTE_S = 60.0
HOUR_S = 3600.0
UPDATES = 50

pytestmark = pytest.mark.timeout(120)


class Clock:
    """The true time, but for what somebody has set."""

    def __init__(self) -> None:
        self.off_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.off_s


async def one_peer(stack: AsyncExitStack, folder: Path, machine: str = "Broadcast") -> str:
    url = free_url()
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), machine=machine)
    await started(stack, RaftServer(config, data=folder / "1", bind=url))
    return url


@pytest.mark.parametrize("step_s", [20 * MINUTE_S, -9 * HOUR_S])
async def test_a_running_client_goes_on_when_its_clock_is_set(
    tmp_path: Path, stack: AsyncExitStack, step_s: float
) -> None:
    url, clock = await one_peer(stack, tmp_path), Clock()
    async with RaftClient([url], IDENT, clock=clock) as client:
        await client.update(b"before")
        clock.off_s = step_s
        data = [b"%d" % number for number in range(UPDATES)]
        await asyncio.gather(*map(client.update, data))
        clock.off_s = 0.0
        await client.update(b"after")
        assert Counter(await written(client)) == Counter([b"before", *data, b"after"])


async def test_commands_and_changes_of_members_go_on_as_well(tmp_path: Path, stack: AsyncExitStack) -> None:
    clock = Clock()
    homes = places(tmp_path, 2)
    for home in homes:
        await started(stack, home.server())
    async with RaftClient([home.url for home in homes], IDENT, clock=clock) as client:
        await client.update(b"before")
        leader = (await client.configuration()).leader
        clock.off_s = -9 * HOUR_S
        await client.change_members([(home.id, home.url) for home in homes if home.id == leader])
    url = await one_peer(stack, tmp_path / "keys", "KeyValue")
    async with RaftClient([url], IDENT, clock=clock) as client:
        await client.kv.put(b"n", b"1")
        clock.off_s = 20 * MINUTE_S
        assert (await client.kv.txn([], [])).succeeded
        async with client.kv.lease(10.0) as lease:
            assert await client.kv.lock(b"lock", lease.id)


async def test_a_peer_whose_clock_is_set_back_takes_the_writes_of_running_clients(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, clock = await one_peer(stack, tmp_path), Clock()
    async with RaftClient([url], IDENT) as client:
        await client.update(b"before")
        served = SimpleNamespace(**{**vars(time), "time_ns": lambda: int(clock() * 1e9)})
        monkeypatch.setattr(aio, "time", served)
        clock.off_s = -30 * MINUTE_S
        await client.update(b"after")
        assert await written(client) == [b"before", b"after"]


async def test_an_id_that_the_caller_keeps_is_refused_and_the_next_one_is_good(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    url, clock = await one_peer(stack, tmp_path), Clock()
    async with RaftClient([url], IDENT, clock=clock) as client:
        await client.update(b"before")
        clock.off_s = -9 * HOUR_S
        with pytest.raises(Expired) as refused:
            await client.update(b"kept", reqid=client.new_reqid())
        assert refused.value.sent_before, "only the caller knows what it did with this id before"
        await client.update(b"next", reqid=client.new_reqid())
        assert await written(client) == [b"before", b"next"]


@pytest.mark.parametrize("refusal", [Expired, ReqidTaken])
async def test_only_what_was_sent_once_is_sent_again_under_another_id(
    tmp_path: Path, stack: AsyncExitStack, refusal: type[Expired] | type[ReqidTaken]
) -> None:
    async def tries(client: RaftClient, *, sent_before: bool) -> int:
        tried: list[bytes] = []

        async def write(reqid: bytes) -> int:
            tried.append(reqid)
            raise refusal(reqid, sent_before=sent_before)

        with pytest.raises(refusal):
            await client.under_new_reqid(write)
        assert len(set(tried)) == len(tried)
        return len(tried)

    async with RaftClient([await one_peer(stack, tmp_path)], IDENT) as client:
        assert await tries(client, sent_before=True) == 1
        assert await tries(client, sent_before=False) == NEW_IDS


async def test_an_id_of_which_somebody_else_made_use_costs_one_more_message(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a copy of a machine that was running: both make the same ids in this second."""
    url = await one_peer(stack, tmp_path)
    now = int(time.time())
    drawn = iter([bytes(8), bytes(8), b"\x01" * 8, b"\x02" * 8])
    monkeypatch.setattr("pavane.raft.client.request_ids._draw", lambda: next(drawn))
    async with RaftClient([url], IDENT, clock=lambda: now) as one, RaftClient([url], IDENT, clock=lambda: now) as other:
        indices = {await one.update(b"of one"), await other.update(b"of the other")}
        assert len(indices) == 2
        assert await written(one) == [b"of one", b"of the other"]


async def test_nothing_is_doubled_while_clocks_and_leaders_change(tmp_path: Path, stack: AsyncExitStack) -> None:
    homes, clock = places(tmp_path, 3), Clock()
    for home in homes:
        await started(stack, home.server())
    steps = [20 * MINUTE_S, -9 * HOUR_S, 0.0, 3 * HOUR_S, -20 * HOUR_S, 0.0]
    acknowledged: list[bytes] = []
    unknown: list[Expired] = []

    async def load(name: int, client: RaftClient) -> None:
        for number in range(len(steps) * 20):
            data = b"%d/%d" % (name, number)
            try:
                await client.update(data)
            except Expired as expired:
                unknown.append(expired)
            else:
                acknowledged.append(data)

    async with RaftClient([home.url for home in homes], IDENT, clock=clock) as client:
        loads = [asyncio.create_task(load(name, client)) for name in range(8)]
        for step_s in steps:
            clock.off_s = step_s
            await client.transfer()
        await asyncio.gather(*loads)
        found = Counter(await written(client))
    assert found.total() == len(found), "nothing is there twice"
    assert found.keys() >= set(acknowledged)
    assert all(expired.sent_before for expired in unknown), "to a leader that handed over meanwhile"
    assert len(acknowledged) >= 8 * len(steps) * 20 // 2


def test_a_clock_that_was_hours_ahead_for_a_moment_does_not_shut_everybody_out() -> None:
    """What it forgot then is refused for good, and clients are told the second from which on ids are good."""
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.advance(0.5)
    ahead_s = WALL_S + int(4 * HOUR_S)
    ensemble.cores[leader]._node.dedup.refuse_up_to(ahead_s)

    (answer,) = ensemble.ask(leader, (b"h", *PvHello("", 0, bytes(8), {"v": 1, "feat": 0}).encode(IDENT)))
    now_ms = decoded(PvHelloReply, answer).info["now"]
    assert now_ms == (ahead_s + 1) * 1000

    def told(second: int) -> UpdateStatus:
        frames = ensemble.ask(leader, (reqid(1, second), *RequestUpdate(b"data").encode(IDENT)))
        return decoded(RequestUpdateReply, frames[-1]).status

    assert told(ahead_s) == UpdateStatus.EXPIRED
    assert told(ahead_s + 1) == UpdateStatus.DONE

"""The client library against servers that do what a test says; against real ones see test_waltz_cluster.py."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pavane.runtime.certificates import Certificates
from pavane.waltz.client import (
    Closed,
    Conflict,
    Full,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Transaction,
    Unavailable,
    Waltz,
    WaltzError,
    trusting,
)
from pavane.waltz.client.link import Link
from pavane.waltz.client.waltz import PATIENCE_SECONDS
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.locks import lock_hash
from pavane.wire import Stage
from tests.services.eventually import eventually
from tests.services.stage.certificates import authority, certificate, publish
from tests.services.waltz.scripted import Cluster, Connection, Server, running


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as cluster:
        yield cluster


async def first(log: Waltz, partition: int, count: int, from_: int = 0) -> list[Transaction]:
    found: list[Transaction] = []
    async for transaction in log.feed(partition, from_=from_):
        found.append(transaction)
        if len(found) == count:
            break
    return found


async def test_one_server_is_enough_to_find_every_partition(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses[1:]) as log:
        partitions = await log.partitions()
        assert [partitions[p].server for p in (0, 1)] == cluster.addresses
        assert partitions[0].generation == 1
        assert partitions[0].stage is Stage.READ_WRITE
        assert await log.append(0, b"zero") == 0
        assert await log.append(1, b"one") == 0
        assert [len(entries.records) for entries in cluster.logs] == [1, 1]


async def test_what_was_appended_comes_back_by_feed_read_and_get(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        assert await log.hwm(0) == -1
        txids = [await log.append(0, f"{n}".encode(), header=n) for n in range(5)]
        assert txids == [0, 1, 2, 3, 4]
        assert await log.hwm(0) == 4
        assert [(tx.id, tx.header, tx.data) for tx in await first(log, 0, 5)] == [
            (n, n, f"{n}".encode()) for n in range(5)
        ]
        assert [tx.id async for tx in log.read(0, 1, 3)] == [1, 2]
        assert [tx.id async for tx in log.read(0, 3, 99)] == [3, 4]
        assert [tx.id async for tx in log.read(0, 5, 9)] == []
        assert (await log.get(0, 2)).data == b"2"
        with pytest.raises(NotFound, match="no transaction 5: it ends with 4"):
            await log.get(0, 5)


async def test_a_client_keeps_nothing_of_servers_that_rollouts_have_replaced(cluster: Cluster) -> None:
    former = cluster.servers[0].port

    def kept() -> list[Link]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, Link) and each.address[1] == former]

    async with Waltz(cluster.addresses[1:]) as log:
        await log.append(0, b"before")
        assert [tx.data async for tx in log.read(0, 0, 1)] == [b"before"]
        assert kept()
        cluster.move(0, 1)
        await cluster.servers[0].kill()
        await log.append(0, b"after")
        assert [tx.data async for tx in log.read(0, 1, 2)] == [b"after"]
        await eventually(lambda: not kept())


async def test_readers_share_connections(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        await log.append(0, b"x")
        for _ in range(20):
            await log.get(0, 0)
        assert len(cluster.servers[0].connections) <= 2


async def test_a_feed_waits_for_what_comes_and_grants_more_credit(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        feed = asyncio.create_task(first(log, 0, 12_000))
        for _ in range(12):
            await asyncio.gather(*(log.append(0, b"x") for _ in range(1000)))
        found = await feed
        assert [tx.id for tx in found] == list(range(12_000))
        assert [tx.id async for tx in log.read(0, 100, 11_900)] == list(range(100, 11_900))


async def test_a_conflict_names_the_transaction_to_read_up_to(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        account = [("account", 7)]
        assert await log.append(0, b"opened", write=account) == 0
        assert await log.append(0, b"other", write=[("account", 8)]) == 1
        with pytest.raises(Conflict, match=r"Nothing was written\. Read up to 0") as caught:
            await log.append(0, b"late", write=account, seen=-1)
        assert caught.value.txid == 0
        with pytest.raises(Conflict):
            await log.append(0, b"late", read=account, seen=-1)
        assert await log.append(0, b"current", write=account, seen=0) == 2
        assert cluster.servers[0].appends[0].write == (lock_hash("account", 7),)


async def test_what_the_server_refuses_for_good_is_told(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        with pytest.raises(Rejected, match="CLIENT_AHEAD") as caught:
            await log.append(0, b"x", seen=9)
        assert caught.value.code is RejectCode.CLIENT_AHEAD
        with pytest.raises(ValueError, match="partitions 0 to 1, not 2"):
            await log.append(2, b"x")
        with pytest.raises(ValueError, match="32 bits"):
            await log.append(0, b"x", header=1 << 31)
        with pytest.raises(ValueError, match="count from 0"):
            await log.get(0, -1)
        assert await log.append(0, b"x") == 0


async def test_every_partition_of_a_lost_connection_goes_on(cluster: Cluster) -> None:
    cluster.move(1, 0)
    async with Waltz(cluster.addresses, patience=10) as log:
        await asyncio.gather(log.append(0, b"mounted"), log.append(1, b"mounted"))
        held: set[int] = set()

        def hold(server: Server, append: m.AppendIdempotent) -> bool:
            held.add(append.reqid.partition)
            return True

        cluster.on_append = hold
        appends = asyncio.gather(log.append(0, b"x"), log.append(1, b"x"))
        await eventually(lambda: held == {0, 1})
        cluster.on_append = lambda server, append: False
        for connection in list(cluster.servers[0].connections):
            connection.transport.abort()
        assert list(await appends) == [1, 1]


async def test_appends_move_with_the_partition(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"a") == 0
        cluster.move(0, 1)
        assert await log.append(0, b"b") == 1
        cluster.logs[0].generation += 1
        cluster.version += 1
        assert await log.append(0, b"c") == 2
        assert [item.reqid.generation for item in cluster.logs[0].records] == [1, 2, 3]


async def test_an_owner_that_dies_is_left_for_the_next(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        feed = asyncio.create_task(first(log, 0, 2))
        assert await log.append(0, b"a") == 0
        await cluster.servers[0].kill()
        append = asyncio.create_task(log.append(0, b"b"))
        cluster.move(0, 1)
        assert await append == 1
        assert [tx.data for tx in await feed] == [b"a", b"b"]


async def test_an_owner_that_is_stopped_is_left_for_the_next(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"a") == 0
        cluster.servers[0].silent = True
        append = asyncio.create_task(log.append(0, b"b"))
        cluster.move(0, 1)
        assert await append == 1
        assert await log.hwm(0) == 1


@pytest.mark.parametrize("other", [{"data": b"of the copy"}, {"header": 7}, {"data": b"too long to be looked at"}])
async def test_an_append_in_doubt_is_not_taken_for_that_of_a_copy_of_this_client(
    cluster: Cluster, other: dict[str, Any]
) -> None:
    """Two that go on with a copy of one memory have one client id and count alike."""
    cuts = 0

    def cut(server: Server, append: m.AppendIdempotent) -> bool:
        nonlocal cuts
        cuts += 1
        if cuts == 1:
            cluster.logs[0].commit(append._replace(**other))
            server.cut()
        return cuts == 1

    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"a") == 0
        cluster.on_append = cut
        assert await log.append(0, b"doubtful") == 2
        assert cluster.logs[0].records[2].data == b"doubtful"


async def test_a_client_is_closed_in_a_child_of_its_process_and_open_in_it(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"a") == 0
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                told = "not refused"
                try:
                    asyncio.run(log.append(0, b"of the child"))
                except Closed as error:
                    told = str(error)
                asyncio.run(log.__aexit__(None, None, None))
                os.write(writer, told.encode())
            finally:
                os._exit(0)
        os.close(writer)
        told = await asyncio.to_thread(lambda: os.read(reader, 1000).decode())
        os.close(reader)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert "forked" in told
        assert await log.append(0, b"b") == 1
        assert [item.data for item in cluster.logs[0].records] == [b"a", b"b"]


@pytest.mark.parametrize("committed", [True, False])
async def test_an_append_in_doubt_is_found_or_written_once(cluster: Cluster, committed: bool) -> None:
    cuts = 0

    def cut(server: Server, append: m.AppendIdempotent) -> bool:
        nonlocal cuts
        if append.data != b"doubtful" or cuts == 3:
            return False
        cuts += 1
        if committed:
            cluster.logs[0].commit(append)
        server.cut()
        return True

    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"a") == 0
        cluster.on_append = cut
        assert await log.append(0, b"doubtful") == 1
        assert await log.append(0, b"b") == 2
        assert [item.data for item in cluster.logs[0].records] == [b"a", b"doubtful", b"b"]
        assert cuts == (1 if committed else 3)


async def given_up(cluster: Cluster, said: str) -> WaltzError:
    """How an append ends for which there is little patience: more where a slow machine has not come so far by then."""
    patience = 0.25
    while True:
        patience *= 2
        async with Waltz(cluster.addresses, patience=patience) as log:
            with pytest.raises((Unavailable, OutcomeUnknown)) as caught:
                await log.append(0, b"a")
        if said in str(caught.value):
            return caught.value


async def test_an_append_that_nobody_answers_has_an_unknown_outcome(cluster: Cluster) -> None:
    cluster.on_append = lambda server, append: True
    unknown = await given_up(cluster, "may or may not")
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.reqid == cluster.servers[0].appends[-1].reqid


async def test_an_append_that_was_never_sent_was_not_written(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses, patience=0.5) as log:
        cluster.state = m.MountState.NOT_READY
        with pytest.raises(Unavailable, match="nothing was written"):
            await log.append(0, b"a")
        cluster.state = m.MountState.READY
        log._directory.patience = PATIENCE_SECONDS
        assert await log.append(0, b"b") == 0
    await cluster.servers[0].kill()
    cluster.servers[0].alive = True  # the other one goes on to name it
    assert isinstance(await given_up(cluster, f"The last try: 127.0.0.1:{cluster.servers[0].port}: "), Unavailable)


async def test_appends_that_are_refused_for_now_are_sent_again_in_order(cluster: Cluster) -> None:
    refused: list[bytes] = []

    def refuse(server: Server, append: m.AppendIdempotent) -> bool:
        if len(refused) == 6:
            return False
        refused.append(append.data)
        code = RejectCode.NOT_COMMITTED if len(refused) % 2 else RejectCode.UNAVAILABLE
        next(iter(server.connections)).reject(append, 37, code, 1)
        return True

    async with Waltz(cluster.addresses) as log:
        cluster.on_append = refuse
        futures = [log.append_nowait(0, bytes([n])) for n in range(3)]
        assert await asyncio.gather(*futures) == [0, 1, 2]
        assert [item.data for item in cluster.logs[0].records] == [b"\0", b"\1", b"\2"]


async def test_appends_under_way_are_bounded(cluster: Cluster) -> None:
    held: list[m.AppendIdempotent] = []

    def hold(server: Server, append: m.AppendIdempotent) -> bool:
        held.append(append)
        return True

    cluster.on_append = hold
    async with Waltz(cluster.addresses) as log:
        futures = [log.append_nowait(0, b"x") for _ in range(1000)]
        with pytest.raises(Full, match="1000 appends are under way"):
            log.append_nowait(0, b"x")
        waiting = asyncio.create_task(log.append(0, b"last"))
        await eventually(lambda: len(held) == 1000)
        cluster.on_append = lambda server, append: False
        connection = next(c for c in cluster.servers[0].connections)
        for append in held:
            connection.append(cluster.logs[0], append, True)
        assert sorted(await asyncio.gather(*futures)) == list(range(1000))
        assert await waiting == 1000


async def test_a_mount_that_may_only_read_waits_until_it_may_write(cluster: Cluster) -> None:
    cluster.state = m.MountState.READY_READ_ONLY
    async with Waltz(cluster.addresses) as log:
        append = asyncio.create_task(log.append(0, b"x"))
        await eventually(lambda: any(connection.mounts for connection in cluster.servers[0].connections))
        (connection,) = [connection for connection in cluster.servers[0].connections if connection.mounts]
        assert not cluster.servers[0].appends
        cluster.state = m.MountState.READY
        connection.send(m.MountResponse(connection.mounts[-1].reqid, m.MountState.READY))
        assert await append == 0


async def test_a_view_runs_again_on_what_it_missed(cluster: Cluster) -> None:
    balance = 0
    builds = 0

    def apply(transaction: Transaction) -> None:
        nonlocal balance
        balance += int(transaction.data)

    def spend() -> bytes | None:
        nonlocal builds
        builds += 1
        return b"-60" if balance >= 60 else None

    account = [("account", 7)]
    async with Waltz(cluster.addresses) as log, Waltz(cluster.addresses) as other:
        await log.append(0, b"100", write=account)
        async with log.view(0, apply) as view:
            await view.wait(0)
            taken = await other.append(0, b"-60", write=account, seen=0)
            view.hwm = 0  # as if the feed were late
            assert await view.transact(spend, write=account) is None
            assert view.hwm == taken
            assert balance == 40
            assert await view.transact(lambda: b"25", write=account) == 2
            assert balance == 65
        with pytest.raises(Closed):
            await view.transact(spend, write=account)


async def test_a_view_stops_where_the_application_fails(cluster: Cluster) -> None:
    async def apply(transaction: Transaction) -> None:
        raise KeyError(transaction.id)

    async with Waltz(cluster.addresses) as log:
        await log.append(0, b"x")
        view = log.view(0, apply)
        with pytest.raises(KeyError):
            async with view:
                await view.wait(0)
        assert view.hwm == -1


async def test_what_is_closed_leaves_nothing_to_the_garbage_collector(cluster: Cluster) -> None:
    # It would close it in a task of its own, beside the end of the loop, which closes it too: a warning at the end of
    # a program that did nothing wrong.
    left: list[object] = []
    hooks = sys.get_asyncgen_hooks()
    applying, never = asyncio.Event(), asyncio.Event()

    async def apply(transaction: Transaction) -> None:
        applying.set()
        await never.wait()

    async with Waltz(cluster.addresses) as log:
        await log.append(0, b"x")
        sys.set_asyncgen_hooks(hooks.firstiter, left.append)
        try:
            async with aclosing(log.feed(0)) as feed, aclosing(log.read(0, 0, 1)) as read:
                await anext(feed)
                await anext(read)
            async with log.view(0, apply):
                await applying.wait()
        finally:
            sys.set_asyncgen_hooks(*hooks)
    assert left == []


async def test_a_feed_that_begins_behind_the_end_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.waltz.client.waltz.AHEAD_SECONDS", 0.2)
    async with Waltz(cluster.addresses) as log:
        with pytest.raises(Rejected, match="CLIENT_AHEAD"):
            await first(log, 0, 1, from_=5)


async def test_a_connection_that_went_silent_is_made_again_while_its_server_lives(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.waltz.core.client.DEAD_SECONDS", 600.0)  # what is last resort does not help here
    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"before") == 0
        cluster.servers[0].mute()
        assert await log.append(0, b"after") == 1
        cluster.servers[0].mute()
        assert await log.hwm(0) == 1
        assert [record.data for record in cluster.logs[0].records] == [b"before", b"after"]


async def test_a_partition_that_opens_for_long_costs_the_others_no_connection(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    take = Connection.take

    def parked(self: Connection, message: Any) -> None:
        """Let questions for the end of the log wait."""
        nonlocal asked
        if isinstance(message, m.HighWaterMarkRequest):
            asked += 1
        else:
            take(self, message)

    async with Waltz(cluster.addresses) as log:
        assert await log.append(0, b"before") == 0
        connections = set(cluster.servers[0].connections)
        monkeypatch.setattr(Connection, "take", parked)
        asking = asyncio.create_task(log.hwm(0))
        await eventually(lambda: asked > 1)
        monkeypatch.undo()
        assert await asking == 0
        assert cluster.servers[0].connections == connections


async def test_a_silent_feed_finds_the_new_owner(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.waltz.client.waltz.IDLE_SECONDS", 0.1)
    async with Waltz(cluster.addresses) as log:
        await log.append(0, b"a")
        feed = asyncio.create_task(first(log, 0, 2))
        await eventually(lambda: any(connection.feeds for connection in cluster.servers[0].connections))
        cluster.servers[0].silent = True
        cluster.move(0, 1)
        assert await log.append(0, b"b") == 1
        assert [tx.data for tx in await feed] == [b"a", b"b"]


async def test_no_server_at_all_is_told_with_its_address() -> None:
    with pytest.raises(Unavailable, match=r"no server gave its view of the cluster: 127\.0\.0\.1:1:"):
        async with Waltz(["127.0.0.1:1"], patience=0.2):
            pass
    with pytest.raises(ValueError, match="looks like host:55180"):
        Waltz(["nowhere"])


async def test_a_client_that_is_closed_says_so(cluster: Cluster) -> None:
    cluster.on_append = lambda server, append: True
    async with Waltz(cluster.addresses) as log:
        future = log.append_nowait(0, b"x")
        await eventually(lambda: cluster.servers[0].appends)
    with pytest.raises(OutcomeUnknown):
        await future
    with pytest.raises(Closed):
        await log.append(0, b"x")


async def test_every_client_has_an_id_of_its_own(cluster: Cluster) -> None:
    async with Waltz(cluster.addresses) as one, Waltz(cluster.addresses) as other:
        await one.append(0, b"x")
        await other.append(0, b"y")
        assert [item.reqid.client for item in cluster.logs[0].records] == [1, 2]


async def test_servers_are_known_by_their_authority(tmp_path: Path) -> None:
    ours, foreign = authority(), authority()
    publish(tmp_path, certificate(ours), ours)
    async with running(tls=Certificates(tmp_path).open_port) as cluster:
        async with Waltz(cluster.addresses, tls=trusting(ours.certificate.decode())) as log:
            assert await log.append(0, b"x") == 0
            assert (await log.get(0, 0)).data == b"x"
        with pytest.raises(Unavailable, match="certificate verify failed"):
            async with Waltz(cluster.addresses, tls=trusting(foreign.certificate.decode())):
                pass

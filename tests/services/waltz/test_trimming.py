"""A log that begins somewhere: what readers of every version are told, and what becomes of replicas that lag behind."""

from pathlib import Path

import pytest

from pavane.waltz.client import Rejected, Trimmed, Waltz
from pavane.waltz.wire import messages as m
from tests.services.waltz.running import Log, RawClient, running_log

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

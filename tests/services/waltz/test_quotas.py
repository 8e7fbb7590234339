"""How much a client may append and connect: it waits, or is told how long it should, and nobody else notices."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pavane
from pavane.runtime.certificates import trusting
from pavane.waltz.client import OutcomeUnknown, Unavailable
from pavane.waltz.core.outputs import Resume
from pavane.waltz.core.quotas import PAUSE_S, Quota, Quotas
from pavane.waltz.core.server import ServerCore
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from tests.services.waltz.running import ANSWER_S, RawClient, running_log
from tests.services.waltz.test_waltz_clients import Guarded, shown

RATE = 20
QUOTAS = (Quota("billing", appends_per_s=RATE), Quota("audit", connections=1), Quota("bulk", bytes_per_s=1000))


def test_what_is_beyond_is_refused_until_it_is_earned_and_nothing_overtakes_it() -> None:
    quotas = Quotas([Quota("bulk", bytes_per_s=1000)])
    now, why = 100.0, "bulk may append 1000 bytes/s to a server, and has done so"
    assert quotas.append(now, "bulk", 3000, held=False) is None  # a large one goes through, and is owed
    assert quotas.append(now, "bulk", 1, held=False) == (2.0, why)
    assert quotas.append(now + 1.9, "bulk", 1, held=False) is not None
    assert quotas.append(now + 1.9, "other", 1 << 20, held=False) is None
    assert quotas.append(now + 2.001, "bulk", 1, held=False) is None
    assert quotas.refused == {"bytes/s": 2}
    few = Quotas([Quota("few", appends_per_s=10)])
    taken = [few.append(now, "few", 1, held=False) for _ in range(11)]
    assert taken[:10] == [None] * 10
    assert taken[10] is not None
    assert taken[10][0] == pytest.approx(PAUSE_S)


@pytest.mark.parametrize("field", ["bytes_per_s", "appends_per_s", "connections"])
def test_a_quota_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="a quota of bulk is 0"):
        Quota("bulk", **{field: 0})


def test_an_older_client_is_not_read_until_it_has_earned_what_it_sent() -> None:
    core = ServerCore(0, "ledger", 1, quotas=[Quota("old", bytes_per_s=100)])
    for connection, identity in ((1, "old"), (2, "other")):
        core.connected(connection, 4, identity)
        core.message(10.0, connection, m.AppendRequest(ReqId(connection, 0, 0, 1), -1, (), (), (), 0, b"x" * 300))
    assert [core.may_read(connection) for connection in (1, 2)] == [False, True]
    assert core.next_timer() == pytest.approx(12.0)
    core.handle_timer(12.0)
    assert any(isinstance(output, Resume) for output in core.outputs())
    assert core.may_read(1)
    core.message(20.0, 1, m.AppendRequest(ReqId(1, 0, 0, 2), -1, (), (), (), 0, b"x" * 300))
    core.disconnected(21.0, 1)
    assert core.next_timer() is None


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    found = Guarded(tmp_path)
    (tmp_path / "hosts").write_text("127.0.0.1 127.0.0.1\n")
    async with running_log(
        tmp_path, partitions=2, nodes=1, certificates=found.own, clients=found.port, quotas=QUOTAS
    ) as found.log:
        await found.log.settled()
        yield found


def shows(guarded: Guarded, client: str) -> ssl.SSLContext:
    pair = shown(guarded.clients, client)
    return trusting(guarded.pods.certificate.decode(), pair.certificate.decode(), pair.key.decode())


def refused(guarded: Guarded) -> dict[str, float]:
    return {each.labels["reason"]: each.value for each in guarded.log.servers[0].metrics() if "refused" in each.name}


async def test_appends_beyond_a_quota_come_later_in_their_order(guarded: Guarded) -> None:
    async with await guarded.open("billing") as billing, await guarded.open("client") as client:
        end, mine, more = 0, 0, RATE + RATE // 2
        async with asyncio.timeout(ANSWER_S):
            while not refused(guarded).get("too many appends/s"):  # a slow machine may earn them while they come
                wanted = range(end, end := end + more)
                appends = [asyncio.ensure_future(billing.append(0, b"%d" % number)) for number in wanted]
                assert [await client.append(1, b"mine") for _ in wanted] == list(range(mine, mine := mine + more))
                assert await asyncio.gather(*appends) == list(wanted)
        assert [each.data async for each in billing.read(0, 0, end)] == [b"%d" % number for number in range(end)]


async def test_who_does_not_wait_hears_why(guarded: Guarded) -> None:
    connection = guarded.connection(shown(guarded.clients, "bulk"))
    async with await pavane.connect_log("ledger", connection=connection) as bulk:
        assert await bulk.append(0, b"x" * 1_000_000) == 0
    said, patience = "", 0.5
    while "The last try" not in said:  # a slow machine has not sent it by then
        patience *= 2
        async with await pavane.connect_log("ledger", connection=connection, patience=patience) as bulk:
            with pytest.raises((Unavailable, OutcomeUnknown)) as told:
                await bulk.append(0, b"y")
            assert await bulk.hwm(0) == 0  # questions are not counted
        said = str(told.value)
    assert "bulk may append 1000 bytes/s to a server, and has done so: again in " in said


async def test_a_connection_too_many_is_refused_in_words(guarded: Guarded) -> None:
    async with await guarded.open("audit") as audit:
        assert await audit.hwm(0) == -1
        said = await guarded.refusal(shown(guarded.clients, "audit"))
        assert "audit may have 1 connections to a server" in said
        assert await audit.append(0, b"as before") == 0
    assert refused(guarded)["too many connections"] >= 1


@pytest.mark.parametrize("version", [4, 5])
async def test_a_connection_too_many_that_asks_nothing_ends_and_the_first_one_stays(
    guarded: Guarded, version: int
) -> None:
    async with await guarded.open("audit") as audit:
        assert await audit.hwm(0) == -1
        idle = await RawClient.connect(guarded.log.servers[0].port, [version], tls=shows(guarded, "audit"))
        assert await idle.next() is None
        assert await audit.append(0, b"as before") == 0


async def test_a_connection_counts_from_its_handshake_on_and_until_it_ends(guarded: Guarded) -> None:
    port = guarded.log.servers[0].port
    reader, silent = await asyncio.open_connection("127.0.0.1", port, ssl=shows(guarded, "audit"), server_hostname="")
    assert await reader.readexactly(1)  # of the server's Hello: it has taken the handshake
    said = await guarded.refusal(shown(guarded.clients, "audit"))
    assert "audit may have 1 connections to a server" in said
    silent.close()
    async with await guarded.open("audit") as audit:
        assert await audit.hwm(0) == -1

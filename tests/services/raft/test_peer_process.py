"""``pavane raft peer`` as processes: what a user starts, kills and starts again (docs/specs/raft.md 17)."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from pavane.raft.client import RaftClient
from pavane.raft.curve import CurveKeys
from pavane.raft.errors import RaftError
from pavane.raft.wire.entry import EntryType
from pavane.raft.wire.msgpack import Value
from pavane_cli.commands.raft_peer import announced_url, peer
from pavane_cli.failures import ExitCode, UserError
from tests.services.eventually import eventually
from tests.services.processes import Processes, ended, first_line
from tests.services.raft.peers import free_urls

SECRET = "s3cr3t"
KILLS = 2


class Peers(Processes):
    """Processes by the ids of their peers."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def run(self, peer: str, peers: str, *options: str, limit: str = "") -> asyncio.subprocess.Process:
        """Start a peer, with the secret of all unless its options name one."""
        arguments = ["raft", "peer", "--id", peer, "--data", str(self._folder / peer), "--peers", peers, *options]
        if "--secret" not in "".join(options):
            arguments += ["--secret", SECRET]
        return await self.start(peer, *arguments, limit=limit)

    async def up(self, peer: str, peers: str, *options: str, limit: str = "") -> asyncio.subprocess.Process:
        """Start a peer and wait for the line that says that it is bound."""
        process = await self.run(peer, peers, *options, limit=limit)
        assert await first_line(process) == f"up {peer}\n"
        return process

    async def three_up(self, urls: Sequence[str], *options: str) -> None:
        """Start peers 1 to 3 and wait until all of them vote.

        One that is late finds a cluster that lives already, which may have its vote, and first finds back (5.5).
        """
        members = ",".join(f"{number}={url}" for number, url in enumerate(urls, 1))
        await asyncio.gather(*(self.up(str(number), members, *options) for number in (1, 2, 3)))
        async with RaftClient(urls, SECRET.encode()) as client:
            for url in urls:
                while not _votes(await client.status(url)):
                    await asyncio.sleep(0.02)


def _votes(status: dict[str, Value]) -> bool:
    return status["role"] in ("Leader", "Follower") and status["leader"] is not None


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Peers]:
    peers = Peers(tmp_path)
    yield peers
    await peers.stop_all()


async def written(client: RaftClient) -> list[bytes]:
    return [bytes(entry.data) async for entry in client.entries() if entry.type == EntryType.STATE]


async def test_no_acknowledged_write_is_lost_or_doubled_when_leaders_are_killed(peers: Peers) -> None:
    urls = free_urls(3)
    members = ",".join(f"{number}={url}" for number, url in enumerate(urls, 1))
    options = ("--election-min-ms", "300", "--election-max-ms", "600")
    await peers.three_up(urls, *options)
    rng = random.Random(11)
    acknowledged: list[bytes] = []
    enough = asyncio.Event()
    async with RaftClient(urls, SECRET.encode()) as client:

        async def write() -> None:
            while not enough.is_set():
                data = b"%d" % len(acknowledged)
                await client.update(data)
                acknowledged.append(data)

        writing = asyncio.create_task(write())

        def come_to(goal: int) -> bool:
            return len(acknowledged) >= goal or writing.done()

        for _ in range(KILLS):
            goal = len(acknowledged) + rng.randint(20, 200)
            await eventually(partial(come_to, goal))
            leader = (await client.configuration()).leader
            assert leader is not None
            peers.running[leader].kill()
            await peers.running[leader].communicate()
            goal = len(acknowledged) + 20
            await eventually(partial(come_to, goal))
            await peers.up(leader, members, *options)
        enough.set()
        await writing
        assert await written(client) == acknowledged


async def test_sigterm_ends_in_order_and_everything_is_there_at_the_next_start(peers: Peers) -> None:
    [url] = free_urls(1)
    process = await peers.up("1", f"1={url}")
    async with RaftClient([url], SECRET.encode()) as client:
        await client.update(b"kept")
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[0] == 0
        await peers.up("1", f"1={url}")
        assert await written(client) == [b"kept"]


async def test_peers_with_the_clusters_key_serve_listed_clients(peers: Peers, tmp_path: Path) -> None:
    urls = free_urls(3)
    members = ",".join(f"{number}={url}" for number, url in enumerate(urls, 1))
    server, (client_public, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    (tmp_path / "server").write_bytes(server[1])
    (tmp_path / "mine.pub").write_bytes(client_public)
    options = ("--election-min-ms", "300", "--election-max-ms", "600", "--curve-secret-file", str(tmp_path / "server"))
    await asyncio.gather(
        *(peers.up(str(number), members, *options, "--curve-clients", str(tmp_path)) for number in (1, 2, 3))
    )
    keys = CurveKeys(server[0], client_public, client_secret)
    async with RaftClient(urls, SECRET.encode(), curve=keys) as client:
        await client.update(b"sealed")
        assert await written(client) == [b"sealed"]


async def test_a_file_that_holds_no_key_is_a_mistake_of_use(peers: Peers, tmp_path: Path) -> None:
    (tmp_path / "server").write_bytes(b"no key")
    [url] = free_urls(1)
    code, _, errors = await ended(await peers.run("1", f"1={url}", "--curve-secret-file", str(tmp_path / "server")))
    assert code == ExitCode.USAGE
    assert "--curve-secret-file" in errors


async def test_a_full_disk_ends_the_process_with_4_and_loses_nothing_acknowledged(peers: Peers) -> None:
    [url] = free_urls(1)
    process = await peers.up("1", f"1={url}", limit="ulimit -f 512")
    acknowledged: list[bytes] = []
    async with RaftClient([url], SECRET.encode()) as client:

        async def fill() -> None:
            while True:
                data = b"%06d" % len(acknowledged) + bytes(20_000)
                await client.update(data, timeout_s=3.0)
                acknowledged.append(data)

        with pytest.raises(RaftError):
            await fill()
        code, _, errors = await ended(process)
        assert code == 4
        assert "cannot be written" in errors
        assert acknowledged
        await peers.up("1", f"1={url}")
        assert (await written(client))[: len(acknowledged)] == acknowledged


async def test_a_peer_that_is_not_in_the_list_follows_as_a_learner(peers: Peers, tmp_path: Path) -> None:
    member, learner = free_urls(2)
    await peers.up("1", f"1={member}")
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    await peers.up("2", f"1={member}", "--bind", learner, "--secret-file", str(secret))
    async with RaftClient([member], SECRET.encode()) as client:
        last = await client.update(b"data")
        found: list[int] = []
        while not found or found[-1] < last:
            status = await client.status(learner)
            applied = status["applied_index"]
            assert isinstance(applied, int)
            found.append(applied)
        assert len((await client.configuration()).peers) == 1


async def test_a_store_of_another_peer_is_exit_code_5(peers: Peers, tmp_path: Path) -> None:
    [url] = free_urls(1)
    process = await peers.up("1", f"1={url}")
    process.terminate()
    await ended(process)
    (tmp_path / "1").rename(tmp_path / "2")
    code, _, errors = await ended(await peers.run("2", f"2={url}"))
    assert code == 5
    assert "belongs to peer '1'" in errors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"secret": None}, "--secret-file"),
        ({"secret_env": "PAVANE_TEST_VARIABLE"}, "--secret-env"),
        ({"secret": None, "secret_env": "PAVANE_TEST_NO_SUCH_VARIABLE"}, "PAVANE_TEST_NO_SUCH_VARIABLE"),
        ({"secret": None, "secret_file": Path("/nowhere")}, "/nowhere"),
        ({"peers": "1=http://127.0.0.1:1"}, "peers"),
        ({"peers": "tcp://127.0.0.1:1"}, "ID=URL"),
        ({"peers": "2=tcp://127.0.0.1:1"}, "--bind"),
        ({"election_min_ms": 500, "election_max_ms": 400}, "election_max"),
        ({"preset": "loaded", "election_max_ms": 1600}, r"1\.5 x election_min \(1500\)"),
        ({"preset": "quick"}, "lan 200/300 ms"),
        ({"machine": "Heap"}, "Broadcast, KeyValue, Tree"),
    ],
)
def test_a_usage_error_says_what_is_wrong(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    settings = {"id": "1", "data": tmp_path / "data", "peers": "1=tcp://127.0.0.1:1", "secret": SECRET, **changes}
    with pytest.raises(UserError, match=words) as refused:
        peer(**settings)
    assert refused.value.code == ExitCode.USAGE
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("bound", "url", "announced"),
    [
        ("tcp://10.0.0.1:8048", "tcp://10.0.0.1:8047", "tcp://10.0.0.1:8048"),
        ("tcp://*:8048", "tcp://10.0.0.1:8047", "tcp://10.0.0.1:8048"),
        ("tcp://0.0.0.0:8048", "tcp://name:8047", "tcp://name:8048"),
        ("tcp://[::]:8048", "tcp://[::1]:8047", "tcp://[::1]:8048"),
        ("", "tcp://10.0.0.1:8047", ""),
    ],
)
def test_subscribers_are_told_an_address_that_they_can_reach(bound: str, url: str, announced: str) -> None:
    assert announced_url(bound, url) == announced

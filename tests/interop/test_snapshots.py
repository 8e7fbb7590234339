"""A peer that lost its disk is given the leader's snapshot: N10 of docs/specs/raft.md 18.4."""

import asyncio
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient, Snapshot
from pavane.raft.errors import Compacted
from pavane.raft.offline.js_folder import JsFolder
from pavane.raft.offline.moving import import_js
from pavane.raft.offline.store import StoredLog
from pavane.raft.storage import Identity
from pavane.raft.wire.decoder import decode_reply
from pavane.raft.wire.entry import entry_term
from pavane.raft.wire.frames import decode_uint, encode_uint
from pavane.raft.wire.replies import EntriesStatus, RequestEntriesReply, SnapshotPart
from pavane.raft.wire.snapshot import SnapshotHead
from tests.interop.cluster import Cluster, Kind, Member
from tests.interop.conftest import KINDS, Make
from tests.interop.javascript import Javascript, JsError
from tests.interop.raw import IDENT, Raw

ENTRIES = 300
COVERED = 200  # last entry of the snapshot
STATE = "state " * 20_000  # two chunks


def stop(cluster: Cluster) -> None:
    for id_ in cluster.members:
        cluster.kill(id_, signal.SIGTERM)


def compact(member: Member, term: int, node: str, package: Path) -> None:
    """Have the npm package give a peer that is down a snapshot."""
    script = Path(__file__).parent / "zmq-raft" / "snapshot.js"
    arguments = [str(package), str(member.folder), str(COVERED), str(term), STATE]
    subprocess.run([node, "--no-deprecation", str(script), *arguments], check=True)


def snapshot(member: Member) -> tuple[int, bytes]:
    """Return index and data of a peer's snapshot, read from its folder."""
    if member.kind is Kind.JS:
        kept = JsFolder(member.folder).snapshot
        assert kept is not None
        return kept.index, bytes(kept.data)
    with StoredLog(member.folder) as stored:
        file = stored.snapshot_file()
        head = SnapshotHead.decode(file)
        return head.index, bytes(file[head.data_offset : head.data_offset + head.data_bytes])


def read_over_the_snapshot(url: str, term: int) -> tuple[bytes, int]:
    """Read the log from its beginning; return the snapshot's data and the first index behind it."""
    data = b""
    with Raw(url) as peer:
        peer.send(b"read", b"<", IDENT, encode_uint(0))
        while len(data) < len(STATE):
            reply = decode_reply(RequestEntriesReply, peer.receive()[1:])
            assert isinstance(reply, RequestEntriesReply)
            assert (reply.status, reply.index) == (EntriesStatus.SNAPSHOT, COVERED)
            assert reply.part == SnapshotPart(len(data), len(STATE), term)
            data += reply.entries[0]
        _, _, index, *entries = peer.ask(b"read", b"<", IDENT, encode_uint(COVERED))[1:]
        return data, decode_uint(index) - len(entries) + 1


@pytest.mark.proves("our peer → JS", "$", "^", "%", "<", "< with a snapshot")
@pytest.mark.proves("JS peer → ours", "$")
@pytest.mark.proves("our client → ours", "< with a snapshot")
@pytest.mark.proves("our client → JS", "< with a snapshot")
@pytest.mark.parametrize(("leader", "wiped"), ["jo", "oj", "oo", "jj"])
async def test_a_wiped_peer_gets_the_snapshot_and_the_log_behind_it(
    make: Make, js: Javascript, node: str, package: Path, tmp_path: Path, leader: str, wiped: str
) -> None:
    cluster = make("jjj", first="a")
    async with RaftClient(cluster.urls, IDENT) as client:
        await asyncio.gather(*(client.update(b"%d" % number) for number in range(ENTRIES)))
        cluster.settled()
        stop(cluster)
        whole = cluster.entries("b")
        term = entry_term(whole[COVERED - 1][1])
        a, b, c = cluster.members.values()
        for member in (a, b):
            compact(member, term, node, package)
        if leader == "o":
            import_js(a.folder, tmp_path / "ours", Identity("a", "Broadcast"), int(time.time()))
            a.kind, a.folder = Kind.OURS, tmp_path / "ours"
        shutil.rmtree(c.folder)
        c.folder.mkdir()
        c.kind = KINDS[wiped]
        cluster.start("a")
        cluster.start("b")
        cluster.led_by("a")
        cluster.start("c")
        cluster.settled()
        cluster.ready()
        last = await client.update(b"after")
        assert read_over_the_snapshot(cluster.url("a"), term) == (STATE.encode(), COVERED + 1)
        with pytest.raises(Compacted):
            await anext(client.entries(0))
        assert await client.snapshot() == Snapshot(COVERED, term, STATE.encode())
        with pytest.raises(JsError, match="not a log entry"):  # the package's client fails at its own peers, too
            await js.call("entries", await js.call("client", cluster.urls), 0, None, 0)
        cluster.add("d", Kind.OURS)  # a learner, which follows from nothing
        cluster.start("d")
        cluster.settled()
    stop(cluster)
    assert snapshot(a) == snapshot(c) == snapshot(cluster.members["d"]) == (COVERED, STATE.encode())
    expected = cluster.entries("b")
    assert expected[0][0] == COVERED + 1
    assert expected[-1][0] >= last
    assert cluster.entries("c") == cluster.entries("d") == expected
    assert expected[: len(whole) - COVERED] == whole[COVERED:]

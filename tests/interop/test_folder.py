"""The folders of JS peers become ours, serve, and become folders of JS peers again (docs/specs/raft.md 13.6, N13)."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pavane.raft.backup import back_up
from pavane.raft.client import RaftClient
from pavane.raft.offline.js_folder import JsFolder
from pavane.raft.offline.moving import export_js, import_js
from pavane.raft.offline.store import StoredLog
from pavane.raft.storage import Identity
from pavane.raft.storage.js_files import LOG_ENTRIES
from pavane.raft.wire.entry import entry_term
from tests.interop.cluster import Cluster, Kind
from tests.interop.conftest import Make
from tests.interop.raw import IDENT

SIZES = (1, 2, 100, 65_516, 70_000, 1 << 20)
BESIDE = 256  # updates under way at a time
COMPACTED = 5000  # last entry that the snapshot covers
STATE = "everything up to there"

Logs = dict[str, list[tuple[int, bytes]]]


async def write(cluster: Cluster, data: list[bytes]) -> None:
    async with RaftClient(cluster.urls, IDENT) as client:
        free = asyncio.Semaphore(BESIDE)

        async def update(item: bytes) -> None:
            async with free:
                await client.update(item)

        await asyncio.gather(*map(update, data))


def stop(cluster: Cluster) -> None:
    """End all peers in order when they hold the same."""
    cluster.settled()
    for id_ in cluster.members:
        cluster.kill(id_, signal.SIGTERM)


def logs(cluster: Cluster) -> Logs:
    """Return the log of each peer, which is down, as its own program reads it; all are the same."""
    found = {id_: cluster.entries(id_) for id_ in cluster.members}
    assert found["a"] == found["b"]
    return found


def move(cluster: Cluster, kind: Kind, folder: Path) -> None:
    """Let every peer go on as one of ``kind``, in a new folder."""
    for member in cluster.members.values():
        target = folder / member.id
        if kind is Kind.OURS:
            import_js(member.folder, target, Identity(member.id, "Broadcast"), int(time.time()))
        else:
            export_js(member.folder, target)
        member.kind, member.folder = kind, target


def compact(cluster: Cluster, node: str, package: Path) -> None:
    """Have the npm package give every peer a snapshot."""
    script = Path(__file__).parent / "zmq-raft" / "snapshot.js"
    for member in cluster.members.values():
        term = next(entry_term(entry) for index, entry in JsFolder(member.folder).entries() if index == COMPACTED)
        arguments = [str(package), str(member.folder), str(COMPACTED), str(term), STATE]
        subprocess.run([node, "--no-deprecation", str(script), *arguments], check=True)


@pytest.mark.long  # each way by itself: tests/services/raft/test_offline.py
@pytest.mark.timeout(180)  # seven starts of two processes each
async def test_peers_move_from_one_program_to_the_other_and_back(
    make: Make, tmp_path: Path, node: str, package: Path
) -> None:
    cluster = make("j")
    cluster.add("b", Kind.JS)
    cluster.start("b")
    async with RaftClient(cluster.urls, IDENT) as client:
        await client.change_members(cluster.peers("ab"))
    await write(cluster, [bytes(size) for size in SIZES] + [b"%d" % number for number in range(LOG_ENTRIES)])
    cluster.settled()
    await back_up(tmp_path / "copy", cluster.urls, IDENT)
    stop(cluster)
    whole = logs(cluster)
    with StoredLog(tmp_path / "copy") as copy:
        assert [(index, bytes(entry)) for index, entry in copy.entries()] == whole["a"]

    move(cluster, Kind.OURS, tmp_path / "ours")
    assert logs(cluster) == whole
    cluster.start("a", "b")
    await write(cluster, [b"ours %d" % number for number in range(100)])
    stop(cluster)
    by_ours = logs(cluster)
    assert by_ours["a"][: len(whole["a"])] == whole["a"]

    move(cluster, Kind.JS, tmp_path / "js")
    assert logs(cluster) == by_ours
    compact(cluster, node, package)
    cluster.start("a", "b")
    await write(cluster, [b"js %d" % number for number in range(100)])
    stop(cluster)
    by_js = logs(cluster)
    assert by_js["a"][0][0] == COMPACTED + 1
    assert by_js["a"][: len(by_ours["a"]) - COMPACTED] == by_ours["a"][COMPACTED:]
    assert len(by_js["a"]) >= len(by_ours["a"]) - COMPACTED + 100

    move(cluster, Kind.OURS, tmp_path / "compacted")
    assert logs(cluster) == by_js
    cluster.start("a", "b")
    await write(cluster, [b"compacted"])
    stop(cluster)
    move(cluster, Kind.JS, tmp_path / "last")
    last = logs(cluster)
    assert last["a"][: len(by_js["a"])] == by_js["a"]
    cluster.start("a", "b")
    assert cluster.leader() in {"a", "b"}
    stop(cluster)
    snapshot = JsFolder(cluster.members["a"].folder).snapshot
    assert (snapshot.index, bytes(snapshot.data)) == (COMPACTED, STATE.encode())

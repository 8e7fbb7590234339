"""The folders of JS peers become ours, serve, and become folders of JS peers again (docs/specs/raft.md 13.6, N13)."""

import asyncio
import signal
from pathlib import Path

from pavane.raft.client import RaftClient
from pavane.raft.offline.js_files import LOG_ENTRIES
from pavane.raft.offline.moving import export_js, import_js
from pavane.raft.storage import Identity
from tests.interop.cluster import Cluster, Kind
from tests.interop.conftest import Make
from tests.interop.raw import IDENT

SIZES = (1, 2, 100, 65_516, 70_000, 1 << 20)
BESIDE = 256  # updates under way at a time


async def write(cluster: Cluster, data: list[bytes]) -> None:
    async with RaftClient(cluster.urls, IDENT) as client:
        free = asyncio.Semaphore(BESIDE)

        async def update(item: bytes) -> None:
            async with free:
                await client.update(item)

        await asyncio.gather(*map(update, data))


def stop(cluster: Cluster) -> dict[str, list[tuple[int, bytes]]]:
    """End all peers in order when they hold the same; return their logs, each read by its own program."""
    cluster.settled()
    for id_ in cluster.members:
        cluster.kill(id_, signal.SIGTERM)
    return {id_: cluster.entries(id_) for id_ in cluster.members}


def move(cluster: Cluster, kind: Kind, folder: Path) -> None:
    """Let every peer go on as one of ``kind``, in a new folder."""
    for member in cluster.members.values():
        target = folder / member.id
        if kind is Kind.OURS:
            import_js(member.folder, target, Identity(member.id, "Broadcast"))
        else:
            export_js(member.folder, target)
        member.kind, member.folder = kind, target


async def test_peers_move_from_one_program_to_the_other_and_back(make: Make, tmp_path: Path) -> None:
    cluster = make("j")
    cluster.add("b", Kind.JS)
    cluster.start("b")
    async with RaftClient(cluster.urls, IDENT) as client:
        await client.change_members(cluster.peers("ab"))
    await write(cluster, [bytes(size) for size in SIZES] + [b"%d" % number for number in range(LOG_ENTRIES)])
    left = stop(cluster)
    assert left["a"] == left["b"]

    move(cluster, Kind.OURS, tmp_path / "ours")
    assert {id_: cluster.entries(id_) for id_ in cluster.members} == left
    cluster.start("a", "b")
    await write(cluster, [b"ours %d" % number for number in range(100)])
    left_by_ours = stop(cluster)
    assert left_by_ours["a"] == left_by_ours["b"]
    assert left_by_ours["a"][: len(left["a"])] == left["a"]

    move(cluster, Kind.JS, tmp_path / "js")
    assert {id_: cluster.entries(id_) for id_ in cluster.members} == left_by_ours
    cluster.start("a", "b")
    assert cluster.leader() in {"a", "b"}
    await write(cluster, [b"js %d" % number for number in range(100)])
    left_by_js = stop(cluster)
    assert left_by_js["a"] == left_by_js["b"]
    assert left_by_js["a"][: len(left_by_ours["a"])] == left_by_ours["a"]
    assert len(left_by_js["a"]) >= len(left_by_ours["a"]) + 100

"""The fence as the downtime probe judges it from the log (docs/specs/operator.md 7.5)."""

from pathlib import Path

import pytest

from pavane.raft.client import Entry, RaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.raft.state.configuration import Configuration, Members
from pavane.raft.wire.entry import EntryType, encode_entry
from pavane_cli.probe import Fence, SteadyWriter
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT


def members(generation: int) -> Members:
    return tuple((f"q-server-g{generation}-{pod}", f"tcp://10.0.{generation}.{pod}:8047") for pod in range(3))


def config(index: int, term: int, *, new: int, old: int | None = None) -> Entry:
    configuration = Configuration(members(new), members(old) if old is not None else None)
    return Entry(index, encode_entry(bytes(12), EntryType.CONFIG, term, configuration.encode()))


def write(index: int, term: int) -> Entry:
    return Entry(index, encode_entry(bytes(12), EntryType.STATE, term, b"data"))


ROLLOUT = (config(1, 0, new=1), write(2, 1), config(3, 1, new=2, old=1), write(4, 1), write(5, 2), config(6, 2, new=2))
"""Generation 1 leads in term 1, generation 2 in term 2; the fence is entry 6."""


def judged(*entries: Entry, **leaders: str) -> int:
    fence = Fence()
    for term, leader in leaders.items():
        fence.led(int(term.removeprefix("term")), leader)
    for entry in entries:
        fence.entry(entry)
    return fence.broken


def test_both_generations_may_write_between_the_joint_and_the_new_configuration() -> None:
    assert judged(*ROLLOUT, write(7, 2), term1="q-server-g1-0", term2="q-server-g2-1") == 0


@pytest.mark.parametrize("late", [1, 2])
def test_each_write_of_the_old_generation_behind_the_fence_counts(late: int) -> None:
    writes = [write(7 + number, 3) for number in range(late)]
    assert judged(*ROLLOUT, *writes, term1="q-server-g1-0", term2="q-server-g2-1", term3="q-server-g1-2") == late


def test_a_new_generation_that_writes_before_the_joint_configuration_counts() -> None:
    assert judged(config(1, 0, new=1), write(2, 1), term1="q-server-g2-0") == 1


def test_two_leaders_of_one_term_count() -> None:
    fence = Fence()
    fence.led(1, "q-server-g1-0")
    fence.led(1, "q-server-g1-1")
    fence.entry(config(1, 0, new=1))
    fence.entry(write(2, 1))
    assert fence.broken == 1


def test_a_term_whose_leader_was_not_seen_is_not_judged() -> None:
    assert judged(*ROLLOUT, write(7, 9), term1="q-server-g1-0") == 0


@pytest.mark.parametrize("machine", ["Broadcast", "KeyValue"])
async def test_what_was_acknowledged_is_found_in_any_log(tmp_path: Path, machine: str) -> None:
    [url] = free_urls(1)
    config = Config(id="q-server-g1-0", ident=IDENT, url=url, peers=(("q-server-g1-0", url),), machine=machine)
    server = RaftServer(config, data=tmp_path, bind=url)
    await server.start()
    try:
        async with RaftClient([url], IDENT) as client:
            writer = SteadyWriter(client, "probe")
            writer.start()
            await writer.reach(20)
            await writer.stop()
            proof = await writer.proof()
            assert proof.holds, proof
            assert proof.acknowledged >= 20
            # The same texts once more: whoever reads the log sees each of them twice.
            entries = [entry async for entry in client.entries()]
            for entry in entries:
                if entry.type == EntryType.STATE:
                    await client.update(bytes(entry.data))
            assert (await writer.proof()).doubled == proof.acknowledged
    finally:
        await server.stop()

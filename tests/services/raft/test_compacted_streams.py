"""Who is being sent the log while what comes next for him is cut off: never other entries in its place (9.1, 10.4)."""

import pytest

from pavane.raft.core import entry_streams, learner_streams, snapshots
from pavane.raft.core.inflight import INFLIGHT_MESSAGES
from pavane.raft.machines import limits
from pavane.raft.machines.commands import Put
from pavane.raft.wire.entry import entry_data
from pavane.raft.wire.replies import EntriesStatus, RequestEntriesReply
from pavane.raft.wire.requests import RequestEntries
from tests.services.raft.ensemble import IDENT, decoded
from tests.services.raft.test_keyspace import Cluster

SETTLED_S = 1.0  # by then every peer knows every other one
MESSAGE_BYTES = 1000
VALUE_BYTES = 900  # one fills a message


@pytest.fixture(autouse=True)
def snapshots_come_often_and_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PAUSE_S", 0.0)
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 0)
    for streams in (entry_streams, learner_streams):
        monkeypatch.setattr(streams, "MESSAGE_BYTES", MESSAGE_BYTES)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("abc", "d", absent="d")
    cluster.elect()
    cluster.advance(SETTLED_S)
    return cluster


def write(cluster: Cluster, count: int, size: int) -> dict[int, bytes]:
    """Write one key again and again; return revision → value."""
    values = [b"%d" % number + bytes(size) for number in range(count)]
    return {cluster.do(Put(b"k", value)): value for value in values}


def cut(cluster: Cluster) -> None:
    """Let all that there is of the log be cut off by snapshots."""
    leader = cluster.leader()
    before = cluster.status(leader).last
    for core in cluster.cores.values():
        core.keep_log(5, 0)
    while cluster.status(leader).first <= before:
        write(cluster, 1, 10)


def test_a_reader_whose_entries_go_is_sent_the_snapshot(cluster: Cluster) -> None:
    written = write(cluster, 20, VALUE_BYTES)

    def ask(previous: int) -> list[RequestEntriesReply]:
        before = len(cluster.told("reader"))
        frames = (b"read", *RequestEntries(previous).encode(IDENT))
        cluster.ask(cluster.leader(), frames, "reader")
        return [decoded(RequestEntriesReply, reply) for reply in cluster.told("reader")[before:]]

    told = ask(0)
    assert [reply.status for reply in told] == [EntriesStatus.MORE] * 5
    cut(cluster)
    for reply in tuple(told):
        told += ask(reply.index)
    for reply in told:
        if reply.status != EntriesStatus.SNAPSHOT:
            first = reply.index - len(reply.entries) + 1
            for index, entry in enumerate(reply.entries, first):
                assert index not in written or bytes(entry_data(entry)).endswith(written[index] + b"\0\x90")
    assert told[-1].status == EntriesStatus.SNAPSHOT


def test_a_learner_whose_entries_go_follows_by_the_snapshot(cluster: Cluster) -> None:
    write(cluster, 20, VALUE_BYTES)
    cluster.stuck = {"d"}
    cluster.start("d")
    cluster.advance(SETTLED_S)
    assert 0 < cluster.status("d").last < 20
    cut(cluster)
    cluster.stuck.clear()
    cluster.sync("d")
    cluster.advance(SETTLED_S)
    learner, leader = cluster.machines["d"], cluster.machines[cluster.leader()]
    assert learner is not None
    assert leader is not None
    assert learner.digest() == leader.digest()


def test_a_follower_whose_entries_go_is_sent_the_snapshot(cluster: Cluster) -> None:
    follower = cluster.follower()
    cluster.stuck = {follower}
    write(cluster, 2 * INFLIGHT_MESSAGES, 10)
    cut(cluster)
    cluster.stuck.clear()
    cluster.sync(follower)
    cluster.advance(SETTLED_S)
    leader = cluster.leader()
    assert leader != follower
    assert cluster.status(follower).applied == cluster.status(leader).applied

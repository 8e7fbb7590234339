"""Streams whose server changes: what the one before still sends does not belong to them (docs/specs/raft.md 10.4)."""

from pavane.raft.client.calls import EntriesCall
from pavane.raft.client.snapshot_call import Snapshot, SnapshotCall
from pavane.raft.wire.replies import EntriesStatus, RequestEntriesReply, SnapshotPart
from tests.services.raft.test_client_procedure import Network, entries_reply, led_by, read

NEGATIVE = RequestEntriesReply(EntriesStatus.NOT_LEADER, leader="3")


def chunk(index: int, offset: int, data: bytes) -> RequestEntriesReply:
    return RequestEntriesReply(EntriesStatus.SNAPSHOT, index, (data,), part=SnapshotPart(offset, 4, 1))


def fetching() -> tuple[Network, SnapshotCall]:
    network = led_by("2")
    call = SnapshotCall(b"snapshot", 30.0)
    network.submit(call)
    return network, call


def test_two_leaders_snapshots_are_not_put_together() -> None:
    network, call = fetching()
    network.reply("2", call, chunk(5, 0, b"ol"))
    network.reply("2", call, NEGATIVE)
    network.reply("3", call, chunk(9, 0, b"ne"))
    network.reply("2", call, chunk(5, 2, b"d."))
    assert call.found is None
    network.reply("3", call, chunk(9, 2, b"w."))
    assert call.found == Snapshot(9, 1, b"new.")


def test_a_snapshot_that_is_replaced_meanwhile_is_read_from_its_beginning() -> None:
    network, call = fetching()
    network.reply("2", call, chunk(5, 0, b"ol"))
    network.reply("2", call, chunk(9, 2, b"w."))
    assert call.found is None
    network.run(0.2)
    assert [kind for _, kind in network.requests] == ["<", "<"]
    network.reply("2", call, chunk(9, 0, b"ne"))
    network.reply("2", call, chunk(9, 2, b"w."))
    assert call.found == Snapshot(9, 1, b"new.")


def test_entries_of_the_leader_before_are_neither_read_nor_acknowledged_to_the_next() -> None:
    network = led_by("2")
    call = EntriesCall(b"entries", 0, None, 30.0)
    network.submit(call)
    network.reply("2", call, NEGATIVE)
    network.reply("2", call, entries_reply(EntriesStatus.MORE, 1, 3))
    assert not call.batches
    network.reply("3", call, entries_reply(EntriesStatus.LAST, 1, 4))
    assert read(call) == [1, 2, 3, 4]

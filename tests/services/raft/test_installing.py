"""Snapshots of a leader, in both forms, and chunks for readers (docs/specs/raft.md 9.4, 10.4)."""

from collections import deque
from hashlib import blake2b

import pytest

from pavane.raft.core.outputs import Channel, Dropped, Freeze, SnapshotChanged
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.state.commands import Recovered, SnapshotInstall
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType, encode_entry
from pavane.raft.wire.pv import PvNow, PvNowReply, PvSnapshot
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    EntriesStatus,
    InstallSnapshotReply,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestUpdateReply,
    UpdateStatus,
)
from pavane.raft.wire.requests import AppendEntries, InstallSnapshot, RequestEntries, RequestLogInfo, RequestUpdate
from pavane.raft.wire.snapshot import SnapshotHead, SnapshotMeta, encode_group
from tests.services.raft.ensemble import IDENT, WALL_S, Ensemble, decoded, members, reqid
from tests.sim.disk import Disk

DATA = b"state of the application" * 5
TERM = 4


class Follower:
    """Core b among a, b and c, of which it hears what this test says as leader a."""

    def __init__(self, *, keys: bool = False) -> None:
        self.ensemble = Ensemble("abc", keys=keys)
        for other in "ac":
            self.ensemble.down(other)
        self.ensemble.start("b", Recovered(term=1, vote="a"))  # it has taken part before, so nothing was lost
        self.count = 0

    def chunk(self, offset: int, data: bytes, *, index: int = 20, total: int = len(DATA), term: int = TERM) -> object:
        self.count += 1
        message = InstallSnapshot("a", term, index, 3, offset, total, data)
        return self.answer(message.encode(IDENT), InstallSnapshotReply)

    def file(self, file: bytes, size: int = 1 << 20, index: int = 20) -> list[object]:
        return [
            self.answer(
                PvSnapshot("a", TERM, index, 3, at, len(file), file[at : at + size]).encode(IDENT), InstallSnapshotReply
            )
            for at in range(0, len(file), size)
        ]

    def append(self, previous: int, previous_term: int, commit: int, *entries: bytes) -> object:
        message = AppendEntries("a", TERM, previous, previous_term, commit, entries)
        return self.answer(message.encode(IDENT), AppendEntriesReply)

    def answer(self, frames: tuple[bytes | memoryview, ...], kind: type) -> object:
        self.count += 1
        before = len(self.ensemble.told("leader"))
        self.ensemble.ask("b", (self.count.to_bytes(2, "little"), *frames), "leader")
        told = self.ensemble.told("leader")[before:]
        return decoded(kind, told[-1]) if told else None

    def info(self) -> RequestLogInfoReply:
        found = self.answer(RequestLogInfo().encode(IDENT), RequestLogInfoReply)
        assert isinstance(found, RequestLogInfoReply)
        return found


def entry(number: int, term: int = 3) -> bytes:
    return encode_entry(reqid(number), EntryType.STATE, term, b"data")


def file_of(index: int = 20, configuration: str = "abc", ids: bytes = b"", floor: int = 0) -> bytes:
    meta = SnapshotMeta(Configuration(members(configuration)).encode(), 0, "Tree", 1, floor, ids).encode()
    data = b"".join(Tree().freeze())
    front = SnapshotHead(index, 3, len(meta), len(data)).encode() + meta + data
    return front + blake2b(front, digest_size=32).digest()


TAKEN, START_OVER = InstallSnapshotReply(TERM), InstallSnapshotReply(TERM, 0)


def test_chunks_in_order_replace_the_log() -> None:
    follower = Follower()
    follower.append(0, 0, 0, entry(1), entry(2))
    assert follower.chunk(0, DATA[:50]) == TAKEN
    assert follower.info().first_index == 1
    assert follower.chunk(50, DATA[50:]) == TAKEN
    info = follower.info()
    assert (info.first_index, info.last_index, info.commit_index) == (21, 20, 0)
    assert info.snapshot_bytes == len(DATA)
    assert follower.append(20, 3, 20, entry(21)) == AppendEntriesReply(TERM, True)
    info = follower.info()
    assert (info.last_index, info.commit_index, info.applied_index) == (21, 20, 20)


def test_gap_repetition_and_another_transfer() -> None:
    follower = Follower()
    assert follower.chunk(50, DATA[50:]) == START_OVER
    assert follower.chunk(0, DATA[:50]) == TAKEN
    assert follower.chunk(0, DATA[:50]) == InstallSnapshotReply(TERM, 50)
    assert follower.chunk(60, DATA[60:]) == InstallSnapshotReply(TERM, 50)
    assert follower.chunk(50, DATA[50:60], index=22) == START_OVER
    assert follower.chunk(0, DATA, index=22) == TAKEN
    assert follower.info().last_index == 22


def test_data_of_two_leaders_are_not_put_together() -> None:
    """Bare data have no digest, and what an application makes of the log may differ from peer to peer."""
    follower = Follower()
    assert follower.chunk(0, DATA[:50]) == TAKEN
    successor = InstallSnapshot("c", TERM + 1, 20, 3, 0, len(DATA), DATA[::-1][:50])
    assert follower.answer(successor.encode(IDENT), InstallSnapshotReply) == InstallSnapshotReply(TERM + 1)


def test_log_that_holds_the_entry_stays() -> None:
    follower = Follower()
    entries = [entry(number) for number in range(1, 25)]
    follower.append(0, 0, 24, *entries)
    assert follower.chunk(0, DATA) == TAKEN
    info = follower.info()
    assert (info.first_index, info.last_index, info.commit_index) == (21, 24, 24)
    assert follower.append(24, 3, 25, entry(25)) == AppendEntriesReply(TERM, True)
    assert follower.info().applied_index == 25


def test_members_that_are_rolled_back_behind_a_bare_snapshot_are_not_kept_by_it() -> None:
    follower = Follower()
    before, after = (Configuration(members(names)).encode() for names in ("abc", "abcd"))
    first = encode_entry(reqid(1), EntryType.CONFIG, 3, before)
    last = encode_entry(reqid(24), EntryType.CONFIG, 3, after)
    follower.append(0, 0, 0, first, *(entry(number) for number in range(2, 24)), last)
    follower.chunk(0, DATA)
    assert follower.ensemble.status("b").effective.new == members("abcd")
    follower.append(23, 3, 0, entry(25, TERM))
    assert follower.ensemble.status("b").effective.new == members("abc")


def test_older_snapshot_is_acknowledged_and_ignored() -> None:
    follower = Follower()
    follower.chunk(0, DATA)
    assert follower.chunk(0, DATA, index=12) == TAKEN
    assert follower.info().first_index == 21


def test_empty_snapshot() -> None:
    follower = Follower()
    assert follower.chunk(0, b"", total=0) == TAKEN
    info = follower.info()
    assert (info.first_index, info.snapshot_bytes) == (21, 0)


def test_leader_of_an_older_term_is_told_ours() -> None:
    follower = Follower()
    follower.append(0, 0, 0)
    assert follower.chunk(0, DATA, term=TERM - 1) == TAKEN
    assert follower.info().first_index == 1


def test_entries_in_front_of_the_snapshot_are_taken_as_known() -> None:
    follower = Follower()
    follower.chunk(0, DATA)
    assert follower.append(10, 3, 20, *(entry(number) for number in range(11, 23))) == AppendEntriesReply(TERM, True)
    assert follower.info().last_index == 22


@pytest.mark.parametrize("how", ["entry", "question"])
def test_after_a_bare_snapshot_a_peer_does_not_stand_before_it_knows_the_members(how: str) -> None:
    follower = Follower()
    follower.chunk(0, DATA)
    assert follower.append(20, 3, 20) == AppendEntriesReply(TERM, True)
    ensemble = follower.ensemble
    ensemble.advance(5.0)
    status = ensemble.status("b")
    assert (status.role, status.term) == (Role.FOLLOWER, TERM)
    if how == "entry":
        data = Configuration(members("abc")).encode()
        follower.append(20, 3, 20, encode_entry(bytes(12), EntryType.CONFIG, TERM, data))
    else:
        follower.append(20, 3, 20)
        reply = RequestConfigReply(True, "a", members("abc"))
        for ask in list(ensemble.cores["b"]._requests._outstanding[Channel.SIDE, "a"].values()):
            if ask.reply is RequestConfigReply:
                ensemble.cores["b"].reply("a", Channel.SIDE, (ask.id, *reply.encode()), ensemble.now())
    ensemble.advance(5.0)
    assert ensemble.status("b").term > TERM


def test_a_peer_that_does_not_know_the_members_does_not_stand_though_its_leader_asks_for_it() -> None:
    follower = Follower()
    follower.chunk(0, DATA)
    follower.append(20, 3, 20)
    reply = follower.answer(PvNow("a", TERM, 20, 20).encode(IDENT), PvNowReply)
    assert reply == PvNowReply(TERM, False)
    assert follower.ensemble.status("b").term == TERM


def test_a_crash_before_the_answer_does_not_make_a_peer_sure_of_its_members() -> None:
    follower = Follower()
    follower.append(0, 0, 0)
    ensemble, disk = follower.ensemble, follower.ensemble.disks["b"]
    ensemble.stuck.add("b")
    follower.chunk(0, DATA)
    installed = next(at for at, command in enumerate(disk.queue, 1) if isinstance(command, SnapshotInstall))
    disk.sync(installed)
    disk.queue.clear()
    ensemble.down("b")
    ensemble.stuck.clear()
    ensemble.start("b")
    assert ensemble.status("b").snapshot == 20
    ensemble.advance(5.0)
    assert ensemble.status("b").term == TERM


@pytest.mark.parametrize("sure", [False, True])
def test_the_next_snapshot_says_as_well_that_nobody_told_the_members(sure: bool) -> None:
    follower = Follower()
    core, now = follower.ensemble.cores["b"], follower.ensemble.now()
    old = encode_entry(reqid(21, WALL_S - 9 * 3600), EntryType.STATE, 3, b"data")
    follower.chunk(0, DATA)
    follower.append(20, 3, 21, old)
    if sure:
        core._node.trust_configuration()
    assert core.offer_snapshot(21, 3, now)
    (freeze,) = core.outputs().apply
    assert isinstance(freeze, Freeze)
    assert freeze.bare != sure


def test_who_is_sure_of_its_members_is_so_after_a_restart() -> None:
    follower = Follower()
    ensemble = follower.ensemble
    follower.chunk(0, DATA)
    ensemble.cores["b"]._node.trust_configuration()
    ensemble.settle()
    ensemble.down("b")
    ensemble.start("b")
    ensemble.advance(5.0)
    assert ensemble.status("b").term > TERM


def test_what_is_not_durable_yet_is_not_acknowledged_when_the_snapshot_comes_once_more() -> None:
    follower = Follower()
    follower.append(0, 0, 0)  # the term is durable
    follower.ensemble.stuck.add("b")
    assert follower.chunk(0, DATA) is None
    assert follower.chunk(0, DATA) is None
    assert follower.chunk(0, DATA, index=12) is None
    follower.ensemble.sync("b")
    assert follower.chunk(0, DATA) == TAKEN


def test_bare_snapshot_is_nothing_for_a_machine_with_keys() -> None:
    follower = Follower(keys=True)
    assert follower.chunk(0, DATA) is None
    assert Dropped("size") in follower.ensemble.events["b"]
    assert follower.info().first_index == 1


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_whole_file_brings_state_configuration_and_request_ids(size: int) -> None:
    ids = encode_group(WALL_S, reqid(7)[4:] + (3).to_bytes(8, "little"))
    follower = Follower(keys=True)
    assert set(follower.file(file_of(configuration="abcd", ids=ids), size)) == {TAKEN}
    follower.append(20, 3, 20)
    status = follower.ensemble.status("b")
    assert (status.first, status.applied, status.snapshot) == (21, 20, 20)
    assert status.effective == Configuration(members("abcd"))
    assert follower.ensemble.cores["b"]._node.dedup.index_of(reqid(7)) == 3


@pytest.mark.parametrize("damage", [0, 60, -1])
def test_damaged_file_is_not_taken_and_asked_for_again(damage: int) -> None:
    file = bytearray(file_of())
    file[damage] ^= 1
    follower = Follower(keys=True)
    assert follower.file(bytes(file), 200)[-1] in {START_OVER, InstallSnapshotReply(TERM, 0)}
    assert any(isinstance(event, SnapshotChanged) and event.what == "bad" for event in follower.ensemble.events["b"])
    assert follower.info().first_index == 1
    assert set(follower.file(file_of())) == {TAKEN}


def leader_behind_a_snapshot(data: bytes = DATA) -> Ensemble:
    """A single voter whose log begins behind a snapshot of 20."""
    ensemble = Ensemble("a")
    ensemble.down("a")
    disk = ensemble.disks["a"] = Disk()
    disk.term, disk.first, disk.entries = 3, 21, [entry(21), entry(22)]
    floor = WALL_S - 7 * 3600
    disk.save(20, 3, SnapshotMeta(Configuration(members("a")).encode(), 0, "Broadcast", 1, floor, b""), data)
    ensemble.start("a")
    ensemble.elect()
    return ensemble


def stream(ensemble: Ensemble, message: RequestEntries) -> list[RequestEntriesReply]:
    before = len(ensemble.told("reader"))
    ensemble.ask("a", (b"r", *message.encode(IDENT)), "reader")
    return [decoded(RequestEntriesReply, frames) for frames in ensemble.told("reader")[before:]]


def test_reader_behind_the_log_gets_the_snapshot_first() -> None:
    data = bytes(range(256)) * 1000
    ensemble = leader_behind_a_snapshot(data)
    found = stream(ensemble, RequestEntries(0))
    assert [reply.status for reply in found] == [EntriesStatus.SNAPSHOT] * 2
    chunks = deque(found)
    taken = b""
    while chunks[0].status is EntriesStatus.SNAPSHOT:
        reply = chunks.popleft()
        assert reply.part is not None
        assert (reply.index, reply.part.offset, reply.part.total, reply.part.term) == (20, len(taken), len(data), 3)
        taken += bytes(reply.entries[0])
        chunks += stream(ensemble, RequestEntries(0, None, len(taken)))
    assert taken == data
    assert [reply.index - len(reply.entries) for reply in chunks] == [20, 22]
    assert chunks[-1].status is EntriesStatus.LAST


def test_reader_may_go_on_in_the_middle_and_a_count_takes_the_snapshot_for_one() -> None:
    ensemble = leader_behind_a_snapshot()
    (chunk,) = stream(ensemble, RequestEntries(0, 2, 100))
    assert chunk.part is not None
    assert (chunk.part.offset, bytes(chunk.entries[0])) == (100, DATA[100:])
    (last,) = stream(ensemble, RequestEntries(0, 2, len(DATA)))
    assert (last.status, last.index, len(last.entries)) == (EntriesStatus.LAST, 21, 1)


def test_empty_snapshot_is_one_empty_chunk() -> None:
    ensemble = leader_behind_a_snapshot(b"")
    (chunk,) = stream(ensemble, RequestEntries(0))
    assert chunk.part is not None
    assert (chunk.part.offset, chunk.part.total, bytes(chunk.entries[0])) == (0, 0, b"")


def test_reader_within_the_log_gets_entries() -> None:
    first, *_ = stream(leader_behind_a_snapshot(), RequestEntries(20))
    assert first.status is EntriesStatus.MORE
    assert first.index - len(first.entries) == 20


def test_ids_that_a_snapshot_has_forgotten_are_expired() -> None:
    ensemble = leader_behind_a_snapshot()
    old = reqid(1, WALL_S - 7 * 3600)
    ensemble.ask("a", (old, *RequestUpdate(b"x").encode(IDENT)), "client")
    assert decoded(RequestUpdateReply, ensemble.told("client")[-1]).status is UpdateStatus.EXPIRED


def test_log_may_be_cut_behind_ids_that_are_too_old_as_long_as_a_member_may_be_original() -> None:
    follower = Follower()
    old, fresh = WALL_S - 9 * 3600, WALL_S
    entries = [encode_entry(reqid(n, old if n <= 3 else fresh), EntryType.STATE, 3, b"data") for n in range(1, 6)]
    follower.append(0, 0, 5, *entries)
    assert follower.info().prune_index == 3
    core, now = follower.ensemble.cores["b"], follower.ensemble.now()
    assert not core.offer_snapshot(4, 3, now)
    assert core.offer_snapshot(3, 3, now)


def test_log_of_peers_of_ours_may_be_cut_as_far_as_it_is_applied() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.ask(leader, (b"i", *RequestLogInfo().encode(IDENT)), "leader")
    info = decoded(RequestLogInfoReply, ensemble.told("leader")[-1])
    assert info.prune_index == info.applied_index == 1

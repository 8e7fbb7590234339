"""What a user of a cluster depends on, told by whole cores without sockets or disks."""

import pytest

from pavane.raft.core.election import PHASE_TRANSFER
from pavane.raft.core.outputs import (
    Channel,
    Corrupt,
    Now,
    QuorumLost,
    SlowDisk,
)
from pavane.raft.core.requests import OUTSTANDING_MAX
from pavane.raft.core.transfer import REQUESTS_MAX, WAITING_MAX
from pavane.raft.errors import Code
from pavane.raft.state.commands import Recovered
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType, encode_entry
from pavane.raft.wire.frames import UINT_MAX
from pavane.raft.wire.pv import PvNow, PvNowReply, PvReply, PvStatus, PvTransfer, PvVote, PvVoteReply
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    EntriesStatus,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestUpdateReply,
    UpdateStatus,
)
from pavane.raft.wire.requests import (
    AppendEntries,
    InstallSnapshot,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    RequestUpdate,
)
from pavane.wire import LocalProtocolError
from tests.services.raft.core_views import isolate, others, statuses
from tests.services.raft.ensemble import IDENT, WALL_S, Ensemble, decoded, members, reqid

# --- updates -------------------------------------------------------------------------------------------------------


def test_a_lone_voter_answers_only_after_its_own_fsync() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    ensemble.stuck.add("a")
    ensemble.update("a", 1)
    assert statuses(ensemble, "client") == [UpdateStatus.ACCEPTED]
    ensemble.sync("a")
    assert statuses(ensemble, "client")[-1] == UpdateStatus.DONE
    assert len(ensemble.entries("a")) == 1


def test_a_majority_of_others_commits_while_the_leader_still_writes() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.stuck.add(leader)
    assert [reply.status for reply in ensemble.update(leader, 1)] == [UpdateStatus.ACCEPTED, UpdateStatus.DONE]
    assert ensemble.entries(leader) == []


def test_without_a_majority_on_disk_nothing_is_acknowledged() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.stuck |= set("abc")
    ensemble.update(leader, 1)
    ensemble.advance(0.3)
    assert set(statuses(ensemble, "client")) == {UpdateStatus.ACCEPTED}


def test_one_id_makes_one_entry_and_everybody_who_asked_is_told() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.stuck |= set("abc")
    ensemble.update(leader, 1, client="first")
    ensemble.update(leader, 1, client="second")
    ensemble.stuck.clear()
    for name in "abc":
        ensemble.sync(name)
    ensemble.advance(0.2)
    told = [decoded(RequestUpdateReply, ensemble.told(client)[-1]) for client in ("first", "second")]
    assert [(reply.status, reply.index) for reply in told] == [(UpdateStatus.DONE, 1)] * 2
    assert ensemble.update(leader, 1, client="third")[-1].index == 1
    assert len(ensemble.entries(leader)) == 1


def test_whoever_waits_hears_of_it_every_200_ms() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.stuck |= set("abc")
    ensemble.update(leader, 1)
    ensemble.advance(0.45)
    assert statuses(ensemble, "client") == [UpdateStatus.ACCEPTED] * 3


def test_a_follower_names_the_leader() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    follower = others(ensemble, leader)[0]
    reply = ensemble.update(follower, 1)[0]
    assert (reply.status, reply.leader) == (UpdateStatus.NOT_LEADER, leader)


@pytest.mark.parametrize("second", [WALL_S - 8 * 3600, WALL_S + 16 * 60])
def test_an_id_too_old_or_from_the_future_is_refused(second: int) -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    frames = ensemble.ask("a", (reqid(1, second), *RequestUpdate(b"data").encode(IDENT)))
    assert decoded(RequestUpdateReply, frames[0]).status == UpdateStatus.EXPIRED
    assert ensemble.entries("a") == []


def test_an_update_survives_the_leader_and_keeps_its_index_when_repeated() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    first = ensemble.update(leader, 1)[-1]
    ensemble.down(leader)
    successor = ensemble.elect()
    assert ensemble.update(successor, 1)[-1] == first


def test_a_leader_whose_disk_hangs_lets_another_lead() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.stuck.add(leader)
    ensemble.update(leader, 1)
    ensemble.until(lambda: any(role == Role.LEADER for name, role in ensemble.roles().items() if name != leader))
    assert any(isinstance(event, SlowDisk) for event in ensemble.events[leader])


# --- elections -----------------------------------------------------------------------------------------------------


def test_an_isolated_leader_gives_up_and_a_read_there_is_never_answered() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    isolate(ensemble, leader)
    ensemble.ask(leader, (b"read", *RequestEntries(0).encode(IDENT)), "reader")
    ensemble.advance(1.0)
    assert ensemble.status(leader).role != Role.LEADER
    assert any(isinstance(event, QuorumLost) for event in ensemble.events[leader])
    reply = decoded(RequestEntriesReply, ensemble.told("reader")[-1])
    assert reply.status == EntriesStatus.NOT_LEADER
    assert ensemble.leader() != leader


def test_a_vote_that_found_no_connection_is_asked_for_when_there_is_one() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    candidate, voter = list(others(ensemble, leader))
    ensemble.down(leader)
    isolate(ensemble, candidate)
    ensemble.until(lambda: ensemble.status(candidate).role == Role.PRE_CANDIDATE)
    ensemble.cuts.clear()
    ensemble.cores[candidate].connection(voter, Channel.SIDE, True, ensemble.now())
    ensemble.settle()
    assert ensemble.status(candidate).role == Role.LEADER


def test_a_candidate_asks_a_peer_in_our_way_as_soon_as_it_is_known_as_ours() -> None:
    ensemble = Ensemble("abc")
    ensemble.update(ensemble.elect(), 1)
    for name in "abc":
        ensemble.down(name)
    ensemble.disks["a"].notes.clear()
    ensemble.start("a")
    ensemble.until(lambda: ensemble.status("a").role == Role.PRE_CANDIDATE)
    ensemble.start("b")
    ensemble.cores["a"].connection("b", Channel.SIDE, True, ensemble.now())
    ensemble.asked.clear()
    ensemble.advance(0.001)
    assert [to for _, to, message in ensemble.asked if isinstance(message, PvVote)] == ["b"]


def test_a_lone_peer_among_ours_keeps_its_term() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    isolate(ensemble, leader)
    term = ensemble.status(leader).term
    ensemble.advance(6.0)
    assert ensemble.status(leader).term == term


def test_a_peer_behind_gets_no_vote() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    asker, voter = list(others(ensemble, leader))
    ballot = PvVote(asker, ensemble.status(voter).term + 1, 0, 0, PHASE_TRANSFER)
    frames = ensemble.ask(voter, (b"\x01", *ballot.encode(IDENT)))
    reply = decoded(PvVoteReply, frames[0])
    assert (reply.granted, reply.reason) == (False, 2)


def test_a_stranger_without_a_newer_log_is_met_with_silence() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ballot = PvVote("stranger", 99, 0, 0, 1)
    assert ensemble.ask(leader, (b"\x01", *ballot.encode(IDENT))) == []
    assert ensemble.status(leader).role == Role.LEADER


# --- reads ---------------------------------------------------------------------------------------------------------


def test_a_stream_sends_five_messages_and_waits_for_acknowledgement() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    for number in range(1, 9):
        ensemble.update("a", number, bytes(60_000))
    replies = ensemble.ask("a", (b"r", *RequestEntries(0).encode(IDENT)), "reader")
    parts = [decoded(RequestEntriesReply, frames) for frames in replies]
    assert [part.index for part in parts] == [1, 2, 3, 4, 5]
    replies = ensemble.ask("a", (b"r", *RequestEntries(1).encode(IDENT)), "reader")
    assert [decoded(RequestEntriesReply, frames).index for frames in replies] == [6]
    ensemble.advance(7.0)
    assert ensemble.status("a").streams == 0


def test_acknowledgements_behind_the_last_message_begin_no_new_stream() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    for number in range(1, 7):
        ensemble.update("a", number, bytes(60_000))
    ensemble.ask("a", (b"r", *RequestEntries(0).encode(IDENT)), "reader")
    (last,) = ensemble.ask("a", (b"r", *RequestEntries(1).encode(IDENT)), "reader")
    assert decoded(RequestEntriesReply, last).status == EntriesStatus.LAST
    for acknowledged in (2, 3, 4, 5):
        assert ensemble.status("a").streams == 1
        assert ensemble.ask("a", (b"r", *RequestEntries(acknowledged).encode(IDENT)), "reader") == []
    assert ensemble.status("a").streams == 0


@pytest.mark.parametrize(("previous", "count", "got"), [(0, None, 3), (1, 1, 1), (3, None, 0), (9, None, 0)])
def test_a_read_ends_at_the_applied_index_or_at_the_count(previous: int, count: int | None, got: int) -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    for number in range(1, 4):
        ensemble.update("a", number)
    frames = ensemble.ask("a", (b"r", *RequestEntries(previous, count).encode(IDENT)))
    reply = decoded(RequestEntriesReply, frames[0])
    assert (reply.status, len(reply.entries)) == (EntriesStatus.LAST, got)


# --- transfer ------------------------------------------------------------------------------------------------------


def test_leadership_moves_to_the_peer_that_was_named() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    target = others(ensemble, leader)[-1]
    frames = ensemble.ask(leader, (b"t", *PvTransfer(target).encode(IDENT)))
    reply = decoded(PvReply, frames[0])
    assert (reply.code, reply.value) == (Code.OK, target)
    assert ensemble.leader() == target


@pytest.mark.parametrize(
    ("peers", "target", "words"),
    [
        ("abc", "z", "z is no member"),
        ("a", None, "there is no other peer of Pavane that may vote and answers"),
    ],
)
def test_a_transfer_that_nobody_can_take_is_refused_with_the_reason(peers: str, target: str | None, words: str) -> None:
    ensemble = Ensemble(peers)
    leader = ensemble.elect()
    frames = ensemble.ask(leader, (b"t", *PvTransfer(target).encode(IDENT)))
    reply = decoded(PvReply, frames[0])
    assert (reply.code, reply.value) == (Code.BAD_COMMAND, words)
    assert ensemble.leader() == leader


def test_a_transfer_to_a_dead_peer_ends_and_the_leader_goes_on() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    target = others(ensemble, leader)[-1]
    ensemble.down(target)
    ensemble.ask(leader, (b"t", *PvTransfer(target).encode(IDENT)), "admin")
    ensemble.update(leader, 1)
    assert statuses(ensemble, "client") == [UpdateStatus.ACCEPTED]
    ensemble.advance(0.5)
    assert decoded(PvReply, ensemble.told("admin")[-1]).code == Code.BUSY
    assert statuses(ensemble, "client")[-1] == UpdateStatus.DONE
    assert ensemble.leader() == leader


def test_of_a_crowd_that_asks_for_a_transfer_the_newest_are_told_its_end() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    target = others(ensemble, leader)[-1]
    ensemble.down(target)
    for number in range(WAITING_MAX + 1):
        ensemble.ask(leader, (b"t", *PvTransfer(target).encode(IDENT)), f"admin{number}")
    ensemble.advance(0.5)
    assert [len(ensemble.told(f"admin{number}")) for number in range(WAITING_MAX + 1)] == [0] + [1] * WAITING_MAX


def test_a_target_that_was_not_connected_is_told_when_it_is() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    target = others(ensemble, leader)[0]
    isolate(ensemble, target)
    ensemble.ask(leader, (b"t", *PvTransfer(target).encode(IDENT)), "admin")
    ensemble.cuts.clear()
    ensemble.cores[leader].connection(target, Channel.SIDE, True, ensemble.now())
    ensemble.settle()
    assert ensemble.leader() == target


def test_transfers_to_a_silent_peer_do_not_make_its_later_answers_strange() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    silent = others(ensemble, leader)[0]
    isolate(ensemble, silent)
    for _ in range(OUTSTANDING_MAX // REQUESTS_MAX + 1):
        ensemble.cores[leader].transfer(silent, ensemble.now())
        ensemble.advance(1.0)
    assert ensemble.leader() == leader
    ensemble.cuts.clear()
    ensemble.update(leader, 1)
    ensemble.until(lambda: len(ensemble.entries(silent)) == 1)


def test_what_a_later_leader_took_back_is_not_promised_again() -> None:
    """The repetition of a message of an old leader gets the later term, not the answer that was true once."""
    ensemble = Ensemble("abc")
    for name in "ac":
        ensemble.down(name)
    ensemble.start("b", Recovered(term=1, vote="a"))
    old, new = (encode_entry(reqid(number), EntryType.STATE, term, b"data") for number, term in ((1, 2), (2, 3)))
    question = (b"\x01", *AppendEntries("a", 2, 0, 0, 0, (old,)).encode(IDENT))
    [first] = ensemble.ask("b", question)
    ensemble.ask("b", (b"\x01", *AppendEntries("c", 3, 0, 0, 0, (new,)).encode(IDENT)), "next")
    [again] = ensemble.ask("b", question)
    assert decoded(AppendEntriesReply, first) == AppendEntriesReply(2, True)
    assert decoded(AppendEntriesReply, again) == AppendEntriesReply(3, False)


def test_a_target_that_learns_of_its_own_removal_does_not_stand() -> None:
    ensemble = Ensemble("abc")
    for name in "ac":
        ensemble.down(name)
    ensemble.start("b", Recovered(term=1, vote="a"))  # it has taken part before, so nothing was lost
    without = encode_entry(bytes(12), EntryType.CONFIG, 2, Configuration(members("ac")).encode())
    ensemble.ask("b", (b"\x01", *AppendEntries("a", 2, 0, 0, 0, (without,)).encode(IDENT)))
    [answer] = ensemble.ask("b", (b"\x02", *PvNow("a", 2, 1, 1).encode(IDENT)))
    assert decoded(PvNowReply, answer) == PvNowReply(2, False)
    assert ensemble.roles()["b"] == Role.REMOVED


def test_only_a_leader_can_hand_leadership_on() -> None:
    ensemble = Ensemble("abc")
    follower = others(ensemble, ensemble.elect())[0]
    with pytest.raises(LocalProtocolError):
        ensemble.cores[follower].transfer(None, ensemble.now())


# --- questions -----------------------------------------------------------------------------------------------------


def test_everybody_answers_who_leads_and_how_far_the_log_goes() -> None:
    ensemble = Ensemble("abc", "d")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.until(lambda: ensemble.status("d").applied == 1)
    for name in "abc":
        reply = decoded(RequestConfigReply, ensemble.ask(name, (b"q", *RequestConfig().encode(IDENT)))[0])
        assert reply == RequestConfigReply(name == leader, leader, members("abc"))
    info = decoded(RequestLogInfoReply, ensemble.ask("d", (b"q", *RequestLogInfo().encode(IDENT)))[0])
    assert (info.leader, info.first_index, info.last_index, info.commit_index) == (leader, 1, 1, 1)


def test_the_status_tells_roles_members_and_how_far_they_are() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.advance(0.2)
    reply = decoded(PvReply, ensemble.ask(leader, (b"s", *PvStatus().encode(IDENT)))[0])
    assert reply.code == Code.OK
    assert isinstance(reply.value, dict)
    assert reply.value["role"] == "Leader"
    shown = reply.value["members"]
    assert isinstance(shown, list)
    assert [member for member in shown if isinstance(member, dict) and member["match_index"] != 1] == []


def test_garbage_is_counted_and_changes_nothing() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    for frames in ((b"q",), (b"q", b"^", b"wrong"), (b"q", b"zz", IDENT), (b"\x01", b"+", IDENT, b"b")):
        assert ensemble.ask("a", frames) == []
    assert dict(ensemble.status("a").dropped) == {"frames": 2, "ident": 1, "type": 1}


def test_a_peer_lives_with_the_greatest_term_that_there_is() -> None:
    """A forged one must not end it, at once or when its time to stand comes; nobody can lead after that."""
    ensemble = Ensemble("abc")
    ensemble.elect()
    for name, liar in ("ab", "bc", "ca"):
        ensemble.ask(name, (b"\x01", *AppendEntries(liar, UINT_MAX, 0, 0, 0).encode(IDENT)), "liar")
        ensemble.ask(name, (b"\x02", *PvNow(liar, UINT_MAX, 0, 0).encode(IDENT)), "liar")
    ensemble.advance(3.0)
    assert Role.LEADER not in ensemble.roles().values()
    assert len(ensemble.ask("b", (b"there?", *RequestConfig().encode(IDENT)))) == 1


def test_a_timer_that_fired_wants_a_later_time() -> None:
    """Otherwise the loop would turn without end."""
    ensemble = Ensemble("abc", "d")
    ensemble.elect()
    for _ in range(200):
        for core in ensemble.cores.values():
            due = core.next_timer()
            assert due is not None
            core.handle_timer(Now(max(due, ensemble.time), WALL_S))
            core.outputs()
            after = core.next_timer()
            assert after is not None
            assert after > due
        ensemble.advance(0.05)


def test_a_snapshot_that_contradicts_what_is_committed_ends_the_peer_and_touches_no_entry() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    for number in (1, 2):
        ensemble.update(leader, number)
    ensemble.advance(0.2)
    follower = others(ensemble, leader)[0]
    before = list(ensemble.entries(follower))
    status = ensemble.status(follower)
    assert status.commit == len(before) == 2
    foreign = InstallSnapshot(leader, status.term + 1, 1, status.term + 1, 0, 4, b"data")
    ensemble.ask(follower, (b"\x01", *foreign.encode(IDENT)), "liar")
    assert Corrupt(1) in ensemble.events[follower]
    assert ensemble.entries(follower) == before

"""What a user of a cluster depends on, told by whole cores without sockets or disks."""

from collections.abc import Sequence

import pytest

from pavane.raft.config import LostVoter
from pavane.raft.core.fence import Fence
from pavane.raft.core.outputs import (
    Channel,
    ConfigurationChanged,
    Event,
    Fork,
    Now,
    QuorumLost,
    RecoveringChanged,
    RoleChanged,
    SlowDisk,
    TransferChanged,
)
from pavane.raft.errors import Code
from pavane.raft.state.roles import Role
from pavane.raft.wire import (
    ConfigStatus,
    ConfigUpdate,
    ConfigUpdateReply,
    EntriesStatus,
    EntryType,
    PvHello,
    PvHelloReply,
    PvReply,
    PvStatus,
    PvTransfer,
    PvVote,
    PvVoteReply,
    RequestConfig,
    RequestConfigReply,
    RequestEntries,
    RequestEntriesReply,
    RequestLogInfo,
    RequestLogInfoReply,
    RequestUpdate,
    RequestUpdateReply,
    UpdateStatus,
    Value,
    entry_type,
)
from pavane.wire import LocalProtocolError, Stage
from tests.services.raft.ensemble import IDENT, WALL_S, Ensemble, decoded, members, reqid


def others(ensemble: Ensemble, name: str) -> str:
    return "".join(peer for peer in ensemble.cores if peer != name)


def isolate(ensemble: Ensemble, name: str) -> None:
    for peer in others(ensemble, name):
        ensemble.cuts |= {(name, peer), (peer, name)}


def changes(events: Sequence[Event]) -> list[Role]:
    return [event.new for event in events if isinstance(event, RoleChanged)]


def statuses(ensemble: Ensemble, client: str) -> list[UpdateStatus]:
    return [decoded(RequestUpdateReply, frames).status for frames in ensemble.told(client)]


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


def test_a_local_caller_is_told_by_event() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    ensemble.cores["a"].propose(reqid(1), EntryType.STATE, b"data", 77, ensemble.now())
    ensemble.settle()
    assert "ProposalDone(ticket=77, index=1)" in "\n".join(ensemble.trace)


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
    candidate = others(ensemble, leader)[0]
    isolate(ensemble, candidate)
    ensemble.until(lambda: ensemble.status(candidate).role == Role.CANDIDATE)
    ensemble.cuts.clear()
    for peer in others(ensemble, candidate):
        ensemble.cores[candidate].connection(peer, Channel.SIDE, True, ensemble.now())
    ensemble.settle()
    assert ensemble.status(candidate).role == Role.LEADER


def test_a_candidate_asks_a_peer_in_our_way_as_soon_as_it_is_known_as_ours() -> None:
    ensemble = Ensemble("abc")
    ensemble.update(ensemble.elect(), 1)
    for name in "abc":
        ensemble.down(name)
    ensemble.disks["a"].notes.clear()
    ensemble.start("a")
    ensemble.until(lambda: ensemble.status("a").role == Role.CANDIDATE)
    ensemble.start("b")
    ensemble.cores["a"].connection("b", Channel.SIDE, True, ensemble.now())
    ensemble.asked.clear()
    ensemble.advance(0.001)
    assert [to for _, to, message in ensemble.asked if isinstance(message, PvVote)] == ["b"]


def test_a_lone_candidate_keeps_one_term() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    isolate(ensemble, leader)
    ensemble.advance(1.0)
    term = ensemble.status(leader).term
    ensemble.advance(5.0)
    assert ensemble.status(leader).term <= term + 1


def test_a_peer_behind_gets_no_vote() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    asker, voter = list(others(ensemble, leader))
    ballot = PvVote(asker, ensemble.status(voter).term + 1, 0, 0, 1)
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


def test_only_a_leader_can_hand_leadership_on() -> None:
    ensemble = Ensemble("abc")
    follower = others(ensemble, ensemble.elect())[0]
    with pytest.raises(LocalProtocolError):
        ensemble.cores[follower].transfer(None, ensemble.now())


# --- membership ----------------------------------------------------------------------------------------------------


def permit(ensemble: Ensemble, names: str) -> None:
    for name in names:
        ensemble.cores[name].set_stage(Stage.READ_WRITE, ensemble.now())
    ensemble.settle()


def test_learners_follow_without_being_sent_anything_and_never_vote() -> None:
    ensemble = Ensemble("abc", "de")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.until(lambda: ensemble.entries("d") == ensemble.entries(leader) and ensemble.status("d").applied == 1)
    status = ensemble.status("d")
    assert (status.role, status.applied, status.target, status.fence) == (Role.LEARNER, 1, 1, Fence.AHEAD)
    ballot = PvVote(leader, 99, 99, 98, 1)
    reply = decoded(PvVoteReply, ensemble.ask("d", (b"\x01", *ballot.encode(IDENT)))[0])
    assert (reply.granted, reply.reason) == (False, 5)


def test_a_generation_is_replaced_by_another_with_one_transfer() -> None:
    ensemble = Ensemble("abc", "def")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.until(lambda: all(ensemble.entries(name) for name in "def"))
    permit(ensemble, "def")
    ensemble.change(leader, 50, "def")
    ensemble.until(lambda: all(ensemble.status(name).role == Role.REMOVED for name in "abc"))
    successor = ensemble.leader()
    elections = [event.new for name in "def" for event in ensemble.events[name] if isinstance(event, RoleChanged)]
    assert elections.count(Role.CANDIDATE) == 1
    done = decoded(ConfigUpdateReply, ensemble.told("admin")[-1])
    assert done.status == ConfigStatus.ACCEPTED
    assert isinstance(done.argument, int)
    assert ensemble.status(successor).committed.new == members("def")
    assert {ensemble.status(name).role for name in "abc"} == {Role.REMOVED}
    assert ensemble.update(successor, 2)[-1].status == UpdateStatus.DONE
    assert ensemble.update("a", 3)[0].leader == successor


def joined(seed: int = 1) -> tuple[Ensemble, str]:
    """Bring up a cluster whose new members hold Cold,new, committed, and reach nobody but the leader so far."""
    ensemble = Ensemble("abc", "def", seed=seed)
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.until(lambda: all(ensemble.entries(name) for name in "def"))
    permit(ensemble, "def")
    apart = [(new, other) for new in "def" for other in "abcdef" if other != leader]
    ensemble.cuts |= {*apart, *((other, new) for new, other in apart)}
    ensemble.change(leader, 50, "def")
    ensemble.until(lambda: ensemble.status(leader).commit == ensemble.status(leader).effective_index)
    return ensemble, leader


def greeted(ensemble: Ensemble, name: str) -> dict[str, Value]:
    [frames] = ensemble.ask(name, (b"h", *PvHello("", 0, bytes(8), {"v": 1}).encode(IDENT)), "asker")
    return decoded(PvHelloReply, frames).info


def transfers(ensemble: Ensemble, leader: str) -> list[str]:
    told = [event for event in ensemble.events[leader] if isinstance(event, TransferChanged)]
    return [event.target for event in told if event.result == "started"]


def test_a_new_member_is_told_to_lead_when_it_reaches_the_others_and_updates_go_on_meanwhile() -> None:
    ensemble, leader = joined()
    for number in range(2, 12):
        assert ensemble.update(leader, number)[-1].status == UpdateStatus.DONE
        ensemble.advance(0.05)
    assert transfers(ensemble, leader) == []
    assert not any("ready" in greeted(ensemble, name) for name in "def")
    ensemble.cuts = {pair for pair in ensemble.cuts if "e" not in pair}
    ensemble.until(lambda: bool(transfers(ensemble, leader)), 1.5)
    assert ensemble.leader() == "e"
    candidates = [name for name, events in ensemble.events.items() if Role.CANDIDATE in changes(events)[1:]]
    assert "e" in candidates
    assert not set(candidates) & {"d", "f"}


def test_who_reaches_a_majority_of_both_groups_says_so_in_the_last_key() -> None:
    ensemble, _ = joined()
    ensemble.cuts = {pair for pair in ensemble.cuts if "f" not in pair}
    ensemble.until(lambda: "ready" in greeted(ensemble, "f"), 1.5)
    assert list(greeted(ensemble, "f").items())[-1] == ("ready", ensemble.status("f").effective_index)
    ensemble.until(lambda: not ensemble.status("f").effective.transitional)
    assert "ready" not in greeted(ensemble, "f")


def test_new_members_that_never_reach_the_others_hold_a_change_up_for_two_seconds() -> None:
    ensemble, leader = joined()
    ensemble.advance(1.9)
    assert transfers(ensemble, leader) == []
    ensemble.advance(0.2)
    assert len(transfers(ensemble, leader)) == 1
    ensemble.cuts.clear()
    ensemble.until(lambda: ensemble.status("d").committed.new == members("def"))


@pytest.mark.parametrize("seed", range(1, 6))
def test_after_the_leader_of_a_change_a_new_member_stands_first(seed: int) -> None:
    ensemble, leader = joined(seed)
    ensemble.advance(0.1)
    ensemble.cuts.clear()
    ensemble.down(leader)
    for events in ensemble.events.values():
        events.clear()
    ensemble.until(lambda: any(Role.CANDIDATE in changes(events) for events in ensemble.events.values()), 0.35)
    assert not any(Role.CANDIDATE in changes(ensemble.events[name]) for name in "abc")
    assert ensemble.elect() in "def"


def test_members_that_are_not_there_are_not_taken_in() -> None:
    ensemble = Ensemble("abc", "def")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    for name in "def":
        ensemble.down(name)
    ensemble.change(leader, 50, "cdef")
    ensemble.advance(0.5)
    reply = decoded(ConfigUpdateReply, ensemble.told("admin")[-1])
    assert reply.status in {ConfigStatus.ARGUMENT, ConfigStatus.BUSY}
    assert not ensemble.status(leader).effective.transitional
    assert ensemble.update(leader, 2)[-1].status == UpdateStatus.DONE


def test_a_change_that_only_the_old_leader_had_is_rolled_back() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    isolate(ensemble, leader)
    ensemble.change(leader, 50, leader + others(ensemble, leader)[0])
    assert ensemble.status(leader).effective.transitional
    ensemble.advance(2.0)
    successor = ensemble.leader()
    ensemble.update(successor, 2)
    ensemble.cuts.clear()
    ensemble.advance(1.0)
    assert ensemble.status(leader).effective.new == members("abc")
    assert ensemble.entries(leader) == ensemble.entries(successor)
    changed = [event for event in ensemble.events[leader] if isinstance(event, ConfigurationChanged)]
    assert [event.what for event in changed] == ["effective", "rolled_back"]


@pytest.mark.parametrize(
    ("frame", "name"),
    [(b"", "SyntaxError"), (b"\x05", "TypeError"), (b"\x90", "Error"), (b"\x91\x05", "Error")],
)
def test_a_senseless_list_of_members_is_answered_with_a_reason(frame: bytes, name: str) -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    reply = decoded(ConfigUpdateReply, ensemble.ask("a", (reqid(1), b"&", IDENT, frame))[0])
    assert reply.status == ConfigStatus.ARGUMENT
    assert isinstance(reply.argument, dict)
    assert reply.argument["name"] == name


def test_the_id_of_an_update_is_no_id_of_a_change() -> None:
    ensemble = Ensemble("a")
    ensemble.elect()
    ensemble.update("a", 1)
    frames = ensemble.ask("a", (reqid(1), *ConfigUpdate.of(members("a")).encode(IDENT)))
    assert decoded(ConfigUpdateReply, frames[0]).status == ConfigStatus.ARGUMENT


def test_pods_write_the_first_members_as_entry_one_when_they_may() -> None:
    ensemble = Ensemble("", "abc", lost_voter=LostVoter.BY_CHANGE)
    for name in "abc":
        ensemble.cores[name].bootstrap(members("abc"), ensemble.now())
    ensemble.settle()
    assert all(not ensemble.entries(name) for name in "abc")
    permit(ensemble, "abc")
    leader = ensemble.elect()
    types = [entry_type(entry) for entry in ensemble.entries(leader)]
    assert types == [EntryType.CONFIG, EntryType.CHECKPOINT]
    assert ensemble.status(leader).committed.new == members("abc")
    assert ensemble.status(leader).fence == Fence.NAMED


def test_a_stage_does_not_go_back() -> None:
    ensemble = Ensemble("a")
    with pytest.raises(LocalProtocolError):
        ensemble.cores["a"].set_stage(Stage.READ_ONLY, ensemble.now())


# --- lost disks ----------------------------------------------------------------------------------------------------


def test_a_wiped_voter_answers_nothing_until_it_knows_every_term_and_then_heals() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.advance(0.2)
    victim, witness = list(others(ensemble, leader))
    ensemble.down(victim)
    ensemble.disks[victim].wipe()
    ensemble.cuts |= {(victim, witness), (witness, victim)}
    ensemble.start(victim)
    ensemble.advance(2.0)
    assert ensemble.status(victim).role == Role.RECOVERING
    assert ensemble.entries(victim) == ensemble.entries(leader)  # as a learner does, by reading
    term = ensemble.status(leader).term + 1
    ballot = PvVote(witness, term, 99, term, 1)
    assert not decoded(PvVoteReply, ensemble.ask(victim, (b"\x01", *ballot.encode(IDENT)))[0]).granted
    ensemble.cuts.clear()
    ensemble.until(lambda: ensemble.status(victim).role == Role.FOLLOWER)
    told = [event.what for event in ensemble.events[victim] if isinstance(event, RecoveringChanged)]
    assert told == ["lost", "answering", "healed"]


def test_a_removed_and_wiped_voter_does_not_believe_the_old_entries_that_name_it() -> None:
    ensemble = Ensemble("", "abcd")
    for name in "abc":
        ensemble.cores[name].bootstrap(members("abc"), ensemble.now())
    permit(ensemble, "abcd")
    leader = ensemble.elect()
    removed = others(ensemble, leader)[0]
    ensemble.change(leader, 50, "".join(name for name in "abc" if name != removed))
    ensemble.until(lambda: ensemble.status(removed).role == Role.REMOVED)
    ensemble.down(removed)
    ensemble.disks[removed].wipe()
    ensemble.events[removed].clear()
    ensemble.start(removed)
    ensemble.until(lambda: ensemble.entries(removed) == ensemble.entries(leader))
    ensemble.advance(1.0)
    roles = [event.new for event in ensemble.events[removed] if isinstance(event, RoleChanged)]
    assert roles == [Role.RECOVERING, Role.REMOVED]


def test_under_the_operator_a_wiped_pod_waits_to_be_replaced_by_a_change() -> None:
    ensemble = Ensemble("abc", lost_voter=LostVoter.BY_CHANGE)
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    victim = others(ensemble, leader)[0]
    ensemble.down(victim)
    ensemble.disks[victim].wipe()
    ensemble.start(victim, peers=())
    ensemble.advance(3.0)
    status = ensemble.status(victim)
    assert (status.role, status.fence) == (Role.RECOVERING, Fence.LOST)
    assert "StateLost" in status.blockers
    survivors = "".join(name for name in "abc" if name != victim)
    ensemble.change(leader, 50, survivors)
    ensemble.advance(1.0)
    ensemble.change(leader, 51, "abc")
    ensemble.until(lambda: ensemble.status(victim).role == Role.FOLLOWER)
    assert ensemble.status(leader).committed.new == members("abc")


def test_a_voter_with_damaged_entries_starts_recovering_and_is_refilled() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    for number in range(1, 6):
        ensemble.update(leader, number)
    ensemble.advance(0.2)
    victim = others(ensemble, leader)[0]
    ensemble.down(victim)
    ensemble.disks[victim].damage(3)
    ensemble.start(victim, ensemble.disks[victim].recovered(corrupt=True))
    assert ensemble.status(victim).role == Role.RECOVERING
    ensemble.until(lambda: ensemble.status(victim).role == Role.FOLLOWER)
    assert ensemble.entries(victim) == ensemble.entries(leader)


def test_a_learner_with_foreign_data_stops_and_deletes_nothing() -> None:
    ensemble, foreign = Ensemble("abc", "d"), Ensemble("xyz")
    leader, stranger = ensemble.elect(), foreign.elect()
    ensemble.update(leader, 1, b"ours")
    foreign.update(stranger, 2, b"theirs")
    foreign.down(stranger)
    successor = foreign.elect()
    foreign.update(successor, 3, b"theirs")
    ensemble.down("d")
    disk = ensemble.disks["d"]
    disk.entries = list(foreign.entries(successor))[-1:]
    disk.notes["commit"] = 1
    kept = list(disk.entries)
    ensemble.start("d")
    ensemble.advance(1.0)
    assert any(isinstance(event, Fork) for event in ensemble.events["d"])
    assert disk.entries == kept


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

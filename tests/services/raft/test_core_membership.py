"""Changes of members, generations and lost disks, told by whole cores without sockets or disks."""

from hashlib import blake2b

import pytest

from pavane.raft.config import LostVoter
from pavane.raft.core.fence import Fence
from pavane.raft.core.membership import SILENT_S
from pavane.raft.core.outputs import (
    Channel,
    ConfigurationChanged,
    Disconnect,
    Dropped,
    Fork,
    RecoveringChanged,
    RoleChanged,
    TransferChanged,
)
from pavane.raft.core.requests import Ask
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.wire.decoder import Reply
from pavane.raft.wire.entry import EntryType, encode_blob, encode_entry, entry_type
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import (
    FEATURE_FOLLOW,
    FOLLOW_ENTRIES,
    FOLLOW_NOT_LEADER,
    PvAppend,
    PvFollow,
    PvFollowReply,
    PvHello,
    PvHelloReply,
    PvSnapshot,
    PvVote,
    PvVoteReply,
)
from pavane.raft.wire.replies import (
    ConfigStatus,
    ConfigUpdateReply,
    EntriesStatus,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    UpdateStatus,
)
from pavane.raft.wire.requests import AppendEntries, ConfigUpdate
from pavane.raft.wire.snapshot import DIGEST_BYTES, SnapshotHead, SnapshotMeta
from pavane.wire import LocalProtocolError, Stage
from tests.services.raft.core_views import changes, isolate, lose_disk, others
from tests.services.raft.ensemble import IDENT, Ensemble, decoded, members, reqid, url

# --- membership ----------------------------------------------------------------------------------------------------


def permit(ensemble: Ensemble, names: str) -> None:
    for name in names:
        ensemble.cores[name].set_stage(Stage.READ_WRITE, ensemble.now())
    ensemble.settle()


class Answered:
    """A peer whose questions to another, by its url, are answered by the test."""

    def __init__(self, ensemble: Ensemble, name: str, other: str) -> None:
        self._ensemble, self._core, self._url = ensemble, ensemble.cores[name], url(other)

    def asked(self, reply: type[Reply]) -> list[Ask]:
        asks = self._core._requests._outstanding[Channel.SEED, self._url].values()
        return [ask for ask in asks if ask.reply is reply]

    def _answer(self, ask: Ask, reply: Reply) -> None:
        self._core.reply(self._url, Channel.SEED, (ask.id, *reply.encode()), self._ensemble.now())
        self._ensemble.settle()

    def tell(self, reply: Reply) -> None:
        assert self.asked(type(reply)), f"nobody asked for {reply}"
        self.tell_if_asked(reply)

    def tell_if_asked(self, reply: Reply) -> None:
        for ask in self.asked(type(reply)):
            self._answer(ask, reply)

    def greet(self, features: int) -> None:
        for ask in self.asked(PvHelloReply):
            self._answer(ask, PvHelloReply(bytes(ask.frames[4]), {"feat": features}))


def following_learner(last: int) -> tuple[Ensemble, Answered]:
    """Return a learner d that a, who leads members a, b and c in term 5, has told of a log of ``last`` entries."""
    ensemble = Ensemble("", "ad", absent="a")
    learner = Answered(ensemble, "d", "a")
    ensemble.advance(0.3)
    learner.tell(RequestConfigReply(True, "a", members("abc")))
    ensemble.advance(0.01)
    learner.tell(RequestLogInfoReply(True, "a", 5, 1, last, last, last, 0, 0))
    return ensemble, learner


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
    assert dict(ensemble.status("d").dropped) == {"stage": 1}


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


def test_a_generation_that_was_replaced_goes_on_following_and_takes_over_again() -> None:
    ensemble = Ensemble("abc", "def")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.until(lambda: all(ensemble.entries(name) for name in "def"))
    permit(ensemble, "def")
    ensemble.change(leader, 50, "def")
    ensemble.until(lambda: all(ensemble.status(name).role == Role.REMOVED for name in "abc"))
    assert ensemble.status(leader).first_write_ms is None
    ensemble.advance(10)  # longer than it is led as a lame duck
    successor = ensemble.leader()
    ensemble.update(successor, 2)
    ensemble.until(lambda: all(ensemble.entries(name) == ensemble.entries(successor) for name in "abc"))
    assert {ensemble.status(name).role for name in "abc"} == {Role.REMOVED}
    ensemble.change(successor, 51, "abc")
    ensemble.until(lambda: all(ensemble.status(name).role == Role.REMOVED for name in "def"))
    again = ensemble.leader()
    assert again in "abc"
    assert ensemble.update(again, 3)[-1].status == UpdateStatus.DONE
    assert ensemble.status(again).first_write_ms is not None


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
    ensemble.advance(SILENT_S + 0.1)
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


def test_a_cluster_with_keys_takes_no_member_that_cannot_serve_them() -> None:
    """A peer of the original would store the commands, and as leader answer none of them."""
    ensemble = Ensemble("abc", "de", absent="e", keys=True)
    leader = ensemble.elect()
    ensemble.advance(1.0)
    ensemble.change(leader, 50, "abce")
    ensemble.advance(SILENT_S + 0.1)
    [*_, frames] = ensemble.told("admin")
    reply = decoded(ConfigUpdateReply, frames)
    assert reply.status == ConfigStatus.ARGUMENT
    assert "e did not say so" in str(reply.argument)
    ensemble.change(leader, 51, "abcd")
    ensemble.until(lambda: ensemble.status(leader).committed.new == members("abcd"))


def test_a_new_member_on_a_busy_machine_is_waited_for() -> None:
    ensemble = Ensemble("abc", "d", keys=True)
    leader = ensemble.elect()
    ensemble.advance(1.0)
    busy = ensemble.cores.pop("d")
    ensemble.change(leader, 50, "abcd")
    ensemble.advance(SILENT_S / 2)
    ensemble.cores["d"] = busy
    ensemble.until(lambda: ensemble.status(leader).committed.new == members("abcd"))


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
    lose_disk(ensemble, victim)
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


def test_a_wiped_voter_that_is_the_only_one_named_stays_as_it_is() -> None:
    """Nobody is left who could tell what it voted."""
    ensemble = Ensemble("bc", "a")
    for name in "bc":
        ensemble.down(name)
    core = ensemble.cores["a"]
    alone = RequestConfigReply(True, "b", members("a")).encode()
    for _ in range(5):
        ensemble.advance(0.2)
        asks = [ask for asks in core._requests._outstanding.values() for ask in asks.values()]
        for ask in asks:
            if ask.reply is RequestConfigReply:
                core.reply(ask.to.peer, ask.to.channel, (ask.id, *alone), ensemble.now())
        ensemble.settle()
    assert ensemble.status("a").role == Role.RECOVERING


def test_nobody_looks_for_a_removed_member_any_more() -> None:
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    removed = others(ensemble, leader)[0]
    ensemble.change(leader, 50, "".join(name for name in "abc" if name != removed))
    ensemble.advance(10)
    for name in others(ensemble, removed):
        closed = {event.to.channel for event in ensemble.events[name] if isinstance(event, Disconnect)}
        assert closed == {Channel.SIDE, Channel.RPC}
        assert {event.to.peer for event in ensemble.events[name] if isinstance(event, Disconnect)} == {removed}
    ensemble.asked.clear()
    ensemble.advance(30)
    assert ensemble.asked
    assert not [target for _, target, _ in ensemble.asked if target == removed]


def test_a_removed_and_wiped_voter_does_not_believe_the_old_entries_that_name_it() -> None:
    ensemble = Ensemble("", "abcd")
    for name in "abc":
        ensemble.cores[name].bootstrap(members("abc"), ensemble.now())
    permit(ensemble, "abcd")
    leader = ensemble.elect()
    removed = others(ensemble, leader)[0]
    ensemble.change(leader, 50, "".join(name for name in "abc" if name != removed))
    ensemble.until(lambda: ensemble.status(removed).role == Role.REMOVED)
    lose_disk(ensemble, removed)
    ensemble.events[removed].clear()
    ensemble.start(removed)
    ensemble.until(lambda: ensemble.entries(removed) == ensemble.entries(leader))
    ensemble.advance(1.0)
    roles = [event.new for event in ensemble.events[removed] if isinstance(event, RoleChanged)]
    assert roles == [Role.RECOVERING, Role.REMOVED]


@pytest.mark.parametrize("how", ["entries", "blob", "snapshot"])
def test_a_voter_that_learns_of_its_loss_by_a_message_does_not_answer_that_message(how: str) -> None:
    """The leader may be an older one than that which has its forgotten vote: it must not count this log."""
    ensemble, _ = following_learner(2)
    past = Configuration(members("abcd"))
    entry = encode_entry(bytes(12), EntryType.CONFIG, 4, past.encode())
    meta = SnapshotMeta(past.encode(), 1, "Broadcast", 1, 0, b"").encode()
    front = SnapshotHead(1, 4, len(meta), 4).encode() + meta + b"data"
    file = front + blake2b(front, digest_size=DIGEST_BYTES).digest()
    messages: dict[str, AppendEntries | PvAppend | PvSnapshot] = {
        "entries": AppendEntries("a", 5, 0, 0, 0, (entry,)),
        "blob": PvAppend("a", 5, 0, 0, 0, (entry,)),
        "snapshot": PvSnapshot("a", 5, 1, 4, 0, len(file), file),
    }
    message = messages[how]
    assert ensemble.ask("d", (b"\x01", *message.encode(IDENT)), "leader") == []
    assert ensemble.status("d").role == Role.RECOVERING
    assert ensemble.ask("d", (b"\x01", *message.encode(IDENT)), "leader") == []


def test_under_the_operator_a_wiped_pod_waits_to_be_replaced_by_a_change() -> None:
    ensemble = Ensemble("abc", lost_voter=LostVoter.BY_CHANGE)
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    victim = others(ensemble, leader)[0]
    lose_disk(ensemble, victim)
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


def test_a_wiped_pod_that_is_taken_out_and_in_in_a_moment_comes_back() -> None:
    ensemble = Ensemble("", "abc", lost_voter=LostVoter.BY_CHANGE)
    for name in "abc":
        ensemble.cores[name].bootstrap(members("abc"), ensemble.now())
    permit(ensemble, "abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    victim, witness = list(others(ensemble, leader))
    lose_disk(ensemble, victim)
    ensemble.start(victim, seeds=(url(witness),))
    ensemble.until(lambda: ensemble.status(victim).fence == Fence.LOST)
    ensemble.change(leader, 50, "".join(name for name in "abc" if name != victim))
    ensemble.change(leader, 51, "abc")
    ensemble.until(lambda: ensemble.status(victim).fence == Fence.NAMED)


def test_a_change_before_the_loss_does_not_count_though_a_leader_that_was_cut_off_knows_nothing_of_it() -> None:
    ensemble = Ensemble("", "abcde", lost_voter=LostVoter.BY_CHANGE, election_min=200, election_max=2000)
    for name in "abcde":
        ensemble.cores[name].bootstrap(members("abcde"), ensemble.now())
    permit(ensemble, "abcde")
    former = ensemble.elect()
    isolate(ensemble, former)
    ensemble.until(lambda: ensemble.leader() != former)
    leader = ensemble.leader()
    ensemble.update(leader, 1)
    victim = next(name for name in "abcde" if name not in (former, leader))
    ensemble.change(leader, 50, "".join(name for name in "abcde" if name != victim))
    ensemble.change(leader, 51, "abcde")
    assert ensemble.status(leader).committed.new == members("abcde")
    lose_disk(ensemble, victim)
    ensemble.cuts.clear()
    for name in "abcde":
        if name != former:
            ensemble.cuts |= (
                {(former, name), (name, former)} if name != victim else {(victim, leader), (leader, victim)}
            )
    ensemble.start(victim, seeds=(url(former),))
    ensemble.until(lambda: ensemble.status(victim).fence == Fence.LOST)
    assert ensemble.status(former).role == Role.LEADER
    ensemble.cuts.clear()
    ensemble.until(lambda: ensemble.entries(victim) == ensemble.entries(leader))
    ensemble.advance(1.0)
    assert ensemble.status(victim).role == Role.RECOVERING


def test_a_wiped_voter_of_a_cluster_without_configuration_entries_does_not_take_that_for_its_removal() -> None:
    ensemble = Ensemble("abc", lost_voter=LostVoter.BY_CHANGE)
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    victim = others(ensemble, leader)[0]
    lose_disk(ensemble, victim)
    ensemble.start(victim, peers=())
    ensemble.until(lambda: ensemble.entries(victim) == ensemble.entries(leader))
    ensemble.change(leader, 50, "".join(name for name in "abc" if name != victim))
    ensemble.advance(1.0)
    assert ensemble.status(victim).role == Role.RECOVERING
    ensemble.change(leader, 51, "abc")
    ensemble.until(lambda: ensemble.status(victim).role == Role.FOLLOWER)


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


@pytest.mark.parametrize("how", ["pv.follow", "<"])
def test_a_leader_whose_entry_is_no_configuration_is_not_followed(how: str) -> None:
    ensemble, learner = following_learner(2)
    if how == "pv.follow":
        learner.greet(FEATURE_FOLLOW)
    ensemble.advance(0.1)
    entry = encode_entry(bytes(12), EntryType.CONFIG, 4, b"no configuration")
    if how == "pv.follow":
        learner.tell(PvFollowReply(FOLLOW_ENTRIES, [1, 5, 1], 1, encode_blob([entry])))
    else:
        learner.tell(RequestEntriesReply(EntriesStatus.LAST, 1, (entry,)))
    assert ensemble.entries("d") == []
    assert Dropped("config") in ensemble.events["d"]


def test_a_stream_that_a_later_leader_has_overtaken_commits_nothing_that_is_not_here() -> None:
    ensemble, learner = following_learner(0)
    learner.greet(FEATURE_FOLLOW)
    old, new = (encode_entry(bytes(12), EntryType.STATE, term, b"data") for term in (5, 6))
    ensemble.ask("d", (b"\x01", *AppendEntries("a", 5, 0, 0, 0, (old, old, old)).encode(IDENT)))
    while not learner.asked(PvFollowReply):  # once nobody sends entries any more
        ensemble.advance(0.1)
        learner.tell_if_asked(RequestConfigReply(True, "a", members("abc")))
    ensemble.ask("d", (b"\x01", *AppendEntries("c", 6, 1, 5, 0, (new,)).encode(IDENT)))
    ensemble.advance(0.7)
    learner.tell(PvFollowReply(FOLLOW_ENTRIES, [3, 5, 1], 3, b""))
    status = ensemble.status("d")
    assert (status.last, status.commit) == (2, 0)


@pytest.mark.parametrize("how", ["shorter", "different"])
def test_a_leader_that_is_cut_off_tells_no_learner_that_its_log_is_foreign(how: str) -> None:
    """The learner may have entries of a later leader; only one that is known to lead still can tell."""
    ensemble = Ensemble("abc")
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    isolate(ensemble, leader)
    if how == "different":
        ensemble.update(leader, 2)
    later = PvFollow("d", 9, 2, 9).encode(IDENT)
    assert ensemble.ask(leader, (b"follow", *later), "learner") == []
    ensemble.until(lambda: ensemble.status(leader).role != Role.LEADER)
    (refused,) = ensemble.told("learner")
    assert decoded(PvFollowReply, refused).kind == FOLLOW_NOT_LEADER


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

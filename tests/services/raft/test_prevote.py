"""Who is disturbed by whom before an election (docs/specs/raft.md 6.2, 6.4)."""

import pytest

from pavane.raft.core.election import LOG_BEHIND, PHASE_TRANSFER, PHASE_VOTE, STICKY
from pavane.raft.core.outputs import Channel, RoleChanged
from pavane.raft.core.prevote import OVERRULE_TIMEOUTS, PHASE_PREVOTE
from pavane.raft.state.roles import Role
from pavane.raft.wire.pv import PvVote, PvVoteReply
from pavane.raft.wire.replies import RequestConfigReply
from pavane.raft.wire.requests import AppendEntries, RequestVote
from tests.services.raft.ensemble import IDENT, Ensemble, decoded, members

ELECTION_MAX_S = 0.3
ONE_WAY_S = 60.0
AWAY_S = 600.0


def led(voters: str = "abc") -> tuple[Ensemble, str, str, str]:
    """A settled cluster of three: its leader and the two others."""
    ensemble = Ensemble(voters)
    leader = ensemble.elect()
    ensemble.update(leader, 1)
    ensemble.advance(0.5)
    first, second = (name for name in voters if name != leader)
    return ensemble, leader, first, second


def ballot(ensemble: Ensemble, candidate: str, voter: str, phase: int, last: int | None = None) -> list[PvVoteReply]:
    status = ensemble.status(voter)
    last = status.last if last is None else last
    message = PvVote(candidate, status.term + 1, last, status.term if last else 0, phase)
    return [decoded(PvVoteReply, frames) for frames in ensemble.ask(voter, (b"\x01", *message.encode(IDENT)))]


def roles(ensemble: Ensemble, name: str) -> list[Role]:
    return [event.new for event in ensemble.events[name] if isinstance(event, RoleChanged)]


def test_a_follower_that_does_not_hear_the_leader_disturbs_nobody() -> None:
    ensemble, leader, deaf, _ = led()
    term = ensemble.status(leader).term
    ensemble.cuts = {(leader, deaf)}

    ensemble.advance(ONE_WAY_S)

    assert ensemble.leader() == leader
    assert {ensemble.status(name).term for name in "abc"} == {term}
    assert Role.PRE_CANDIDATE in roles(ensemble, deaf)


def test_an_isolated_peer_that_comes_back_causes_no_election() -> None:
    ensemble, leader, gone, _ = led()
    term = ensemble.status(leader).term
    ensemble.cuts = {(gone, name) for name in "abc"} | {(name, gone) for name in "abc"}
    ensemble.advance(AWAY_S)
    ensemble.cuts.clear()
    ensemble.advance(5.0)

    assert ensemble.leader() == leader
    assert {ensemble.status(name).term for name in "abc"} == {term}
    assert ensemble.status(gone).leader == leader


def test_who_has_heard_the_leader_lately_refuses_and_does_not_answer() -> None:
    ensemble, leader, voter, candidate = led()
    term = ensemble.status(voter).term

    assert ballot(ensemble, candidate, voter, PHASE_PREVOTE) == [PvVoteReply(term, False, STICKY)]
    assert ballot(ensemble, candidate, leader, PHASE_PREVOTE) == [PvVoteReply(term, False, STICKY)]
    assert ballot(ensemble, candidate, voter, PHASE_VOTE) == []
    question = RequestVote(candidate, term + 1, ensemble.status(voter).last, term)
    assert ensemble.ask(voter, (b"\x02", *question.encode(IDENT))) == []
    assert ensemble.ask(leader, (b"\x02", *question.encode(IDENT))) == []
    assert dict(ensemble.status(voter).dropped)["sticky"] == 2
    assert {ensemble.status(name).term for name in "abc"} == {term}


def test_a_transfer_is_not_held_up_by_a_live_leader() -> None:
    ensemble, _, voter, candidate = led()

    (reply,) = ballot(ensemble, candidate, voter, PHASE_TRANSFER)
    assert reply.granted


def test_a_prevote_changes_nothing_at_the_voter() -> None:
    ensemble, leader, voter, candidate = led()
    ensemble.down(leader)
    ensemble.cuts = {(voter, candidate), (candidate, voter)}
    ensemble.advance(0.2)
    stored, term = len(ensemble.disks[voter].votes), ensemble.status(voter).term

    assert ballot(ensemble, candidate, voter, PHASE_PREVOTE)[0].granted
    assert ballot(ensemble, candidate, voter, PHASE_PREVOTE, last=0) == [PvVoteReply(term, False, LOG_BEHIND)]
    assert (len(ensemble.disks[voter].votes), ensemble.status(voter).term) == (stored, term)


def test_who_is_refused_for_its_term_alone_asks_again_at_once() -> None:
    ensemble, leader, voter, candidate = led()
    ensemble.cuts = {(voter, candidate)}
    ensemble.until(lambda: ensemble.status(candidate).role == Role.FOLLOWER)
    ensemble.cores[voter]._node.raise_term(7)
    ensemble.down(leader)
    ensemble.cores[voter]._election.reset(behind=1 << 30)  # it does not stand
    ensemble.cuts.clear()
    before = len(roles(ensemble, candidate))

    ensemble.until(lambda: len(roles(ensemble, candidate)) > before)

    expected = [Role.PRE_CANDIDATE, Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER]
    assert roles(ensemble, candidate)[before:] == expected
    assert ensemble.status(candidate).term == 8


class Others:
    """Members of another program: they answer ``^`` and nothing else."""

    def __init__(self, ensemble: Ensemble, leaders: dict[str, str | None]) -> None:
        self.ensemble = ensemble
        self.leaders = leaders

    def advance(self, seconds: float) -> None:
        end = self.ensemble.time + seconds
        while self.ensemble.time < end:
            self.ensemble.asked.clear()
            self.ensemble.trace.clear()
            self.ensemble.advance(0.005)
            core = self.ensemble.cores["a"]
            for to, outstanding in list(core._requests._outstanding.items()):
                for ask in list(outstanding.values()):
                    if to[0] == Channel.SIDE and ask.reply is RequestConfigReply and to[1] in self.leaders:
                        leader = self.leaders[to[1]]
                        reply = RequestConfigReply(leader == to[1], leader, members("abc"))
                        core.reply(to[1], Channel.SIDE, (ask.id, *reply.encode()), self.ensemble.now())
            self.ensemble.settle()


def alone(leaders: dict[str, str | None]) -> tuple[Ensemble, Others]:
    """a is ours, and b and c are not."""
    ensemble = Ensemble("abc")
    ensemble.down("b")
    ensemble.down("c")
    # It has been a member for long: it does not ask whether it is new.
    ensemble.cores["a"]._recovering._phase = type(ensemble.cores["a"]._recovering._phase).SOUND
    return ensemble, Others(ensemble, leaders)


def test_members_of_another_program_that_know_a_leader_hold_a_candidacy_up() -> None:
    ensemble, others = alone({"b": "c", "c": "c"})

    others.advance(1.5)

    assert Role.PRE_CANDIDATE in roles(ensemble, "a")
    assert Role.CANDIDATE not in roles(ensemble, "a")
    assert ensemble.status("a").term == 0


def test_an_objection_that_is_taken_back_counts_no_more() -> None:
    ensemble, others = alone({"b": "c", "c": "c"})
    while ensemble.status("a").role != Role.PRE_CANDIDATE:
        others.advance(0.01)
    others.leaders["b"] = None

    others.advance(0.1)
    assert Role.CANDIDATE in roles(ensemble, "a")


def test_the_silence_of_another_program_is_no_objection() -> None:
    ensemble, others = alone({})

    others.advance(1.0)

    assert Role.CANDIDATE in roles(ensemble, "a")
    assert ensemble.status("a").term == 1, "and then it keeps its term until a majority answers"
    others.advance(5.0)
    assert ensemble.status("a").term == 1


def test_objections_that_have_lasted_too_long_are_overruled() -> None:
    ensemble, others = alone({"b": "c", "c": "c"})
    while Role.PRE_CANDIDATE not in roles(ensemble, "a"):
        others.advance(0.01)

    others.advance(OVERRULE_TIMEOUTS * ELECTION_MAX_S + 1.0)
    assert Role.CANDIDATE in roles(ensemble, "a")


@pytest.mark.parametrize("fresh", [True, False])
def test_a_leader_of_another_program_is_spared_while_its_messages_are_new(fresh: bool) -> None:
    ensemble, _ = alone({})
    append = AppendEntries("b", 1, 0, 0, 0)
    frames = (b"\x07", *append.encode(IDENT))
    ensemble.ask("a", frames, "js")
    ensemble.advance(0.15)
    ensemble.ask("a", (b"\x08", *append.encode(IDENT)) if fresh else frames, "js")
    ensemble.advance(0.06)

    message = PvVote("c", 2, 0, 0, PHASE_PREVOTE)
    (reply,) = ensemble.ask("a", (b"\x01", *message.encode(IDENT)))
    assert decoded(PvVoteReply, reply).granted is not fresh
    ballot_frames = ensemble.ask("a", (b"\x02", *PvVote("c", 2, 0, 0, PHASE_VOTE).encode(IDENT)))
    assert [decoded(PvVoteReply, each).granted for each in ballot_frames] == [True], "it does not give up by itself"

"""The simulator is worth something only if it finds bugs: each test plants one and expects it to be found."""

from collections.abc import Callable, Sequence

import pytest

from pavane.raft.core.barrier import Barriers, _Barrier
from pavane.raft.core.election import GRANTED, Election
from pavane.raft.core.follower import Follower
from pavane.raft.core.node import Node
from pavane.raft.core.recovering import Recovering
from pavane.raft.core.replication import Replication
from pavane.raft.silence import Silence
from pavane.raft.state.configuration import Configuration, ConfigurationStack
from pavane.raft.state.dedup import DedupTable
from pavane.raft.state.quorum import majority_value
from pavane.raft.state.roles import Role
from pavane.raft.wire.pv import PvAppend, PvVote
from pavane.raft.wire.requests import AppendEntries, RequestVote
from tests.sim.kit.network import Weather
from tests.sim.kit.seeds import BrokenError
from tests.sim.world import Scenario, play

SEEDS_MAX = 120  # each bug is found by far fewer
LATE = Weather(very_late=0.05, late=0.1, loss=0.02)

pytestmark = pytest.mark.long  # the simulations themselves play in every run


def found(scenario: Scenario, invariants: Sequence[str]) -> None:
    """Play seeds until one of the invariants breaks."""
    broken = next(filter(None, (what_breaks(seed, scenario) for seed in range(SEEDS_MAX))), None)
    assert broken is not None, f"{SEEDS_MAX} seeds did not find the planted bug"
    assert any(f": {invariant}: " in broken for invariant in invariants), broken


def what_breaks(seed: int, scenario: Scenario) -> str | None:
    try:
        play(seed, scenario)
    except BrokenError as error:
        return str(error)
    return None


def test_second_vote_in_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(self: Election, message: RequestVote | PvVote, newer: bool) -> int:
        return self._refusal(message, newer) if message.term >= self._node.term else 1

    def raise_term(self: Node, term: int, vote: str = "") -> int:
        self.term, self.vote = term, vote
        return self.persist()

    monkeypatch.setattr(Election, "_judge", judge)
    monkeypatch.setattr(Node, "raise_term", raise_term)
    found(Scenario(voters=3, weather=Weather(late=0.3)), ["S1", "S2", "S3", "S5"])
    assert GRANTED == 0


def test_commit_of_an_older_term_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: Replication) -> None:
        node = self._node
        if node.role == Role.LEADER:
            node.advance(max(node.commit, majority_value(node.configurations.effective, self.match, 0)))

    monkeypatch.setattr(Replication, "commit", commit)
    found(Scenario(voters=3, weather=LATE), ["S3"])


def test_answer_before_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "durable_ticket", lambda _self, _index: None)
    found(Scenario(voters=3), ["S5"])


def test_configuration_not_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def truncate(self: ConfigurationStack, after: int) -> list[tuple[int, Configuration]]:
        del self, after
        return []

    monkeypatch.setattr(ConfigurationStack, "truncate", truncate)
    isolated = Scenario(voters=3, learners=2, changes=True, faults_s=6.0, only=("isolate_leader",) * 3)
    found(isolated, ["S8"])


def test_commit_from_the_own_last_index(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Follower._take

    def take(self: Follower, message: AppendEntries | PvAppend) -> tuple[bool, int | None] | None:
        taken = original(self, message)
        node = self._node
        fits = message.previous_index <= node.log.last
        if fits and node.log.term_at(message.previous_index) == message.previous_term:
            node.advance(min(message.commit_index, node.log.last))
        return taken

    # The usual hint leads to the first difference, where the tail that the bug commits is cut off at once.
    monkeypatch.setattr(Follower, "_conflict", lambda self, _previous: (self._node.commit + 1, 0))
    monkeypatch.setattr(Follower, "_take", take)
    cut = Scenario(voters=3, faults_s=6.0, fault_pause_s=0.15, weather=LATE, only=("isolate_leader", "cut_one_way"))
    found(cut, ["S3"])


def test_request_ids_lost_with_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who begins from a snapshot takes an update that it replaces once more."""

    monkeypatch.setattr(DedupTable, "freeze", lambda _self, _index: iter(()))
    found(
        Scenario(voters=3, keys=True, repeats=True, faults_s=6.0, only=("crash_leader", "crash", "isolate_leader")),
        ["S6", "S4"],
    )


def test_barrier_answered_by_a_message_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(self: Barriers, then: Callable[[bool], None]) -> None:
        self._waiting.append(_Barrier(0, self._node.now.mono, then))
        self.progress()

    monkeypatch.setattr(Barriers, "wait", wait)
    delayed = Scenario(voters=3, faults_s=8.0, weather=Weather(very_late=0.05), only=("isolate_leader", "cut_one_way"))
    found(delayed, ["S10"])


def test_recovering_voter_that_acknowledges_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wiped voter that answers a leader before it knows every term, 5.5 (a): perhaps it has voted for another."""

    monkeypatch.setattr(Recovering, "silent", property(lambda self: self.undecided))
    deposed = Scenario(voters=3, faults_s=6.0, fault_pause_s=1.2, only=("depose_and_wipe",))
    found(deposed, ["S3", "S6", "S10"])


def test_a_wiped_voter_that_votes_as_if_its_store_were_new(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(Recovering, "begin", lambda _self: None)
    wiped = Scenario(voters=3, faults_s=8.0, fault_pause_s=0.1, weather=LATE, only=("wipe", "isolate_leader"))
    found(wiped, ["S1", "S2", "S3", "S6", "S10"])


def test_connections_that_carry_nothing_and_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Silence, "look", lambda _self: ([], []))
    with pytest.raises(AssertionError, match="no progress"):
        play(0, Scenario(voters=3, fault_pause_s=0.8, only=("half_open",)))

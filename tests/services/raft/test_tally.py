"""What the core counts where it is hot, for metrics (docs/specs/raft.md 15.1)."""

import pytest

from pavane.raft.core.tally import Batches, Tally
from tests.services.raft.core_views import isolate, others
from tests.services.raft.ensemble import Ensemble
from tests.services.raft.test_inflight import settled


def counted(ensemble: Ensemble, name: str) -> Tally:
    return ensemble.cores[name].tally


def test_a_commit_is_timed_from_the_append_by_the_leader() -> None:
    ensemble, leader, _ = settled()
    tally = counted(ensemble, leader)
    before = tally.commits, tally.commit_s
    ensemble.stuck = set(others(ensemble, leader))

    ensemble.update(leader, 2)
    assert (tally.commits, tally.commit_s) == before
    ensemble.advance(0.25)
    for name in sorted(ensemble.stuck):
        ensemble.stuck.discard(name)
        ensemble.sync(name)

    assert tally.commits == before[0] + 1
    assert tally.commit_s - before[1] == pytest.approx(0.25)
    assert all(counted(ensemble, name).commits == 0 for name in others(ensemble, leader))


def test_what_a_deposed_leader_never_committed_is_not_timed() -> None:
    ensemble, leader, _ = settled()
    tally = counted(ensemble, leader)
    before = tally.commits
    isolate(ensemble, leader)

    ensemble.update(leader, 2)
    ensemble.advance(5.0)
    ensemble.cuts.clear()
    ensemble.advance(2.0)
    successor = ensemble.leader()
    assert successor != leader
    lost = ensemble.status(leader).last
    for number in (3, 4):
        ensemble.update(successor, number)
    ensemble.advance(0.1)

    assert ensemble.status(leader).commit > lost
    assert tally.commits == before


def test_a_round_is_timed_until_a_majority_has_answered() -> None:
    ensemble, leader, _ = settled()
    tally = counted(ensemble, leader)
    before = tally.rounds, tally.round_s
    ensemble.advance(1.0)
    assert tally.rounds > before[0]
    assert tally.round_s == before[1]  # in this room answers take no time

    rounds = tally.rounds
    ensemble.cuts = {(name, leader) for name in others(ensemble, leader)}
    ensemble.advance(0.2)
    assert tally.rounds == rounds
    ensemble.cuts = set()
    ensemble.advance(0.1)
    assert tally.rounds > rounds
    assert 0.05 < tally.round_s - before[1] < 0.3


def test_batches_are_counted_for_each_member_and_forgotten_with_it() -> None:
    ensemble, leader, follower = settled()
    sent = counted(ensemble, leader).appended[follower]
    before = Batches(sent.messages, sent.entries)

    for number in (2, 3):
        ensemble.update(leader, number)
    ensemble.advance(1.0)  # heartbeats carry none
    assert (sent.messages, sent.entries) == (before.messages + 2, before.entries + 2)
    assert set(counted(ensemble, leader).appended) == set(others(ensemble, leader))

    stays = next(name for name in others(ensemble, leader) if name != follower)
    ensemble.change(leader, 50, leader + stays)
    ensemble.advance(6.0)
    assert set(counted(ensemble, leader).appended) == {stays}


def test_entries_that_were_read_are_counted() -> None:
    ensemble, leader, _ = settled()
    for number in range(2, 5):
        ensemble.update(leader, number)
    ensemble.read(leader, 2)
    assert counted(ensemble, leader).entries_read == ensemble.status(leader).commit - 2

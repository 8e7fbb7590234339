"""The leader's time-keeping for leases (docs/specs/raft.md 12.7 L1-L7); seconds are made up here."""

import pytest

from pavane.raft.machines import limits
from pavane.raft.machines.keeper import LeaseKeeper
from pavane.raft.machines.state import Lease


def table(*ttl_ms: int) -> dict[int, Lease]:
    return {number: Lease(ttl, b"") for number, ttl in enumerate(ttl_ms, 1)}


def test_a_lease_that_nobody_renews_is_due_after_its_time() -> None:
    keeper = LeaseKeeper(table(1000, 500), 10.0)
    assert keeper.next_timer() == pytest.approx(10.5)
    assert keeper.due(10.4) == ()
    assert keeper.due(10.5) == (2,)
    assert keeper.due(10.9) == ()
    assert keeper.due(11.0) == (1,)
    assert keeper.next_timer() is None


def test_a_renewed_lease_counts_from_the_receipt() -> None:
    keeper = LeaseKeeper(table(1000), 0.0)
    assert keeper.renew([1, 7], 0.9) == [(1, 1000), (7, 0)]
    assert keeper.due(1.0) == ()
    assert keeper.next_timer() == pytest.approx(1.9)
    assert keeper.due(1.89) == ()
    assert keeper.renew([1], 1.0) == [(1, 1000)]
    assert keeper.renew([1], 0.2) == [(1, 1000)]  # an answer that was overtaken takes nothing away
    assert keeper.due(1.99) == ()
    assert keeper.due(2.0) == (1,)


def test_a_new_leader_gives_every_lease_its_full_time() -> None:
    leases = table(1000)
    LeaseKeeper(leases, 0.0)
    successor = LeaseKeeper(leases, 0.9)
    assert successor.due(1.8) == ()
    assert successor.due(1.9) == (1,)


def test_a_lease_granted_while_leading_counts_from_then() -> None:
    leases = table(1000)
    keeper = LeaseKeeper(leases, 0.0)
    leases[5] = Lease(200, b"")
    leases[6] = Lease(2000, b"")
    keeper.applied(0.5)
    keeper.applied(0.6)
    assert keeper.due(0.7) == (5,)
    assert keeper.due(2.4) == (1,)
    assert keeper.due(2.5) == (6,)


def test_a_lease_whose_end_is_proposed_is_not_renewed_any_more() -> None:
    leases = table(1000)
    keeper = LeaseKeeper(leases, 0.0)
    assert keeper.due(1.0) == (1,)
    assert keeper.renew([1], 1.0) == [(1, 0)]
    assert keeper.due(5.0) == ()
    assert LeaseKeeper(leases, 1.1).renew([1], 1.2) == [(1, 1000)]  # the mark ends with the leadership


def test_a_lease_that_was_revoked_is_not_ended_again() -> None:
    leases = table(1000, 1000)
    keeper = LeaseKeeper(leases, 0.0)
    del leases[1]
    assert keeper.renew([1], 0.5) == [(1, 0)]
    assert keeper.due(1.0) == (2,)


def test_a_stopped_leader_expires_nothing_that_it_kept_from_being_renewed() -> None:
    keeper = LeaseKeeper(table(1000), 0.0)
    keeper.renew([1], 0.5)
    keeper.late(5.0)  # stopped from 1.0 to 6.0
    assert keeper.next_timer() == pytest.approx(6.0)
    assert keeper.due(6.4) == ()
    assert keeper.renew([1], 6.4) == [(1, 1000)]
    assert keeper.due(7.3) == ()
    assert keeper.due(7.4) == (1,)


def test_the_delay_of_a_busy_loop_is_not_added() -> None:
    keeper = LeaseKeeper(table(1000), 0.0)
    for _ in range(100):
        keeper.late(0.05)
    assert keeper.due(1.0) == (1,)


def test_many_leases_end_in_batches_with_a_pause_between() -> None:
    keeper = LeaseKeeper(table(*[1000] * 2500), 0.0)
    assert keeper.due(1.0) == tuple(range(1, 1001))
    assert keeper.due(1.05) == ()
    assert keeper.next_timer() == pytest.approx(1.1)
    assert keeper.due(1.1) == tuple(range(1001, 2001))
    assert keeper.due(1.25) == tuple(range(2001, 2501))
    assert keeper.next_timer() is None


def test_renewals_do_not_pile_up() -> None:
    keeper = LeaseKeeper(table(1000, 1000), 0.0)
    for number in range(1000):
        keeper.renew([1, 2], number / 1000)
    assert len(keeper._heap) == 2


def test_a_batch_is_what_one_entry_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASE_BATCH_MAX", 1)
    keeper = LeaseKeeper(table(1000, 500), 0.0)
    assert keeper.due(9.0) == (2,)
    assert keeper.due(9.2) == (1,)

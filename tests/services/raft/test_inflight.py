"""Replication to peers of ours by ``pv.append`` (docs/specs/raft.md 7.4)."""

from typing import Any

import pytest

from pavane.raft.core import inflight
from pavane.raft.core.outputs import Channel, FollowerLostLog, KindChanged
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import decode_blob, encode_blob
from pavane.raft.wire.pv import PvAppend, PvAppendReply, PvTransfer
from pavane.raft.wire.requests import AppendEntries
from pavane.wire import Stage
from tests.services.raft.core_views import others
from tests.services.raft.ensemble import IDENT, Ensemble, decoded, members, reqid

SETTLED_S = 1.0  # by then every peer knows every other one


def settled(voters: str = "abc", **settings: Any) -> tuple[Ensemble, str, str]:
    """A cluster with one committed update; its leader and one follower."""
    ensemble = Ensemble(voters, **settings)
    leader = ensemble.elect()
    ensemble.advance(SETTLED_S)
    ensemble.update(leader, 1)
    ensemble.advance(0.1)
    ensemble.asked.clear()
    return ensemble, leader, next(name for name in voters if name != leader)


def appends(ensemble: Ensemble, target: str) -> list[PvAppend]:
    return [message for _, to, message in ensemble.asked if to == target and isinstance(message, PvAppend)]


def test_peers_of_ours_are_not_sent_append_entries() -> None:
    ensemble, leader, follower = settled()

    ensemble.update(leader, 2)

    assert not any(isinstance(message, AppendEntries) for _, _, message in ensemble.asked)
    assert [len(message.entries) for message in appends(ensemble, follower)] == [1]


def test_messages_go_out_while_earlier_ones_wait_for_the_peers_disk() -> None:
    ensemble, leader, follower = settled()
    ensemble.stuck = {name for name in "abc" if name != leader}

    for number in range(2, 2 + 2 * inflight.INFLIGHT_MESSAGES):
        ensemble.update(leader, number)

    with_entries = [message for message in appends(ensemble, follower) if message.entries]
    assert len(with_entries) == inflight.INFLIGHT_MESSAGES
    member = next(each for each in ensemble.status(leader).members if each.id == follower)
    assert member.in_flight == inflight.INFLIGHT_MESSAGES
    committed = ensemble.status(leader).commit

    ensemble.advance(2.0)  # heartbeats are answered beside them: nobody stands, nothing is sent twice
    assert ensemble.leader() == leader
    assert len([message for message in appends(ensemble, follower) if message.entries]) == len(with_entries)
    assert ensemble.status(leader).commit == committed

    for name in sorted(ensemble.stuck):
        ensemble.stuck.discard(name)
        ensemble.sync(name)
    ensemble.advance(0.1)
    assert ensemble.entries(follower) == ensemble.entries(leader)
    assert ensemble.status(leader).commit == ensemble.status(leader).last


def test_a_full_window_in_bytes_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "INFLIGHT_BYTES", 1000)
    ensemble, leader, follower = settled()
    ensemble.stuck = {name for name in "abc" if name != leader}

    for number in range(2, 8):
        ensemble.update(leader, number, bytes(600))

    assert len([message for message in appends(ensemble, follower) if message.entries]) == 2


def test_a_silent_peer_is_asked_anew_how_far_it_is() -> None:
    ensemble, leader, follower = settled("abc")
    ensemble.cuts = {(follower, leader)}  # it hears everything and nobody hears it
    ensemble.update(leader, 2)
    ensemble.asked.clear()

    ensemble.advance(0.35)
    repeated = appends(ensemble, follower)
    match = next(each.match for each in ensemble.status(leader).members if each.id == follower)
    assert {message.previous_index for message in repeated[-2:]} == {match}

    ensemble.cuts.clear()
    ensemble.until(lambda: all(each.match == 2 for each in ensemble.status(leader).members if each.id != leader))


def test_a_peer_that_comes_back_without_its_log_is_not_counted_any_more() -> None:
    ensemble, leader, follower = settled()
    ensemble.down(follower)
    ensemble.disks[follower].entries.clear()
    ensemble.start(follower, lost_voter="by_change")
    core = ensemble.cores[follower]
    core._recovering._phase = type(core._recovering._phase).SOUND  # a peer that does not notice what it lost
    ensemble.advance(0.5)

    assert any(isinstance(event, FollowerLostLog) for event in ensemble.events[leader])
    assert ensemble.entries(follower) == ensemble.entries(leader)


def test_an_empty_log_is_filled_from_the_first_entry_on_though_that_has_no_term() -> None:
    """The bootstrap entry has term 0, and so has the answer that names no term (8.4, 7.1)."""
    ensemble = Ensemble("", "abc")
    for name in "abc":
        ensemble.cores[name].bootstrap(members("abc"), ensemble.now())
        ensemble.cores[name].set_stage(Stage.READ_WRITE, ensemble.now())
    leader = ensemble.elect()
    follower = others(ensemble, leader)[0]
    ensemble.advance(SETTLED_S)
    ensemble.down(follower)
    ensemble.disks[follower].entries.clear()
    ensemble.start(follower)
    ensemble.until(lambda: ensemble.entries(follower) == ensemble.entries(leader))


def test_the_refusal_of_another_term_names_where_that_term_begins() -> None:
    ensemble, leader, _follower = settled()
    ensemble.cuts = {(leader, name) for name in "abc"} | {(name, leader) for name in "abc"}
    for number in range(10, 20):
        ensemble.update(leader, number)  # an old leader's tail, which nobody else has
    ensemble.until(lambda: any(ensemble.roles()[name] == Role.LEADER for name in "abc" if name != leader))
    later = ensemble.leader()
    for number in range(20, 25):
        ensemble.update(later, number)
    last = next(name for name in "abc" if name not in (leader, later))
    ensemble.ask(later, (b"t", *PvTransfer(last).encode(IDENT)))
    ensemble.until(lambda: ensemble.leader() == last)  # who begins with its last index toward everybody
    ensemble.asked.clear()
    ensemble.cuts.clear()
    ensemble.advance(0.5)

    assert ensemble.leader() == last
    assert ensemble.entries(leader) == ensemble.entries(last)
    tried = [message.previous_index for message in appends(ensemble, leader)]
    assert list(dict.fromkeys(tried))[:3] == [6, 1, 2], "from the last index straight to the common one"


def test_a_program_of_the_original_in_the_place_of_one_of_ours_is_sent_append_entries() -> None:
    """Behind a known address another program may answer: it takes ``+`` and drops everything that begins with pv."""
    ensemble, leader, follower = settled()
    core = ensemble.cores[follower]
    ensemble.cores[leader].connection(follower, Channel.SIDE, up=False, now=ensemble.now())
    ensemble.cores[leader].connection(follower, Channel.SIDE, up=True, now=ensemble.now())
    core._handlers = {kind: handler for kind, handler in core._handlers.items() if not kind.__name__.startswith("Pv")}

    ensemble.update(leader, 2)
    ensemble.advance(5.0)
    assert ensemble.entries(follower) == ensemble.entries(leader)
    assert any(event == KindChanged(follower, "js") for event in ensemble.events[leader])


def test_an_empty_message_is_answered_with_what_is_durable() -> None:
    ensemble, leader, follower = settled()
    status = ensemble.status(leader)
    ensemble.stuck = {follower}
    ensemble.update(leader, 2)

    message = PvAppend(leader, status.term, status.last + 1, status.term, status.commit)
    (frames,) = ensemble.ask(follower, (b"\x01", *message.encode(IDENT)), "x side y")
    assert decoded(PvAppendReply, frames) == PvAppendReply(status.term, True, status.last)


def test_a_commit_is_told_soon_without_further_entries() -> None:
    ensemble, leader, follower = settled()
    ensemble.update(leader, 2)
    assert ensemble.status(follower).commit < ensemble.status(leader).commit

    ensemble.advance(0.02)
    assert ensemble.status(follower).commit == ensemble.status(leader).commit


def test_a_blob_is_what_storage_writes() -> None:
    entries = (reqid(1) + bytes(8) + b"x", reqid(2) + bytes(8) + b"yz")
    frames = (b"\x01", *PvAppend("a", 1, 0, 0, 0, entries).encode(IDENT))
    assert frames[8] == encode_blob(entries)
    assert [bytes(entry) for entry in decode_blob(frames[8])] == list(entries)

"""A client that does not wait for a leader that may be dead (docs/specs/raft.md 11.2, hedging)."""

import itertools

from pavane.raft.client.calls import EntriesCall
from pavane.raft.client.key_calls import WatchCall
from pavane.raft.client.procedure import HEDGE_JITTER_S, HEDGE_POLL_S, REFRESH_S
from pavane.raft.machines.history import Scope, Watch
from tests.services.raft.test_client_procedure import DONE, GRACE_S, TIMEOUT_S, Network, led_by, negative, update

AFTER_S = 0.075


def hedged() -> Network:
    """A client whose leader is 1, as everybody says."""
    return led_by("1", hedge_after_s=AFTER_S)


def test_while_the_leader_is_silent_all_others_are_asked_who_leads() -> None:
    network = hedged()
    network.submit(update())
    network.run(0.2)

    asked = network.kinds("^")
    assert asked[0] == (AFTER_S, "2")
    assert {peer for _, peer in asked} == {"2", "3"}, "not the one that owes the answer"
    times = [at for at, peer in asked if peer == "2"]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses
    assert all(
        HEDGE_POLL_S - HEDGE_JITTER_S - 0.001 <= pause <= HEDGE_POLL_S + HEDGE_JITTER_S + 0.001 for pause in pauses
    )
    assert network.kinds("=") == [(0.0, "1")], "no data is copied onto followers"


def test_as_soon_as_one_says_that_it_leads_everything_goes_there_under_the_same_ids() -> None:
    network = hedged()
    calls = [update(1), update(2)]
    for call in calls:
        network.submit(call)
    network.run(0.25)
    network.leaders = {"2": "3", "3": "3"}
    network.run(HEDGE_POLL_S + HEDGE_JITTER_S)

    moved = [(peer, bytes(frames[0])) for peer, frames in network.messages if frames[1] == b"=" and peer != "1"]
    assert moved == [("3", call.id) for call in calls]
    network.reply("3", calls[0], DONE)
    asked = len(network.kinds("^"))
    network.run(AFTER_S / 2)
    assert len(network.kinds("^")) == asked, "the new leader owes nothing yet"


def test_a_leader_whose_connection_breaks_is_not_waited_for() -> None:
    network = hedged()
    network.submit(update())
    network.leaders = {"2": None, "3": None}
    network.connection("1", up=False)
    network.run(0.1)
    assert len([peer for _, peer in network.kinds("^") if peer == "3"]) >= 3

    network.leaders = {"2": "2", "3": "2"}
    network.run(HEDGE_POLL_S + HEDGE_JITTER_S)
    assert [peer for _, peer in network.kinds("=")] == ["1", "2"]


def test_a_leader_that_answers_ends_the_questions() -> None:
    network = hedged()
    network.submit(update(1))
    network.run(0.1)
    network.reply("1", update(1), DONE)
    network.submit(update(2))
    asked = len(network.kinds("^"))

    network.run(AFTER_S - 0.01)
    assert len(network.kinds("^")) == asked


def test_an_answer_that_only_names_a_leader_is_not_followed() -> None:
    network = hedged()
    network.leaders = {"2": "3"}  # and 3, which it names, says nothing
    network.submit(update())

    network.run(0.3)
    assert [peer for _, peer in network.kinds("=")] == ["1"]


def test_a_silent_leader_is_sent_the_request_again_after_the_usual_time_and_is_not_left() -> None:
    network = hedged()
    network.leaders = {"2": "1", "3": "1"}
    network.submit(update())

    network.run(TIMEOUT_S + GRACE_S)
    sent = network.kinds("=")
    assert [peer for _, peer in sent] == ["1", "1"]
    assert sent[1][0] >= TIMEOUT_S


def test_what_is_sent_to_a_leader_that_says_nothing_does_not_pile_up() -> None:
    network = hedged()
    network.leaders.clear()
    network.submit(update(timeout_s=60.0))
    network.run(30.0)
    assert 3 <= len(network.kinds("=")) <= 6
    network.leaders["1"] = "1"
    sent = len(network.kinds("="))
    network.run(3.0)
    assert len(network.kinds("=")) > sent, "it lives again and is told"


def test_a_leader_that_lost_its_place_without_a_successor_is_no_reason_to_wait() -> None:
    network = hedged()
    call = update()
    network.submit(call)
    network.leaders = {"1": None, "2": "2", "3": None}
    network.reply("1", call, negative(None))

    network.run(2 * HEDGE_POLL_S)
    assert network.kinds("=")[-1][1] == "2"


def test_an_idle_stream_asks_nobody() -> None:
    network = hedged()
    stream = EntriesCall(b"8 bytes!", 0, None, 30.0)
    network.submit(stream)
    stream._unacknowledged = 1  # its reader has something left to read
    network.run(1.0)

    assert network.kinds("^") == []


def watching(network: Network) -> WatchCall:
    """A watch of which nothing is heard but what the test says."""
    watch = WatchCall(b"8 bytes!", Watch(Scope.KEYS, b"a", b"b", 7), 30.0)
    network.submit(watch)
    return watch


def test_a_watch_in_which_nothing_happens_asks_nobody_but_the_leader() -> None:
    network = hedged()
    watching(network)
    network.run(WatchCall.silence_s - 0.1)

    assert {peer for _, peer in network.kinds("^")} == {"1"}


def test_a_watch_leaves_a_leader_that_stops() -> None:
    network = hedged()
    watching(network)
    network.run(0.5)
    network.leaders = {"2": "3", "3": "3"}
    network.run(REFRESH_S + AFTER_S)

    assert network.requests == [("1", "pv.watch"), ("3", "pv.watch")]


def test_a_watch_leaves_a_leader_that_answers_but_does_not_know_that_another_one_leads() -> None:
    network = hedged()
    watching(network)
    network.leaders = {"1": "1", "2": "3", "3": "3"}
    network.run(WatchCall.silence_s + 0.1)

    assert network.requests[-1] == ("3", "pv.watch")

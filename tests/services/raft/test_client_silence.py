"""The client's connections that stand and carry nothing, without sockets (docs/specs/raft.md 14.3)."""

import pytest

from pavane.raft.client.calls import UpdateCall
from pavane.raft.silence import SILENT_MAX_S, SILENT_S
from tests.services.raft.test_client_procedure import URLS, Network, led_by, update


def silent_network(hedge_after_s: float | None) -> Network:
    """All connections stand, and carry nothing from now on."""
    network = led_by("1", hedge_after_s)
    for peer in URLS:
        network.connection(peer, up=True)
    network.run(1.0)
    network.leaders.clear()
    network.sent.clear()
    return network


@pytest.mark.parametrize("hedge_after_s", [0.075, None])
def test_a_connection_that_carries_nothing_is_dialled_anew_and_the_call_goes_there(hedge_after_s: float | None) -> None:
    network = silent_network(hedge_after_s)
    network.submit(update(1))
    network.run(SILENT_S + 0.2)
    assert network.redialled[0][1] == "1"

    network.leaders = dict.fromkeys(URLS, "1")
    network.sent.clear()
    network.connection("1", up=True)
    network.run(0.6)
    assert ("1", "=") in network.requests


def test_a_large_update_gets_to_the_end_of_a_slow_line() -> None:
    """Dialled anew it would begin from its first byte, for ever."""
    network = silent_network(0.075)
    network.submit(UpdateCall(bytes(12), bytes(4 << 20), 60.0))
    network.run(SILENT_MAX_S)
    assert "1" not in [peer for _, peer in network.redialled]
    network.run(3 * SILENT_S)
    assert "1" in [peer for _, peer in network.redialled]


def test_an_idle_client_has_nothing_to_look_at() -> None:
    network = silent_network(0.075)
    assert network.procedure.next_timer() is None
    network.run(60.0)
    assert network.redialled == []


def test_whoever_answers_the_question_for_a_sign_of_life_keeps_its_connection() -> None:
    network = silent_network(0.075)
    network.leaders = dict.fromkeys(URLS, "1")
    network.submit(update(1, timeout_s=60.0))
    network.run(30.0)
    assert network.redialled == []


def test_calls_that_end_sooner_than_a_look_do_not_hide_a_silent_connection() -> None:
    network = silent_network(None)
    for number in range(40):
        call = update(number)
        network.submit(call)
        network.run(0.05)
        network.procedure.cancel(call)
    assert "1" in [peer for _, peer in network.redialled]

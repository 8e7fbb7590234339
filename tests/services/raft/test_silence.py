"""Who owes an answer, who is asked for a sign of life, and who is given up (docs/specs/raft.md 14.3)."""

from pavane.raft.core.outputs import Channel, Disconnect, PeerChannel
from pavane.raft.silence import LOOK_BYTES, LOOK_S, SILENT_LOOKS, SILENT_LOOKS_MAX, SILENT_MAX_S, SILENT_S, Silence
from pavane.raft.wire.replies import RequestConfigReply
from pavane.raft.wire.requests import RequestConfig
from tests.services.raft.ensemble import Ensemble, url


def standing() -> Silence[str]:
    silence: Silence[str] = Silence()
    silence.connected("a", up=True)
    return silence


def looks_until_given_up(silence: Silence[str]) -> int:
    for looks in range(1, 2 * SILENT_LOOKS_MAX):
        _, lost = silence.look()
        if lost:
            return looks
    raise AssertionError("never given up")


def test_who_owes_an_answer_is_asked_for_a_sign_of_life_and_then_given_up() -> None:
    silence = standing()
    silence.asked("a")
    found = [silence.look() for _ in range(SILENT_LOOKS + 1)]

    assert [number for number, (doubtful, _) in enumerate(found, 1) if doubtful == ["a"]] == [SILENT_LOOKS // 2]
    assert [number for number, (_, lost) in enumerate(found, 1) if lost == ["a"]] == [SILENT_LOOKS + 1]
    assert not silence


def test_any_message_is_a_sign_of_life() -> None:
    silence = standing()
    for _ in range(3 * SILENT_LOOKS):
        silence.asked("a")
        assert silence.look() == ([], [])
        silence.heard("a")


def test_who_was_asked_nothing_and_who_does_not_stand_owes_nothing() -> None:
    silence = standing()
    silence.asked("b")
    assert not silence
    silence.asked("a")
    silence.connected("a", up=False)
    assert not silence


def test_who_is_slow_is_given_more_time_until_it_is_heard_for_as_long() -> None:
    silence: Silence[str] = Silence()
    patience = []
    for _ in range(7):
        silence.connected("a", up=True)
        silence.asked("a")
        patience.append(looks_until_given_up(silence) - 1)
    assert patience[:3] == [SILENT_LOOKS, 2 * SILENT_LOOKS, 4 * SILENT_LOOKS]
    assert patience[-1] == SILENT_LOOKS_MAX

    silence.connected("a", up=True)
    for _ in range(SILENT_LOOKS_MAX):
        silence.asked("a")
        silence.look()
        silence.heard("a")
    silence.asked("a")
    assert looks_until_given_up(silence) - 1 == SILENT_LOOKS


def test_a_small_answer_does_not_say_that_a_large_one_comes_as_soon() -> None:
    """Whoever reads an entry of 10 MiB over a slow line hears at once who leads, and the entry behind it late."""
    silence = standing()
    patience = []
    for _ in range(3):
        silence.asked("a")
        silence.heard("a")
        silence.asked("a")
        patience.append(looks_until_given_up(silence) - 1)
        silence.connected("a", up=True)
    assert patience == [SILENT_LOOKS, 2 * SILENT_LOOKS, 4 * SILENT_LOOKS]


def test_who_is_sent_much_owes_nothing_before_a_slow_line_has_taken_it() -> None:
    silence = standing()
    silence.asked("a", 10 * LOOK_BYTES)
    silence.heard("a")  # what came before it
    silence.asked("a", 1)
    assert looks_until_given_up(silence) == 10 + SILENT_LOOKS + 1

    silence = standing()
    for _ in range(3):
        silence.asked("a", 1 << 40)
        assert silence.look() == ([], [])
    assert looks_until_given_up(silence) <= SILENT_LOOKS_MAX + SILENT_LOOKS + 1
    silence.connected("a", up=True)
    silence.asked("a")
    assert looks_until_given_up(silence) == 2 * SILENT_LOOKS + 1, "a new connection has nothing on its way"


def led() -> tuple[Ensemble, str, str]:
    ensemble = Ensemble("ab")
    leader = ensemble.elect()
    (follower,) = {"a", "b"} - {leader}
    for channel in (Channel.RPC, Channel.SIDE):
        ensemble.cores[leader].connection(follower, channel, True, ensemble.now())
    ensemble.settle()
    ensemble.advance(0.2)
    return ensemble, leader, follower


def closed(ensemble: Ensemble, peer: str) -> list[PeerChannel]:
    return [event.to for event in ensemble.events[peer] if isinstance(event, Disconnect)]


def test_a_peer_dials_one_of_ours_anew_by_both_channels() -> None:
    ensemble, leader, follower = led()
    ensemble.cuts = {(follower, leader)}
    ensemble.advance(SILENT_S + 3 * LOOK_S)

    assert closed(ensemble, leader) == [
        PeerChannel(Channel.SIDE, follower, url(follower)),
        PeerChannel(Channel.RPC, follower, url(follower)),
    ]


def test_a_peer_whose_line_is_slow_gets_a_large_entry_to_its_end() -> None:
    ensemble, leader, follower = led()
    ensemble.cuts = {(follower, leader)}
    ensemble.update(leader, 1, b"x" * (1 << 20))
    ensemble.advance(2 * SILENT_S)
    assert closed(ensemble, leader) == []
    ensemble.advance(SILENT_MAX_S)
    assert PeerChannel(Channel.SIDE, follower, url(follower)) in closed(ensemble, leader)


def test_a_process_that_was_stopped_itself_takes_nobody_for_silent() -> None:
    ensemble, leader, follower = led()
    ensemble.cuts = {(follower, leader)}
    ensemble.advance(SILENT_S / 2)
    ensemble.time += 60.0
    ensemble.cores[leader].handle_timer(ensemble.now())
    ensemble.cuts = set()
    ensemble.settle()
    ensemble.advance(SILENT_S)

    assert closed(ensemble, leader) == []


def test_a_question_that_is_repeated_behind_a_closed_socket_counts_as_one() -> None:
    """A snapshot goes on to who is no member any more, whose socket was closed with its membership."""
    ensemble, leader, follower = led()
    requests, to = ensemble.cores[leader]._requests, PeerChannel(Channel.SIDE, follower, url(follower))
    ensemble.cuts = {(follower, leader)}
    ask = requests.ask(to, RequestConfig(), RequestConfigReply, lambda _ask, _reply: None)
    requests.disconnect(to)
    ensemble.cores[leader].connection(follower, Channel.SIDE, True, ensemble.now())
    requests.again(ask)
    looked = [requests.silence.look() for _ in range(SILENT_LOOKS // 2)]

    assert [requests.sockets[key] for key in looked[-1][0]] == [to]

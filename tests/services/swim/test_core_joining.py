"""Both sides of a join (docs/specs/swim.md 3.8, 5.2, 5.3, 6, 18.3)."""

import pytest

from pavane.swim.config import Config, JoinPolicy, RequireToken
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.errors import ConfigError
from pavane.swim.wire.messages import (
    ERROR_DOMAIN,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    PingRequest,
    PingResponse,
    decode,
)
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeId, NodeInfo
from tests.services.swim.lone import SELF, UNIX_S, Lone, alive, info, place


def server(**config: object) -> Lone:
    lone = Lone(**config)
    lone.join()
    return lone


def nak(code: Refusal, etag: str = "") -> JoinNak:
    return JoinNak(ERROR_DOMAIN, code, etag)


def granted(lone: Lone, node: NodeInfo, source: Address) -> list[object]:
    """Ask, show the token, and return the final answers."""
    ((_, first),) = lone.hear(source, JoinReq(node))
    assert isinstance(first, JoinNak)
    assert first.code == Refusal.TOKEN_EXPECTED
    return [message for to, message in lone.hear(source, JoinReq(node, first.etag.encode())) if to == source]


def test_the_session_of_the_note() -> None:
    # 321 joins 221, tells that 84 is dead, hears about the group, and leaves.
    lone = Lone(id=221, first_gen=2, address=Address.parse("10.3.2.17:7946"), capacity=3, force_capacity=True)
    lone.join()
    client, there = NodeInfo(321, 0, Address.parse("10.3.2.1:7946")), Address.parse("10.3.2.1:7946")
    (ack,) = granted(lone, client, there)
    assert isinstance(ack, JoinAck)
    assert ack.desc == NodeInfo(221, 2, Address.parse("10.3.2.17:7946"))
    ping = PingRequest(NodeId(321, 0), NodeId(221, 3), 0, Payload(seq=6253, dead=(NodeId(84, 0),)))
    ((to, response),) = lone.hear(there, ping)
    assert isinstance(response, PingResponse)
    assert (to, response.src, response.ttl, response.payload.seq) == (there, NodeId(321, 0), 0, 6253)
    assert response.target == NodeId(221, 4)  # the ping knew 221 at 3, so it takes the one after
    assert (response.payload.capacity, response.payload.peers) == (3, 1)
    assert lone.sees() == {321: (0, "ALIVE"), 84: (0, "DEAD")}
    lone.hear(there, bytes.fromhex("45410100000000000002001f0a0a030201"))
    assert lone.sees()[321] == (0, "LEFT")
    assert lone.core.own is Own.DIALING


def test_a_first_contact_leaves_nothing_behind() -> None:
    lone = server()
    for number in range(1, 200):
        lone.hear(place(number), JoinReq(info(number)))
    assert lone.sees() == {}
    assert lone.core.own is Own.DIALING


@pytest.mark.parametrize("token", [b"x", b"A" * 22])
def test_a_bad_token_is_answered_with_a_fresh_one(token: bytes) -> None:
    lone = server()
    ((_, answer),) = lone.hear(place(2), JoinReq(info(2), token))
    assert isinstance(answer, JoinNak)
    assert answer.code == Refusal.TOKEN_INVALID
    assert isinstance(lone.hear(place(2), JoinReq(info(2), answer.etag.encode()))[0][1], JoinAck)


def test_a_token_is_too_old_after_half_a_minute() -> None:
    lone = server()
    ((_, first),) = lone.hear(place(2), JoinReq(info(2)))
    assert isinstance(first, JoinNak)
    lone.wait(31)
    ((_, answer),) = lone.hear(place(2), JoinReq(info(2), first.etag.encode()))
    assert isinstance(answer, JoinNak)
    assert answer.code == Refusal.TOKEN_INVALID


def test_a_repeated_request_is_acknowledged_again_but_not_at_once() -> None:
    lone = server()
    ((_, first),) = lone.hear(place(2), JoinReq(info(2)))
    assert isinstance(first, JoinNak)
    request = JoinReq(info(2), first.etag.encode())
    counts = []
    for after in (0.0, 0.05, 0.3):
        lone.now += after
        counts.append(len(lone.hear(place(2), request)))
    assert counts == [1, 0, 1]
    assert lone.core.counts["admissions"] == 1


def test_a_joiner_learns_its_address_and_a_few_peers() -> None:
    lone = server()
    lone.admit(3, 4, 5, 6)
    (ack,) = granted(lone, NodeInfo(2, 1, UNSPECIFIED), place(2))
    assert isinstance(ack, JoinAck)
    assert ack.payload.sample[0] == info(2)
    assert {peer.id for peer in ack.payload.sample[1:]} <= {3, 4, 5, 6}
    assert len(ack.payload.sample) == 4


def test_in_plaintext_a_foreign_address_is_not_believed() -> None:
    lone = server()
    granted(lone, info(2, address=place(99)), place(2))
    assert lone.core._node.members.at(place(99)) == ()
    assert [peer.id for peer in lone.core._node.members.at(place(2))] == [2]


def test_another_port_of_the_same_host_is_believed() -> None:
    lone = server()
    other_port = Address(place(2).ip, 9000)
    granted(lone, info(2, address=other_port), place(2))
    assert [peer.id for peer in lone.core._node.members.at(other_port)] == [2]


@pytest.mark.parametrize(
    ("gen", "least"),
    [(3, 5), (UNIX_S + (1 << 16) + 100, UNIX_S)],
    ids=["below an entry that is alive", "further ahead than any clock"],
)
def test_a_generation_out_of_bounds_is_refused_with_one_that_will_do(gen: int, least: int) -> None:
    lone = server()
    lone.admit(3)
    granted(lone, info(2, 5), place(2))
    (answer,) = granted(lone, info(2, gen), place(2))
    assert answer == nak(Refusal.STALE_GEN, str(least))


def test_a_tombstone_wants_a_larger_generation() -> None:
    lone = server()
    lone.admit(2, 3)
    lone.news(3, dead=(NodeId(2, 1),))
    assert granted(lone, info(2, 1), place(2)) == [nak(Refusal.STALE_GEN, "2")]
    assert isinstance(granted(lone, info(2, 2), place(2))[0], JoinAck)
    assert lone.sees()[2] == (2, "ALIVE")


def test_who_comes_under_our_own_name_is_refused() -> None:
    lone = server()
    assert granted(lone, NodeInfo(1, 10, place(2)), place(2)) == [nak(Refusal.ID_CONFLICT, str(SELF))]
    assert lone.hear(place(2), JoinReq(NodeInfo(1, 10, UNSPECIFIED))) == []
    assert lone.hear(SELF, JoinReq(NodeInfo(1, 10, SELF))) == []


@pytest.mark.parametrize("holder_lives", [True, False])
def test_an_id_at_another_address_is_taken_over_only_from_the_dead(holder_lives: bool) -> None:
    lone = server()
    lone.admit(2, 3)
    ((_, first),) = lone.hear(place(9), JoinReq(info(2, 5, place(9))))
    assert isinstance(first, JoinNak)
    lone.hear(place(9), JoinReq(info(2, 5, place(9)), first.etag.encode()))
    lone.take()
    answers: list[object] = []
    lone.wait(0.6, alive if holder_lives else None)
    answers = [message for to, message in lone.take() if to == place(9)]
    if holder_lives:
        # The request went out before the probe's answer was in: it is taken up again then.
        assert lone.sees()[2] == (1, "ALIVE")
    else:
        assert any(isinstance(answer, JoinAck) for answer in answers)
        assert lone.sees()[2] == (5, "ALIVE")
        assert [peer.id for peer in lone.core._node.members.at(place(9))] == [2]


def test_a_holder_that_answers_keeps_its_id() -> None:
    lone = server()
    lone.admit(2)
    ((_, first),) = lone.hear(place(9), JoinReq(info(2, 5, place(9))))
    assert isinstance(first, JoinNak)
    ((to, probe),) = lone.hear(place(9), JoinReq(info(2, 5, place(9)), first.etag.encode()))
    assert to == place(2)
    assert isinstance(probe, PingRequest)
    answer = PingResponse(probe.src, probe.target, 0, Payload(seq=probe.payload.seq))
    assert lone.hear(place(2), answer) == [(place(9), nak(Refusal.ID_CONFLICT, str(place(2))))]


def test_a_new_id_at_an_address_ends_the_old_one() -> None:
    lone = server()
    lone.admit(2, 3)
    granted(lone, info(7, 1, place(2)), place(2))
    assert lone.sees()[2] == (1, "DEAD")
    assert lone.sees()[7] == (1, "ALIVE")


def test_a_new_id_that_claims_another_port_of_its_host_ends_nobody() -> None:
    lone = server()
    lone.admit(2, 3)
    beside = place(2)._replace(port=5000)
    assert isinstance(granted(lone, info(7, 1, place(2)), beside)[0], JoinAck)
    assert lone.sees()[2] == (1, "ALIVE")


def test_a_full_table_refuses() -> None:
    lone = server(capacity=4)
    lone.admit(2, 3, 4, 5)
    assert granted(lone, info(6), place(6)) == [nak(Refusal.AT_CAPACITY)]
    assert lone.happened(Happened.NEAR_CAPACITY)


def test_admissions_have_a_rate_and_first_contacts_do_not_use_it_up() -> None:
    lone = server()
    for number in range(1, 200):
        lone.hear(place(number), JoinReq(info(number)))
    lone.now += 2
    codes = []
    for number in range(2, 40):
        (answer,) = granted(lone, info(number), place(number))
        codes.append(answer.code if isinstance(answer, JoinNak) else 0)
    assert codes.count(0) == 25
    assert codes[-1] == Refusal.RATE_LIMITED


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"join_policy": JoinPolicy.REJECT}, [nak(Refusal.NOT_ACCEPTING)]),
        ({"join_policy": JoinPolicy.IGNORE}, []),
        ({"join_policy": JoinPolicy.REDIRECT}, [nak(Refusal.NOT_ACCEPTING)]),
        (
            {"join_policy": JoinPolicy.REDIRECT, "redirect_to": place(50)},
            [JoinRedirect(place(50), ERROR_DOMAIN, Refusal.NOT_ACCEPTING)],
        ),
    ],
    ids=["reject", "ignore", "nowhere to redirect to", "redirect"],
)
def test_the_policy_comes_first(config: dict[str, object], expected: list[object]) -> None:
    lone = server(**config)
    assert [message for _, message in lone.hear(place(2), JoinReq(info(2)))] == expected


def test_a_redirect_names_a_peer_heard_lately_and_never_the_asker() -> None:
    lone = Lone(join_policy=JoinPolicy.REDIRECT)
    lone.join(place(2))
    lone.hear(place(2), JoinAck(info(2), Payload(sample=(info(3),))))
    assert set(lone.sees()) == {2, 3}
    lone.hear(place(2), lone.ping(2))
    ((_, answer),) = lone.hear(place(9), JoinReq(info(9)))
    assert answer == JoinRedirect(place(2), ERROR_DOMAIN, Refusal.NOT_ACCEPTING)
    ((_, answer),) = lone.hear(place(2), JoinReq(info(77)))
    assert answer == nak(Refusal.NOT_ACCEPTING)
    ((_, answer),) = lone.hear(place(9), JoinReq(info(2, address=place(9))))  # it has moved
    assert answer == nak(Refusal.NOT_ACCEPTING)


def test_without_tokens_an_answer_stays_within_three_times_the_request() -> None:
    lone = server(require_token=RequireToken.OFF)
    for number in range(2, 30):
        lone.raw.clear()
        request = JoinReq(NodeInfo(number, 1, UNSPECIFIED)).encode()
        lone.hear(place(number), request)
        lone.now += 1
        assert sum(len(send.datagram) for send in lone.raw if send.to == place(number)) <= 3 * len(request)


# --- the joiner ------------------------------------------------------------------------------------------------------


def joiner(*seeds: int, **config: object) -> Lone:
    lone = Lone(**config)
    lone.join(*map(place, seeds))
    return lone


def dialled(lone: Lone) -> list[Address]:
    return [to for to, message in lone.take() if isinstance(message, JoinReq)]


def test_a_seed_is_asked_four_times_then_the_next_and_so_for_ever() -> None:
    lone = joiner(2, 3)
    lone.wait(300)
    asked = dialled(lone)
    assert {asked[0], asked[4]} == {place(2), place(3)}
    assert len(set(asked[:4])) == len(set(asked[4:8])) == 1
    pauses = [event for event in lone.events if event.kind is Happened.JOIN_RETRY]
    assert len(pauses) >= 7
    assert len(asked) == 8 * len(pauses) or len(asked) // 8 >= len(pauses) - 1


def test_a_token_is_sent_back_twice_at_most() -> None:
    lone = joiner(2)
    lone.take()
    sent = [lone.hear(place(2), nak(Refusal.TOKEN_EXPECTED, f"t{number}")) for number in range(3)]
    assert [message.token for ((_, message),) in sent[:2] if isinstance(message, JoinReq)] == [b"t0", b"t1"]
    assert sent[2] == []
    assert lone.happened(Happened.JOIN_REFUSED)[0].text == "token_expected"


def test_a_token_that_does_not_fit_a_datagram_is_not_sent() -> None:
    lone = joiner(2, max_datagram_bytes=256)
    assert lone.hear(place(2), nak(Refusal.TOKEN_EXPECTED, "x" * 300)) == []


@pytest.mark.parametrize(
    ("etag", "gen"),
    [("20", 20), ("abc", None), (str(U32_MAX), None), (str(UNIX_S + (1 << 16) + 5000), None), ("９", None)],
)
def test_a_generation_is_taken_only_within_bounds(etag: str, gen: int | None) -> None:
    lone = joiner(2)
    answers = lone.hear(place(2), nak(Refusal.STALE_GEN, etag))
    assert [message.src.gen for _, message in answers if isinstance(message, JoinReq)] == ([gen] if gen else [])


def test_with_a_random_id_a_joiner_draws_another_and_with_a_configured_one_it_goes_on() -> None:
    lone = joiner(2, id=None)
    before = lone.core.info.id
    ((_, again),) = lone.hear(place(2), nak(Refusal.ID_CONFLICT))
    assert isinstance(again, JoinReq)
    assert again.src.id != before
    configured = joiner(2)
    assert configured.hear(place(2), nak(Refusal.ID_CONFLICT)) == []
    assert configured.core.info.id == 1


def test_seeds_that_refuse_keep_no_other_from_being_asked() -> None:
    lone = joiner(*range(2, 22))
    asked: set[Address] = set()
    while fresh := set(dialled(lone)) - asked:
        asked |= fresh
        for to in fresh:
            lone.hear(to, nak(Refusal.NOT_ACCEPTING))
            lone.sent.extend((send.to, decode(send.datagram)) for send in lone.raw)
    assert asked == {place(node) for node in range(2, 22)}


def test_new_seeds_are_asked_soon_also_after_many_rounds_in_vain() -> None:
    lone = joiner()
    lone.wait(100)  # rounds in vain are half a minute apart by now
    lone.join(place(2))
    lone.wait(1.5)
    assert dialled(lone) == [place(2)]


def test_rate_limited_means_wait() -> None:
    lone = joiner(2)
    lone.take()
    assert lone.hear(place(2), nak(Refusal.RATE_LIMITED, "3000")) == []
    lone.wait(2.9)
    assert dialled(lone) == []
    lone.wait(0.8)
    assert dialled(lone) == [place(2)]


def test_answers_count_only_from_who_was_asked() -> None:
    lone = joiner(2)
    for message in (JoinAck(info(3)), nak(Refusal.TOKEN_EXPECTED, "t"), JoinRedirect(place(4), ERROR_DOMAIN, 3)):
        assert lone.hear(place(3), message) == []
    assert lone.core.own is Own.DIALING
    assert lone.core.dropped["dial"] == 3


def test_after_the_last_retry_only_an_ack_still_counts() -> None:
    lone = joiner(2, 3)
    given_up = dialled(lone)[0]
    lone.wait(9.5)
    assert lone.hear(given_up, nak(Refusal.TOKEN_EXPECTED, "late")) == []
    assert lone.core.dropped["dial"] == 1
    lone.hear(given_up, JoinAck(info(given_up.ip[3])))
    assert lone.core.own is Own.MEMBER


def test_a_very_late_ack_does_not_count() -> None:
    lone = joiner(2)
    lone.wait(8.5)
    lone.core.set_seeds([], lone.now)  # so that no second round opens another dial
    lone.wait(20)
    assert lone.hear(place(2), JoinAck(info(2))) == []
    assert lone.core.own is Own.DIALING


def test_a_name_that_stands_for_many_is_not_dialled_again_at_once() -> None:
    lone = joiner(50)
    lone.hear(place(50), JoinAck(info(2)))
    assert [peer.address for peer in lone.core._node.members.live] == [place(2)]
    lone.take()
    lone.wait(55, alive)
    assert dialled(lone) == []
    lone.wait(20, alive)
    assert set(dialled(lone)) == {place(50)}


def test_a_joiner_that_cannot_track_the_group_goes_elsewhere() -> None:
    lone = joiner(2, 3, capacity=4)
    seed = dialled(lone)[0]
    lone.hear(seed, JoinAck(info(seed.ip[3]), Payload(capacity=100, peers=50)))
    assert lone.core.own is Own.DIALING
    assert lone.happened(Happened.JOIN_REFUSED)[0].text == "capacity"


def follow(lone: Lone, source: Address, to: Address) -> list[Address]:
    return [where for where, _ in lone.hear(source, JoinRedirect(to, ERROR_DOMAIN, Refusal.AT_CAPACITY))]


@pytest.mark.parametrize(
    "to",
    [SELF, place(2), *(Address.parse(text) for text in (
        "127.0.0.1:7946", "224.0.0.1:7946", "0.0.0.0:7946", "255.255.255.255:7946", "10.0.1.9:0", "[::1]:7946",
        "[ff02::1]:7946", "[::ffff:127.0.0.1]:7946",
    ))],
    ids=str,
)  # fmt: skip
def test_a_redirect_to_a_senseless_address_is_not_followed(to: Address) -> None:
    lone = joiner(2)
    lone.take()
    assert follow(lone, place(2), to) == []
    assert lone.happened(Happened.JOIN_REFUSED)[0].text == "redirect"


def test_redirects_in_a_circle_end_at_the_seeds() -> None:
    lone = joiner(2)
    lone.take()
    assert follow(lone, place(2), place(3)) == [place(3)]
    assert follow(lone, place(2), place(9)) == []  # one redirect for each address that was dialled
    assert follow(lone, place(3), place(4)) == [place(4)]
    assert follow(lone, place(4), place(2)) == []
    lone.wait(3)
    assert dialled(lone)[0] == place(2)


def test_nobody_follows_more_than_eight_redirects() -> None:
    lone = joiner(2)
    lone.take()
    hops = 0
    while follow(lone, place(2 + hops), place(3 + hops)):
        hops += 1
    assert hops == 8


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"capacity": 3}, "capacity 3"),
        ({"id": 0}, "id 0"),
        ({"first_gen": U32_MAX}, "first_gen"),
        ({"max_datagram_bytes": 100}, "max_datagram"),
        ({"address": Address(bytes(4), 0)}, "port 0"),
        ({"keys": (b"short",)}, "keyring"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lone(**config)
    assert Config().capacity == 1024

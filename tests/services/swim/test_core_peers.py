"""What a member does with pings and news (docs/specs/swim.md 2.3, 5, 8, 9, 12, 18)."""

from collections import Counter

import pytest

from pavane.parts.timers import PRUNED_FROM
from pavane.swim.config import WAN
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.wire.messages import JoinAck, JoinReq, Leave, Message, PingRequest, PingResponse
from pavane.swim.wire.payload import Payload, Suspicion, Unlink, User
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeId, NodeInfo
from tests.services.swim.lone import SELF, UNIX_S, Lone, alive, info, only, place, silent

STRANGER = Address.parse("192.0.2.66:7946")
AHEAD = UNIX_S + (1 << 17)


# --- pings -----------------------------------------------------------------------------------------------------------


def test_a_ping_is_answered_with_its_number_and_our_generation(lone: Lone) -> None:
    ping = lone.ping(2, target=NodeId(1, 4))
    to, response = only(lone.hear(place(2), ping))
    assert isinstance(response, PingResponse)
    assert (to, response.src, response.target) == (place(2), NodeId(2, 1), NodeId(1, 10))
    assert response.payload.seq == ping.payload.seq


@pytest.mark.parametrize("ttl", [0, 1, 2, 255])
@pytest.mark.parametrize("target", ["self", "known", "unknown"])
def test_the_truth_table_of_forwarding(lone: Lone, ttl: int, target: str) -> None:
    node = {"self": 1, "known": 4, "unknown": 99}[target]
    sent = lone.hear(place(2), lone.ping(2, ttl=ttl, target=NodeId(node, 1)))
    if target == "self":
        to, answer = only(sent)
        assert isinstance(answer, PingResponse)
        assert (to, answer.ttl) == (place(2), ttl)
    elif target == "known" and ttl:
        to, passed_on = only(sent)
        assert isinstance(passed_on, PingRequest)
        assert (to, passed_on.ttl, passed_on.src.id) == (place(4), ttl - 1, 2)
    elif ttl >= 2:
        to, wandering = only(sent)
        assert isinstance(wandering, PingRequest)
        assert (to in map(place, (3, 4, 5, 6)), wandering.ttl, wandering.src.id) == (True, min(ttl, 4) - 1, 2)
    else:
        assert sent == []
        assert lone.core.dropped["relay"] == 1


def test_a_relayed_answer_is_passed_back_once_and_unchanged(lone: Lone) -> None:
    ping = lone.ping(2, ttl=1, target=NodeId(4, 1))
    lone.hear(place(2), ping)
    answer = PingResponse(NodeId(2, 1), NodeId(4, 1), 0, Payload(seq=ping.payload.seq))
    assert only(lone.hear(place(4), answer)) == (place(2), answer)
    assert lone.hear(place(4), answer) == []
    lone.wait(0.5, alive)
    assert nacks(lone) == []


def test_what_is_longer_than_our_datagrams_is_not_passed_on(lone: Lone) -> None:
    long = Payload(users=(User(NodeId(2, 1), 1, bytes(1400)),))
    assert lone.hear(place(2), lone.ping(2, long, ttl=1, target=NodeId(4, 1))) == []
    ping = lone.ping(2, ttl=1, target=NodeId(4, 1))
    assert only(lone.hear(place(2), ping))[0] == place(4)
    long.seq = ping.payload.seq
    assert lone.hear(place(4), PingResponse(NodeId(2, 1), NodeId(4, 1), 0, long)) == []
    assert lone.core.dropped["relay"] == 2


def test_nobody_else_answers_for_the_target_of_a_relayed_ping(lone: Lone) -> None:
    ping = lone.ping(2, ttl=1, target=NodeId(4, 1))
    lone.hear(place(2), ping)
    answer = PingResponse(NodeId(2, 1), NodeId(4, 1), 0, Payload(seq=ping.payload.seq, dead=(NodeId(3, 1),)))
    assert lone.hear(STRANGER, answer) == []
    assert lone.sees()[3] == (1, "ALIVE")


def test_the_answer_of_a_target_that_we_do_not_know_comes_back_by_whom_we_asked(lone: Lone) -> None:
    ping = lone.ping(2, ttl=2, target=NodeId(99, 1))
    asked, _ = only(lone.hear(place(2), ping))
    answer = PingResponse(NodeId(2, 1), NodeId(99, 1), 1, Payload(seq=ping.payload.seq, dead=(NodeId(3, 1),)))
    elsewhere = next(place(node) for node in (3, 4) if place(node) != asked)
    assert lone.hear(elsewhere, answer) == []
    assert only(lone.hear(asked, answer)) == (place(2), answer)
    assert lone.hear(asked, answer) == []
    assert lone.sees()[3] == (1, "ALIVE")


def nacks(lone: Lone) -> list[PingResponse]:
    """Return what was told to peer 2 about pings that nobody answered."""
    return [
        message
        for to, message in lone.take()
        if to == place(2) and isinstance(message, PingResponse) and message.payload.health is not None
    ]


def test_a_helper_without_an_answer_says_that_its_own_links_work(lone: Lone) -> None:
    lone.hear(place(2), lone.ping(2, ttl=1, target=NodeId(4, 1)))
    lone.wait(0.26, alive)
    assert [(nack.src.id, nack.target.id) for nack in nacks(lone)] == [(2, 1)]


def test_a_relayed_ping_is_answered_directly_and_by_the_relay(lone: Lone) -> None:
    sent = lone.hear(place(3), lone.ping(2))
    assert [to for to, _ in sent] == [place(2), place(3)]
    assert sent[0][1] == sent[1][1]


def test_an_unknown_author_behind_a_relay_gets_the_copy_only_and_is_not_believed(lone: Lone) -> None:
    to, answer = only(lone.hear(place(3), lone.ping(77, Payload(dead=(NodeId(2, 1),)))))
    assert to == place(3)
    assert isinstance(answer, PingResponse)
    assert lone.sees()[2] == (1, "ALIVE")


def test_a_stranger_gets_the_short_answer(lone: Lone) -> None:
    to, answer = only(lone.hear(STRANGER, lone.ping(77, Payload(dead=(NodeId(2, 1),)))))
    assert isinstance(answer, PingResponse)
    assert (to, answer.payload.unlinks) == (STRANGER, (Unlink(NodeId(77, 1), None),))
    assert len(answer.encode()) == 38
    assert lone.sees()[2] == (1, "ALIVE")


@pytest.mark.parametrize(("kind", "records"), [("DEAD", "dead"), ("LEFT", "left")])
def test_a_buried_author_hears_of_it_and_rises_by_refuting(lone: Lone, kind: str, records: str) -> None:
    lone.news(3, **{records: (NodeId(2, 1),)})
    _, answer = only(lone.hear(place(2), lone.ping(2)))
    assert isinstance(answer, PingResponse)
    assert getattr(answer.payload, records) == (NodeId(2, 1),)
    lone.hear(place(2), lone.ping(2, Payload(alive=(NodeInfo(2, 2, UNSPECIFIED),), dead=(NodeId(3, 1),))))
    assert lone.sees()[2] == (2, "ALIVE")
    assert lone.sees()[3] == (1, "ALIVE"), kind


def test_the_buried_cannot_be_raised_from_elsewhere(lone: Lone) -> None:
    lone.news(3, dead=(NodeId(2, 1),))
    for source, where in ((STRANGER, STRANGER), (STRANGER, place(2)), (place(2), STRANGER)):
        lone.hear(source, lone.ping(2, Payload(alive=(NodeInfo(2, 2, where),))))
        assert lone.sees()[2] == (1, "DEAD")


def test_short_answers_have_a_rate(lone: Lone) -> None:
    answers = [lone.hear(STRANGER, lone.ping(77)) for _ in range(20)]
    assert sum(map(len, answers)) == 5
    others = [lone.hear(Address(bytes((192, 0, 2, number)), 1), lone.ping(77)) for number in range(200)]
    assert sum(map(len, others)) == 45


@pytest.mark.parametrize(
    "message",
    [
        PingResponse(NodeId(1, 10), NodeId(77, 1), 0, Payload(dead=(NodeId(2, 1),))),
        PingResponse(NodeId(1, 10), NodeId(2, 1), 0, Payload(seq=5, dead=(NodeId(3, 1),))),
        Leave(info(2)),
        Leave(info(77, address=STRANGER)),
        PingRequest(NodeId(77, 1), NodeId(1, 10), 0),
        PingRequest(NodeId(77, 1), NodeId(1, 10), 1, Payload(seq=1)),
        PingRequest(NodeId(77, 1), NodeId(2, 10), 1, Payload(seq=1)),
        JoinAck(info(77, address=STRANGER)),
        b"",
        b"\xfa" + bytes(10),
        b"\xe1" + bytes(60),
    ],
    ids=str,
)
def test_a_stranger_changes_nothing_and_is_not_answered(lone: Lone, message: Message | bytes) -> None:
    before = lone.sees()
    assert lone.hear(STRANGER, message) == []
    assert lone.sees() == before
    assert sum(lone.core.dropped.values()) == 1


def test_nothing_that_strangers_send_is_answered_with_more_than_three_times_its_size(lone: Lone) -> None:
    messages: list[Message] = [
        JoinReq(NodeInfo(77, 1, UNSPECIFIED)),
        JoinReq(NodeInfo(77, 1, UNSPECIFIED), b"x"),
        JoinReq(NodeInfo(2, 1, STRANGER)),
        JoinReq(NodeInfo(1, 1, STRANGER)),
        JoinReq(NodeInfo(77, AHEAD, STRANGER), b"0" * 22),
        lone.ping(77),
        lone.ping(77, ttl=1),
        lone.ping(2),
        lone.ping(1, target=NodeId(1, 10)),
        Leave(info(2)),
    ]
    for number, message in enumerate(messages):
        lone.now += 1
        lone.raw.clear()
        source = Address(bytes((192, 0, number, 1)), 7946)
        lone.hear(source, message)
        assert sum(len(send.datagram) for send in lone.raw if send.to == source) <= 3 * len(message.encode())
        assert {send.to for send in lone.raw} <= {source}
    lone.wait(30, alive)
    assert not {to for to, _ in lone.take() if to.ip.startswith(b"\xc0\x00")}
    assert set(lone.sees()) == {2, 3, 4, 5, 6}


def test_helpers_and_gossip_targets_of_a_small_group_come_in_turn(lone: Lone) -> None:
    lone.admit(7)
    lone.wait(30, alive)  # the news of it was told by then
    lone.take()
    pings: Counter[object] = Counter()

    def late(to: Address, message: Message) -> Message | None:
        """Answer as a peer behind two lost pings, so that helpers are asked and nobody is suspected."""
        if isinstance(message, PingRequest) and message.ttl == 0 and to == place(2):
            pings[message.payload.seq] += 1
            return alive(to, message) if pings[message.payload.seq] == 3 else None
        return alive(to, message)

    lone.wait(400, late)
    assert lone.happened(Happened.SUSPECT) == []
    helped = Counter(to for to, message in lone.take() if isinstance(message, PingRequest) and message.ttl == 1)
    assert helped.total() >= 60
    assert set(helped) == {place(node) for node in range(3, 8)}
    assert max(helped.values()) - min(helped.values()) <= 2  # a round has begun before, another one has not ended
    gossip: Counter[Address] = Counter()
    for number in range(20):
        lone.news(3, users=(User(NodeId(3, 1), number, b"x"),))
        lone.wait(5, alive)
        gossip.update(to for to, message in lone.take() if isinstance(message, PingResponse))
    assert gossip.total() >= 60
    assert max(gossip.values()) - min(gossip[place(node)] for node in range(2, 8)) <= 2


# --- suspicion and refutation ----------------------------------------------------------------------------------------


def test_a_silent_peer_is_probed_again_asked_after_suspected_and_declared_dead(lone: Lone) -> None:
    lone.wait(200, silent(2))  # nobody confirms, so it takes long
    sent = lone.take()
    first = next(message for to, message in sent if to == place(2) and isinstance(message, PingRequest))
    asked = [
        (to, message.ttl)
        for to, message in sent
        if isinstance(message, PingRequest) and message.payload.seq == first.payload.seq
    ]
    assert [ttl for to, ttl in asked if to == place(2)] == [0, 0, 0]
    assert [ttl for to, ttl in asked if to != place(2)] == [1, 1, 1]
    assert [event.member.id for event in lone.happened(Happened.SUSPECT) if event.member] == [2]
    assert [event.member.id for event in lone.happened(Happened.DEAD) if event.member] == [2]


def test_a_suspect_hears_of_it_first_and_lives_by_refuting(lone: Lone) -> None:
    lone.news(3, suspects=(Suspicion(NodeId(2, 1), 3),))
    _, answer = only(lone.hear(place(2), lone.ping(2)))
    assert isinstance(answer, PingResponse)
    assert [suspicion.node for suspicion in answer.payload.suspects] == [NodeId(2, 1)]
    lone.news(2, alive=(NodeInfo(2, 2, UNSPECIFIED),))
    assert lone.sees()[2] == (2, "ALIVE")
    assert lone.core.counts["false_alarms"] == 1


def test_confirmations_shorten_a_suspicion(lone: Lone) -> None:
    lone.news(3, suspects=(Suspicion(NodeId(2, 1), 3),))
    for reporter in (4, 5, 6):
        lone.news(reporter, suspects=(Suspicion(NodeId(2, 1), reporter),))
    lone.wait(5.5, silent(2))
    assert lone.sees()[2] == (1, "DEAD")


@pytest.mark.parametrize(
    "records",
    [{"dead": (NodeId(1, 15),)}, {"left": (NodeId(1, 15),)}, {"suspects": (Suspicion(NodeId(1, 15), 4),)}],
    ids=lambda records: next(iter(records)),
)
def test_what_is_said_about_us_is_refuted_at_once(lone: Lone, records: dict[str, tuple[object, ...]]) -> None:
    lone.news(3, **records)
    assert lone.core.info.gen == 16
    _, answer = only(lone.hear(place(4), lone.ping(4)))
    assert isinstance(answer, PingResponse)
    assert answer.payload.alive[0] == NodeInfo(1, 16, SELF)
    lone.news(3, **records)
    assert lone.core.info.gen == 16


def test_being_suspected_costs_health_once_per_period(lone: Lone) -> None:
    healths = []
    for gen, pause in ((20, 0.0), (30, 0.1), (40, 1.1)):
        lone.now += pause
        lone.news(3, suspects=(Suspicion(NodeId(1, gen), 3),))
        healths.append(lone.core.health)
    assert healths == [1, 1, 2]


def test_the_more_is_lost_the_more_often_news_is_sent(lone: Lone) -> None:
    seen: set[int | None] = set()

    def second_shot(to: Address, message: Message) -> Message | None:
        seq = message.payload.seq if isinstance(message, PingRequest) else None
        first = seq not in seen
        seen.add(seq)
        return None if first else alive(to, message)

    before = lone.core._node.transmissions
    lone.wait(60, second_shot)
    assert lone.happened(Happened.SUSPECT) == []
    assert lone.core._node.transmissions >= 1.5 * before


def test_who_knows_us_newer_than_we_are_is_outbid(lone: Lone) -> None:
    lone.hear(place(2), lone.ping(2, target=NodeId(1, 500)))
    assert lone.core.info.gen == 501


@pytest.mark.parametrize("gen", [AHEAD, U32_MAX])
def test_poisoned_generations_are_not_believed(lone: Lone, gen: int) -> None:
    before = lone.sees()
    lone.news(
        3,
        alive=(info(2, gen),),
        dead=(NodeId(4, gen),),
        left=(NodeId(1, gen),),
        suspects=(Suspicion(NodeId(5, gen), 3),),
    )
    lone.hear(place(2), lone.ping(2, target=NodeId(1, gen)))
    lone.hear(place(2), Leave(info(2, gen)))
    assert lone.sees() == before
    assert lone.core.info.gen == 10
    assert lone.core.dropped["gen"] == 6


def test_a_forger_walks_a_generation_no_faster_than_64_a_datagram_past_the_clock(lone: Lone) -> None:
    start = UNIX_S + (1 << 16)
    for gen in (start, start + 64, start + 200):
        lone.news(3, alive=(info(2, gen, place(2)),))
    assert lone.sees()[2] == (start + 64, "ALIVE")


def test_our_name_at_another_address_is_a_conflict_only_if_somebody_answers_there(lone: Lone) -> None:
    sent = lone.news(3, alive=(NodeInfo(1, 12, STRANGER),))
    assert [type(message) for to, message in sent if to == STRANGER] == [PingRequest]
    lone.wait(2, alive)
    assert lone.core.own is Own.MEMBER
    assert lone.core.info.gen == 13
    assert lone.news(3, alive=(NodeInfo(1, 20, place(9)),)) == []  # not asked so soon again
    assert lone.core.info.gen == 21


def test_the_larger_address_yields_its_id() -> None:
    outcomes = []
    for other in (Address.parse("10.0.0.0:7946"), Address.parse("10.0.0.2:7946")):
        lone = Lone(address=SELF)
        lone.join()
        lone.admit(2)
        sent = lone.news(2, alive=(NodeInfo(1, 12, other),))
        to, probe = only([(to, message) for to, message in sent if to == other])
        assert isinstance(probe, PingRequest)
        lone.hear(to, PingResponse(probe.src, NodeId(1, 12), 0, Payload(seq=probe.payload.seq)))
        outcomes.append(lone.core.own)
    assert outcomes == [Own.OUT, Own.MEMBER]


def test_a_random_id_is_given_up_for_another(lone: Lone) -> None:
    lone = Lone(id=None)
    lone.join()
    lone.admit(2)
    before = lone.core.info.id
    smaller = Address.parse("10.0.0.0:7946")
    gossip = PingResponse(lone.core._node.node, NodeId(2, 1), 0, Payload(alive=(NodeInfo(before, 12, smaller),)))
    _, probe = only([(to, message) for to, message in lone.hear(place(2), gossip) if to == smaller])
    assert isinstance(probe, PingRequest)
    lone.hear(smaller, PingResponse(probe.src, probe.target, 0, Payload(seq=probe.payload.seq)))
    assert lone.core.info.id != before
    assert lone.core.own is Own.DIALING
    assert lone.happened(Happened.ID_CONFLICT)[0].address == smaller


def test_a_suspicion_of_a_former_life_ends_with_it() -> None:
    lone = Lone(id=None, address=Address.parse("10.0.3.1:7946"))
    lone.join()
    lone.admit(2, 3, 4, 5, 6)
    own = lone.core.info
    lone.hear(place(2), PingResponse(own.node, NodeId(2, 1), 0, Payload(suspects=(Suspicion(NodeId(3, 1), 2),))))
    assert lone.sees()[3] == (1, "SUSPECT")
    holder = Address.parse("10.0.0.1:7946")
    gossip = PingResponse(own.node, NodeId(2, 1), 0, Payload(alive=(own._replace(gen=own.gen + 1, address=holder),)))
    (probe,) = [message for to, message in lone.hear(place(2), gossip) if to == holder]
    assert isinstance(probe, PingRequest)
    lone.hear(holder, PingResponse(probe.src, probe.target, 0, Payload(seq=probe.payload.seq)))
    assert lone.core.info.id != own.id
    lone.admit(2, 4, 5, 6)
    lone.wait(200, silent(3))
    assert lone.sees() == dict.fromkeys((2, 4, 5, 6), (1, "ALIVE"))
    assert lone.happened(Happened.DEAD) == []


def test_a_generation_at_its_end_stays_there_over_a_leave(lone: Lone) -> None:
    lone = Lone(first_gen=U32_MAX - 1)
    lone.join()
    lone.admit(2)
    lone.core.set_meta(b"x", lone.now)  # bids one higher
    lone.core.leave(lone.now)
    lone.wait(5)
    lone.join(place(2))
    assert [m.src.gen for _, m in lone.take() if isinstance(m, JoinReq)] == [U32_MAX]


def test_an_acknowledgement_poisons_no_generation(lone: Lone) -> None:
    lone.core._node.counts["walks"] = 1  # the time is known
    for gen, entry in ((U32_MAX, None), (AHEAD, None), (UNIX_S, (UNIX_S, "ALIVE"))):
        lone.core.set_seeds([place(9)], lone.now)
        lone.take()
        while place(9) not in {to for to, message in lone.sent if isinstance(message, JoinReq)}:
            lone.wait(1, alive)
        lone.hear(place(9), JoinAck(info(9, gen)))
        assert lone.sees().get(9) == entry
    assert lone.core.dropped["gen"] == 2


def test_a_ping_out_of_turn_ends_when_the_member_leaves(lone: Lone) -> None:
    lone.core.set_profile(WAN, lone.now)  # whose pings wait longer than a member lingers
    assert lone.core.ping(3, lone.now)
    lone.core.leave(lone.now)
    lone.wait(4)
    assert lone.core.own is Own.OUT
    (event,) = lone.happened(Happened.PINGED)
    assert event.rtt_s is None


def test_calls_that_are_planned_anew_all_the_time_fill_no_memory(lone: Lone) -> None:
    before = len(lone.core._node.timers)
    for gen in range(2, 1000):
        lone.news(2, left=(NodeId(4, gen),))  # renews a tombstone, and its end
        lone.news(2, alive=(info(5, 2 * gen),))
        lone.news(2, suspects=(Suspicion(NodeId(5, 2 * gen), 2),))
    assert lone.sees()[4] == (999, "LEFT")
    assert len(lone.core._node.timers) < before + 2 * PRUNED_FROM


def test_a_process_with_our_name_is_answered_and_asked_in_turn(lone: Lone) -> None:
    sent = lone.hear(STRANGER, lone.ping(1, target=NodeId(1, 10)))
    assert [type(message) for _, message in sent] == [PingResponse, PingRequest]
    assert {to for to, _ in sent} == {STRANGER}


def test_a_late_timer_costs_health_and_voids_probes(lone: Lone) -> None:
    lone.wait(1.0)  # probes go out
    lone.now += 5
    lone.core.handle_timer(lone.now)
    assert lone.core.health == 1
    assert lone.happened(Happened.SUSPECT) == []


def test_after_a_stall_nobody_is_declared_dead_before_the_queued_input_is_read(lone: Lone) -> None:
    for reporter in (3, 4, 5, 6):
        lone.news(reporter, suspects=(Suspicion(NodeId(2, 1), reporter),))
    lone.now += 20
    lone.core.handle_timer(lone.now)
    assert lone.sees()[2] == (1, "SUSPECT")
    lone.wait(0.5, silent(2))
    lone.news(2, alive=(NodeInfo(2, 2, UNSPECIFIED),))
    lone.wait(5, alive)
    assert lone.sees()[2] == (2, "ALIVE")


def test_a_new_member_suspects_nobody_that_may_not_have_heard_of_it() -> None:
    lone = Lone()
    lone.join()
    lone.admit(2, 3)
    lone.wait(2.4, silent(2, 3))
    assert lone.core.counts["probes"] >= 2
    assert lone.happened(Happened.SUSPECT) == []
    lone.wait(10, silent(2, 3))
    assert lone.happened(Happened.SUSPECT)


# --- leaving ---------------------------------------------------------------------------------------------------------


def test_a_leave_is_believed_from_the_peers_own_address(lone: Lone) -> None:
    lone.hear(place(3), Leave(info(2)))
    assert lone.sees()[2] == (1, "ALIVE")
    lone.hear(place(2), Leave(info(2, 0)))
    assert lone.sees()[2] == (1, "ALIVE")
    assert lone.hear(place(2), Leave(info(2, 1, STRANGER))) == []
    assert lone.sees()[2] == (1, "LEFT")
    assert lone.happened(Happened.LEFT)


def test_a_leaving_node_tells_all_twice_and_answers_with_left(lone: Lone) -> None:
    lone.core.leave(lone.now)
    lone._gather()
    lone.take()
    _, answer = only(lone.hear(place(2), lone.ping(2, Payload(dead=(NodeId(3, 1),)))))
    assert isinstance(answer, PingResponse)
    assert answer.payload.left[0] == NodeId(1, 10)
    assert lone.sees()[3] == (1, "ALIVE")
    assert lone.hear(place(9), JoinReq(info(9))) == []
    lone.wait(3)
    assert lone.core.own is Own.OUT
    assert lone.core.next_timer() is None
    assert lone.hear(place(2), lone.ping(2)) == []


def test_a_join_after_a_leave_has_a_larger_generation(lone: Lone) -> None:
    lone.core.leave(lone.now)
    lone.wait(3)
    lone.core.join([place(2)], lone.now)
    lone._gather()
    (to, request), *_ = lone.take()[-1:]
    assert isinstance(request, JoinReq)
    assert (to, request.src.gen) == (place(2), 11)

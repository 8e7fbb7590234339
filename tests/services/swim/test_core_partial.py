"""A member with a partial view, at one member (docs/specs/swim.md 7.2 - 7.5)."""

from typing import Any

import pytest

from pavane.swim.config import ViewKind
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.state.partial import NEWS_MAX, PASSIVE_MAX, LastNews, PartialView, Passive, links_sought, links_wanted
from pavane.swim.wire.messages import JoinAck, JoinNak, JoinRedirect, JoinReq, Message, PingRequest, PingResponse
from pavane.swim.wire.payload import Digest, Payload, Suspicion, Unlink
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import Address, NodeId, NodeInfo, State
from tests.services.swim.lone import SELF, Lone, alive, info, only, place, silent

ME = NodeId(1, 10)


def member(*peers: int, **config: Any) -> Lone:
    """Return a member of capacity 8 that has admitted ``peers``."""
    lone = Lone(view=ViewKind.PARTIAL, **{"capacity": 8, **config})
    lone.join()
    lone.admit(*peers)
    lone.wait(1, alive)
    lone.take()
    return lone


@pytest.fixture
def full() -> Lone:
    return member(2, 3, 4, 5, 6, 7, 8, 9)


def ask(lone: Lone, node: int) -> Message:
    """Return what ``node`` is answered when it asks to join, after the token."""
    _, nak = only(lone.hear(place(node), JoinReq(info(node))))
    assert isinstance(nak, JoinNak)
    answers = lone.hear(place(node), JoinReq(info(node), nak.etag.encode()))
    return next(message for to, message in answers if to == place(node))


def show(lone: Lone, node: int, peers: int, capacity: int = 8) -> None:
    """Let a peer show its slots."""
    lone.hear(place(node), lone.ping(node, Payload(capacity=capacity, peers=peers)))


def redirect(node: int) -> JoinRedirect:
    return JoinRedirect(place(node), 7115, Refusal.AT_CAPACITY)


def dialled(sent: list[tuple[Address, Message]]) -> list[Address]:
    return [to for to, message in sent if isinstance(message, JoinReq)]


@pytest.mark.parametrize(
    ("capacity", "wanted", "sought"),
    [(4, 2, 3), (6, 2, 3), (7, 2, 3), (8, 3, 4), (10, 4, 5), (12, 5, 6), (16, 5, 6), (1024, 5, 6)],
)
def test_a_node_leaves_slots_for_who_joins(capacity: int, wanted: int, sought: int) -> None:
    assert (links_wanted(capacity), links_sought(capacity)) == (wanted, sought)


# --- joiners ---------------------------------------------------------------------------------------------------------


def test_a_full_member_sends_a_joiner_to_a_peer_that_showed_free_slots(full: Lone) -> None:
    show(full, 4, 6)
    for node in (2, 3, 5):
        show(full, node, 8)
    answers = [ask(full, node) for node in (20, 21)]
    assert answers == [JoinRedirect(place(4), 7115, Refusal.AT_CAPACITY, "")] * 2
    assert isinstance(ask(full, 22), JoinAck)  # two slots were shown, and two were sent there
    assert len(full.sees()) == 8


def test_redirects_are_drawn_by_what_is_free(full: Lone) -> None:
    show(full, 4, 900, 1024)
    show(full, 5, 1023, 1024)
    answers = [ask(full, node) for node in range(20, 40)]
    to = [answer.address for answer in answers if isinstance(answer, JoinRedirect)]
    assert len(to) == 20
    assert to.count(place(4)) >= 18


def test_who_comes_back_takes_the_place_of_a_peer_that_is_told_to_link_to_it(full: Lone) -> None:
    show(full, 4, 0)
    assert isinstance(ask(full, 20), JoinRedirect)
    full.take()
    _, nak = only(full.hear(place(20), JoinReq(info(20))))
    assert isinstance(nak, JoinNak)
    answers = dict(full.hear(place(20), JoinReq(info(20), nak.etag.encode())))
    ack = answers.pop(place(20))
    ((where, notice),) = answers.items()
    assert isinstance(ack, JoinAck)
    assert isinstance(notice, PingResponse)
    (lost,) = {2, 3, 4, 5, 6, 7, 8, 9} - set(full.sees())
    assert ack.payload.sample[0] == info(lost)
    assert (where, notice.payload.unlinks) == (place(lost), (Unlink(NodeId(lost, 1), info(20)),))
    assert (20 in full.sees(), len(full.sees())) == (True, 8)
    assert [event.member.id for event in full.happened(Happened.UNLINKED) if event.member] == [lost]


def test_who_lost_its_place_hears_of_its_replacement_for_five_seconds(full: Lone) -> None:
    assert isinstance(ask(full, 20), JoinAck)
    (lost,) = {2, 3, 4, 5, 6, 7, 8, 9} - set(full.sees())
    _, answer = only(full.hear(place(lost), full.ping(lost)))
    assert isinstance(answer, PingResponse)
    assert answer.payload.unlinks == (Unlink(NodeId(lost, 1), info(20)),)
    _, answer = only(full.hear(place(40), full.ping(lost)))  # somebody else in its name
    assert isinstance(answer, PingResponse)
    assert answer.payload.unlinks == (Unlink(NodeId(lost, 1), None),)
    full.wait(5, alive)
    full.take()
    _, answer = only(full.hear(place(lost), full.ping(lost)))
    assert isinstance(answer, PingResponse)
    assert answer.payload.unlinks == (Unlink(NodeId(lost, 1), None),)


def test_the_two_oldest_links_are_never_given_away(full: Lone) -> None:
    answers = [ask(full, node) for node in range(20, 30)]
    assert all(isinstance(answer, JoinAck) for answer in answers)
    assert {2, 3} <= set(full.sees())


def test_a_crowd_of_newcomers_gets_ten_places_a_second(full: Lone) -> None:
    answers = [ask(full, node) for node in range(20, 31)]
    assert [isinstance(answer, JoinAck) for answer in answers] == [True] * 10 + [False]
    assert isinstance(answers[-1], JoinNak)
    assert answers[-1].code == Refusal.RATE_LIMITED


def test_with_nobody_to_replace_a_joiner_is_refused() -> None:
    lone = member(2, 3, capacity=2, force_capacity=True)
    answer = ask(lone, 20)
    assert isinstance(answer, JoinNak)
    assert answer.code == Refusal.AT_CAPACITY
    assert set(lone.sees()) == {2, 3}


def test_a_joiner_that_went_round_in_circles_starts_again_at_its_seed() -> None:
    lone = Lone(view=ViewKind.PARTIAL, capacity=8)
    lone.join(place(2))
    lone.take()
    assert dialled(lone.hear(place(2), redirect(3))) == [place(3)]
    assert dialled(lone.hear(place(3), redirect(2))) == [place(2)]
    assert dialled(lone.hear(place(2), redirect(4))) == [place(4)]
    for node in range(5, 12):
        assert dialled(lone.hear(place(node - 1), redirect(node))) == [place(node)]
    assert dialled(lone.hear(place(11), redirect(12))) == [place(2)]  # the ninth hop
    for _ in range(4):
        lone.hear(place(2), redirect(3))
        last = dialled(lone.hear(place(3), redirect(2)))
    assert last == []  # this seed has no place to give


# --- links -----------------------------------------------------------------------------------------------------------


def test_an_acknowledgement_of_a_full_member_makes_us_link_to_whom_it_names_first() -> None:
    lone = Lone(view=ViewKind.PARTIAL, capacity=8)
    lone.join(place(2))
    lone.take()
    payload = Payload(capacity=8, peers=8, sample=(NodeInfo(1, 10, SELF), info(3), info(4)))
    assert dialled(lone.hear(place(2), JoinAck(info(2), payload))) == [place(3)]
    assert set(lone.sees()) == {2}  # a name is no handshake
    assert isinstance(ask(lone, 3), JoinAck)


def lonely(*passive: int, **config: Any) -> Lone:
    """Return a member that has one peer, 2, and knows of others."""
    lone = member(2, **config)
    lone.news(2, alive=tuple(info(node) for node in passive))
    return lone


def test_news_of_unknown_members_makes_no_entries_but_is_told_on_once() -> None:
    lone = member(2, 3, 4)
    lone.news(2, alive=(info(30, 5),), dead=(NodeId(31, 1),))
    assert set(lone.sees()) == {2, 3, 4}
    told = [message for _, message in said(lone, 5)]
    assert any(info(30, 5) in message.payload.alive for message in told)
    assert any(NodeId(31, 1) in message.payload.dead for message in told)
    lone.wait(10, alive)
    lone.take()
    for news in ({"alive": (info(30, 5),)}, {"alive": (info(30, 4),)}, {"dead": (NodeId(31, 1),)}):
        lone.news(3, **news)
    assert len(lone.core._node.news) == 0
    lone.news(3, suspects=(Suspicion(NodeId(30, 5), 3),))
    assert [(news.kind, news.about.node, news.reporter) for news in lone.core._node.news] == [
        (State.SUSPECT, NodeId(30, 5), 3)
    ]
    assert not lone.happened(Happened.SUSPECT)


def said(lone: Lone, seconds: float) -> list[tuple[Address, PingRequest | PingResponse]]:
    """Return what the peers are told in some seconds."""
    lone.take()
    lone.wait(seconds, alive)
    return [(to, message) for to, message in lone.take() if isinstance(message, PingRequest | PingResponse)]


def test_a_member_dials_one_it_knows_of_per_period_until_it_has_its_links() -> None:
    lone = lonely(30, 31, 32, 33, 34)
    lone.take()
    lone.wait(0.99, alive)
    first = dialled(lone.take())
    assert len(first) == 3  # with one link only, all that are missing
    for address in first:
        lone.hear(address, JoinAck(info(address.ip[3])))
    assert len(lone.sees()) == 4
    lone.wait(20, alive)
    assert dialled(lone.take()) == []
    lone.wait(30, silent(2))
    assert lone.sees()[2] != (1, "ALIVE")
    assert len(dialled(lone.take())) >= 1


def test_an_address_is_dialled_again_after_ten_seconds_and_forgotten_when_nobody_answers() -> None:
    lone = lonely(30)
    lone.take()
    lone.wait(9, alive)
    assert dialled(lone.take()) == [place(30)]
    lone.hear(place(30), JoinNak(7115, Refusal.NOT_ACCEPTING, ""))
    lone.wait(3, alive)
    assert dialled(lone.take()) == [place(30)]
    lone.wait(60, alive)
    assert dialled(lone.take()) == []
    assert len(lone.core._node.partial.passive) == 0  # type: ignore[union-attr]


def test_a_dial_for_a_link_follows_no_redirect() -> None:
    lone = lonely(30)
    lone.wait(1, alive)
    assert place(30) in dialled(lone.take())
    assert lone.hear(place(30), JoinRedirect(place(31), 7115, Refusal.AT_CAPACITY)) == []


def test_a_member_with_hardly_a_link_and_nobody_to_ask_dials_its_seeds_again() -> None:
    lone = Lone(view=ViewKind.PARTIAL, capacity=8)
    lone.join(place(2), place(3))
    lone.admit(2, 4)
    lone.hear(place(2), JoinAck(info(2)))
    lone.wait(30, alive)
    lone.take()
    lone.wait(20, silent(4))
    assert lone.core.own is Own.MEMBER
    asked = dialled(lone.take())
    assert place(3) in asked
    assert place(2) not in asked  # it is linked to that one


def test_a_failed_probe_makes_a_member_ask_its_other_links_at_once() -> None:
    lone = member(2, 3, 4, 5, 6)
    lone.wait(20, alive)
    lone.take()
    lone.wait(3.5, silent(2, 3, 4, 5, 6))
    asked = [to for to, message in lone.take() if isinstance(message, PingRequest) and message.ttl == 0]
    assert set(asked) == {place(node) for node in (2, 3, 4, 5, 6)}


# --- the end of a link -----------------------------------------------------------------------------------------------


def test_a_plaintext_unlink_is_asked_about_and_believed_in_the_answer() -> None:
    lone = member(2, 3, 4)
    notice = Unlink(ME, info(20))
    to, question = only(lone.news(2, unlinks=(notice,)))
    assert (to, isinstance(question, PingRequest), 2 in lone.sees()) == (place(2), True, True)
    assert lone.news(2, unlinks=(notice,)) == []
    answer = PingResponse(ME, NodeId(2, 1), 0, Payload(seq=question.payload.seq, unlinks=(notice,)))  # type: ignore[union-attr]
    assert dialled(lone.hear(place(2), answer)) == [place(20)]
    assert set(lone.sees()) == {3, 4}
    assert [event.member.id for event in lone.happened(Happened.UNLINKED) if event.member] == [2]


def test_a_stale_unlink_moves_nothing() -> None:
    lone = member(2, 3, 4)
    assert lone.news(2, unlinks=(Unlink(NodeId(1, 9), info(20)),)) == []


def test_the_short_answer_of_who_does_not_track_us_ends_the_link() -> None:
    lone = member(2, 3, 4)

    def answer(to: Address, message: Message) -> Message | None:
        if to != place(2) or not isinstance(message, PingRequest):
            return alive(to, message)
        return PingResponse(ME, NodeId(2, 1), 0, Payload(seq=message.payload.seq, unlinks=(Unlink(ME, None),)))

    lone.wait(5, answer)
    assert set(lone.sees()) == {3, 4}
    assert not lone.happened(Happened.DEAD)


def test_who_leaves_names_its_peers_to_each_other() -> None:
    lone = member(2, 3, 4)
    lone.core.leave(lone.now)
    lone._gather()
    words = {}
    for to, message in lone.take():
        if isinstance(message, PingResponse):
            assert message.payload.left == (ME,)
            words[to] = [unlink.replacement for unlink in message.payload.unlinks if unlink.replacement]
    assert set(words) == {place(2), place(3), place(4)}
    assert words[place(3)] == [info(2)]


def test_a_leaving_peer_is_left_and_who_it_names_is_dialled() -> None:
    lone = member(2, 3, 4)
    sent = lone.news(2, left=(NodeId(2, 1),), unlinks=(Unlink(ME, info(20)),))
    assert lone.sees()[2] == (1, "LEFT")
    assert dialled(sent) == [place(20)]


def test_a_member_that_has_lost_every_link_looks_for_the_group() -> None:
    lone = member(2)
    _, question = only(lone.news(2, unlinks=(Unlink(ME, None),)))
    answer = Payload(seq=question.payload.seq, unlinks=(Unlink(ME, None),))  # type: ignore[union-attr]
    lone.hear(place(2), PingResponse(ME, NodeId(2, 1), 0, answer))
    assert (lone.core.own, lone.sees()) == (Own.DIALING, {})


def test_who_loses_the_last_link_dials_its_seeds_at_once_however_long_it_had_looked_for_more() -> None:
    lone = Lone(view=ViewKind.PARTIAL, capacity=8)
    lone.join(place(9))
    lone.admit(2)
    lone.wait(100, silent(9))
    lone.take()
    _, question = only(lone.news(2, unlinks=(Unlink(ME, None),)))
    answer = Payload(seq=question.payload.seq, unlinks=(Unlink(ME, None),))  # type: ignore[union-attr]
    sent = lone.hear(place(2), PingResponse(ME, NodeId(2, 1), 0, answer))
    assert dialled(sent) == [place(9)]


def test_a_tombstone_is_raised_by_its_author_alone() -> None:
    lone = member(2, 3, 4)
    for node in (2, 3):
        lone.news(4, dead=(NodeId(node, 1),))
    lone.news(4, alive=(info(2, 2),))
    assert 2 not in lone.sees()
    lone.news(3, alive=(info(3, 2),))
    assert lone.sees()[3] == (2, "ALIVE")


# --- what is told ----------------------------------------------------------------------------------------------------


def test_slots_are_shown_in_the_first_exchanges_and_when_they_change() -> None:
    lone = member(2, 3, 4)

    def shown(times: int) -> list[bool]:
        answers = [only(lone.hear(place(2), lone.ping(2)))[1] for _ in range(times)]
        return [isinstance(answer, PingResponse) and answer.payload.capacity == 8 for answer in answers]

    lone.wait(30, alive)
    assert shown(16).count(True) == 1
    lone.admit(5)
    assert shown(1) == [True]
    (_, answer) = only(lone.hear(place(5), lone.ping(5)))
    assert isinstance(answer, PingResponse)
    assert (answer.payload.capacity, answer.payload.peers) == (8, 4)
    assert {each.id for each in answer.payload.sample} == {2, 3, 4}


def test_a_newcomer_hears_of_members_beyond_our_own_peers() -> None:
    lone = member(2, 3, 4)
    lone.news(2, alive=tuple(info(node) for node in range(30, 40)))
    ack = ask(lone, 5)
    assert isinstance(ack, JoinAck)
    named = {each.id for each in ack.payload.sample}
    assert named == {2, 3, 4, *range(30, 40)}


def test_neither_digests_nor_pages_are_exchanged() -> None:
    lone = member(2, 3, 4)
    asked = [message for _, message in said(lone, 20) if isinstance(message, PingRequest)]
    assert asked
    assert all(message.payload.digest is None for message in asked)
    _, answer = only(lone.hear(place(2), lone.ping(2, Payload(digest=Digest(0, bytes(8))))))
    assert isinstance(answer, PingResponse)
    assert answer.payload.pages == ()
    lone.hear(place(2), lone.ping(2, Payload(digest=Digest(3, bytes(8)))))
    assert len(lone.happened(Happened.VIEW_MISMATCH)) == 1


def test_a_helper_that_does_not_know_the_target_says_so_at_once() -> None:
    lone = member(2, 3, 4)
    to, nack = only(lone.hear(place(2), lone.ping(2, target=NodeId(99, 1), ttl=1)))
    assert (to, nack.target.id, nack.payload.health) == (place(2), 1, 0)  # type: ignore[union-attr]


def test_suspicions_of_a_peer_with_few_links_need_fewer_confirmations() -> None:
    lone = member(2, 3, 4, 5, 6)
    for node in (30, 31, 32, 33):
        lone.news(2, alive=(info(node),))
    for reporter in (3, 4, 5):
        lone.news(reporter, suspects=(Suspicion(NodeId(2, 1), reporter),))
    lone.wait(6, silent(2))
    assert lone.sees()[2] == (1, "DEAD")


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_the_passive_cache_is_bounded_and_holds_nobody_twice() -> None:
    lone = member(2)
    passive, rng = Passive(), lone.core._node.rng
    for node in range(100):
        passive.add(info(node), rng)
        passive.add(info(node, 2), rng)
    assert len({each.id for each in passive}) == len(passive) == PASSIVE_MAX
    first = next(iter(passive))
    passive.gone(NodeId(first.id, 1))
    assert len(passive) == PASSIVE_MAX  # older news than what is known
    passive.gone(first.node)
    passive.silent(next(iter(passive)).address)
    assert len(passive) == PASSIVE_MAX - 2


def test_the_last_news_are_bounded_and_forgotten() -> None:
    news = LastNews()
    for node in range(1, NEWS_MAX + 2):
        assert news.fresh(State.ALIVE, info(node, address=SELF), 0, 60)
        news.note(State.ALIVE, info(node, address=SELF), 0)
    first, second, third = (info(node, address=SELF) for node in (1, 2, 3))
    assert len(news) == NEWS_MAX
    assert news.fresh(State.ALIVE, first, 0, 60)
    assert not news.fresh(State.ALIVE, second, 0, 60)
    assert not news.fresh(State.ALIVE, third, 61, 120)  # the profile was changed
    assert news.fresh(State.ALIVE, second, 61, 60)


def test_kept_slots_are_not_free_for_others_for_five_seconds() -> None:
    view = PartialView(8)
    view.kept.note(20, 0)
    assert (view.free(1), view.free(1, 20), view.free(5)) == (7, 8, 8)

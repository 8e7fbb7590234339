"""Pages, members that do not fit, and keys, at one member (docs/specs/swim.md 7.1, 7.4, 11, 15)."""

import pytest

from pavane.swim.config import WAN
from pavane.swim.core.outputs import Happened
from pavane.swim.state.auth import label
from pavane.swim.state.envelope import Keyring
from pavane.swim.wire.messages import JoinAck, JoinReq, Leave, Message, PingRequest, PingResponse, decode
from pavane.swim.wire.payload import Digest, Listed, Page, Payload, Suspicion, Unlink
from pavane.swim.wire.values import U32_MAX, Address, NodeId, NodeInfo, State
from tests.services.swim.lone import SELF, UNIX_S, Lone, alive, info, only, place, silent


def test_a_digest_that_differs_is_answered_with_a_page_once_per_period(lone: Lone) -> None:
    answers = [only(lone.hear(place(2), lone.ping(2, Payload(digest=Digest(3, bytes(8))))))[1] for _ in range(2)]
    pages = [answer.payload.pages for answer in answers if isinstance(answer, PingResponse)]
    assert [len(each) for each in pages] == [1, 0]
    (page,) = pages[0]
    assert (page.low, page.high) == (0, U32_MAX)
    assert [entry.info.id for entry in page.entries] == [1, 2, 3, 4, 5, 6]


def test_an_equal_digest_is_answered_with_nothing_more(lone: Lone) -> None:
    lone.wait(10, alive)
    digest = lone.core._node.members.digest(NodeId(1, 10))
    _, answer = only(lone.hear(place(2), lone.ping(2, Payload(digest=digest))))
    assert len(answer.encode()) == 27


def test_pages_walk_over_the_table_and_wrap() -> None:
    lone = Lone(max_datagram_bytes=256)
    lone.join()
    for node in range(2, 32):
        lone.admit(node)
        lone.wait(0.2, alive)
    lone.wait(30, alive)
    covered, seen = 0, []
    for _ in range(40):
        _, answer = only(lone.hear(place(2), lone.ping(2, Payload(digest=Digest(0, bytes(8))))))
        assert isinstance(answer, PingResponse)
        if not answer.payload.pages:
            lone.wait(1, alive)
            lone.take()
            continue
        (page,) = answer.payload.pages
        assert page.low == covered
        seen += [entry.info.id for entry in page.entries]
        covered = (page.high + 1) & U32_MAX
        if not covered:
            break
    assert seen == list(range(1, 32))


def test_pages_for_others_whose_digest_differs_follow_each_other() -> None:
    lone = Lone(max_datagram_bytes=256)
    lone.join()
    for node in range(2, 32):
        lone.admit(node)
        lone.wait(0.2, alive)
    lone.wait(30, alive)
    seen, covered = [], 0
    for node in range(2, 6):
        (answer,) = [
            message
            for to, message in lone.hear(place(node), lone.ping(node, Payload(digest=Digest(7, bytes(8)))))
            if isinstance(message, PingResponse)
        ]
        (page,) = answer.payload.pages
        assert page.low == covered
        seen += [entry.info.id for entry in page.entries]
        covered = (page.high + 1) & U32_MAX
        if not covered:
            break
    assert seen == list(range(1, 32))


def page(
    lone: Lone, *entries: tuple[int, int, State], low: int = 0, high: int = U32_MAX
) -> list[tuple[Address, Message]]:
    listed = tuple(Listed(NodeInfo(id_, gen, SELF if id_ == 1 else place(id_)), state) for id_, gen, state in entries)
    return lone.hear(place(3), PingResponse(NodeId(1, 10), NodeId(3, 1), 0, Payload(pages=(Page(low, high, listed),))))


EVERYBODY = tuple((node, 10 if node == 1 else 1, State.ALIVE) for node in range(1, 7))


def test_a_page_teaches_without_gossip(lone: Lone) -> None:
    lone.wait(10, alive)
    sent = page(lone, *EVERYBODY, (9, 4, State.ALIVE), (12, 1, State.LEFT))
    assert sent == []
    assert lone.sees()[9] == (4, "ALIVE")
    assert lone.sees()[12] == (1, "LEFT")
    assert len(lone.core._node.news) == 0


def test_a_page_cannot_kill_but_only_raise_suspicion(lone: Lone) -> None:
    entries = [(node, gen, State.DEAD if node == 2 else state) for node, gen, state in EVERYBODY]
    sent = page(lone, *entries)
    assert lone.sees()[2] == (1, "SUSPECT")
    assert place(2) in {to for to, _ in sent}  # told at once, so that it can refute
    lone.wait(6, alive)
    page(lone, *entries)
    assert lone.sees()[2] == (1, "DEAD")


def test_a_page_that_leaves_a_long_suspect_out_buries_it_without_a_word(lone: Lone) -> None:
    lone.news(3, suspects=(Suspicion(NodeId(2, 1), 3),))
    without = tuple(entry for entry in EVERYBODY if entry[0] != 2)
    page(lone, *without)
    assert lone.sees()[2] == (1, "SUSPECT")
    lone.wait(6, silent(2))
    assert lone.sees()[2] == (1, "SUSPECT")
    page(lone, *without)
    assert lone.sees()[2] == (1, "DEAD")
    assert len(lone.core._node.news) == 0


def test_who_knows_better_answers_a_page_with_its_own(lone: Lone) -> None:
    sent = page(lone, *EVERYBODY[:4], (6, 0, State.ALIVE))
    to, answer = only(sent)
    assert to == place(3)
    assert isinstance(answer, PingRequest)
    assert {entry.info.id for entry in answer.payload.pages[0].entries} == {1, 2, 3, 4, 5, 6}
    assert page(lone, *EVERYBODY[:4]) == []  # once per period


@pytest.mark.parametrize(
    ("entries", "low", "high"),
    [
        ([(5, 2, State.ALIVE), (4, 2, State.ALIVE)], 0, U32_MAX),
        ([(4, 2, State.ALIVE), (4, 3, State.ALIVE)], 0, U32_MAX),
        ([(4, 2, State.ALIVE)], 5, 9),
        ([(4, 2, State.ALIVE)], 9, 3),
    ],
)
def test_a_disorderly_page_is_ignored(lone: Lone, entries: list[tuple[int, int, State]], low: int, high: int) -> None:
    before = lone.sees()
    assert page(lone, *entries, low=low, high=high) == []
    assert lone.sees() == before
    assert lone.core.dropped["page"] == 1


def test_no_more_than_128_items_of_a_datagram_are_applied(lone: Lone) -> None:
    lone.news(3, dead=tuple(NodeId(node, 1) for node in range(1000, 1200)))
    assert len(lone.sees()) == 5 + 128
    assert lone.core.dropped["items"] == 72


def test_plaintext_names_few_strangers_a_second(lone: Lone) -> None:
    for start in range(1000, 2000, 100):
        lone.news(3, dead=tuple(NodeId(node, 1) for node in range(start, start + 100)))
    assert len(lone.sees()) == 5 + 400
    assert lone.core.dropped["rate"] == 600
    lone.core.set_profile(WAN, lone.now)
    lone.now += 1  # a fifth of a period
    lone.news(3, dead=tuple(NodeId(node, 1) for node in range(2000, 2100)))
    assert len(lone.sees()) == 5 + 420


def test_news_about_members_that_do_not_fit_is_passed_on() -> None:
    lone = Lone(capacity=4)
    lone.join()
    lone.admit(2, 3, 4, 5)
    lone.wait(10, alive)
    lone.news(2, alive=(info(9),))
    assert 9 not in lone.sees()
    assert lone.happened(Happened.OVER_CAPACITY)
    _, answer = only(lone.hear(place(3), lone.ping(3)))
    assert isinstance(answer, PingResponse)
    assert answer.payload.alive == (info(9),)
    lone.wait(10, alive)
    probes = [message for _, message in lone.take() if isinstance(message, PingRequest)]
    assert probes
    assert all(probe.payload.digest is None for probe in probes)


def test_what_does_not_fit_is_remembered_within_bounds_and_told_once(lone: Lone) -> None:
    lone = Lone(capacity=4)
    lone.join()
    lone.admit(2, 3, 4, 5)
    for node in range(50, 90):
        lone.news(2, alive=(info(node),))
    assert len(lone.core._updates._passed_on) == 4
    lone.wait(30, alive)
    assert len(lone.core._node.news) == 0
    lone.news(2, alive=(info(89),))
    assert len(lone.core._node.news) == 0
    assert len(lone.happened(Happened.OVER_CAPACITY)) == 1


def test_an_unlink_makes_us_dial_and_forget_nobody(lone: Lone) -> None:
    sent = lone.news(2, unlinks=(Unlink(NodeId(1, 10), None),))
    to, request = only(sent)
    assert isinstance(request, JoinReq)
    assert (to, request.src.gen) == (place(2), 10)
    assert lone.news(2, unlinks=(Unlink(NodeId(1, 10), None),)) == []
    assert lone.news(3, unlinks=(Unlink(NodeId(1, 9), None),)) == []
    assert lone.sees()[2] == (1, "ALIVE")


def test_with_keys_the_newest_id_at_an_address_ends_older_ones() -> None:
    keys = (bytes(range(32)),)
    lone = Lone(keys=keys)
    lone.join()
    peer = Keyring(keys, "", lambda size: b"\7" * size, 8)
    for node in (2, 3):
        lone.hear(place(node), peer.wrap(JoinReq(info(node)).encode()))
    other = info(7, address=place(2))
    gossip = PingResponse(NodeId(1, 10), NodeId(3, 1), 0, Payload(alive=(other,)))
    lone.hear(place(3), peer.wrap(gossip.encode()))
    assert {node: state for node, (_, state) in lone.sees().items()} == {2: "ALIVE", 3: "ALIVE", 7: "ALIVE"}
    lone.hear(place(2), peer.wrap(lone.ping(7).encode()))
    assert {node: state for node, (_, state) in lone.sees().items()} == {2: "DEAD", 3: "ALIVE", 7: "ALIVE"}


def test_with_keys_plaintext_is_dropped_and_a_recording_of_no_use() -> None:
    keys = (bytes(range(32)),)
    lone = Lone(keys=keys, group="prod")
    lone.join()
    peer = Keyring(keys, "prod", lambda size: b"\7" * size, 8)
    join = peer.wrap(JoinReq(info(2), auth=label("prod")).encode())
    assert isinstance(only(lone.hear(place(2), join))[1], JoinAck)
    leave = peer.wrap(Leave(info(2)).encode())
    assert lone.hear(place(2), Leave(info(2))) == []
    assert lone.core.dropped["plaintext"] == 1
    lone.hear(place(2), leave)
    assert lone.sees()[2] == (1, "LEFT")
    ack = lone.hear(place(2), peer.wrap(JoinReq(info(2, 2), auth=label("prod")).encode()))
    assert any(isinstance(message, JoinAck) for _, message in ack)
    for recorded in (join, leave):
        assert lone.hear(place(2), recorded) == []
    assert lone.core.dropped["replay"] == 2
    assert lone.sees()[2] == (2, "ALIVE")
    assert lone.hear(place(2), b"\xe1" + bytes(60)) == []
    assert lone.core.dropped["keyid"] == 1


def test_a_node_without_a_clock_goes_on_with_the_time_that_the_group_told() -> None:
    lone = Lone(first_gen=None)
    lone.core.set_unix(0, lone.now)  # as after a start without a battery
    lone.join(place(2))
    lone.hear(place(2), JoinAck(info(2, UNIX_S)))
    lone.take()
    page = Page(0, U32_MAX, (Listed(info(2, UNIX_S), State.ALIVE),))
    ping = next(m for _, m in [(s.to, decode(s.datagram)) for s in lone.raw] if isinstance(m, PingRequest))
    lone.hear(place(2), PingResponse(ping.src, NodeId(2, UNIX_S), 0, Payload(seq=ping.payload.seq, pages=(page,))))
    for clock, node in ((60, 3), (UNIX_S - 1000, 4), (120, 5)):
        lone.core.set_unix(clock, lone.now)
        lone.hear(place(2), PingResponse(ping.src, NodeId(2, UNIX_S), 0, Payload(alive=(info(node, UNIX_S + 50),))))
        assert node in lone.sees()

"""What one core does with application data (docs/specs/swim.md 14, 15.4)."""

from typing import Any

import pytest

from pavane.swim.config import WAN, Config, Start
from pavane.swim.core.outputs import Happened
from pavane.swim.errors import ConfigError, MessageError
from pavane.swim.state.envelope import Keyring, key_id
from pavane.swim.wire.messages import JoinAck, Message, PingRequest, PingResponse
from pavane.swim.wire.payload import KeyOp, KeyStep, Meta, Payload, Trace, Unlink, User
from pavane.swim.wire.values import Address, NodeId, State
from tests.services.swim.lone import Lone, alive, info, place

KEY, NEW = bytes(range(32)), bytes(range(32, 64))
TRACE = Trace(0, 0, bytes(16), bytes(8), 1)


def users(sent: list[tuple[Address, Message]]) -> list[User]:
    return [u for _, m in sent if isinstance(m, PingRequest | PingResponse) for u in m.payload.users]


def metas(sent: list[tuple[Address, Message]]) -> list[Meta]:
    return [one for _, m in sent if isinstance(m, PingRequest | PingResponse) for one in m.payload.metas]


def test_a_message_is_delivered_once_and_passed_on(lone: Lone) -> None:
    message = User(NodeId(3, 1), 42, b"reload")
    for by in (2, 4, 2):
        lone.news(by, users=(message,))
    (event,) = lone.happened(Happened.USER)
    assert event.member is not None
    assert (event.member.id, event.data) == (3, b"reload")
    lone.wait(5, alive)
    assert 3 <= users(lone.take()).count(message) <= 40
    lone.wait(10, alive)
    assert message not in users(lone.take())
    lone.news(2, users=(message,))
    assert len(lone.happened(Happened.USER)) == 1
    lone.wait(61, alive)
    lone.news(2, users=(message,))  # numbers begin at random, so one may come again after a while
    assert len(lone.happened(Happened.USER)) == 2


def test_what_was_had_is_remembered_for_as_long_as_another_profile_says(lone: Lone) -> None:
    message = User(NodeId(3, 1), 42, b"reload")
    lone.news(2, users=(message,))
    lone.core.set_profile(WAN, lone.now)
    lone.wait(100, alive)
    lone.news(2, users=(message,))
    assert len(lone.happened(Happened.USER)) == 1
    lone.wait(121, alive)
    lone.news(2, users=(message,))
    assert len(lone.happened(Happened.USER)) == 2


def heard(lone: Lone, gen: int, *numbers: int) -> list[int]:
    """Return which messages of node 3 with these numbers are delivered."""
    fresh = []
    for number in numbers:
        before = len(lone.happened(Happened.USER))
        lone.news(2, users=(User(NodeId(3, gen), number % (1 << 32), b""),))
        fresh += [number] * (len(lone.happened(Happened.USER)) - before)
    return fresh


def test_a_message_is_new_once_also_when_thousands_came_after_it(lone: Lone) -> None:
    first = -50  # the numbers wrap
    assert heard(lone, 1, first, first, first + 2, first + 1, first + 1) == [first, first + 2, first + 1]
    assert heard(lone, 1, *range(first + 3, 2000)) == list(range(first + 3, 2000))
    assert heard(lone, 1, *range(first, 2000)) == []  # the oldest cannot be told from new ones, and are not told on
    assert heard(lone, 2, 2001, 2000) == [2001, 2000]  # a generation that was bid higher changes nothing
    assert heard(lone, 1, 2002) == [2002]


def test_an_origin_that_started_again_begins_anywhere(lone: Lone) -> None:
    assert heard(lone, 1, 5000, 5001) == [5000, 5001]
    assert heard(lone, 7, 100, 101) == [100, 101]
    assert heard(lone, 1, 5000, 5001, 5002) == []  # of the process before; what was had and what was not look alike
    assert heard(lone, 7, 101, 102) == [102]
    assert heard(lone, 9, 1_000_000) == [1_000_000]
    assert heard(lone, 7, 103) == []


def test_a_message_of_somebody_unknown_or_of_ourselves(lone: Lone) -> None:
    lone.news(2, users=(User(NodeId(77, 1), 1, b"x"), User(NodeId(1, 10), 1, b"y")))
    (event,) = lone.happened(Happened.USER)
    assert event.member is not None
    assert (event.member.id, event.member.address.ip) == (77, b"")


def test_strangers_tell_nothing(lone: Lone) -> None:
    payload = Payload(users=(User(NodeId(3, 1), 1, b""),), metas=(Meta(NodeId(3, 5), b"forged"),))
    lone.hear(place(9), PingResponse(NodeId(1, 10), NodeId(9, 1), 0, payload))
    lone.news(4, left=(NodeId(4, 1),))
    lone.hear(place(5), PingResponse(NodeId(1, 10), NodeId(4, 1), 0, payload))
    assert not lone.happened(Happened.USER)
    assert not lone.happened(Happened.META)


@pytest.mark.parametrize(("trace", "most"), [(None, 1336), (TRACE, 1300)])
def test_a_message_must_fit_a_datagram(lone: Lone, trace: Trace | None, most: int) -> None:
    with pytest.raises(MessageError, match=f"at most {most}"):
        lone.core.send_user(b"x" * (most + 1), lone.now, trace)
    lone.core.send_user(b"x" * most, lone.now, trace)
    lone.wait(3, alive)
    sent = lone.take()
    assert {user.blob for user in users(sent)} == {b"x" * most}
    assert all(len(message.encode()) <= 1400 for _, message in sent)
    if trace is not None:
        traces = [t for _, m in sent if isinstance(m, PingRequest | PingResponse) for t in m.payload.traces]
        assert {(one.origin, one.useq) for one in traces} == {(1, users(sent)[0].useq)}


def test_in_an_envelope_a_message_is_shorter() -> None:
    lone = Lone(keys=(KEY,), seal=False)
    with pytest.raises(MessageError, match="at most 1299"):
        lone.core.send_user(b"x" * 1300, lone.now)


def test_too_many_messages_are_refused_at_their_sender(lone: Lone) -> None:
    for number in range(32):
        lone.core.send_user(b"%d" % number, lone.now)
    with pytest.raises(MessageError, match="32 messages"):
        lone.core.send_user(b"one more", lone.now)
    lone.core.set_profile(WAN, lone.now)
    lone.wait(1, alive)
    for number in range(6):  # a fifth of what a period allows
        lone.core.send_user(b"%d" % number, lone.now)
    with pytest.raises(MessageError, match=r"32 messages in 5\.0 s"):
        lone.core.send_user(b"one more", lone.now)


def test_who_is_alone_or_observes_tells_nothing() -> None:
    with pytest.raises(MessageError, match="not in a group"):
        Lone().core.send_user(b"", 1000)
    watcher = Lone(start=Start.ORDERED)
    watcher.join(place(2))
    watcher.hear(place(2), JoinAck(info(2)))
    with pytest.raises(MessageError, match="observer"):
        watcher.core.send_user(b"", watcher.now)


def test_what_is_too_large_for_us_is_delivered_and_not_passed_on() -> None:
    lone = Lone(max_datagram_bytes=256)
    lone.join()
    lone.admit(2, 3)
    lone.news(2, users=(User(NodeId(3, 1), 1, b"x" * 1000),), metas=(Meta(NodeId(3, 2), b"y" * 500),))
    assert [event.data for event in lone.happened(Happened.USER)] == [b"x" * 1000]
    assert lone.core.counts["too_large_to_pass_on"] == 2
    assert len(lone.core._node.extras) == 0
    with pytest.raises(MessageError, match="at most 192"):
        lone.core.set_meta(b"x" * 193, lone.now)


def test_metadata_is_versioned_by_generation(lone: Lone) -> None:
    lone.news(2, metas=(Meta(NodeId(3, 5), b"new"),))
    lone.news(2, metas=(Meta(NodeId(3, 4), b"old"), Meta(NodeId(3, 5), b"same version"), Meta(NodeId(1, 99), b"us")))
    lone.news(4, metas=(Meta(NodeId(99, 1), b"nobody"), Meta(NodeId(4, 4_000_000_000), b"poisoned")))
    assert {member.id: member.meta for member in lone.core.members() if member.meta is not None} == {3: b"new"}
    assert lone.sees()[3] == (1, "ALIVE")  # the entry's generation does not follow it
    assert len(lone.happened(Happened.META)) == 1
    assert lone.core.dropped["gen"] == 1


def test_own_metadata_is_told_with_a_new_generation_and_again_after_a_refutation(lone: Lone) -> None:
    lone.core.set_meta(b"role=db", lone.now)
    assert lone.core.info.gen == 11
    lone.wait(2, alive)
    assert Meta(NodeId(1, 11), b"role=db") in metas(lone.take())
    lone.wait(40, alive)
    lone.take()
    lone.wait(20, alive)
    assert metas(lone.take()) == []
    lone.news(2, dead=(NodeId(1, 11),))
    lone.wait(2, alive)
    assert Meta(NodeId(1, 12), b"role=db") in metas(lone.take())
    with pytest.raises(MessageError, match="512"):
        lone.core.set_meta(b"x" * 513, lone.now)


def test_who_does_not_track_us_has_taken_neither_our_metadata_nor_our_stage() -> None:
    lone = Lone(rollout=7)
    lone.join()
    lone.admit(2)
    lone.core.set_meta(b"role=db", lone.now)

    def disown(to: Address, message: Message) -> Message | None:
        """Answer as a stranger does; it answers no JoinReq."""
        response = alive(to, message)
        if isinstance(response, PingResponse):
            response.payload.unlinks = (Unlink(response.src, None),)
        return response

    def shown() -> set[tuple[bool, bool]]:
        """Say of each ping whether it had our metadata and our stage."""
        pings = [message.payload for _, message in lone.take() if isinstance(message, PingRequest)]
        return {(bool(payload.metas), payload.stage is not None) for payload in pings}

    lone.wait(60, disown)  # the news of our metadata is told by then
    lone.take()
    lone.wait(10, disown)
    assert shown() == {(True, True)}
    lone.wait(2, alive)
    lone.take()
    lone.wait(10, alive)
    assert shown() == {(False, False)}


def sealed(keyring: Keyring, **records: Any) -> bytes:
    payload = Payload(**records)
    return keyring.wrap(PingResponse(NodeId(1, 10), NodeId(2, 1), 0, payload).encode())


@pytest.mark.parametrize(
    ("by_gossip", "seal", "taken"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_keys_come_by_gossip_only_sealed_and_only_where_that_is_wanted(
    by_gossip: bool, seal: bool, taken: bool
) -> None:
    lone = Lone(keys=(KEY,), seal=True, rotate_by_gossip=by_gossip)
    lone.join()
    lone.core._node.add(info(2), State.ALIVE)
    peer = Keyring([KEY], "", lambda size: b"\7" * size, 8, seal=seal)
    lone.core.receive(place(2), sealed(peer, keyrings=(KeyStep(KeyOp.INSTALL, key_id(NEW), NEW),)), lone.now)
    assert lone.core.key_ids == ((key_id(KEY), key_id(NEW)) if taken else (key_id(KEY),))


@pytest.mark.parametrize(
    "step",
    [
        KeyStep(KeyOp.INSTALL, key_id(KEY), NEW),
        KeyStep(KeyOp.USE, key_id(NEW), b""),
        KeyStep(KeyOp.REMOVE, key_id(KEY), b""),
    ],
    ids=["wrong id", "not installed", "in use"],
)
def test_a_step_that_cannot_be_made_changes_nothing(step: KeyStep) -> None:
    lone = Lone(keys=(KEY,), seal=True, rotate_by_gossip=True)
    lone.join()
    lone.core._node.add(info(2), State.ALIVE)
    peer = Keyring([KEY], "", lambda size: b"\7" * size, 8, seal=True)
    lone.core.receive(place(2), sealed(peer, keyrings=(step,)), lone.now)
    assert lone.core.key_ids == (key_id(KEY),)
    assert lone.core.counts["key_steps_refused"] == 1
    with pytest.raises(ConfigError, match="cannot be"):
        lone.core.rotate(KeyOp.USE, NEW, lone.now)


def test_without_gossip_of_keys_a_rotation_is_refused() -> None:
    lone = Lone(keys=(KEY,))
    with pytest.raises(ConfigError, match="where it was started"):
        lone.core.rotate(KeyOp.INSTALL, NEW, lone.now)
    with pytest.raises(ConfigError, match="needs seal"):
        Config(keys=(KEY,), rotate_by_gossip=True).validate()

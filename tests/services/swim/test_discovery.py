"""Discovery by broadcast (docs/specs/swim.md 13)."""

import contextlib

import pytest

from pavane.swim.config import Config
from pavane.swim.core.dialing import DISCOVERED_MAX
from pavane.swim.errors import ConfigError
from pavane.swim.member import SwimMember
from pavane.swim.wire.messages import Broadcast, JoinReq
from pavane.swim.wire.values import UNSPECIFIED, Address
from tests.services.swim.lone import Lone, info, place
from tests.services.swim.test_member import FAST

EVERYBODY = Address.parse("255.255.255.255:7946")


def announcements(lone: Lone) -> int:
    return sum(to == EVERYBODY and isinstance(message, Broadcast) for to, message in lone.take())


def dialled(lone: Lone) -> set[Address]:
    return {to for to, message in lone.take() if isinstance(message, JoinReq)}


def test_a_node_announces_itself_thrice_and_when_it_is_asked_to() -> None:
    lone = Lone(broadcast_to=EVERYBODY)
    lone.join()
    lone.wait(30)
    assert announcements(lone) == 3
    lone.core.announce(lone.now)
    lone.wait(30)
    assert announcements(lone) == 3


@pytest.mark.parametrize(
    ("claimed", "dials"),
    [(UNSPECIFIED, place(2)), (Address(place(2).ip, 99), Address(place(2).ip, 99)), (place(3), None)],
    ids=["source", "other port", "somebody else"],
)
def test_who_announces_itself_is_a_seed(claimed: Address, dials: Address | None) -> None:
    lone = Lone(broadcast_to=EVERYBODY)
    lone.join()
    lone.wait(100)  # rounds in vain are far apart by now
    lone.take()
    assert lone.hear(place(2), Broadcast(info(2, address=claimed))) == []  # it is never answered
    lone.wait(1.5)
    assert dialled(lone) == (set() if dials is None else {dials})
    lone.wait(62)
    lone.take()
    lone.wait(60)
    assert dialled(lone) == set()  # forgotten


def test_without_discovery_nothing_is_announced_nor_believed() -> None:
    lone = Lone()
    lone.join()
    lone.hear(place(2), Broadcast(info(2)))
    lone.wait(40)
    assert lone.take() == []
    assert lone.core.dropped["stranger"] == 1


def test_a_flood_of_announcements_leaves_a_bounded_list() -> None:
    lone = Lone(broadcast_to=EVERYBODY)
    lone.join()
    for number in range(1000):
        source = Address(bytes((10, 9, number >> 8, number & 255)), 7946)
        lone.hear(source, Broadcast(info(2 + number, address=UNSPECIFIED)))
    lone.take()
    lone.wait(59)
    assert 0 < len(dialled(lone)) <= DISCOVERED_MAX
    lone.hear(place(2), Broadcast(info(1)))  # our own name
    assert lone.core.dropped["stranger"] == 0


def test_announcements_that_never_end_put_no_round_off() -> None:
    lone = Lone(broadcast_to=EVERYBODY)
    lone.join()
    lone.wait(100)
    lone.raw.clear()
    for number in range(6):
        lone.hear(place(2 + number), Broadcast(info(2 + number)))
        lone.wait(0.5)
    assert any(send.datagram[0] == JoinReq.CODE for send in lone.raw)


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="broadcast_to"):
        Config(broadcast_to=Address.parse("255.255.255.255:0")).validate()


async def test_members_on_one_network_find_each_other_without_seeds() -> None:
    async with contextlib.AsyncExitStack() as stack:
        listening = SwimMember(Config(profile=FAST, broadcast_to=Address.parse("127.255.255.255:9")), ("0.0.0.0", 0))
        await stack.enter_async_context(listening)
        to = Address.parse(f"127.255.255.255:{listening.bound.port}")
        other = SwimMember(Config(profile=FAST, broadcast_to=to), ("127.0.0.1", 0))
        await stack.enter_async_context(other)
        await other.joined()
        await listening.joined()

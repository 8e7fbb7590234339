"""Garbage and half-garbage, from strangers and in the name of peers: no exception, no table beyond its bound."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.swim.config import Start, ViewKind
from pavane.swim.core.node import EXTRAS_MORE, SENDS_PER_TIMER
from pavane.swim.core.outputs import Own, Send
from pavane.swim.state.envelope import Keyring
from pavane.swim.wire.messages import JoinAck, Leave, PingResponse
from pavane.swim.wire.payload import Payload, Trace
from pavane.swim.wire.values import U32_MAX, Address, NodeId, NodeInfo
from tests.fuzz.swim_attack import attack
from tests.services.swim.lone import Lone, alive, info, place
from tests.sim.swim.sizes import figures, sized
from tests.sim.swim.world import Process, World

DATAGRAMS = sized(4000, 3_000_000)  # seven times three million of some 50 bytes are the gigabyte of A11

# Without keys a source that is a member's address can tell of members that do not exist. At full size 200 of them are
# left at the end, and a group that finds most of its members dead looks for the next one slowly (local health).
GHOSTS_GONE_S = sized(200, 2000)


def recorded() -> list[bytes]:
    """Return what a busy group says: joins, refusals, pings, news, pages, leaves, stages, data, announcements."""
    world, datagrams = World(1), list[bytes]()

    def tap(process: Process, to: Address, datagram: bytes) -> None:
        del process, to
        datagrams.append(datagram)

    world.tap = tap
    members = world.group(6)
    world.start("observer", ["n1"], start=Start.ORDERED, rollout=2)
    world.start("finder", broadcast_to=Address.parse("255.255.255.255:7946"))
    for process in members[:3]:
        process.core.set_meta(b"describes itself", world.time)
        process.core.send_user(b"tells something", world.time, Trace(0, 0, bytes(16), bytes(8), 1))
        world.after(process)
    world.weather.loss = 0.3
    world.run(10)
    world.leave(members[3])
    world.kill(members[4])
    world.run(20)
    return datagrams


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes, cut, or prolong."""
    changed = bytearray(data)
    for _ in range(rng.randint(0, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x40, 0x80, 0xFF, rng.getrandbits(8)))
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed) + 1) :]
    if rng.random() < 0.1:
        changed += rng.randbytes(rng.randint(1, 40))
    return bytes(changed)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"keys": (bytes(32),)},
        {"psks": (bytes(32),)},
        {"rollout": 1, "start": Start.SELF},
        {"broadcast_to": Address.parse("255.255.255.255:7946"), "group": "g"},
        {"view": ViewKind.PARTIAL, "capacity": 8},
    ],
    ids=["plaintext", "e1", "psk", "stages", "discovery", "partial view"],
)
def test_no_input_raises_or_outgrows_a_table(config: dict[str, Any]) -> None:
    rng, samples = random.Random(5), recorded()
    world = World(2, **config)
    members = world.group(4)
    sources = [member.address for member in members] + [Address.parse("192.0.2.1:9"), Address.parse("192.0.2.2:7946")]
    victim, size = members[0], 0
    for number in range(DATAGRAMS):
        data = mutated(rng, rng.choice(samples)) if number % 10 else rng.randbytes(rng.randint(0, 60))
        if victim.core.own is Own.OUT:
            world.join(victim, ["n2"])
        world._receive(victim, rng.choice(sources), data)
        world.run(0.01)
        size += len(data)
        for member in members:
            member.events.clear()  # the test's own
    figures(f"A11 fuzzed {config}", [size / 1e6], "MB")
    assert sum(victim.core.dropped.values()) > DATAGRAMS / 10
    world.must(world.all_see_all, GHOSTS_GONE_S, "the group is as before")


def test_nothing_that_a_key_holder_says_raises_or_outgrows_a_table() -> None:
    rng, samples = random.Random(6), recorded()
    world = World(3, keys=(bytes(32),), seal=True, rotate_by_gossip=True, stored_gen=0)
    members = world.group(4)
    liar = Keyring([bytes(32)], "", lambda size: b"\7" * size, 8, seal=True)
    victim, sources = members[0], [member.address for member in members] + [Address.parse("192.0.2.1:9")]
    for _ in range(DATAGRAMS):
        if victim.core.own is Own.OUT:
            world.join(victim, ["n2"])
        world._receive(victim, rng.choice(sources), liar.wrap(mutated(rng, rng.choice(samples)) or b"x"))
        world.run(0.01)
    assert victim.core.traffic.received.total() > DATAGRAMS / 2
    assert len(victim.core._extras) <= 1024
    assert len(victim.core._node.extras) <= 1024 + EXTRAS_MORE


def test_a_burst_is_spread_over_time() -> None:
    lone = Lone()
    lone.join(place(2))
    lone.hear(place(2), JoinAck(info(2)))
    peers = tuple(NodeInfo(node, 1, Address(bytes((10, 1, node >> 8, node & 255)), 7946)) for node in range(300, 700))
    for start in range(0, 400, 100):
        lone.news(2, alive=peers[start : start + 100])
    lone.wait(0.5, alive)
    assert len(lone.sees()) == 401
    lone.raw.clear()
    lone.core.leave(lone.now)
    lone._gather()
    assert len(lone.raw) <= SENDS_PER_TIMER
    lone.wait(0.011)
    leaves = {send.to for send in lone.raw if isinstance(send, Send) and send.datagram[0] == Leave.CODE}
    assert len(leaves) == 401


@settings(max_examples=200)
@given(st.binary(min_size=100, max_size=600))
def test_a_member_survives_any_attack(data: bytes) -> None:
    attack(data)


def test_who_is_out_by_a_datagram_takes_nothing_more_of_it() -> None:
    lone = Lone(keys=(bytes(32),))
    holder = Keyring([bytes(32)], "", lambda size: b"\7" * size, 8)
    lone.join(place(2))
    lone.hear(place(2), holder.wrap(JoinAck(info(2)).encode()))
    last = NodeInfo(1, U32_MAX, Address.parse("10.0.1.9:7946"))
    said = PingResponse(NodeId(1, 10), NodeId(2, 1), 0, Payload(alive=(last, info(3))))
    lone.hear(place(2), holder.wrap(said.encode()))
    assert lone.core.own is Own.OUT
    assert lone.sees() == {}

"""Garbage and half-garbage, from strangers and in the name of peers: no exception, no table beyond its bound."""

import random

import pytest

from pavane.swim.core.node import SENDS_PER_TIMER
from pavane.swim.core.outputs import Own, Send
from pavane.swim.wire.messages import JoinAck, Leave
from pavane.swim.wire.values import Address, NodeInfo
from tests.services.swim.lone import Lone, alive, info, place
from tests.sim.swim.world import Process, World

DATAGRAMS = 4000


def recorded() -> list[bytes]:
    """Return what a busy group says: joins, refusals, pings, news, pages, leaves."""
    world, datagrams = World(1), list[bytes]()

    def tap(process: Process, to: Address, datagram: bytes) -> None:
        del process, to
        datagrams.append(datagram)

    world.tap = tap
    members = world.group(6)
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


@pytest.mark.parametrize("keys", [(), (bytes(32),)], ids=["plaintext", "e1"])
def test_no_input_raises_or_outgrows_a_table(keys: tuple[bytes, ...]) -> None:
    rng, samples = random.Random(5), recorded()
    world = World(2, keys=keys)
    members = world.group(4)
    sources = [member.address for member in members] + [Address.parse("192.0.2.1:9"), Address.parse("192.0.2.2:7946")]
    victim = members[0]
    for number in range(DATAGRAMS):
        data = mutated(rng, rng.choice(samples)) if number % 10 else rng.randbytes(rng.randint(0, 60))
        if victim.core.own is Own.OUT:
            world.join(victim, ["n2"])
        world._receive(victim, rng.choice(sources), data)
        world.run(0.01)
    assert sum(victim.core.dropped.values()) > DATAGRAMS / 10
    world.must(world.all_see_all, 200, "the group is as before")


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

"""Application data and rotations in simulated groups (docs/specs/swim.md 14, 15.4, row A23 of 25)."""

from collections import Counter

import pytest

from pavane.swim.core.outputs import Happened
from pavane.swim.wire.messages import PingRequest, PingResponse, decode
from pavane.swim.wire.payload import KeyOp, Trace
from pavane.swim.wire.values import Address
from tests.sim.swim.world import Process, Weather, World

KEY, NEW = bytes(range(32)), bytes(range(32, 64))


def told(process: Process) -> list[bytes]:
    return [event.data for event in process.happened(Happened.USER)]


def say(world: World, process: Process, blob: bytes, trace: Trace | None = None) -> None:
    process.core.send_user(blob, world.time, trace)
    world.after(process)


def describe(world: World, process: Process, blob: bytes) -> None:
    process.core.set_meta(blob, world.time)
    world.after(process)


def metas(process: Process) -> dict[int, bytes | None]:
    return {member.id: member.meta for member in process.core.members()}


def test_messages_reach_everybody_once_while_many_join() -> None:
    world = World(41, check=False)
    members = world.group(12)
    for number in range(10):
        say(world, members[0], b"%d" % number)
        for joiner in range(2):
            world.start(f"j{number}.{joiner}", ["n2"])
        world.run(1)
    world.run(5)
    everything = sorted(b"%d" % number for number in range(10))
    assert [sorted(told(process)) for process in members[1:]] == [everything] * 11
    assert told(members[0]) == []
    world.must(world.all_see_all, 30, "and everybody is there")


@pytest.mark.parametrize("seed", [42, 59])  # pings that a newcomer answered before it knew their author had told it
def test_metadata_reaches_everybody_also_who_comes_late_and_over_loss(seed: int) -> None:
    world = World(seed, check=False)
    members = world.group(8)
    world.weather = Weather(loss=0.2)
    for process in members:
        describe(world, process, process.name.encode() * 40)
    late = world.start("late", ["n1"])

    def known() -> bool:
        wanted = {process.core.info.id: process.name.encode() * 40 for process in members}
        return all({**metas(process), late.core.info.id: None} == {**wanted, late.core.info.id: None}
                   for process in [*members, late])  # fmt: skip

    world.must(known, 25, "everybody knows all metadata, before the next walk")
    describe(world, members[3], b"changed")
    node = members[3].core.info.id
    world.must(lambda: all(metas(process)[node] == b"changed" for process in [*members, late]), 30, "and the change")
    world.weather = Weather()
    world.must(world.all_see_all, 30, "one view")
    world.kill(members[3])
    world.must(world.all_see_all, 30, "it is dead")
    world.start("n4", ["n1"])
    world.must(world.all_see_all, 30, "it is back")
    assert metas(members[0])[world.processes["n4"].core.info.id] is None


def test_idle_members_repeat_no_metadata() -> None:
    world = World(43, check=False)
    members = world.group(6)
    for process in members:
        describe(world, process, b"x" * 500)
    world.run(60)
    carried: list[Address] = []

    def tap(process: Process, to: Address, datagram: bytes) -> None:
        message = decode(datagram)
        if isinstance(message, PingRequest | PingResponse) and message.payload.metas:
            carried.append(process.address)

    world.tap = tap
    world.run(60)
    assert carried == []


def test_a_trace_goes_along_with_its_message() -> None:
    world = World(44)
    members = world.group(5)
    trace = Trace(0, 0, bytes(range(16)), bytes(range(8)), 1)
    say(world, members[0], b"traced", trace)
    say(world, members[0], b"not traced")
    world.must(lambda: all(len(told(process)) == 2 for process in members[1:]), 5, "both are heard")
    for process in members[1:]:
        traces = {event.data: event.trace for event in process.happened(Happened.USER)}
        assert traces[b"not traced"] is None
        got = traces[b"traced"]
        assert got is not None
        assert (got.origin, got.trace_id, got.span_id, got.flags) == (members[0].core.info.id, *trace[2:])


def test_a_burst_of_messages_is_delivered_once_and_comes_to_rest() -> None:
    world = World(46, check=False)
    members = world.group(3)
    sent = [b"%03d" % number + bytes(1200) for number in range(160)]
    for number, blob in enumerate(sent):
        say(world, members[0], blob)
        if number % 16 == 15:
            world.run(0.5)

    def at_rest() -> bool:
        return not any(len(process.core._node.extras) for process in members)

    world.must(at_rest, 240, "nothing is told any more")
    for process in members[1:]:
        assert max(Counter(told(process)).values()) == 1
        assert len(told(process)) >= 150


def test_keys_are_rotated_by_gossip_without_losing_anybody() -> None:
    world = World(45, keys=(KEY,), seal=True, rotate_by_gossip=True)
    members = world.group(6)
    old_id = members[0].core.key_ids[0]
    steps = [(KeyOp.INSTALL, NEW, 2), (KeyOp.USE, NEW, 2), (KeyOp.REMOVE, KEY, 1)]
    for by, (op, key, count) in zip(members, steps, strict=False):
        by.core.rotate(op, key, world.time)
        world.after(by)
        world.must(lambda count=count: all(len(one.core.key_ids) == count for one in members), 5, op.name)  # type: ignore[misc]
        world.run(3)
    assert {process.core.key_ids for process in members} == {members[0].core.key_ids}
    assert old_id not in members[0].core.key_ids
    world.run(30)
    assert world.all_see_all()
    assert sum(process.core.dropped["keyid"] + process.core.dropped["mac"] for process in members) == 0
    assert [event.text.split()[0] for event in members[5].happened(Happened.KEYS)] == ["install", "use", "remove"]

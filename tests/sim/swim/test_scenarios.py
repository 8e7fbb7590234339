"""The acceptance scenarios of docs/specs/swim.md 25 that a handful of members show: A13 to A19 and A24 to A27."""

from collections.abc import Callable
from typing import Any

import pytest

from pavane.swim.core.outputs import Happened, Own
from pavane.swim.state.members import Peer
from pavane.swim.wire.messages import Leave, PingResponse
from pavane.swim.wire.payload import Payload, Suspicion, Unlink
from pavane.swim.wire.values import Address, NodeId, NodeInfo, State
from tests.sim.swim.sizes import SEEDS, sized
from tests.sim.swim.world import Process, World

KEY = bytes(range(32))


def deaths(world: World) -> int:
    return sum(process.core.counts["deaths"] for process in world.processes.values())


def unseen(world: World, process: Process) -> Callable[[], bool]:
    """Return whether everybody else has dropped ``process``."""
    node = process.core.info.id
    others = [other for other in world.running if other is not process]
    return lambda: world.nobody_sees(node, others)


def gossip(author: Process, to: Process, **records: Any) -> bytes:
    """Return what ``author`` might say to ``to``."""
    payload = Payload(**records)
    return PingResponse(to.core._node.node, author.core._node.node, 0, payload).encode()


@SEEDS
def test_a_one_way_cut_is_told_and_kills_nobody(seed: int) -> None:
    world = World(1 + 1000 * seed)
    members = world.group(8)
    deaf, silenced = members[2], members[3]
    world.cut([silenced], [deaf], both=False)
    world.run(60)
    assert deaths(world) == 0
    raised = silenced.happened(Happened.ONE_WAY)
    assert [event.member.id for event in raised if event.member] == [deaf.core.info.id]
    world.cuts.clear()
    world.must(lambda: bool(silenced.happened(Happened.ONE_WAY_OVER)), 60, "the event is cleared")


@SEEDS
@pytest.mark.parametrize("case", ["lower generation", "new address", "new id"])
def test_a_restart_leaves_one_live_entry(seed: int, case: str) -> None:
    world = World(2 + 1000 * seed)
    world.group(5, id=None)
    configured = 77 if case != "new id" else None
    process = world.start("again", ["n1"], id=configured)
    world.must(world.all_see_all, 10, "it joins")
    old = process.core.info.id
    world.run(10)
    world.kill(process)
    world.run(1)
    address = world.address(99) if case == "new address" else None
    skew_s = -3600 if case == "lower generation" else 0
    again = world.start("again", ["n1"], id=configured, address=address, skew_s=skew_s)
    world.must(world.all_see_all, 5, "the new process takes the old one's place")
    assert (again.core.info.id == old) == (case != "new id")


@SEEDS
@pytest.mark.parametrize("hours", [-1, 24, -48])
def test_a_clock_that_is_wrong_by_days_does_not_keep_a_node_out(seed: int, hours: int) -> None:
    world = World(4 + 1000 * seed)
    members = world.group(5, id=None)
    world.kill(members[3])
    world.run(2)
    again = world.start("n4", ["n1"], skew_s=hours * 3600)
    world.must(world.all_see_all, 20, f"it joins with a clock {hours} hours off")
    assert sum(process.core.counts["refutations"] for process in world.running) <= 3
    assert again.happened(Happened.JOIN_REFUSED) == []
    world.run(60)
    assert world.all_see_all()


@SEEDS
@pytest.mark.parametrize("moved", [False, True], ids=["same addresses", "new addresses"])
def test_a_mass_restart(seed: int, moved: bool) -> None:
    world = World(8 + 1000 * seed, check=False)
    world.group(20)
    for process in list(world.processes.values()):
        world.kill(process)
    places = {name: process.address for name, process in world.processes.items()}
    if moved:
        places = {name: world.address(200 + number) for number, name in enumerate(places)}
    names = sorted(places)
    world.rng.shuffle(names)
    for name in names:
        world.run(0.25)
        world.start(name, [places["n1"], places["n2"], places["n3"]], address=places[name])
    world.must(world.all_see_all, 15, "everybody is back")


@SEEDS
@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["plaintext", "e1"])
@pytest.mark.parametrize("how", [State.DEAD, State.LEFT, None], ids=["dead", "left", "unknown"])
def test_a_node_that_is_wrongly_gone_at_all_others_comes_back(
    seed: int, how: State | None, keys: tuple[bytes, ...]
) -> None:
    world = World(9 + 1000 * seed, check=False, keys=keys)
    members = world.group(5)
    victim, others = members[2], [*members[:2], *members[3:]]
    for process in others:
        peer = process.core._node.members.get(victim.core.info.id)
        assert isinstance(peer, Peer)
        if how is None:
            process.core._node.members.forget(peer)
        else:
            process.core._updates.bury(peer, how, peer.gen, gossip=False)
    world.must(world.all_see_all, 15, "it is back")
    assert victim.happened(Happened.SUSPECT) == []


def forgeries(victim: Process, to: Process, author: Process) -> list[tuple[Process, bytes]]:
    """Return what somebody may send who can forge the addresses of members: (pretended sender, datagram)."""
    node, foreign = victim.core._node.node, Address.parse("192.0.2.9:7946")
    return [
        (victim, Leave(victim.core.info).encode()),
        (author, gossip(author, to, dead=(node,))),
        (author, gossip(author, to, left=(node,))),
        (author, gossip(author, to, suspects=(Suspicion(node, author.core.info.id),))),
        (author, gossip(author, to, alive=(NodeInfo(node.id, node.gen + 1, foreign),))),
        (victim, gossip(victim, to, unlinks=(Unlink(NodeId(to.core.info.id, to.core.info.gen), None),))),
    ]


@SEEDS
@pytest.mark.parametrize("kind", range(6), ids=["leave", "dead", "left", "suspect", "foreign address", "unlink"])
def test_what_is_forged_in_a_members_name_removes_nobody_for_good(seed: int, kind: int) -> None:
    world = World(10 + 1000 * seed)
    members = world.group(5)
    victim, name = members[2], members[2].core.info.id
    for _ in range(sized(20, 60)):
        to, author = world.rng.sample([process for process in members if process is not victim], 2)
        sender, datagram = forgeries(victim, to, author)[kind]
        world.carry(sender.address, to.address, datagram)
        world.run(1)
        assert victim.core.own is Own.MEMBER
    world.must(world.all_see_all, 5, "the victim is alive everywhere")
    assert victim.core.info.id == name
    assert not victim.happened(Happened.OWN_STATE)[2:]


@SEEDS
@pytest.mark.parametrize("seal", [False, True], ids=["e1", "e0"])
def test_a_recording_of_protected_traffic_is_of_no_use(seed: int, seal: bool) -> None:
    world = World(12 + 1000 * seed, keys=(KEY,), seal=seal)
    members = world.group(4)
    receiver, recorded = members[1], list[tuple[Address, bytes]]()

    def tap(process: Process, to: Address, datagram: bytes) -> None:
        if to == receiver.address:
            recorded.append((process.address, datagram))

    world.tap = tap
    world.run(sized(30, 60))
    world.leave(members[3])
    world.run(10)
    world.tap = None
    before = receiver.sees()
    for source, datagram in recorded:
        world.carry(source, receiver.address, datagram)
    world.run(1)
    assert receiver.core.dropped["replay"] == len(recorded)
    assert receiver.sees() == before
    world.kill(receiver)
    again = world.start("n2", ["n1"])
    world.must(world.all_see_all, 10, "the receiver is back")
    for source, datagram in recorded:
        world.carry(source, again.address, datagram)
    world.must(world.all_see_all, 30, "the views are right again")
    assert deaths(world) == 0


SEPARATED = {
    "same key": ({"keys": (KEY,)}, {"keys": (KEY,)}, "mac"),
    "other key": ({"keys": (KEY,)}, {"keys": (bytes(32),)}, "keyid"),
    "sealed": ({"keys": (KEY,), "seal": True}, {"keys": (KEY,), "seal": True}, "mac"),
    "label": ({}, {}, "wrong_group"),
    "psk": ({"psks": (KEY,)}, {"psks": (KEY,)}, "auth_failed"),
    "other psk": ({"psks": (KEY,)}, {"psks": (bytes(32),)}, "auth_failed"),
}


@SEEDS
@pytest.mark.parametrize(("config", "other", "reason"), SEPARATED.values(), ids=SEPARATED)
def test_groups_with_other_names_or_keys_stay_apart(
    seed: int, config: dict[str, Any], other: dict[str, Any], reason: str
) -> None:
    world = World(15 + 1000 * seed)
    here = [world.start("a1", group="a", **config), world.start("a2", ["a1"], group="a", **config)]
    there = [world.start("b1", ["a1"], group="b", **other)]
    there.append(world.start("b2", ["b1", "a2"], group="b", **other))
    here[0].core.set_seeds([process.address for process in there], world.time)
    world.run(40)
    assert [len(process.sees()) for process in (*here, *there)] == [2, 2, 2, 2]
    assert not here[0].sees().keys() & there[0].sees().keys()
    told = {event.text for event in there[0].happened(Happened.JOIN_REFUSED)}
    assert here[0].core.dropped[reason] > 0 or reason in told


@SEEDS
def test_a_running_group_gets_its_keys_process_by_process_and_loses_nobody(seed: int) -> None:
    world = World(16 + 1000 * seed, check=False)
    members = world.group(5)
    for config in ({"keys": (KEY,), "accept_plaintext": True}, {"keys": (KEY,)}):
        for name in [process.name for process in members]:
            world.kill(world.processes[name])
            world.run(1)
            world.start(name, ["n1", "n2"], **config)
            world.must(world.all_see_all, 15, f"{name} is back")
            world.run(3)
    assert deaths(world) == 0
    plaintext = []
    world.tap = lambda process, to, datagram: plaintext.append(datagram) if datagram[0] != 0xE1 else None
    world.run(10)
    assert plaintext == []


@SEEDS
def test_keys_are_rotated_under_load_and_who_was_away_tells_it_and_comes_back(seed: int) -> None:
    world = World(17 + 1000 * seed, keys=(KEY,))
    members = world.group(5)
    away, others, new = members[4], members[:4], bytes(32)
    world.cut([away], others)
    world.run(15)
    for keys in ((KEY, new), (new, KEY), (new,)):
        for process in others:
            process.core.set_keys(keys)
            world.run(0.7)
        world.must(lambda: all(len(process.sees()) == 4 for process in others), 5, "nobody is lost")
    dropped = sum(process.core.dropped["keyid"] + process.core.dropped["mac"] for process in others)
    assert dropped == 0
    world.cuts.clear()
    world.run(15)
    assert away.core.dropped["keyid"] + sum(process.core.dropped["keyid"] for process in others) > 0
    away.core.set_keys((new,))
    world.must(world.all_see_all, 60, "given the key it is back")


@SEEDS
def test_two_groups_that_meet_and_have_an_id_in_common(seed: int) -> None:
    world = World(13 + 1000 * seed, check=False)
    here = [world.start("a1"), world.start("a2", ["a1"]), world.start("a3", ["a1"])]
    world.run(5)
    there = [world.start("b1"), world.start("b2", ["b1"]), world.start("b3", ["b1"])]
    there[1].core._node.id = here[1].core.info.id
    world.run(5)
    assert {len(process.sees()) for process in (*here, *there)} == {3}
    here[0].core.set_seeds([there[0].address], world.time)
    world.must(world.all_see_all, 40, "one of the two has another id")
    assert sum(len(process.happened(Happened.ID_CONFLICT)) for process in (here[1], there[1])) == 1

"""Groups with partial views: A10 of docs/specs/swim.md 25, and what else 7 promises.

``PAVANE_SWIM_JOINS=1000`` plays A10 at its full size, which takes minutes.
"""

import os
from typing import Any

import pytest

from pavane.swim.config import Start, ViewKind
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.staging import CaughtUp
from pavane.swim.state.partial import links_wanted
from pavane.swim.wire.values import NodeStage
from tests.sim.swim.graph import largest, links, symmetrical
from tests.sim.swim.world import Process, Weather, World

JOINS = int(os.environ.get("PAVANE_SWIM_JOINS", "60"))
FULL_SIZE = 1000
CAPACITY = 8
KEYS = (bytes(range(32)),)


def group(seed: int, size: int, **config: Any) -> tuple[World, list[Process]]:
    """Return a group whose members all joined through the first one, when its links have settled."""
    world = World(seed, check=size < FULL_SIZE, view=ViewKind.PARTIAL, **{"capacity": CAPACITY, **config})
    members = [world.start("n1")]
    for number in range(2, size + 1):
        members.append(world.start(f"n{number}", ["n1"]))
        world.run(0.05)
    world.must(lambda: all(process.core.own is Own.MEMBER for process in members), 60, "everybody is admitted")
    world.must(lambda: settled(world), 60, "everybody has its links")
    return world, members


def settled(world: World) -> bool:
    """Say whether all have the links that they want, with nobody who does not have them too."""
    wanted = min(links_wanted(CAPACITY), len(world.running) - 1)
    return symmetrical(world) and all(len(others) >= wanted for others in links(world).values())


def falsely_dead(world: World) -> int:
    running = {process.core.info.id for process in world.running}
    dead = [event for process in world.running for event in process.happened(Happened.DEAD)]
    return sum(1 for event in dead if event.member is not None and event.member.id in running)


@pytest.mark.timeout(300 if JOINS < FULL_SIZE else 3600)
@pytest.mark.parametrize("seed", range(2 if JOINS < FULL_SIZE else 10))
def test_all_join_through_one_address_and_a_mass_crash_leaves_one_group(seed: int) -> None:
    world, members = group(seed, JOINS)
    assert sum(process.core.counts["edge_splits"] for process in members) > 0
    for process in world.rng.sample(members, JOINS * 3 // 10):
        world.kill(process)
    assert largest(world) >= (0.98 if JOINS >= FULL_SIZE else 0.9)
    world.must(lambda: largest(world) == 1, 10, "what the crash has cut off finds back")
    assert falsely_dead(world) == 0


@pytest.mark.parametrize("config", [{}, {"keys": KEYS, "seal": True}], ids=["plaintext", "e0"])
def test_who_leaves_hands_its_links_on(config: dict[str, Any]) -> None:
    world, members = group(7, 30, **config)
    for process in members[:15]:
        world.leave(process)
        world.run(2)
        assert process.core.own is Own.OUT
        assert largest(world) == 1
    world.must(lambda: settled(world), 30, "the rest has its links")
    assert not any(process.happened(Happened.DEAD) for process in members)


def test_news_and_messages_reach_everybody_once() -> None:
    world, members = group(8, 30)
    for process in members:
        process.core.send_user(process.name.encode(), world.time)
        world.after(process)
    world.run(20)
    names = sorted(process.name.encode() for process in members)
    for process in members:
        heard = [event.data for event in process.happened(Happened.USER)]
        assert sorted([*heard, process.name.encode()]) == names
    assert sum(len(process.core._node.news) + len(process.core._node.extras) for process in members) == 0


def test_idle_members_send_two_datagrams_a_second_and_keep_their_links() -> None:
    world, members = group(9, 30)
    world.run(60)
    before, linked = [(process.sent, process.sent_bytes) for process in members], links(world)
    world.run(40)
    sent = [process.sent - first for process, (first, _) in zip(members, before, strict=True)]
    sent_bytes = [process.sent_bytes - first for process, (_, first) in zip(members, before, strict=True)]
    assert sum(sent) / len(members) / 40 == pytest.approx(2, rel=0.02)
    assert max(sent) <= 40 * (1 + CAPACITY)  # its own ping, and an answer to each peer
    assert sum(sent_bytes) / len(members) / 40 <= 200
    assert links(world) == linked


def test_loss_breaks_no_link_for_long() -> None:
    world, members = group(10, 20)
    world.weather = Weather(loss=0.1)
    world.run(60)
    assert falsely_dead(world) == 0
    world.weather = Weather()
    world.must(lambda: settled(world), 60, "links are what they were")
    assert largest(world) == 1
    assert all(process.core.own is Own.MEMBER for process in members)


def test_halves_that_were_cut_apart_become_one_group() -> None:
    world, members = group(11, 20)
    world.cut(members[:10], members[10:])
    world.run(60)
    assert largest(world) == 0.5
    world.cuts.clear()
    world.must(lambda: largest(world) == 1, 30, "the halves find each other")
    world.must(lambda: settled(world), 60, "links settle")


def test_two_groups_whose_seeds_could_not_reach_each_other_become_one() -> None:
    world = World(12, view=ViewKind.PARTIAL, capacity=CAPACITY)
    world.cuts = {(world.address(one), world.address(other)) for one in range(15) for other in range(15)
                  if (one + other) % 2}  # fmt: skip
    for number in range(1, 15):
        world.start(f"n{number}", [world.address(1), world.address(2)])
    world.must(lambda: largest(world) == 0.5, 60, "two groups form")
    world.run(40)
    world.cuts.clear()
    world.must(lambda: largest(world) == 1, 30, "they are one")


def test_an_observer_is_caught_up_when_its_links_answer() -> None:
    world, _ = group(13, 20, start=Start.SELF)
    observer = world.start("observer", ["n1"], start=Start.ORDERED)
    assert observer.core.staging.caught_up is CaughtUp.NO
    world.must(lambda: observer.core.staging.caught_up is CaughtUp.YES, 20, "the observer is caught up")
    assert observer.core.stage is NodeStage.READ_ONLY
    assert observer.core.promote(world.time)


def test_a_restarted_member_takes_part_again() -> None:
    world, members = group(14, 20)
    for process in (members[0], members[7]):
        world.kill(process)
    world.run(1)
    for name in ("n1", "n8"):
        world.start(name, ["n3"])
    world.must(lambda: largest(world) == 1 and settled(world), 120, "they have links again")

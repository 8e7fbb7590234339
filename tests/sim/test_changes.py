"""Five members become seven and five again, and one of them ends at any step (docs/specs/raft.md 8.5, 20 A9).

``PAVANE_CHANGE_KILLS=120`` ends it before each of its messages in turn; few of them are tried otherwise.
"""

import os

import pytest

from pavane.raft.state.configuration import Members
from pavane.wire import Stage
from tests.sim.node import Node
from tests.sim.world import Scenario, World

KILLS = int(os.environ.get("PAVANE_CHANGE_KILLS", "4"))
MESSAGES = 120  # of a leader until a change is over, and more
SETTLED_S = 1.2
CHANGE_S = 20.0  # far beyond what a change takes with two elections in it


def changed(world: World, members: Members, victim: Node, sends: int) -> None:
    """Ask for members, end the victim before a message of its own, and wait until the members are as asked."""
    goals = [writer.acknowledged + 3 for writer in world.writers]
    world.administrator.change(members)
    victim.sends_left = sends

    def over() -> bool:
        leader = world.leader()
        as_asked = world.administrator.wanted is None and leader is not None and leader.final_members() == members
        wrote = all(writer.acknowledged >= goal for writer, goal in zip(world.writers, goals, strict=True))
        return as_asked and wrote

    assert world.run_until(world.time + CHANGE_S, over), [node.describe() for node in world.nodes.values()]
    victim.sends_left = None


@pytest.mark.parametrize("victim", ["leader", "joining"])
@pytest.mark.parametrize("sends", [number * MESSAGES // KILLS for number in range(KILLS)])
def test_members_are_as_asked_whichever_step_one_of_them_ends_at(victim: str, sends: int) -> None:
    world = World(sends, Scenario(voters=5, learners=2))
    for writer in world.writers:
        writer.begin()
    world.run_until(SETTLED_S)
    five, joining = world.pool[:5], world.pool[5:]
    for peer, _ in joining:
        world.ours[peer].stage = Stage.READ_WRITE
        world.permit(world.ours[peer])

    def to_end() -> Node:
        leader = world.leader()
        assert leader is not None
        return world.ours[leader.id if victim == "leader" else joining[0][0]]

    changed(world, world.pool, to_end(), sends)
    world.run_until(world.time + SETTLED_S)
    leader = world.leader()
    assert leader is not None
    leaving = {leader.id, next(peer for peer, _ in five if peer != leader.id)}
    changed(world, tuple(pair for pair in world.pool if pair[0] not in leaving), to_end(), sends)
    world.run_until(world.time + SETTLED_S)
    assert world.settled()

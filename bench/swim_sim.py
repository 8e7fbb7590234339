"""Groups of our members in virtual time: what grows with the group and what does not (docs/specs/swim.md 19, 25).

The simulator is that of the tests. Each member holds an entry for every other one: 5,000 members would need some 15 GB.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from pavane.swim.core.outputs import Happened
from pavane.swim.wire.values import State
from tests.sim.swim.world import Process, World

SIZES = (50, 200, 1000)
SEED = 20
IDLE_S = 20.0
SETTLE_S = 8.0  # news is told for a few seconds after everybody has it
PATIENT_S = 60.0


async def measure(_: Path, options: Options) -> list[Measure]:
    """Simulate groups of each size; the figures are of virtual time and the same on every machine."""
    return await asyncio.to_thread(lambda: [one for size in SIZES for one in _measure(size, options.runs)])


def _measure(size: int, runs: int) -> list[Measure]:
    world = _settled(size)
    before = [(process.sent, process.sent_bytes) for process in world.processes.values()]
    world.run(IDLE_S)
    datagrams = sum(process.sent for process in world.processes.values()) - sum(count for count, _ in before)
    octets = sum(process.sent_bytes for process in world.processes.values()) - sum(count for _, count in before)
    per = size * IDLE_S
    joins, leaves, crashes, first = [], [], [], []
    for number in range(runs):
        joiner = world.start(f"joiner{number}", ["n1"])
        joins.append(_until(world, partial(_known, world, joiner)))
        world.run(SETTLE_S)
        world.leave(joiner)
        leaves.append(_until(world, partial(_gone, world, joiner)))
        world.run(SETTLE_S)
        victim = world.processes[f"n{2 + number}"]
        world.kill(victim)
        began = world.time
        crashes.append(_until(world, partial(_gone, world, victim)))
        first.append(_first_dead(world, victim) - began)
        world.run(SETTLE_S)
    return [
        Measure(f"{size}: idle, datagrams per member and second", datagrams / per, ""),
        Measure(f"{size}: idle, bytes per member and second", octets / per, "B"),
        median_of(f"{size}: join known by all", "s", joins),
        median_of(f"{size}: leave known by all", "s", leaves),
        median_of(f"{size}: crash, first declared dead", "s", first),
        median_of(f"{size}: crash known by all", "s", crashes),
        greatest_of(f"{size}: crash known by all, slowest", "s", crashes),
        _false_deaths(world, size),
    ]


def _settled(size: int) -> World:
    """Return a group whose members all know each other already."""
    world = World(SEED, check=False)
    processes = [world.start(f"n{number}") for number in range(1, size + 1)]
    infos = [process.core.info for process in processes]
    for process in processes:
        node = process.core._node
        for info in infos:
            if info.id != node.id:
                node.add(info, State.ALIVE)
        node.news.clear()
        process.core.outputs()
        world.after(process)
    world.run(SETTLE_S)
    return world


def _until(world: World, condition: Callable[[], bool]) -> float:
    took = world.until(condition, PATIENT_S)
    if took is None:
        raise BenchError(f"the simulated group did not get there within {PATIENT_S} s")
    return took


def _known(world: World, process: Process) -> bool:
    number = process.core.info.id
    others = [other for other in world.running if other is not process]
    return all((peer := other.core._node.members.get(number)) is not None and peer.live for other in others)


def _gone(world: World, process: Process) -> bool:
    number = process.core.info.id
    others = [other for other in world.running if other is not process]
    return not any((peer := other.core._node.members.get(number)) is not None and peer.live for other in others)


def _first_dead(world: World, process: Process) -> float:
    number = process.core.info.id
    return min(
        at
        for other in world.running
        for at, event in other.events
        if event.kind is Happened.DEAD and event.member is not None and event.member.id == number
    )


def _false_deaths(world: World, size: int) -> Measure:
    """Count who runs and was declared dead."""
    there = {process.core.info.id for process in world.running}
    dead = {
        event.member.id
        for process in world.running
        for event in process.happened(Happened.DEAD)
        if event.member is not None
    }
    return Measure(f"{size}: falsely dead", len(there & dead), "", bar=0, vital=True)

"""Groups of our members in virtual time: what grows with the group and what does not (docs/specs/swim.md 19, 25).

The simulator is that of the tests. Each member holds an entry for every other one, of some 400 bytes: 1,000 members
take 0.4 GB and a minute, 5,000 take 11 GB and seven minutes, and are measured where that is half of the memory or less.
"""

import asyncio
import gc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from pavane.swim.core.outputs import Happened
from pavane_cli import output
from tests.sim.swim.world import Process, World

SIZES = (50, 200, 1000, 5000)
ENTRY_BYTES = 450  # that a member holds of another one, with what is under way
LARGE = 2000  # from here on one change of each kind is enough: it takes minutes
SEED = 20
IDLE_S = 20.0
SETTLE_S = 8.0  # news is told for a few seconds after everybody has it
PATIENT_S = 60.0


async def measure(_: Path, options: Options) -> list[Measure]:
    """Simulate groups of each size; the figures are of virtual time and the same on every machine."""
    fits = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // ENTRY_BYTES
    sizes = [size for size in SIZES if size**2 <= fits]
    for size in SIZES[len(sizes) :]:
        output.note(
            f"{size} members are skipped: they take {size**2 * ENTRY_BYTES >> 30} GiB, more than half of this machine's"
        )
    return await asyncio.to_thread(lambda: [one for size in sizes for one in _measure(size, options.runs)])


def _measure(size: int, runs: int) -> list[Measure]:
    world = World(SEED, check=False, capacity=2 * size)
    gc.disable()  # it would look at millions of entries over and over, and none of them goes
    world.assemble(size)
    gc.freeze()
    gc.enable()
    runs = 1 if size >= LARGE else runs
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
    return world.nobody_sees(process.core.info.id, [other for other in world.running if other is not process])


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

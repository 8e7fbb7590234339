"""Random faults against a small group, then quiet: it must find one view again (docs/specs/swim.md 19)."""

import random
from collections.abc import Callable

from pavane.swim.config import Start
from pavane.swim.core.outputs import Own
from pavane.swim.wire.values import UNSPECIFIED
from tests.sim.swim.world import Process, Weather, World

FAULTS_S = 60.0
PAUSE_S = 3.0  # between faults
RECOVERY_S = 120.0  # after the last one; a seed that left is dialled a minute later
KEY = bytes(range(32))
SKEWS_S = (0.0, -3600.0, 12 * 3600.0)


class Play:
    """One seed: its size, its protection and its faults."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        keys = (KEY,) if self.rng.random() < 0.4 else ()
        self.configured = self.rng.random() < 0.5
        self.world = World(seed, keys=keys, max_datagram_bytes=self.rng.choice([256, 1400]))
        if seed % 4 == 3:
            self.world.config["address"] = UNSPECIFIED  # bound to every interface: others tell it where it is
        if seed % 3 == 1:
            self.world.config["stored_gen"] = 0
        if seed % 5 == 2:
            self.world.config.update(start=Start.SELF, rollout=1)
        size = self.rng.choice([3, 3, 4, 5, 5, 8, 10])
        self.names = [f"n{number}" for number in range(1, size + 1)]
        self.moved = 0
        for name in self.names:
            self.start(name)

    def start(self, name: str, skew_s: float = 0.0, *, moved: bool = False) -> Process:
        """Start a process; everybody knows the first two, wherever they are now."""
        address = None
        if moved:
            self.moved += 1
            address = self.world.address(100 + self.moved)
        seeds = [self.world.processes[seed].address for seed in self.names[:2] if seed in self.world.processes]
        seeds = seeds or [self.world.address(1)]
        node = 1000 + self.names.index(name) if self.configured else None
        return self.world.start(name, seeds, address=address, skew_s=skew_s, id=node)

    @property
    def one(self) -> Process:
        return self.world.processes[self.rng.choice(self.names)]

    def fault(self) -> None:
        world, process = self.world, self.one
        faults: list[Callable[[], None]] = [
            lambda: setattr(world, "weather", Weather(*(self.rng.choice([0, 0.05, 0.3]) for _ in range(3)))),
            lambda: world.cut([process], [self.one], both=False),
            lambda: world.cut([process], world.processes.values()),
            self.partition,
            world.cuts.clear,
            world.cuts.clear,
            lambda: world.stall(process, self.rng.uniform(0.5, 8)) if not process.stalled else None,
            lambda: world.kill(process),
            self.restart,
            self.restart,
            lambda: world.leave(process) if process.up and not process.stalled else None,
        ]
        self.rng.choice(faults)()

    def partition(self) -> None:
        split = self.rng.randint(1, len(self.names) - 1)
        everybody = list(self.world.processes.values())
        self.rng.shuffle(everybody)
        self.world.cut(everybody[:split], everybody[split:])

    def restart(self) -> None:
        """Stop a process and start it again, perhaps with a wrong clock, perhaps elsewhere; or rejoin in place."""
        process = self.one
        if process.up and process.core.own is Own.OUT and not process.stalled:
            self.world.join(process, [self.world.processes[self.names[0]].address])
            return
        self.world.kill(process)
        # A seed that moves is followed by its name; nothing else would find it.
        moved = self.rng.random() < 0.3 and process.name not in self.names[:2]
        self.start(process.name, self.rng.choice(SKEWS_S), moved=moved)

    def run(self) -> World:
        world = self.world
        end = world.time + FAULTS_S
        while world.time < end:
            world.run(self.rng.uniform(0, PAUSE_S))
            self.fault()
        world.cuts.clear()
        world.weather = Weather()
        for name in self.names:
            process = world.processes[name]
            if not process.up or process.core.own in (Own.OUT, Own.LEAVING):
                world.kill(process)
                self.start(name)
        world.must(world.all_see_all, RECOVERY_S, "one view after the last fault")
        return world


def play(seed: int) -> World:
    """Play one seed; a failure of any kind names it."""
    try:
        return Play(seed).run()
    except Exception as error:
        raise AssertionError(f"replay with PAVANE_SEED={seed}: {error!r}") from error

"""Storage nodes that are added, removed and replaced in a simulated log, at any moment (waltz.md 13.10)."""

from tests.sim.kit.seeds import holds
from tests.sim.waltz.faults import Faults
from tests.sim.waltz.world import NODES, World

SPARES = ("n3", "n4")
CHANGE_S = (0.3, 3.0)
SETTLED_S = 60.0


class Growing(Faults):
    """Replicas change beside all that goes wrong; no change waits until the one before has come to its end."""

    def __init__(self, world: World, seconds: float) -> None:
        super().__init__(world, seconds)
        self.switched = 0
        """How often others came to count."""
        self._members = frozenset(NODES)
        self._change()
        self._look()

    def _change(self) -> None:
        world = self._world

        def happen() -> None:
            if world.now < self._until:
                world.want(tuple(sorted(world.rng.sample(sorted(world.nodes), world.rng.choice((3, 3, 5))))))
                self._change()

        world.scheduler.later(world.rng.uniform(*CHANGE_S), happen)

    def _look(self) -> None:
        members = self.members()
        if members and members != self._members:
            self._members, self.switched = members, self.switched + 1
        self._world.scheduler.later(0.05, self._look)

    def members(self) -> frozenset[str]:
        meta = self._world.meta
        return frozenset(state.address for state in meta.replicas) if meta is not None else frozenset()

    def _copied(self, name: str) -> bool:
        """One that does not count any more is missed by nobody."""
        return name not in self.members() or super()._copied(name)

    def check(self) -> None:
        """In the end those count that are to."""
        wanted = frozenset(self._world.wanted)
        took = self._world.scheduler.until(lambda: self.members() == wanted, SETTLED_S)
        holds(took is not None, "members", f"{sorted(wanted)} do not count: {self._world.blockers()}")

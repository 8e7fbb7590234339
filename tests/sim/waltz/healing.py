"""Disks that rot in a simulated log, nodes that scrub them, and what holds for rebuilt copies (waltz.md 13.8)."""

import struct
import zlib
from collections.abc import Iterator

from pavane.waltz.storage.directory import Directory, PartitionFiles
from pavane.waltz.storage.scrub import Scrub
from pavane.waltz.wire.storage import CopyState
from tests.sim.kit.seeds import holds
from tests.sim.waltz.faults import BACK_S, Faults, whole
from tests.sim.waltz.world import NODES, PARTITION, SimNode, World

SCRUB_S = (0.01, 0.06)
PIECE_BYTES = 2000
OLD = 12
"""A record with so many behind it was acknowledged long ago: the mark covers it, also after a power cut."""
HEALED_S = 60.0
IDLE_S = 3.0


class Healing:
    """Nodes that scrub. A copy that is rebuilt and counts again is whole, and what everybody has seen."""

    def __init__(self, world: World, *, spoils: bool) -> None:
        self._world = world
        self._spoils = spoils
        self._scrubs: dict[str, tuple[Directory, Scrub]] = {}
        self._states: dict[str, CopyState] = {}
        self._spoiled: set[str] = set()
        self.healed = 0
        self.idle: dict[str, float] = {}
        """Until when nodes do not scrub: a large disk takes long."""
        for node in world.nodes.values():
            self._look(node)

    def _look(self, node: SimNode) -> None:
        world = self._world
        world.scheduler.later(world.rng.uniform(*SCRUB_S), lambda: self._look(node))
        directory = node.directory
        files = directory.partition(PARTITION) if directory is not None else None
        if directory is None or files is None:
            return
        known, scrub = self._scrubs.get(node.name, (None, None))
        if known is not directory or scrub is None:
            scrub = Scrub(directory, PIECE_BYTES)
        self._scrubs[node.name] = directory, scrub
        self.judge(node, files)
        if node.tell_of_damage():
            return
        if self.idle.get(node.name, 0.0) > world.now:
            return
        step = scrub.step
        node.thread.run(lambda: step() if node.directory is directory else None, lambda: None, lambda _: None)

    def judge(self, node: SimNode, files: PartitionFiles) -> None:
        """Look at a copy: it is whole when it has just begun to count again."""
        before, state = self._states.get(node.name), files.state
        self._states[node.name] = state
        if state is CopyState.REBUILDING:
            copying = 0 <= files.max_txid < files.info.lwm
            if self._spoils and copying and node.name not in self._spoiled and self._world.rng.random() < 0.7:
                self._spoiled.add(node.name)
                rot(node, self._world.rng.randint(0, files.max_txid))
        elif before is CopyState.REBUILDING and files.available:
            self.healed += 1
            self._spoiled.discard(node.name)
            holds(
                whole(self._world, files), "verified", f"{node.name} counts again, but its copy is not that of the log"
            )


class Rotting(Faults):
    """The same with rot anywhere, also in a node that runs; nobody empties a disk that says that it is damaged."""

    def __init__(self, world: World, seconds: float, healing: Healing) -> None:
        super().__init__(world, seconds)
        self._healing = healing
        self._kinds += [self._disk] * 3

    def _disk(self) -> None:
        world = self._world
        if self._spoiled is not None and not self._copied(self._spoiled):
            return
        self._spoiled = None
        name = world.rng.choice(sorted(world.nodes))
        node = world.nodes[name]
        if world.meta is None or not any(state.address == name for state in world.meta.replicas):
            return
        if world.rng.random() < 0.3:
            node.stop(power=False)
            node.wipe()
        else:
            files = node.directory.partition(PARTITION) if node.directory is not None else None
            if files is None or files.max_txid < OLD:
                return
            self._healing.judge(node, files)  # before it rots anew
            rot(node, world.rng.randint(0, files.max_txid - OLD))
            if world.rng.random() < 0.5:
                node.stop(power=False)
        self._spoiled = name
        world.scheduler.later(world.rng.uniform(*BACK_S), node.start)

    def settle(self) -> None:
        """Nobody helps."""

    def check(self) -> None:
        """In the end all copies are whole."""
        world = self._world
        healed = world.scheduler.until(lambda: all(self._copied(name) for name in NODES), HEALED_S)
        holds(healed is not None, "healed", f"a copy is not rebuilt: {world.blockers()}")


class Majority:
    """At some time one copy rots at one place and the two others at another: none of the three may be given up.

    What is wrong with the two is not found for a while.
    """

    def __init__(self, world: World, healing: Healing) -> None:
        self._world = world
        self._healing = healing
        self.rotted = False
        self._begin()

    def _begin(self) -> None:
        world = self._world
        files = [node.directory.partition(PARTITION) for node in world.nodes.values() if node.directory is not None]
        last = min((each.max_txid for each in files if each is not None and each.available), default=-1)
        if len(files) < len(NODES) or last < 3 * OLD:
            world.scheduler.later(0.1, self._begin)
            return
        self.rotted = True
        one, two = world.rng.sample(range(last - OLD), 2)
        alone = world.rng.choice(NODES)
        for node in world.nodes.values():
            rot(node, one if node.name == alone else two)
            if node.name != alone:
                self._healing.idle[node.name] = world.now + IDLE_S

    def check(self) -> None:
        """Everything that anybody has seen is whole on some disk."""
        kept = set[int]()
        for node in self._world.nodes.values():
            kept.update(on_disk(node))
        missing = sorted(set(self._world.log) - kept)
        holds(not missing, "given up", f"no disk has transactions {missing[:5]} any more")


def rot(node: SimNode, txid: int) -> None:
    """Flip a bit in the data of a record."""
    for name, found, offset, size in records(node):
        if found == txid and size:
            node.disk.flip_bit(str(PARTITION), name, offset + 36)


def records(node: SimNode) -> Iterator[tuple[str, int, int, int]]:
    """Yield segment, transaction, offset and size of the data of each record on a disk."""
    folder = node.disk.folder(str(PARTITION))
    for name in folder.names():
        if not name.endswith(".seg"):
            continue
        file, offset = folder.open(name), 128
        while len(head := file.read(offset, 36)) == 36:
            (txid,), (size,) = struct.unpack_from(">q", head), struct.unpack_from(">i", head, 28)
            if size < 0 or offset + 40 + size > file.size:
                break
            yield name, txid, offset, size
            offset += 40 + size


def on_disk(node: SimNode) -> set[int]:
    """Return the transactions whose records are whole."""
    folder, found = node.disk.folder(str(PARTITION)), set[int]()
    for name, txid, offset, size in records(node):
        data = folder.open(name).read(offset, 40 + size)
        if zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "big"):
            found.add(txid)
    return found

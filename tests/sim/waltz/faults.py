"""What goes wrong in a simulated log, at random: ends of processes, power cuts, cuts of the network, lost disks."""

from pavane.waltz.state.store import Damaged
from pavane.waltz.storage.directory import PartitionFiles
from pavane.waltz.wire.blobs import UNRESOLVED
from tests.sim.waltz.world import PARTITION, SimNode, World

GAP_S = (0.1, 1.5)
BACK_S = (0.2, 4.0)


class Faults:
    """Plans faults for as long as ``seconds``. At most one disk is lost or damaged until it has been copied again.

    With ``silences`` connections go silent instead, and nobody is told.
    """

    notices = True
    """Whether servers notice, rightly or not, that another one has ended."""

    def __init__(self, world: World, seconds: float, *, silences: bool = False) -> None:
        self._world = world
        self._until = world.now + seconds
        self._spoiled: str | None = None
        self._kinds = [self._node, self._node, self._power, self._server, self._link, self._metadata]
        self._kinds += [self._server_seen, self._unregister] if self.notices else []
        self._kinds.append(self._silence if silences else self._disk)
        self._next()

    def _next(self) -> None:
        world = self._world
        if world.now < self._until:

            def happen() -> None:
                world.rng.choice(self._kinds)()
                self._next()

            world.scheduler.later(world.rng.uniform(*GAP_S), happen)

    def _node(self) -> None:
        self._stop_node(power=False)

    def _power(self) -> None:
        self._stop_node(power=True)

    def _stop_node(self, *, power: bool) -> None:
        world = self._world
        node = world.nodes[world.rng.choice(sorted(world.nodes))]
        if node.up:
            node.stop(power=power)
            world.scheduler.later(world.rng.uniform(*BACK_S), node.start)

    def _server(self) -> None:
        world = self._world
        server = world.servers[world.rng.choice(sorted(world.servers))]
        if server.core is not None:
            server.stop()
            world.scheduler.later(world.rng.uniform(*BACK_S), server.start)

    def _server_seen(self) -> None:
        """A server ends, and another one notices."""
        world = self._world
        server = world.servers[world.rng.choice(sorted(world.servers))]
        if server.core is not None:
            server.stop()
            world.scheduler.later(world.delay(), lambda: world.unregister(server.number))
            world.scheduler.later(world.rng.uniform(*BACK_S), server.start)

    def _unregister(self) -> None:
        """A server that lives is taken for one that has ended, and hears of it when it hears who is there."""
        self._world.unregister(self._world.rng.choice(sorted(self._world.servers)))

    def _link(self) -> None:
        world = self._world
        server = world.servers[world.rng.choice(sorted(world.servers))]
        node = world.rng.choice(sorted(world.nodes))
        cut = (f"s{server.number}", node)
        world.cuts.add(cut)
        if node in server.links and not server.links[node].line.half_open:
            server.links[node].close()
        world.scheduler.later(world.rng.uniform(*BACK_S), lambda: world.cuts.discard(cut))

    def _silence(self) -> None:
        self._world.silence(self._world.rng.choice((0.3, 1.0)))

    def _metadata(self) -> None:
        world = self._world
        server = world.servers[world.rng.choice(sorted(world.servers))]
        server.cut_off = True

        def back() -> None:
            server.cut_off = False

        world.scheduler.later(world.rng.uniform(*BACK_S), back)

    def _disk(self) -> None:
        """Lose a disk, or let it rot; one that says it is damaged is emptied later."""
        world = self._world
        if self._spoiled is not None and not self._copied(self._spoiled):
            return
        self._spoiled = None
        name = world.rng.choice(sorted(world.nodes))
        node = world.nodes[name]
        if world.meta is None or not any(state.address == name for state in world.meta.replicas):
            return
        # After a power cut the mark may be old: rot behind it looks like a torn tail, which is accepted (12.5).
        may_rot = node.mark_is_exact
        if node.up:
            node.stop(power=False)
        if world.rng.random() < 0.5 or not may_rot:
            node.wipe()
        elif not _rot(node):
            node.start()
            return
        self._spoiled = name
        world.scheduler.later(world.rng.uniform(*BACK_S), node.start)
        world.scheduler.later(8.0, lambda: self._replace(name))

    def _replace(self, name: str) -> None:
        node = self._world.nodes[name]
        files = node.directory.partition(0) if node.directory is not None else None
        if files is not None and files.fault:
            node.stop(power=False)
            node.wipe()
            node.start()

    def _copied(self, name: str) -> bool:
        """Whether a node takes part again, with everything that anybody has seen."""
        world = self._world
        node = world.nodes[name]
        meta = world.meta
        files = node.directory.partition(PARTITION) if node.directory is not None else None
        if meta is None or files is None or node.max_txid < max(world.log, default=-1) or not whole(world, files):
            return False
        return any(
            state.address == name and (state.session, state.closing_hwm) == (meta.session, UNRESOLVED)
            for state in meta.replicas
        )

    def settle(self) -> None:
        """Empty the disk that is damaged still, so that the log can open."""
        for name in self._world.nodes:
            self._replace(name)


def whole(world: World, files: PartitionFiles) -> bool:
    """Whether a copy can be read from its beginning to its end, and is what anybody has seen."""
    try:
        for segment in files._segments:
            txid = segment.first
            while txid <= segment.last:
                for record in segment.read(txid, 1000):
                    known = world.log.get(record.txid)
                    if known is not None and known != (record.reqid, record.data):
                        return False
                txid = segment.check(txid, 1 << 20)
    except Damaged:
        return False
    return True


def _rot(node: SimNode) -> bool:
    """Flip a bit of one of the last records; false if there is none."""
    folder = node.disk.folder(str(PARTITION))
    names = [name for name in folder.names() if name.endswith(".seg")]
    if not names:
        return False
    size = folder.open(names[-1]).size
    if size <= 128:
        return False
    node.disk.flip_bit(str(PARTITION), names[-1], node.world.rng.randrange(max(128, size - 300), size))
    return True

"""A whole cluster in virtual time, all of it from one seed: first with faults (safety), then without (liveness)."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

from pavane.raft.config import Config
from pavane.raft.core import snapshots
from pavane.raft.core.outputs import PeerChannel
from pavane.raft.state.configuration import Configuration, Members
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import entry_reqid, entry_term
from pavane.raft.wire.snapshot import SnapshotMeta
from pavane.wire import Stage
from tests.sim.checks import Checks
from tests.sim.clients import IDENT, Administrator, Reader, Writer
from tests.sim.js_link import JsChecks
from tests.sim.js_model import JsPeer
from tests.sim.keys import Holder, KeyChecks, KeyClient, KeyReader, KeyWriter, Locker, Watcher
from tests.sim.kit.network import Connection, Frames, Weather
from tests.sim.kit.scheduler import Scheduler
from tests.sim.kit.seeds import holds, replayable
from tests.sim.network import RaftNetwork
from tests.sim.node import Node

START_S = 0.8  # the first election is over, as a rule
RESTART_S = 2.0  # between an administrator's attempts to help peers of the original kind
LIVENESS_S = 20.0  # after the last fault, everything must be well within this
LIVENESS_ORIGINALS_S = 40.0  # several of them may stand against each other for longer (docs/raft.md)
FINISHED_PAUSE_S = 0.05
DEPOSED_S = 1.0  # how long a leader that was replaced does not hear of it
LOOK_S = 0.005
CLOCK_JUMP_S = 12 * 3600
SNAPSHOT_ENTRIES = 25  # with a short pause between two, so that a run of seconds has several
SNAPSHOT_PAUSE_S = 0.3
LOG_RETENTION = 6
CLOCK_RATES = (0.9, 1.1)


@dataclass(frozen=True)
class Scenario:
    """What a seed plays. ``voters`` at the start, ``learners`` beside them."""

    voters: int
    learners: int = 0
    originals: int = 0  # how many of the voters are of the original kind
    originals_joining: int = 0  # and how many of the learners
    faults_s: float = 4.0
    fault_pause_s: float = 0.25
    changes: bool = False
    promotion: bool = False
    keys: bool = False
    repeats: bool = False  # writers repeat old updates
    bootstrap: str = "seed"
    weather: Weather | None = None
    only: tuple[str, ...] = ()  # names of the faults to choose from, all if empty


class World(Scheduler):
    """Nodes, clients and faults."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        super().__init__(seed)
        self.scenario = scenario
        self.wall_s = 1_750_000_000.0
        self.checks = Checks()
        self.keys = KeyChecks()
        self.snapshots: Counter[str] = Counter()
        self.network = RaftNetwork(self, self._receive, end=self.end)
        self.greatest_acknowledged = 0
        self.faulty = True
        self.nodes: dict[str, Node | JsPeer] = {}
        self.ours: dict[str, Node] = {}
        self.by_url: dict[str, str] = {}
        self.initial = self._members(1, scenario.voters)
        self.pool = self.initial + self._members(2, scenario.learners)
        joining = self.pool[len(self.initial) :][: scenario.originals_joining]
        self.js = JsChecks(frozenset(peer for peer, _ in self.initial[: scenario.originals] + joining))
        self.network.originals = self.checks.originals = self.js.names
        self._create()
        self.writers = [Writer(self, name) for name in ("wa", "wb", "wc")]
        self.reader = Reader(self, "re")
        self.administrator = Administrator(self, "ad")
        self.key_clients: list[KeyClient | Watcher] = []
        if scenario.keys:
            self.key_clients = [KeyWriter(self, "ka"), KeyWriter(self, "kb"), KeyReader(self, "kr")]
            self.key_clients += [Holder(self, "ha"), Holder(self, "hb"), Watcher(self, "ya"), Watcher(self, "yb")]
            self.key_clients += [Locker(self, "la"), Locker(self, "lb")]

    def _members(self, generation: int, count: int) -> Members:
        return tuple((f"x-g{generation}-{at}", f"tcp://10.0.{generation}.{at + 1}:8047") for at in range(count))

    def _create(self) -> None:
        seeds = tuple(url for _, url in self.pool)
        entry = self.scenario.bootstrap == "entry"
        base = Configuration(self.initial)
        if not entry:
            self.checks.configurations.append((0, base))
            self.checks.configuration = base
        for peer, url in self.pool:
            self.by_url[url] = peer
            if peer in self.js.names:
                self.nodes[peer] = JsPeer(self, peer, url, self.initial)
                continue
            member = (peer, url) in self.initial
            peers = self.initial if member and not entry else ()
            stage = Stage.READ_WRITE if peers else Stage.READ_ONLY
            machine = "Tree" if self.scenario.keys else "Broadcast"
            config = Config(
                id=peer,
                ident=IDENT,
                url=url,
                peers=peers,
                seeds=seeds,
                machine=machine,
                snapshot_entries=SNAPSHOT_ENTRIES,
                log_retention=LOG_RETENTION,
            )
            self.nodes[peer] = self.ours[peer] = node = Node(self, config, stage)
            if not self.scenario.keys:  # who holds a lease relies on clocks that run alike
                node.rate = self.rng.uniform(*CLOCK_RATES)
        for peer, _ in self.pool:
            self.nodes[peer].start()
        if entry:
            for peer, _ in self.initial:
                self.schedule(self.rng.uniform(0.0, 0.2), partial(self._bootstrap, self.ours[peer]))

    def restarted(self, node: Node) -> None:
        """Tell an empty first pod the members again, as the operator does until the cluster serves (8.4)."""
        first = self.scenario.bootstrap == "entry" and node.config.url in {url for _, url in self.initial}
        if first and not node.disk.entries and not self.checks.committed and node.stage == Stage.READ_WRITE:
            self._bootstrap(node)

    def _bootstrap(self, node: Node) -> None:
        def write() -> None:
            node.core.bootstrap(self.initial, node.now())
            node.core.set_stage(Stage.READ_WRITE, node.now())

        node.stage = Stage.READ_WRITE
        node.act(write)

    # --- machinery -----------------------------------------------------------------------------------------------

    def run_until(self, end: float, finished: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen until ``end``, or until ``finished`` (looked at from time to time) is true."""
        return self.until(finished, end - self.time, FINISHED_PAUSE_S) is not None

    def _receive(self, target: str, route: bytes, frames: Frames) -> None:
        self.nodes[target].receive(route, frames)

    def listening(self, url: str) -> str | None:
        peer = self.by_url.get(url)
        return peer if peer is not None and self.nodes[peer].up else None

    def node_gone(self, gone: str) -> None:
        """Break everybody's connections to a node that ended."""
        self.network.lives[gone] += 1
        for node in self.nodes.values():
            for to, connection in list(node.sockets.items()):
                if connection.target == gone:
                    self._disconnect(node, to)
        for connection in list(self.network.connections.values()):
            if connection.target == gone:
                self.network.close(connection)

    def _disconnect(self, node: Node | JsPeer, to: PeerChannel) -> None:
        for socket, connection in list(node.sockets.items()):
            if socket == to:
                del node.sockets[socket]
                self.network.close(connection)
                node.disconnected(socket)

    # --- the play ------------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Play the scenario; raises ``BrokenError`` when an invariant breaks, anything else for other failures."""
        for writer in self.writers:
            writer.begin()
        self.reader.begin()
        for client in self.key_clients:
            client.begin()
        self.run_until(START_S)
        if self.scenario.weather is not None:
            self.network.weather = self.scenario.weather
        end = START_S + self.scenario.faults_s
        if self.scenario.promotion:
            self.schedule(self.rng.uniform(1.0, end), self.promote)
        while self.time < end:
            self._fault()
            self.run_until(self.time + self.rng.expovariate(1 / self.scenario.fault_pause_s))
        self._heal()
        self._expect_progress()

    def _heal(self) -> None:
        self.faulty = False
        self.network.weather = Weather()
        self.network.cuts.clear()
        for ours in self.ours.values():
            ours.sends_left = None
        for node in self.nodes.values():
            node.slow_disk = False
            node.disk_fails_until = 0.0
            node.wall_offset_s = 0
            if not node.up:
                node.start()
        if self.scenario.promotion and self.administrator.wanted is None:
            self.promote()

    def _expect_progress(self) -> None:
        goals = [writer.acknowledged + 3 for writer in self.writers]
        reads = self.reader.reads + 3
        asked = [client.done + 3 for client in self.key_clients]
        within = LIVENESS_ORIGINALS_S if self.js.names else LIVENESS_S
        if self.js.names and self.scenario.changes:
            self.schedule(self.time + LIVENESS_S / 2, self._set_originals_right)

        def finished() -> bool:
            if any(client.done < goal for client, goal in zip(self.key_clients, asked, strict=True)):
                return False
            wrote = all(writer.acknowledged >= goal for writer, goal in zip(self.writers, goals, strict=True))
            return wrote and self.reader.reads >= reads and self.administrator.wanted is None and self.settled()

        done = self.run_until(self.time + within, finished)
        if not done:
            lines = "\n".join(node.describe() for node in self.nodes.values())
            raise AssertionError(f"no progress; change wanted: {self.administrator.wanted}\n{lines}")

    def settled(self) -> bool:
        """Whether one leader leads a final configuration and every member follows closely."""
        leader = self.leader()
        members = leader.final_members() if leader is not None else None
        if leader is None or members is None:
            return False
        if self.scenario.promotion and members != self.pool[len(self.initial) :]:
            return False
        followers = [self.nodes[peer] for peer, _ in members if not self._deaf(self.nodes[peer], leader)]
        if leader.id in self.js.names:  # one of them ends, and ends again, at a message that another repeats (D11)
            followers = [follower for follower in followers if follower.id not in self.js.names]
        roles = {follower.role for follower in followers}
        near = all(follower.commit >= leader.commit - 50 for follower in followers)
        return roles <= {Role.FOLLOWER, Role.LEADER} and near

    @staticmethod
    def _deaf(node: Node | JsPeer, leader: Node | JsPeer) -> bool:
        """Whether a peer of the original kind missed the entry that would tell it of the leader (1.4)."""
        return isinstance(node, JsPeer) and not node.configuration.names(leader.id)

    def _set_originals_right(self) -> None:
        """Do what an administrator must where an original stands alone, or has left before anybody knew (1.4)."""
        for node in self.nodes.values():
            if isinstance(node, JsPeer) and node.role in {Role.CANDIDATE, Role.LEARNER}:
                node.crash()
                node.members.return_to_office()
                node.start()
        self.schedule(self.time + RESTART_S, self._set_originals_right)  # the moment may have been a bad one

    # --- membership ----------------------------------------------------------------------------------------------

    def promote(self) -> None:
        """Steps 2 and 3 of operator.md 3.1: permit the learners to write, then ask for them as the members."""
        if self.faulty and not self._all_sound():
            self.schedule(self.time + 0.2, lambda: self.promote() if self.faulty else None)
            return
        joining = self.pool[len(self.initial) :]
        for peer, _ in joining:
            self.ours[peer].stage = Stage.READ_WRITE
            self.permit(self.ours[peer])
        self.administrator.change(joining)

    def _all_sound(self) -> bool:
        """Whether everybody runs, holds entries, and has forgotten nothing. Originals read theirs when they start."""
        return all(
            node.up and (node.mirror.entries or node.id in self.js.names) and node.role != Role.RECOVERING
            for node in self.nodes.values()
        )

    def permit(self, node: Node) -> None:
        def permit() -> None:
            if node.core.status().stage < Stage.READ_WRITE:
                node.core.set_stage(Stage.READ_WRITE, node.now())

        node.act(permit)

    def _change(self) -> None:
        if self.administrator.wanted is None and self._all_sound():
            count = self.rng.randint(1, min(5, len(self.pool)))
            chosen = self.rng.sample(self.pool, count)
            if all(peer in self.js.names for peer, _ in chosen):
                chosen.append(next(pair for pair in self.pool if pair[0] in self.ours))
            for peer, _ in chosen:
                node = self.nodes[peer]
                if isinstance(node, Node):
                    node.stage = Stage.READ_WRITE
                    self.permit(node)
                elif not node.configuration.names(peer):  # started for it, with the members of now
                    node.crash()
                    node.start()
            self.administrator.change(tuple(chosen))
            if self.rng.random() < 0.3:  # so that some entries stay with the leader alone and are rolled back
                self.schedule(self.time + self.rng.uniform(0.0, 0.01), self._isolate_leader)

    # --- faults --------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        faults: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "crash_leader": self._crash_leader,
            "crash_many": self._crash_many,
            "cut": self._cut,
            "cut_one_way": self._cut_one_way,
            "isolate_leader": self._isolate_leader,
            "break_connections": self._break_connections,
            "half_open": self._half_open,
            "weather": self._change_weather,
            "stall": self._stall,
            "slow_disk": self._slow_disk,
            "failing_disk": self._failing_disk,
            "crash_sending": self._crash_sending,
            "jump_clock": self._jump_clock,
            "transfer": self.administrator.transfer,
            "operator": self.administrator.restart,
            "wipe": self._wipe,
        }
        names = list(self.scenario.only or faults)
        faults["depose_and_wipe"] = self._depose_and_wipe  # a course of events, so only for who names it
        if self.scenario.changes:
            faults["change"] = self._change
            names += ["change"] * (len(names) // 3)
        faults[self.rng.choice(names)]()

    def leader(self) -> Node | JsPeer | None:
        """The leader of the highest term: an older one may not know yet."""
        leaders = [node for node in self.nodes.values() if node.up and node.role == Role.LEADER]
        return max(leaders, key=lambda node: node.term, default=None)

    def _any(self) -> Node | JsPeer:
        return self.rng.choice(list(self.nodes.values()))

    def _crash(self) -> None:
        self._crash_node(self._any())

    def _crash_leader(self) -> None:
        leader = self.leader()
        if leader is not None:
            self._crash_node(leader)

    def _crash_many(self) -> None:
        for node in self.nodes.values():
            if self.rng.random() < 0.6:
                self._crash_node(node)

    def _crash_node(self, node: Node | JsPeer) -> None:
        if node.up:
            self.ended(node)

    def ended(self, node: Node | JsPeer) -> None:
        """End a process; what it had not written is lost, and after a while it is started again."""
        node.crash()
        self.schedule(self.time + self.rng.uniform(0.01, 1.0), lambda: self._restart(node))

    def _crash_sending(self) -> None:
        node = self._any()
        if isinstance(node, Node):
            node.sends_left = self.rng.randint(0, 8)

    def _restart(self, node: Node | JsPeer) -> None:
        if not node.up:
            node.start()

    def compact(self, node: Node) -> None:
        """Cut a log behind entries whose ids nobody repeats, as ``pavane raft compact`` does while the peer is down."""
        checks = self.checks
        ids = enumerate(map(entry_reqid, checks.committed), 1)
        open_ids = (at for at, reqid in ids if any(reqid) and reqid not in checks.acknowledged)
        index = min(next(open_ids, len(checks.committed) + 1) - 1, node.commit) if node.up else 0
        if index < node.disk.first or index > node.disk.last:
            return
        node.crash()
        stated = [(at, configuration) for at, configuration in checks.configurations if at <= index]
        at, configuration = stated[-1]
        meta = SnapshotMeta(configuration.encode(), at, "Broadcast", 0, 0, b"")
        cut = index - node.disk.first + 1
        node.disk.save(index, entry_term(node.disk.entries[cut - 1]), meta, b"state of %d" % index)
        node.disk.entries, node.disk.first = node.disk.entries[cut:], index + 1
        node.start()

    def _depose_and_wipe(self) -> None:
        """Take the disk of a voter that has helped to replace a leader, and show it to that leader alone."""
        old = self.leader()
        if old is None or not self._all_sound():
            return
        lone = {(old.id, peer) for peer in self.nodes} | {(peer, old.id) for peer in self.nodes}
        self.network.cut_for(lone, DEPOSED_S)
        self._await_successor(old, lone, self.time + DEPOSED_S)

    def _await_successor(self, old: Node | JsPeer, lone: set[tuple[str, str]], until: float) -> None:
        new = self.leader()
        if new is None or self.time > until:
            return
        if new is old:
            self.schedule(self.time + LOOK_S, lambda: self._await_successor(old, lone, until))
            return
        voters = [node for node in self.ours.values() if node not in (old, new) and node.up]
        if voters:
            voter = self.rng.choice(voters)
            between = {(voter.id, old.id), (old.id, voter.id)}
            self.network.cuts -= between
            self.network.cut_for({(voter.id, new.id), (new.id, voter.id)}, DEPOSED_S)
            voter.crash()
            voter.disk.wipe()
            voter.start()

    def _wipe(self) -> None:
        """Take one voter's disk, or a part of it, while everybody else is sound: two losses at once are no promise."""
        if not self.ours:
            return  # the original has no way back
        victim = self.rng.choice(list(self.ours.values()))
        leader = self.leader()
        members = leader.final_members() if leader is not None else None
        if members is None or len(members) < 3:
            return  # without two other voters nobody is left who remembers
        if len(self.initial) < 3 and self.scenario.bootstrap == "seed":
            return  # a seed list of one says that there is nobody to ask
        if self.administrator.wanted is not None or not self._all_sound():
            return  # a change could need the very voter that was lost
        victim.crash()
        if self.rng.random() < 0.5 or not victim.disk.entries:
            victim.disk.wipe()
            victim.stage = Stage.READ_WRITE if victim.config.peers else Stage.READ_ONLY  # the token was on the disk
        else:
            victim.disk.damage(self.rng.randint(1, len(victim.disk.entries)))
            victim.damaged = True
        self.schedule(self.time + self.rng.uniform(0.01, 0.5), lambda: self._restart(victim))

    def _cut(self) -> None:
        side = {peer for peer in self.nodes if self.rng.random() < 0.5}
        cuts = {(a, b) for a in self.nodes for b in self.nodes if (a in side) != (b in side)}
        self.network.cut_for(cuts, self.rng.uniform(0.2, 1.2))

    def _cut_one_way(self) -> None:
        a, b = self.rng.sample(list(self.nodes), 2) if len(self.nodes) > 1 else (*self.nodes, *self.nodes)
        self.network.cut_for({(a, b)}, self.rng.uniform(0.2, 1.5))

    def _isolate_leader(self) -> None:
        leader = self.leader()
        if leader is not None:
            cuts = {(leader.id, peer) for peer in self.nodes} | {(peer, leader.id) for peer in self.nodes}
            self.network.cut_for(cuts, self.rng.uniform(0.3, 1.5))

    def _break_connections(self) -> None:
        for node in self.nodes.values():
            for to in list(node.sockets):
                if node.up and self.rng.random() < 0.3:
                    self._disconnect(node, to)

    def _half_open(self) -> None:
        """Let connections go on without carrying anything; nobody is told."""
        share = self.rng.choice([0.3, 1.0])
        for node in self.nodes.values():
            for connection in node.sockets.values():
                if self.rng.random() < share:
                    connection.silent = True
                    if isinstance(node, JsPeer):  # no code of ours: somebody else helps it
                        self.schedule(self.time + self.rng.uniform(0.2, 1.5), partial(self.end, connection))

    def end(self, connection: Connection) -> None:
        """End a connection where it was opened, if it is still used there: the system there gives it up."""
        node = self.nodes.get(connection.source)
        for to, used in list(node.sockets.items()) if node is not None else ():
            if used is connection and node is not None:
                self._disconnect(node, to)

    def _change_weather(self) -> None:
        rng = self.rng
        self.network.weather = rng.choice(
            [
                Weather(),
                Weather(loss=rng.uniform(0.0, 0.2)),
                Weather(late=rng.uniform(0.0, 0.3)),
                Weather(very_late=rng.uniform(0.0, 0.05), duplicate=0.05),
                Weather(loss=0.05, late=0.1, duplicate=rng.uniform(0.0, 0.3)),
                Weather(late=0.3, queue=rng.randint(1, 4)),
            ]
        )

    def _stall(self) -> None:
        node = self._any()
        node.inputs.stop(self.time + self.rng.uniform(0.1, 1.2))

    def _slow_disk(self) -> None:
        node = self._any()
        node.slow_disk = not node.slow_disk

    def _failing_disk(self) -> None:
        """Let every fsync of a node fail: one of them, or all for a while, as on a full disk."""
        self._any().disk_fails_until = self.time + self.rng.choice([0.02, self.rng.uniform(0.1, 1.0)])

    def _jump_clock(self) -> None:
        node = self._any()
        node.wall_offset_s = self.rng.choice([0, 0, CLOCK_JUMP_S, -CLOCK_JUMP_S, 60])


def scenario_of(seed: int) -> Scenario:
    """Choose what a seed plays."""
    rng = random.Random(seed ^ 0x5EED)
    kind = rng.randrange(10)
    if kind < 4:
        voters, learners = rng.choice([1, 3, 3, 3, 5]), rng.choice([0, 0, 1])
        originals = min(rng.choice([0, 1, 1, 2, 2, 3]), voters - 1)
        if originals and rng.random() < 0.3:
            joining = rng.choice([0, 1, 1, 2])
            return Scenario(voters, rng.choice([2, 3]), originals, originals_joining=joining, changes=True)
        return Scenario(voters, learners, originals)
    if kind < 7:
        return Scenario(voters=3, learners=3, promotion=True, bootstrap=rng.choice(["seed", "entry"]))
    if kind == 7:
        return Scenario(voters=1, learners=1, promotion=True, bootstrap="entry")
    return Scenario(voters=rng.choice([1, 3]), learners=rng.choice([2, 3]), changes=True)


def play(seed: int, scenario: Scenario | None = None) -> World:
    """Play one seed and return the world as it was at the end; whatever goes wrong is told with the seed."""
    world: World | None = None
    with replayable(seed, lambda: 0.0 if world is None else world.time):
        world = World(seed, scenario if scenario is not None else scenario_of(seed))
        with patch.object(snapshots, "PAUSE_S", SNAPSHOT_PAUSE_S):
            world.perform()
        holds(bool(world.checks.committed), "S13", "nothing was ever committed")
    return world

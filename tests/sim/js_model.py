"""A peer as npm zmq-raft is one: a model of what docs/specs/raft.md 1.2-1.4, 3.1, 7.3 and 10.2 mark [O] or [R].

It shares the wire codec with our core and nothing else. What makes it another neighbour than one of ours: one request
outstanding per peer, truncation at every success, no rollback of configurations, no check of its quorum, reads without
barrier, ids debounced, everything of ``pv.`` ignored, and an end at the first message that it does not bear. Whatever
of that one of ours provokes breaks S7.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pavane.raft.core.outputs import PeerChannel
from pavane.raft.errors import DropReason
from pavane.raft.state.commands import Append, Truncate
from pavane.raft.state.configuration import Configuration, Members
from pavane.raft.state.roles import Role
from pavane.raft.wire.decoder import Drop, Reply, decode_request
from pavane.raft.wire.entry import CHECKPOINT_DATA, ZERO_REQID, EntryType, encode_entry, entry_reqid, entry_term
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    EntriesStatus,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestUpdateReply,
    RequestVoteReply,
    UpdateStatus,
)
from pavane.raft.wire.requests import (
    AppendEntries,
    ConfigUpdate,
    InstallSnapshot,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    RequestUpdate,
    RequestVote,
)
from pavane.wire import Stage
from tests.sim.checks import Mirror
from tests.sim.clients import IDENT
from tests.sim.disk import Disk
from tests.sim.js_installing import JsInstalling
from tests.sim.js_link import Answer, Debounce, Rpc
from tests.sim.js_members import JsMembers
from tests.sim.kit.inputs import Inputs
from tests.sim.kit.network import Connection, Frames
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.world import World


ELECTION_S = (0.2, 0.3)
START_GRACE_S = 0.3
VOTE_REPEAT_S = 0.05
HEARTBEAT_S = 0.07
EMPTY_REPEAT_S = 0.07
ENTRIES_REPEAT_S = 0.14
BATCH_BYTES = 64 * 1024
READ_ENTRIES = 64  # of one message for a reader
FRESH_S = (8 * 3600 - 900, 900)  # how old, and how far in the future, the time of a request id may be
USUAL_FSYNC_S = (0.0005, 0.005)
SLOW_FSYNC_S = (0.02, 0.25)


class JsPeer:
    """A member of the original kind, with the disk, the process and the sockets that the world knows of a node."""

    def __init__(self, world: "World", peer: str, url: str, members: Members) -> None:
        self.world = world
        self.id = peer
        self.url = url
        self.stage = Stage.READ_WRITE
        self.disk = Disk()
        self.up = False
        self.inputs = Inputs(world.schedule, lambda: world.time)
        self.wall_offset_s = 0
        self.slow_disk = False
        self.disk_fails_until = 0.0
        self.incarnation = 0
        self.mirror = Mirror()
        self.sockets: dict[PeerChannel, Connection] = {}
        self.members = JsMembers(self, members)
        self.applied_kept = 0
        self.read = 0  # entries that it has read, which no leader counts

    @property
    def configuration(self) -> Configuration:
        """The members that it believes in."""
        return self.members.configuration

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        disk = self.disk
        self.up = True
        self.incarnation += 1
        self.members.start()
        if not self.configuration.names(self.id):
            self._read_log()
        self.term, self.vote = disk.term, disk.vote
        self.role = Role.FOLLOWER if self.configuration.names(self.id) else Role.LEARNER
        self.leader: str | None = None
        self.commit = min(self.applied_kept, len(disk.entries))
        self.mirror = Mirror(list(disk.entries), [], 0, 0, self.term)
        self.sockets = {}
        self.rpcs = {peer: Rpc(self, peer, url) for peer, url in self._others()}
        self.debounce = Debounce(self.world.network.answer)
        self.installing = JsInstalling(self)
        self.voted: set[str] = set()
        self.granted: set[str] = set()
        self.next: dict[str, int] = {}
        self.match: dict[str, int] = {}
        self.idle: dict[str, int] = {}  # followers with a heartbeat to come, and its number
        self.beats = 0
        self.requests: dict[bytes, tuple[bytes, int | None]] = {}
        self._writing: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        self._syncing = False
        self._paused = 0
        self._inbox: deque[tuple[bytes, Frames]] = deque()
        self._election = 0
        self.arm(START_GRACE_S)

    def _read_log(self) -> None:
        """Take over what is committed, as one that is no member does before it serves; its term follows the log."""
        committed, disk = self.world.checks.committed, self.disk
        if len(committed) > len(disk.entries):
            disk.entries = list(committed)
            self.read = len(committed)
            disk.term = max(disk.term, entry_term(committed[-1]))
        self.members.read(disk.entries)

    def crash(self) -> None:
        """Lose what was not written, but for a prefix that happened to arrive."""
        self.up = False
        self.inputs.clear()
        for _ in range(self.world.rng.randint(0, len(self._writing))):
            self._writing.popleft()[0]()
        for connection in self.sockets.values():
            self.world.network.close(connection)
        self.world.node_gone(self.id)

    def disconnected(self, to: PeerChannel) -> None:
        """Take no notice: sockets connect again by themselves, and what is outstanding is repeated in its time."""

    def describe(self) -> str:
        return f"{self.id} (original): {self.role.title} in {self.term}, commit {self.commit}, last {self._end()[0]}"

    def final_members(self) -> Members | None:
        """The members that it believes in, if the change to them is over."""
        return None if self.configuration.transitional else self.configuration.new

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something later, unless the process has ended; later still if it is stopped then."""
        incarnation = self.incarnation

        def due() -> None:
            if self.up and self.incarnation == incarnation:
                self.inputs.give(what)

        self.world.schedule(self.world.time + seconds, due)

    def write(self, change: Callable[[], None], then: Callable[[], None]) -> None:
        """Change the disk in the order of the calls; ``then`` comes when the change is safe."""
        self._writing.append((change, then))
        self._sync()

    def _sync(self) -> None:
        def synced() -> None:
            if self.world.time < self.disk_fails_until:
                self.world.ended(self)
                return
            change, then = self._writing.popleft()
            self._syncing = False
            change()
            self._sync()
            then()

        if self._syncing or not self._writing:
            return
        self._syncing = True
        self.after(self.world.rng.uniform(*(SLOW_FSYNC_S if self.slow_disk else USUAL_FSYNC_S)), synced)

    def _others(self) -> Members:
        return tuple((peer, url) for peer, url in self.configuration.members if peer != self.id)

    def _majority(self, peers: set[str]) -> bool:
        return all(2 * len(group & peers) > len(group) for group in self.configuration.groups)

    # --- role ----------------------------------------------------------------------------------------------------

    def become(self, role: Role, term: int, vote: str, then: Callable[[], None]) -> None:
        """Take a role, a term and a vote; ``then`` comes when term and vote are on the disk."""
        if self.role in {Role.CANDIDATE, Role.LEADER}:
            for rpc in self.rpcs.values():
                rpc.reset()
            self.idle.clear()
            for reqid, (route, _) in self.requests.items():
                self.reply(route, reqid, RequestUpdateReply(UpdateStatus.NOT_LEADER, leader=self.leader))
            self.requests.clear()
            self.members.deposed()
        self.role = role if role != Role.FOLLOWER or self.configuration.names(self.id) else Role.LEARNER
        if (term, vote) == (self.term, self.vote):
            if self._writing:  # the same vote asked for twice is told when it is safe, too
                self.write(lambda: None, then)
            else:
                then()
            return
        self.term, self.vote = term, vote

        def keep() -> None:
            self.disk.term, self.disk.vote = term, vote

        self.write(keep, then)

    def arm(self, grace_s: float = 0.0) -> None:
        self._election += 1
        number = self._election
        if self.role in {Role.FOLLOWER, Role.CANDIDATE}:
            seconds = grace_s + self.world.rng.uniform(*ELECTION_S)
            self.after(seconds, lambda: self._stand() if self._election == number else None)

    def disarm(self) -> None:
        self._election += 1

    def _alone(self) -> bool:
        """Whether it stands and no majority has answered: then it keeps its term, whatever it is told."""
        return self.role == Role.CANDIDATE and not self._majority(self.voted)

    def _stand(self) -> None:
        if self._alone():
            self.arm()
            return
        self.pause()
        self.leader = None
        self.voted, self.granted = {self.id}, {self.id}
        self.become(Role.CANDIDATE, self.term + 1, self.id, self._ask_for_votes)

    def _ask_for_votes(self) -> None:
        term = self.term
        if self.role == Role.CANDIDATE:
            last, last_term = self._end()
            for peer, rpc in self.rpcs.items():
                answer = self._vote_of(peer, term)
                rpc.ask(RequestVote(self.id, term, last, last_term), RequestVoteReply, answer, VOTE_REPEAT_S)
            self.arm()
        self.resume()

    def _vote_of(self, peer: str, asked: int) -> Answer:
        def answered(reply: RequestVoteReply) -> None:
            if reply.term > self.term:
                self.voted.add(peer)
                if not self._alone():
                    self.fall_back(reply.term)
            elif self.term == asked and self.role == Role.CANDIDATE:
                self.voted.add(peer)
                if reply.granted:
                    self.granted.add(peer)
                if self._majority(self.granted):
                    self._lead()

        return answered

    def fall_back(self, term: int) -> None:
        """Follow, in this term."""
        self.leader = None
        self.become(Role.FOLLOWER, term, "", lambda: None)
        self.arm()

    def _end(self) -> tuple[int, int]:
        entries = self.disk.entries
        return len(entries), entry_term(entries[-1]) if entries else 0

    def _term_at(self, index: int) -> int | None:
        if index == 0:
            return 0
        return entry_term(self.disk.entries[index - 1]) if index <= len(self.disk.entries) else None

    # --- leader --------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        self.disarm()
        self.become(Role.LEADER, self.term, self.vote, lambda: None)
        self.world.checks.led(self.id, self.mirror, self.term)
        last, last_term = self._end()
        self.next = {peer: last + 1 for peer in self.rpcs}
        self.match = dict.fromkeys(self.rpcs, 0)
        for peer in self.rpcs:
            self._send(peer, many=False)
        if last_term != self.term and self.commit < last:
            self.append(ZERO_REQID, EntryType.CHECKPOINT, CHECKPOINT_DATA, lambda _: None)

    def append(self, reqid: bytes, kind: EntryType, data: bytes, then: Callable[[int], None]) -> None:
        """Write an entry of this term; only when it is safe is it sent to anybody."""
        term = self.term
        entry = encode_entry(reqid, kind, term, data)

        def write() -> None:
            self._extend(len(self.disk.entries), [entry])
            if kind == EntryType.CONFIG:
                self.members.written(len(self.disk.entries), data)

        def written() -> None:
            if self.role == Role.LEADER and self.term == term:
                then(len(self.disk.entries))
                for peer in list(self.idle):
                    self._send(peer, many=True)

        self.write(write, written)

    def _send(self, peer: str, *, many: bool) -> None:
        """Send the entries behind ``next``: as many as fit after a success, one while the match is searched."""
        self.idle.pop(peer, None)
        rpc = self.rpcs.get(peer)
        if self.role != Role.LEADER or rpc is None:
            return
        previous = self.next[peer] - 1
        entries: list[bytes] = []
        size = 0
        for entry in self.disk.entries[previous:]:
            size += len(entry)
            if entries and (size > BATCH_BYTES or not many):
                break
            entries.append(entry)
        previous_term = self._term_at(previous)
        assert previous_term is not None
        message = AppendEntries(self.id, self.term, previous, previous_term, self.commit, tuple(entries))
        answer = self._progress_of(peer, message)
        rpc.ask(message, AppendEntriesReply, answer, ENTRIES_REPEAT_S if entries else EMPTY_REPEAT_S)

    def _progress_of(self, peer: str, message: AppendEntries) -> Answer:
        def answered(reply: AppendEntriesReply) -> None:
            if reply.term > self.term:
                self.fall_back(reply.term)
                return
            if self.term != message.term or self.role != Role.LEADER:
                return
            if reply.success:
                last = message.previous_index + len(message.entries)
                self.match[peer] = last
                self.next[peer] = last + 1
                self._count(last)
            else:
                hint = reply.conflict_index
                back = message.previous_index
                self.next[peer] = max(1, hint if hint is not None and hint < back else back)
            if self.role == Role.LEADER:
                self._go_on(peer, reply.success)

        return answered

    def _go_on(self, peer: str, success: bool) -> None:
        if len(self.disk.entries) >= self.next[peer]:
            self._send(peer, many=success)
            return
        self.beats += 1
        self.idle[peer] = number = self.beats
        self.after(HEARTBEAT_S, lambda: self._send(peer, many=success) if self.idle.get(peer) == number else None)

    def _count(self, last: int) -> None:
        """Commit what a majority has, if it is of this term."""
        if last <= self.commit or self._term_at(last) != self.term:
            return
        have = {peer for peer, match in self.match.items() if match >= last}
        if not self._majority(have | {self.id}):
            return
        self._advance(last)
        self.members.committed()

    def reconfigured(self) -> None:
        """Have a socket toward everybody else, and nobody beside."""
        members = dict(self._others())
        for peer in [peer for peer in self.rpcs if peer not in members]:
            self.rpcs.pop(peer).close()
            self.idle.pop(peer, None)
            self.match.pop(peer, None)
        for peer, url in members.items():
            if peer not in self.rpcs:
                self.rpcs[peer] = Rpc(self, peer, url)
                if self.role == Role.LEADER:
                    self.next[peer], self.match[peer], self.idle[peer] = len(self.disk.entries) + 1, 0, 0

    # --- inputs --------------------------------------------------------------------------------------------------

    def receive(self, route: bytes, frames: Frames) -> None:
        self.after(0.0, lambda: self._receive(route, frames))

    def pause(self) -> None:
        self._paused += 1

    def resume(self) -> None:
        """Read on: what came meanwhile has waited in the socket."""
        self._paused -= 1
        while self._inbox and not self._paused and self.up:
            self._receive(*self._inbox.popleft())

    def _receive(self, route: bytes, frames: Frames) -> None:
        if self._paused:
            self._inbox.append((route, frames))
            return
        message = decode_request(frames, IDENT)
        if isinstance(message, Drop):
            holds(message.reason == DropReason.TYPE, "S7", f"{self.id} ends at a message: {message.reason}")
            return
        request_id = bytes(frames[0])
        match message:
            case RequestVote():
                self._judge(route, request_id, message)
            case AppendEntries():
                self._follow(route, request_id, message)
            case InstallSnapshot():
                self.installing.take(route, request_id, message)
            case RequestUpdate(data):
                self._update(route, request_id, bytes(data))
            case ConfigUpdate():
                self.members.ask(route, request_id, message)
            case RequestEntries(previous):
                self._read(route, request_id, previous)
            case RequestConfig():
                members = self.configuration.members
                self.reply(route, request_id, RequestConfigReply(self.role == Role.LEADER, self._known(), members))
            case RequestLogInfo():
                self.reply(route, request_id, self._log_info())
            case _:
                pass  # the state machine of the original is silent on what it does not know

    def _known(self) -> str | None:
        return self.id if self.role == Role.LEADER else self.leader

    def _log_info(self) -> RequestLogInfoReply:
        leads, last, commit = self.role == Role.LEADER, len(self.disk.entries), self.commit
        return RequestLogInfoReply(leads, self._known(), self.term, 1, commit, commit, last, 0, commit)

    def reply(self, route: bytes, request_id: bytes, reply: Reply) -> Frames:
        """Answer, and return what was answered."""
        frames = (request_id, *reply.encode())
        self.world.network.answer(route, frames)
        return frames

    def _judge(self, route: bytes, request_id: bytes, message: RequestVote) -> None:
        asker, term = message.candidate, message.term
        if not self.configuration.names(asker):
            return
        if term < self.term or self._alone():
            self.reply(route, request_id, RequestVoteReply(self.term, False))
            return
        last, last_term = self._end()
        free = self.vote in {"", asker} or term > self.term
        granted = free and (message.last_term, message.last_index) >= (last_term, last)
        if not granted and term == self.term:
            self.reply(route, request_id, RequestVoteReply(term, False))
            return
        self.leader = None
        reply = RequestVoteReply(term, granted)
        self.become(Role.FOLLOWER, term, asker if granted else "", lambda: self._told(route, request_id, reply))
        self.arm()

    def _told(self, route: bytes, request_id: bytes, reply: Reply) -> None:
        self.reply(route, request_id, reply)

    # --- follower ------------------------------------------------------------------------------------------------

    def _follow(self, route: bytes, request_id: bytes, message: AppendEntries) -> None:
        leader = message.leader
        if not self.configuration.names(leader):
            return
        if self.debounce.repeated(leader, route, request_id):
            return

        def reply(success: bool, hint: int | None = None) -> None:
            frames = self.reply(route, request_id, AppendEntriesReply(self.term, success, hint))
            self.debounce.answered(leader, route, request_id, frames)

        if message.term < self.term:
            reply(False)
            return
        self.disarm()
        self.pause()
        self.leader = leader
        previous = message.previous_index
        if previous < self.commit:
            self._exit(message)
            return
        fits = self._term_at(previous) == message.previous_term
        if fits:
            self.members.follow(message)
        vote = self.vote if message.term == self.term else ""

        def on() -> None:
            if not fits:
                last = len(self.disk.entries)
                reply(False, last + 1 if last < previous else None)
                self.arm()
                self.resume()
                return
            self.write(write, done)

        def write() -> None:
            self._check_truncation(message)
            self._extend(previous, [bytes(entry) for entry in message.entries])
            self.members.truncated(self.disk.entries)

        def done() -> None:
            self._advance(min(message.commit_index, len(self.disk.entries)))
            reply(True)
            self.arm()
            self.resume()

        self.become(Role.FOLLOWER, message.term, vote, on)

    def _exit(self, message: AppendEntries) -> None:
        """A prev below its commit index is more than it bears: one of ours never sends one."""
        previous, ours = message.previous_index, message.leader not in self.world.js.names
        holds(not ours, "S7", f"{self.id} ends: {message.leader} sends prev {previous}, it committed {self.commit}")
        self.world.ended(self)

    def _check_truncation(self, message: AppendEntries) -> None:
        world, last = self.world, message.previous_index + len(message.entries)
        leader = world.nodes[message.leader]
        leads = leader.up and leader.role == Role.LEADER and leader.term == message.term
        if leads and message.leader not in world.js.names:
            kept = max(last, self.read)
            world.js.truncated(self.id, kept, self.disk.entries[kept:], leader.mirror.entries)
        self.read = min(self.read, last)

    # --- log -----------------------------------------------------------------------------------------------------

    def _extend(self, previous: int, entries: list[bytes]) -> None:
        """Truncate to ``previous`` whatever lies there, and append: on the disk and in the mirror at once."""
        checks = self.world.checks
        checks.stored(self.id, self.mirror, Truncate(0, previous))
        checks.stored(self.id, self.mirror, Append(0, previous + 1, tuple(entries)))
        self.disk.entries = list(self.mirror.entries)

    def _advance(self, commit: int) -> None:
        """Commit and apply; the applied index is kept on the disk a little later."""
        if commit <= self.commit:
            return
        self.commit = commit
        leads = self.role == Role.LEADER
        self.world.checks.advanced(self.id, self.mirror, commit, commit, self.term, leads=leads)

        def keep() -> None:
            self.applied_kept = commit

        self.write(keep, lambda: None)
        for reqid, (route, index) in list(self.requests.items()):
            if index is not None and index <= commit:
                del self.requests[reqid]
                self.reply(route, reqid, RequestUpdateReply(UpdateStatus.DONE, index))

    # --- clients -------------------------------------------------------------------------------------------------

    def _update(self, route: bytes, reqid: bytes, data: bytes) -> None:
        if self.role != Role.LEADER:
            self.reply(route, reqid, RequestUpdateReply(UpdateStatus.NOT_LEADER, leader=self.leader))
            return
        if reqid in self.requests:
            self.reply(route, reqid, RequestUpdateReply(UpdateStatus.ACCEPTED))
            return
        index = next((at for at, entry in enumerate(self.disk.entries, 1) if entry_reqid(entry) == reqid), None)
        if index is not None and index <= self.commit:
            self.reply(route, reqid, RequestUpdateReply(UpdateStatus.DONE, index))
            return
        if index is None and not self.fresh(reqid):
            self.reply(route, reqid, RequestUpdateReply(UpdateStatus.EXPIRED))
            return
        self.requests[reqid] = (route, index)
        self.reply(route, reqid, RequestUpdateReply(UpdateStatus.ACCEPTED))
        if index is None:

            def appended(index: int) -> None:
                self.requests[reqid] = (route, index)

            self.append(reqid, EntryType.STATE, data, appended)

    def fresh(self, reqid: bytes) -> bool:
        """Whether the time of a request id is within its window."""
        now = self.world.wall_s + self.world.time + self.wall_offset_s
        past, future = FRESH_S
        return now - past <= int.from_bytes(reqid[:4], "big") <= now + future

    def _read(self, route: bytes, request_id: bytes, previous: int) -> None:
        """Answer from the own state, which an isolated leader has for as long as it likes."""
        if self.role != Role.LEADER:
            reply = RequestEntriesReply(EntriesStatus.NOT_LEADER, leader=self.leader)
        elif previous >= self.commit:
            reply = RequestEntriesReply(EntriesStatus.LAST, self.commit)
        else:
            last = min(self.commit, previous + READ_ENTRIES)
            status = EntriesStatus.LAST if last == self.commit else EntriesStatus.MORE
            reply = RequestEntriesReply(status, last, tuple(self.disk.entries[previous:last]))
        self.reply(route, request_id, reply)

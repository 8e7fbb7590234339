"""A voter that lost its disk or found rot: silent until what it forgot can do no harm (docs/specs/raft.md 5.5)."""

from collections.abc import Sequence
from enum import Enum

from pavane.raft.config import LostVoter
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, PeerChannel, RecoveringChanged
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.state.commands import RECOVERING_FLOOR
from pavane.raft.state.configuration import Configuration, Members
from pavane.raft.state.quorum import has_majority
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import entry_data, is_configuration
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.replies import RequestConfigReply, RequestLogInfoReply
from pavane.raft.wire.requests import RequestConfig, RequestLogInfo
from pavane.raft.wire.snapshot import SnapshotMeta

TERMS_MAX = 64  # peers whose term is remembered; a joint configuration has at most 18 members
FRESH_S = 0.3  # how long an empty member asks before it may believe that the whole cluster is new


class _Phase(Enum):
    SOUND = "sound"
    UNPLACED = "unplaced"  # empty and without a configuration: a leader's ``^`` decides if it was a member
    UNDECIDED = "undecided"  # an empty member: new, or wiped?
    SILENT = "silent"  # before (a): appends and acknowledges nothing
    ANSWERING = "answering"  # after (a): acknowledges, does not vote


class Recovering:
    """Decides whether an empty member is new or wiped, and leads a wiped or damaged one back to voting."""

    def __init__(self, node: Node, requests: Requests) -> None:
        self._node = node
        self._requests = requests
        self._by_change = node.config.lost_voter == LostVoter.BY_CHANGE
        self._phase = _Phase.SILENT if node.recovering else _Phase.SOUND
        self._poll_at = node.now.mono
        self._decide_at = node.now.mono
        self._harmless_last = 0  # the last index that a member of a new cluster may have
        self._answered: set[str] = set()
        self._terms: dict[str, int] = {}
        self._voters: Members = ()  # as the present leader named them
        self._floor = 0
        self._goal: int | None = None
        self._told: tuple[int, int] | None = None  # term and last index of a leader, as it told this process
        self._cleansed = False  # a configuration without us was committed after the loss
        self._history = 0  # entries up to here were written before we joined
        self._asks: list[Ask] = []
        if node.recovering and node.vote_floor != RECOVERING_FLOOR:
            self._forget_votes()

    @property
    def undecided(self) -> bool:
        """Whether it is still open if this store is new or was wiped: neither vote nor answer."""
        return self._phase in (_Phase.UNPLACED, _Phase.UNDECIDED)

    @property
    def silent(self) -> bool:
        """Whether AppendEntries must not be answered."""
        return self.undecided or (self._phase == _Phase.SILENT and not self._cleansed)

    def begin(self) -> None:
        """Ask whether the cluster is new, if this store holds neither entry nor vote (but perhaps the bootstrap)."""
        node = self._node
        untouched = node.term == 0 and not node.vote and node.log.last_term == 0 and node.log.last <= 1
        if node.role == Role.FOLLOWER and untouched:
            self._phase = _Phase.UNDECIDED
            self._harmless_last = node.log.last
            self._decide_at = node.now.mono + FRESH_S
            self._poll_at = node.now.mono
        elif node.role == Role.LEARNER and untouched:
            self._phase = _Phase.UNPLACED

    @property
    def unplaced(self) -> bool:
        """Whether a leader still has to tell if this empty store belonged to a member."""
        return self._phase == _Phase.UNPLACED

    def placed(self, history: int) -> None:
        """The leader, whose log ends at ``history``, does not name us: now we are new, or were removed before."""
        if self._phase == _Phase.UNPLACED:
            self._phase = _Phase.SOUND
            self._history = history

    def judge_history(self, previous: int, entries: Sequence[Frame]) -> None:
        """Turn Recovering before storing an entry of the past that names us: we were a voter once and forgot it.

        Without this a removed voter that was wiped would, on its way through the log, believe in a configuration that
        is long gone, and its second vote could elect a leader beside the present one.
        """
        if self._node.role != Role.LEARNER:
            return
        for index, entry in enumerate(entries[: max(0, self._history - previous)], previous + 1):
            past = index > self._node.log.last and is_configuration(entry)
            if past and Configuration.decode(entry_data(entry)).names(self._node.id):
                self.lost()
                return

    def judge_snapshot(self, meta: SnapshotMeta) -> None:
        """Do the same for a snapshot, whose configuration is all that it tells of the past."""
        past = self._node.role == Role.LEARNER and meta.configuration_index <= self._history
        if past and meta.configuration and Configuration.decode(meta.configuration).names(self._node.id):
            self.lost()

    def heal_alone(self) -> None:
        """Allow the way back by proof, whatever was set: a bootstrap cannot tell a late pod from a wiped one."""
        self._by_change = False

    def lost(self) -> None:
        """Turn Recovering: the store is not what the cluster was promised."""
        self._node.recovering = True
        self._phase = _Phase.SILENT
        self._poll_at = self._node.now.mono
        self._forget_votes()
        self._node.rest("lost")

    def leader_told(self, term: int, last: int) -> None:
        """Take a leader's last index, seen after a loss, for what was lost was lost before this process began.

        That of a later term replaces it: a leader that was cut off may know less than was committed before the loss.
        """
        if self._told is None or term > self._told[0]:
            self._told = (term, last)

    def heard(self, peer: str, term: int, last: int = 0) -> None:
        """Learn a term, and perhaps a last index, from any message of a peer."""
        if self._phase == _Phase.SOUND:
            return
        if peer in self._terms or len(self._terms) < TERMS_MAX:
            self._terms[peer] = max(term, self._terms.get(peer, 0))
        if self._phase == _Phase.UNDECIDED and last > self._harmless_last:
            self.lost()

    def next_timer(self) -> float | None:
        """Return when the next poll is due."""
        return self._poll_at if self._phase not in (_Phase.SOUND, _Phase.UNPLACED) else None

    def timer(self) -> None:
        """Ask again, and judge what is known."""
        if self._phase in (_Phase.SOUND, _Phase.UNPLACED) or self._poll_at > self._node.now.mono:
            return
        self._poll_at = self._node.now.mono + self._node.config.rpc_timeout_s
        self._drop_asks()
        members = (*self._node.configurations.effective.members, *self._voters)
        for peer, url in dict(members).items():
            if peer != self._node.id:
                self._poll(PeerChannel(Channel.SIDE, peer, url))
        if self._phase == _Phase.SILENT and not self._voters:
            for url in self._node.config.seeds:
                self._poll(PeerChannel(Channel.SEED, url, url))
        self.progress()

    def progress(self) -> None:
        """Take the next step if what it needs is there. Called after anything that may have brought it."""
        if self._phase == _Phase.UNDECIDED:
            voters = {*self._answered, self._node.id}
            if self._node.now.mono >= self._decide_at and has_majority(self._node.configurations.effective, voters):
                self._become_sound()
            return
        if self._phase in (_Phase.SOUND, _Phase.UNPLACED) or self._heal_by_change() or self._by_change:
            return
        if self._phase == _Phase.SILENT:
            self._start_answering()
        elif self._goal is not None and min(self._node.durable, self._node.verified) >= self._goal:
            self._heal(self._floor)

    def _forget_votes(self) -> None:
        self._node.vote_floor = RECOVERING_FLOOR
        self._node.persist()
        self._node.event(RecoveringChanged("lost", RECOVERING_FLOOR))

    def _poll(self, to: PeerChannel) -> None:
        poll = self._requests.poll()
        self._asks.append(self._requests.ask(to, RequestLogInfo(poll), RequestLogInfoReply, self._log_info))
        if self._phase == _Phase.SILENT:
            self._asks.append(self._requests.ask(to, RequestConfig(poll), RequestConfigReply, self._configuration))

    def _drop_asks(self) -> None:
        for ask in self._asks:
            self._requests.cancel(ask)
        self._asks.clear()

    def _log_info(self, ask: Ask, reply: RequestLogInfoReply) -> None:
        self._answered.add(ask.to.peer)
        self.heard(ask.to.peer, reply.term, reply.last_index)
        if reply.is_leader:
            self.leader_told(reply.term, reply.last_index)
        if reply.is_leader and self._phase == _Phase.ANSWERING and self._goal is None and reply.term >= self._floor:
            self._goal = reply.last_index
        self.progress()

    def _configuration(self, ask: Ask, reply: RequestConfigReply) -> None:
        if reply.is_leader:
            self._voters = reply.peers
        self.progress()

    def _start_answering(self) -> None:
        """(a): the term of every other voter is known, so no forgotten vote can be given a second time."""
        node = self._node
        named = {peer for peer, _ in (*self._voters, *node.configurations.effective.members)}
        others = named - {node.id}
        if not self._voters or not others or not others <= self._terms.keys():
            return  # where there are no others nobody can tell: 5.5 leaves that to the operator
        self._floor = max(node.term, *(self._terms[peer] for peer in others))
        self._phase = _Phase.ANSWERING
        self._goal = None
        self._drop_asks()
        if self._floor > node.term:
            node.raise_term(self._floor)
        node.event(RecoveringChanged("answering", self._floor))

    def _heal_by_change(self) -> bool:
        """By change: a configuration without us was committed after the loss, and a later one names us again."""
        node = self._node
        term, last = self._told or (-1, 0)
        if term >= max((node.term, *self._terms.values())) and node.commit >= last:
            index, committed = node.configurations.committed(node.commit)
            self._cleansed = self._cleansed or (index > 0 and not committed.names(node.id))
        if not self._cleansed or not node.configurations.effective.names(node.id):
            return False
        self._heal(node.term)
        return True

    def _heal(self, floor: int) -> None:
        node = self._node
        node.recovering = False
        node.vote_floor = floor
        node.persist()
        node.event(RecoveringChanged("healed", floor))
        self._become_sound()
        node.rest("healed", node.leader)

    def _become_sound(self) -> None:
        self._phase = _Phase.SOUND
        self._cleansed = False
        self._drop_asks()

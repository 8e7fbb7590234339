"""Following without a vote: finding the leader by ``^``, its entries by ``pv.follow`` or ``<`` (8.3, 8.6).

``<`` is for a leader of the original program, which tells its commit index by ``%`` alone and its snapshots bare.
Everything here is asked through ``SEED`` sockets, by url: a learner may know no PEER ID yet.
"""

from collections.abc import Callable, Sequence

from pavane.raft.core.fence import Fence
from pavane.raft.core.follower import Follower
from pavane.raft.core.installing import Chunk, Installing
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, FollowChanged, Fork, PeerChannel
from pavane.raft.core.programs import FEATURES, VERSION
from pavane.raft.core.recovering import Recovering
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.errors import Code, DropReason
from pavane.raft.state.configuration import Members, generation_of
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import check_configuration, decode_blob, entry_term
from pavane.raft.wire.frames import NONCE_BYTES, Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import (
    FEATURE_FOLLOW,
    FOLLOW_CHUNK,
    FOLLOW_ENTRIES,
    FOLLOW_NOT_LEADER,
    PvFollow,
    PvFollowReply,
    PvHello,
    PvHelloReply,
)
from pavane.raft.wire.replies import EntriesStatus, RequestConfigReply, RequestEntriesReply, RequestLogInfoReply
from pavane.raft.wire.requests import RequestConfig, RequestEntries, RequestLogInfo
from pavane.wire import RemoteProtocolError

SEARCH_S = 0.1  # between questions for the leader while it is unknown: a new pod waits for the answer
REFRESH_S = 1.0  # once it is known
TARGET_S = 0.25  # progress must be told anew every 500 ms
IDLE_S = 0.05  # before asking again at the end of the log
SILENCE_S = 1.0  # a stream without a message for so long has lost one
SEARCHED_ROLES = frozenset({Role.LEARNER, Role.REMOVED, Role.RECOVERING})
VOTING_ROLES = frozenset({Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE})
STREAMING_ROLES = SEARCHED_ROLES  # a removed one too: its generation may be wanted back (operator.md 2.7)


class Learner:
    """What a peer without a vote does to keep up, and what it knows of the cluster it is not part of."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        following: Follower,
        recovering: Recovering,
        installing: Installing,
        silence_s: Callable[[], float],
    ) -> None:
        """``silence_s`` is how long a leader that once sent AppendEntries may be silent."""
        self._node = node
        self._requests = requests
        self._follower = following
        self._recovering = recovering
        self._installing = installing
        self._silence_s = silence_s
        self.target = 0
        self._members: Members | None = None  # as the last peer that knew a leader named them
        self._leader_url: str | None = None
        self._features: int | None = None  # of the leader, if it is ours and has told
        self._nonce = b""
        self._named: bool | None = None  # by the present leader's configuration; ``None`` until it told
        self._leader_heard_at = 0.0
        self._search_at = node.now.mono
        self._target_at = node.now.mono
        self._stream_at = node.now.mono
        self._stream: Ask | None = None
        self._stream_heard_at = 0.0
        self._catching_up = False
        self._caught_up = False  # once is enough, until the role changes
        self._overlap = True  # the next stream begins one entry early, to compare it
        self._asked = 0
        self._asked_from = 0  # what a stream by ``<`` began behind
        self._asked_committed = False  # the entry named last, as it was asked; its place may hold another one since
        self._agreed = 0  # up to here the leader of the stream has the same log
        self._differs = False  # our last entry is not the leader's

    def fence(self) -> Fence:
        """Judge our right to take part from our log and from what the cluster's members say."""
        node = self._node
        if node.role == Role.RECOVERING:
            return Fence.LOST
        if self._members is not None and self._doubtful() and self._superseded_by(self._members):
            return Fence.SUPERSEDED
        if node.configurations.names_since(node.id, node.commit):
            return Fence.NAMED
        if self._members is None:
            return Fence.UNKNOWN
        if any(peer == node.id for peer, _ in self._members):
            return Fence.AWAY if node.log.last > 0 else Fence.LOST
        return Fence.SUPERSEDED if self._superseded_by(self._members) else Fence.AHEAD

    def _superseded_by(self, members: Members) -> bool:
        """Whether ``members`` hold a later generation and not us, by a configuration that is known committed."""
        node = self._node
        own = node.config.own_generation
        newer = own is not None and any((generation_of(peer) or 0) > own for peer, _ in members)
        known_committed = max(node.commit, self.target) >= node.configurations.index
        return newer and known_committed and all(peer != node.id for peer, _ in members)

    def _doubtful(self) -> bool:
        """Whether we vote although our last configuration does not name us, because its commit is not known here.

        After a restart that is every member of the configuration before (8.6); only the others can tell it.
        """
        node = self._node
        return node.role in VOTING_ROLES and not node.configurations.effective.names(node.id)

    def _searching(self) -> bool:
        return self._node.role in SEARCHED_ROLES or self._doubtful()

    def _streams(self) -> bool:
        """Whether nobody feeds us: nor one who restarts behind the configuration that left it out."""
        node = self._node
        left_out = self._members is not None and self._doubtful() and self._superseded_by(self._members)
        return node.role in STREAMING_ROLES or left_out

    def role_changed(self) -> None:
        """Begin anew, or stop."""
        self._end_stream()
        if self._catching_up:
            self._tell("ended")
        self._caught_up = False
        if self._searching():
            self._search_at = self._stream_at = self._target_at = self._node.now.mono
            self._overlap = True

    def connected(self, url: str) -> None:
        """A socket came up: what was sent through it before may have found no connection, so ask at once."""
        now = self._node.now.mono
        self._search_at = now
        if url == self._leader_url:
            self._end_stream()
            self._target_at = self._stream_at = now

    def next_timer(self) -> float | None:
        """Return when to ask again."""
        if not self._searching():
            return None
        times = [self._search_at]
        if self._leader_url is not None:
            times.append(self._target_at)
            if self._streams():
                times.append(self._stream_at if self._stream is None else self._stream_heard_at + SILENCE_S)
        return min(times)

    def timer(self) -> None:
        """Ask what is due."""
        node = self._node
        now = node.now.mono
        if not self._searching():
            return
        if self._leader_url is not None and now - self._leader_heard_at > SILENCE_S:
            self._lose_leader()
        if self._search_at <= now:
            self._search()
        if self._leader_url is None:
            return
        if self._target_at <= now:
            self._target_at = now + TARGET_S
            question = RequestLogInfo(self._requests.poll())
            self._requests.ask(self._to(self._leader_url), question, RequestLogInfoReply, self._log_info)
        if not self._streams():
            return
        if self._stream is not None and self._stream_heard_at + SILENCE_S <= now:
            self._end_stream()
        if self._stream is None and self._stream_at <= now:
            self._begin_stream(self._leader_url)

    # --- leader --------------------------------------------------------------------------------------------------

    def _search(self) -> None:
        node = self._node
        node_urls = [url for peer, url in node.configurations.effective.members if peer != node.id]
        known = [url for peer, url in self._members or () if peer != node.id]
        urls = list(dict.fromkeys((*node.config.seeds, *node_urls, *known)))
        if self._leader_url is not None:
            urls = [self._leader_url]
        self._search_at = node.now.mono + (SEARCH_S if self._leader_url is None else REFRESH_S)
        if self._leader_url is not None and self._features is None:
            self._greet(self._leader_url)
        if urls:
            url = urls[self._asked % len(urls)]
            self._asked += 1
            self._requests.ask(
                self._to(url), RequestConfig(self._requests.poll()), RequestConfigReply, self._configuration
            )

    def _configuration(self, ask: Ask, reply: RequestConfigReply) -> None:
        node = self._node
        if not self._searching():
            return
        url = ask.to.url if reply.is_leader else dict(reply.peers).get(reply.leader or "")
        if url is None or reply.leader == node.id:
            if ask.to.url == self._leader_url:
                self._lose_leader()
            return
        self._members = reply.peers
        if node.role in SEARCHED_ROLES:
            node.set_leader(reply.leader)
        if reply.is_leader:
            self._leader_heard_at = node.now.mono
            if node.role in SEARCHED_ROLES:
                self._judge_loss(reply)
        if url != self._leader_url:
            self._end_stream()
            self._leader_url = url
            self._leader_heard_at = node.now.mono
            self._search_at = self._target_at = self._stream_at = node.now.mono
            self._overlap = True
            self._features = None
            self._differs = False
            self._greet(url)

    def _greet(self, url: str) -> None:
        """Ask the leader whether it is ours; until it tells, ``<`` serves."""
        node = self._node
        self._nonce = node.rng.randbytes(NONCE_BYTES)
        hello = PvHello(node.id, node.term, self._nonce, {"v": VERSION, "feat": FEATURES})
        self._requests.ask(self._to(url), hello, PvHelloReply, self._greeted)

    def _greeted(self, ask: Ask, reply: PvHelloReply) -> None:
        features = reply.info.get("feat")
        if ask.to.url != self._leader_url or reply.nonce != self._nonce or not isinstance(features, int):
            return
        self._features = features
        if features & FEATURE_FOLLOW:
            self._end_stream()
            self._stream_at = self._node.now.mono

    def _judge_loss(self, reply: RequestConfigReply) -> None:
        """An empty store of a peer that the leader counts as a member was wiped (5.5)."""
        node = self._node
        named = any(peer == node.id for peer, _ in reply.peers)
        self._named = named
        if named and node.role == Role.LEARNER and node.log.last == 0:
            self._recovering.lost()

    def _lose_leader(self) -> None:
        self._end_stream()
        self._named = None
        self._leader_url = None
        self._features = None
        self._search_at = self._node.now.mono
        if self._node.role in SEARCHED_ROLES:
            self._node.set_leader(None)

    def _log_info(self, ask: Ask, reply: RequestLogInfoReply) -> None:
        if reply.is_leader and ask.to.url == self._leader_url:
            self._leader_heard_at = self._node.now.mono
            self.target = max(self.target, reply.commit_index)
            self._recovering.leader_told(reply.term, reply.last_index)
            if self._named is False:  # asked after the configuration, so nothing that named us lies beyond
                self._recovering.placed(reply.last_index)

    def _to(self, url: str) -> PeerChannel:
        return PeerChannel(Channel.SEED, url, url)

    # --- entries -------------------------------------------------------------------------------------------------

    def _fed(self) -> bool:
        """Whether a leader sends AppendEntries: then it feeds us, and a stream would only repeat it."""
        heard_at = self._follower.heard_at
        return heard_at is not None and self._node.now.mono - heard_at < self._silence_s()

    def _begin_stream(self, url: str) -> None:
        node = self._node
        if self._recovering.unplaced:
            self._stream_at = node.now.mono + IDLE_S
            return
        if self._fed():
            self._stream_at = node.now.mono + self._silence_s()
            return
        self._stream_heard_at = node.now.mono
        if not self._catching_up and not self._caught_up:
            self._tell("begun")
        if (self._features or 0) & FEATURE_FOLLOW:
            self._stream = self._requests.ask(
                self._to(url), self._follow_from(self._follow_behind()), PvFollowReply, self._followed, many=True
            )
            return
        previous = max(node.log.first - 1, node.commit - 1) if self._overlap else node.commit
        self._asked_from = previous
        self._stream = self._requests.ask(
            self._to(url), RequestEntries(previous), RequestEntriesReply, self._entries, many=True
        )

    def _follow_behind(self) -> int:
        """Return our last index: how much of our log is committed a restart forgets, but the leader compares it.

        If it has said that its log differs there, that is a tail which was never committed: the commit index.
        """
        self._agreed = self._node.commit if self._differs else self._node.log.last
        return self._agreed

    def _follow_from(self, index: int, offset: int | None = None) -> PvFollow:
        node = self._node
        self._asked_committed = index <= node.commit
        return PvFollow(node.id, node.term, index, node.log.term_at(index) or 0, offset)

    def _end_stream(self) -> None:
        self._requests.cancel(self._stream)
        self._stream = None

    def _followed(self, ask: Ask, reply: PvFollowReply) -> None:
        """Take a message of a leader of ours and acknowledge it."""
        node = self._node
        if ask is not self._stream:
            return
        self._stream_heard_at = self._leader_heard_at = node.now.mono
        if reply.kind == FOLLOW_NOT_LEADER:
            self._lose_leader()
            return
        if reply.kind == Code.FORK:
            if not self._asked_committed:
                self._differs = True  # a tail that was never committed
                self._end_stream()
                self._stream_at = node.now.mono
            else:
                node.halt(Fork(reply.index))
            return
        match reply.items:
            case [int() as commit, int() as term, int(), *part]:
                self.target = max(self.target, commit)
            case _:
                node.drop(DropReason.JSON)
                return
        answer = None if self._fed() else self._take_message(reply, commit, term, part)
        if answer is None:
            self._end_stream()
            self._stream_at = node.now.mono + IDLE_S
        elif not node.halted:
            self._judge_progress()
            self._requests.again(ask, answer)

    def _take_message(self, reply: PvFollowReply, commit: int, term: int, part: list[Value]) -> PvFollow | None:
        """Store what the message has; return the acknowledgement, ``None`` if it does not follow what is here."""
        if reply.kind == FOLLOW_ENTRIES:
            try:
                entries = decode_blob(reply.data)
            except RemoteProtocolError:
                return None
            previous = reply.index - len(entries)
            here = min(self._agreed, self._node.log.last)  # a leader may have cut off what was sent in this stream
            if previous > here or not self._take(previous, entries):
                return None
            self._agreed = max(self._agreed, reply.index)
            known = min(commit, reply.index)
            self._node.verified = max(self._node.verified, known)
            self._node.advance(known)
            return self._follow_from(reply.index)
        match part:
            case [int() as offset, int() as total] if reply.kind == FOLLOW_CHUNK:
                after = offset + len(reply.data)
                chunk = Chunk(reply.index, None, offset, total, reply.data, whole=True)
                if after > total or self._take_chunk(chunk) is not None:
                    return None
                if after == total:
                    self._agreed = reply.index
                return PvFollow(self._node.id, self._node.term, reply.index, term, after)
        return None

    def _take_chunk(self, chunk: Chunk) -> int | None:
        """Store a piece of a snapshot; return the offset that is wanted instead."""
        node = self._node
        if not self._installing.fits(chunk):
            node.drop(DropReason.SIZE)
            return 0
        wanted, _ = self._installing.take(chunk)
        snapshot = node.snapshot
        if snapshot is not None and snapshot.index == chunk.index and snapshot.index > node.commit:
            if snapshot.term > node.term:
                node.raise_term(snapshot.term)
            node.advance(snapshot.index)  # a leader has none but of what is committed
            self._overlap = False
            self._recovering.progress()
        return wanted

    def _entries(self, ask: Ask, reply: RequestEntriesReply) -> None:
        node = self._node
        if ask is not self._stream:
            return
        self._stream_heard_at = node.now.mono
        if reply.status == EntriesStatus.NOT_LEADER:
            self._lose_leader()
            return
        self._leader_heard_at = node.now.mono
        self.target = max(self.target, reply.index)
        if reply.status == EntriesStatus.SNAPSHOT and reply.part is not None and not self._fed():
            part = reply.part
            chunk = Chunk(
                reply.index, part.term, part.offset, part.total, reply.entries[0], whole=False, sender=ask.to.url
            )
            wanted = self._take_chunk(chunk)
            if wanted is None:
                self._requests.again(ask, RequestEntries(self._asked_from, None, part.offset + len(reply.entries[0])))
                return
            self._end_stream()
            self._stream_at = node.now.mono + IDLE_S
            return
        if self._fed() or not self._take(reply.index - len(reply.entries), reply.entries):
            self._end_stream()
            self._stream_at = node.now.mono + IDLE_S
            return
        if reply.status == EntriesStatus.MORE:
            self._requests.again(ask, RequestEntries(reply.index))
        else:
            self._judge_progress()
            self._end_stream()
            self._stream_at = node.now.mono + IDLE_S

    def _judge_progress(self) -> None:
        """The leader has told its commit index, and what it sent is stored."""
        if self._catching_up and self._node.commit >= self.target:
            self._caught_up = True
            self._tell("caught_up")

    def _tell(self, what: str) -> None:
        self._catching_up = what == "begun"
        self._node.event(FollowChanged(what, self._node.log.last))

    def _take(self, previous: int, entries: Sequence[Frame]) -> bool:
        """Store entries behind ``previous``, which are committed; false if they do not follow what we have."""
        node = self._node
        if not entries:
            return True
        last = previous + len(entries)
        if previous > node.log.last:
            return False
        try:
            for entry in entries:
                check_configuration(entry)
        except RemoteProtocolError:
            node.drop(DropReason.CONFIG)
            return False
        self._recovering.judge_history(previous, entries)
        if not node.merge(previous, entries):
            node.halt(Fork(node.commit))
            return False
        self._overlap = False
        greatest = entry_term(entries[-1])
        if greatest > node.term:
            node.raise_term(greatest)
        node.verified = max(node.verified, last)  # committed, so every later leader has it
        node.advance(last)
        self._recovering.progress()
        return True

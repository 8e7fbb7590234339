"""The leader's side: what every peer is sent, and what may be committed (docs/specs/raft.md 7.2-7.4, 6.5).

Peers of the original program truncate at every success and end at a prev below their commit index. Therefore one
AppendEntries is outstanding, a repetition has the same bytes, the match is approached from above, and the commit index
told is at most prev. A peer of ours tolerates everything: it is sent ``pv.append``, many at a time, once it has told on
the open connection that it takes them.
"""

import math
from typing import Protocol

from pavane.raft.core.inflight import Inflight, Sent
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, FollowerLostLog, PeerChannel, QuorumLost, SlowDisk
from pavane.raft.core.programs import Program, Programs
from pavane.raft.core.progress import Leaving, Probe, Progress, Replicate, SendSnapshot
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.core.tally import Batches
from pavane.raft.core.uploading import Uploading
from pavane.raft.state.quorum import has_majority, majority_value
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.pv import FEATURE_APPEND, FEATURE_SNAPSHOT, PvAppend, PvAppendReply
from pavane.raft.wire.replies import AppendEntriesReply, InstallSnapshotReply
from pavane.raft.wire.requests import AppendEntries
from pavane.wire import LocalProtocolError

BATCH_ENTRIES = 4096
COMMIT_NEWS_S = 0.01  # a commit index waits so long for entries that carry it to a peer of ours
SILENT_TIMEOUTS = 2  # append_timeout times this without an answer: ask a peer of ours anew how far it is
LAME_DUCK_S = 5.0  # how long a removed peer is told that it is out
QUORUM_TIMEOUTS = 2  # election_max times this without a majority: step down
SLOW_DISK_TIMEOUTS = 10  # election_max times this for one fsync: let somebody else lead (7.5)


class Leadership(Protocol):
    """What replication serves."""

    def depose(self, reason: str) -> None:
        """Step down."""

    def follower_answered(self) -> None:
        """A member confirmed more of the log, or our leadership."""

    def wanted_sequence(self) -> int:
        """Return the number after which the newest waiting read needs a message; -1 if none waits."""


class Replication:
    """Drives every other member, and peers just removed, toward the leader's log; empty unless we lead."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        programs: Programs,
        leadership: Leadership,
    ) -> None:
        self._node = node
        self._requests = requests
        self._programs = programs
        self._leadership = leadership
        self._uploading = Uploading(node, requests, self._chunk_reply)
        self.peers: dict[str, Progress] = {}
        self._quorum_at = math.inf  # when to look whether a majority is still heard
        self.sequence = 0  # messages first sent so far; a barrier counts answers to later ones only
        self._round: int | None = None  # the round being measured counts answers to messages behind this number
        self._round_at = -math.inf  # when it, or the last one, began

    # --- leadership ----------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin with everybody at last + 1; an empty message to all goes out with this turn."""
        self.peers = {}
        self._round = None
        self.refresh()

    def stop(self) -> None:
        """End leadership: nothing is outstanding any more, and original peers get new connections for the next."""
        for progress in self.peers.values():
            self._drop_asks(progress)
            if self._programs.kind(progress.id) != Program.OURS:
                self._requests.disconnect(progress.to)
        self.peers = {}

    def refresh(self) -> None:
        """Follow the configuration in force: new members join, removed ones stay until they know (lame ducks)."""
        node = self._node
        if node.role != Role.LEADER:
            return
        now = node.now.mono
        members = dict(node.configurations.effective.members)
        for peer, url in members.items():
            if peer != node.id and peer not in self.peers:
                window = Inflight(self._requests, pipelined=False)
                self.peers[peer] = Progress(peer, url, node.log.last + 1, now, now, window)
        for peer in node.tally.appended.keys() - members:
            del node.tally.appended[peer]
        index, committed = node.configurations.committed(node.commit)
        for peer, progress in list(self.peers.items()):
            if peer in members:
                progress.leaving = None
            elif committed == node.configurations.effective and progress.leaving is None:
                progress.leaving = Leaving(index, now + LAME_DUCK_S)
        self._quorum_at = self._quorum_deadline()

    def match(self, peer: str) -> int:
        """Return up to where a peer's log is durable and equal; our own is as far as our disk (P4)."""
        if peer == self._node.id:
            return self._node.durable
        progress = self.peers.get(peer)
        return progress.match if progress is not None else 0

    def confirmed(self, sequence: int) -> bool:
        """Whether a majority has answered a message first sent after number ``sequence``."""
        peers = {peer for peer, progress in self.peers.items() if progress.confirmed > sequence}
        return has_majority(self._node.configurations.effective, peers | {self._node.id})

    def quorum_heard_at(self) -> float:
        """Return since when not every majority has been silent."""
        return majority_value(self._node.configurations.effective, self._heard_at, self._node.now.mono)

    def commit(self) -> None:
        """Raise the commit index to what a majority holds, if that entry has the current term (7.2)."""
        node = self._node
        if node.role != Role.LEADER:
            return
        reached = majority_value(node.configurations.effective, self.match, 0)
        if reached > node.commit and node.log.term_at(reached) == node.term:
            node.advance(reached)
            self._announce()

    # --- sending -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send the next messages to every peer that has room for them and needs them."""
        if self._node.role != Role.LEADER:
            return
        wanted = self._leadership.wanted_sequence()
        for progress in self.peers.values():
            self._choose_form(progress)
            if isinstance(progress.state, SendSnapshot) or self._needs_snapshot(progress):
                self._send_chunk(progress)
                continue
            while not self._node.halted and self._due(progress, wanted):
                self._send(progress)

    def connected(self, peer: str, up: bool) -> None:
        """An RPC connection came or went: repeat at once to ours, let an original peer drain the old one (1.4)."""
        progress = self.peers.get(peer)
        if progress is None or progress.window.pipelined:
            return
        now = self._node.now.mono
        if up:
            progress.window.repeat_at = max(now, progress.quiet_until)
        elif self._programs.kind(peer) != Program.OURS:
            progress.quiet_until = now + 2 * self._node.config.rpc_timeout_s

    def next_timer(self) -> float | None:
        """Return when a repetition, a heartbeat, the check of the quorum or the end of a lame duck is due."""
        if not self.peers:
            return None
        now = self._node.now.mono
        times = [self._quorum_at, self._disk_deadline()]
        for progress in self.peers.values():
            if isinstance(progress.state, SendSnapshot):
                upload, idle_at = progress.state.upload, max(now, progress.quiet_until)
                times.append(upload.repeat_at if upload.ask is not None else idle_at)
            else:
                times.append(self._deadline(progress))
            if progress.leaving is not None:
                times.append(progress.leaving.until)
        return min(times)

    def timer(self) -> None:
        """Repeat what is not answered; step down if the quorum is silent. New messages go out by ``pump``."""
        now = self._node.now.mono
        if not self.peers:
            return
        if self._quorum_at <= now:
            self._quorum_at = self._quorum_deadline()  # answers only ever put it off
        if self._quorum_at <= now:
            self._node.event(QuorumLost(self._node.term))
            self._leadership.depose("quorum_lost")
            return
        if self._disk_deadline() <= now:
            self._node.event(SlowDisk(self._node.term))
            self._leadership.depose("slow_disk")
            return
        for progress in list(self.peers.values()):
            if progress.leaving is not None and progress.leaving.until <= now:
                self._forget(progress)
            elif isinstance(progress.state, SendSnapshot):
                if progress.state.upload.repeat_at <= now:
                    self._uploading.repeat(progress.state.upload)
            elif progress.window and progress.window.repeat_at <= now:
                self._unanswered(progress)

    # --- entries -------------------------------------------------------------------------------------------------

    def _choose_form(self, progress: Progress) -> None:
        """Begin or end the pipeline, as the peer's answer to a hello on the open connection says.

        A bare snapshot of which nothing was taken begins anew as a file: it was for a peer that had not told yet that
        it is ours, and one that serves keys takes no other (9.4).
        """
        upload = progress.state.upload if isinstance(progress.state, SendSnapshot) else None
        untaken = upload is not None and not (upload.whole or upload.offset)
        if upload is not None and untaken and self._programs.offers(progress.id, FEATURE_SNAPSHOT):
            self._uploading.end(upload)
            progress.state = Probe()
        pipelined = self._programs.serves(progress.id, FEATURE_APPEND)
        if isinstance(progress.state, SendSnapshot) or pipelined == progress.window.pipelined:
            return
        # What is outstanding may have gone to a connection that carries nothing. One of ours may take it late.
        progress.window.clear()
        progress.window = Inflight(self._requests, pipelined=pipelined)
        self._probe(progress)

    def _probe(self, progress: Progress) -> None:
        """Find out anew how far the peer is."""
        progress.state = Probe()
        progress.next = progress.match + 1 if progress.match else progress.next
        progress.heartbeat_at = self._node.now.mono

    def _due(self, progress: Progress, wanted_sequence: int) -> bool:
        """Whether the next message goes now."""
        window, now = progress.window, self._node.now.mono
        asked = progress.heartbeat_at <= now or progress.sent <= wanted_sequence
        more = progress.next <= self._node.log.last
        if not window.pipelined:
            news = asked or more or progress.commit < min(self._node.commit, progress.next - 1)
            return news and not window and now >= progress.quiet_until
        if self._is_cut_off(progress):
            return False
        if isinstance(progress.state, Probe):
            return not window
        return (more and window.takes_entries) or ((asked or window.tell_at <= now) and window.takes_news)

    def _deadline(self, progress: Progress) -> float:
        """Return when to do something if the peer does not answer and nothing else happens."""
        window = progress.window
        repeat_at = window.repeat_at if window else math.inf
        if not window.pipelined:
            return repeat_at if window else max(progress.heartbeat_at, progress.quiet_until)
        if isinstance(progress.state, Probe) or not window.takes_news or self._is_cut_off(progress):
            return repeat_at
        return min(repeat_at, progress.heartbeat_at, window.tell_at)

    def _send(self, progress: Progress) -> None:
        """Send entries, as many as one message holds, one while probing, or none where none are left."""
        node, window = self._node, progress.window
        previous, previous_term = progress.next - 1, self._term_before(progress)
        entries: tuple[Frame, ...] = ()
        if progress.next <= node.log.last and window.takes_entries:
            entries = tuple(node.read(progress.next, node.log.last, window.batch_bytes, _entries_max(progress)))
        if node.halted:
            return
        now, last = node.now.mono, previous + len(entries)
        self._number()
        self._count_batch(progress.id, len(entries))
        progress.sent = self.sequence
        commit = node.commit if window.pipelined else min(node.commit, previous)
        if window.pipelined:
            side = PeerChannel(Channel.SIDE, progress.id, progress.url)
            append = PvAppend(node.id, node.term, previous, previous_term, commit, entries)
            ask = self._requests.ask(side, append, PvAppendReply, self._reply, after=node.term_ticket)
            progress.next, progress.heartbeat_at = last + 1, now + node.config.heartbeat_s
            window.told_commit, window.tell_at = commit, math.inf
        else:
            message = AppendEntries(node.id, node.term, previous, previous_term, commit, entries)
            ask = self._requests.ask(progress.to, message, AppendEntriesReply, self._reply, after=node.term_ticket)
        sent = Sent(ask, last, commit, self.sequence, sum(map(len, entries)))
        if not window:
            window.repeat_at = now + self._silence_s(progress, sent)
        window.add(sent)

    def _silence_s(self, progress: Progress, sent: Sent) -> float:
        config = self._node.config
        if progress.window.pipelined and not isinstance(progress.state, Probe):
            return SILENT_TIMEOUTS * config.append_timeout_s
        return config.append_timeout_s if sent.size else config.heartbeat_s

    def _unanswered(self, progress: Progress) -> None:
        """The peer is silent: begin to ask how far it is, or ask once more."""
        window = progress.window
        if window.pipelined and not isinstance(progress.state, Probe):
            window.clear()
            self._probe(progress)
        else:
            self._requests.again(window.first.ask)
            window.repeat_at = self._node.now.mono + self._silence_s(progress, window.first)

    def _reply(self, ask: Ask, reply: AppendEntriesReply | PvAppendReply) -> None:
        node, progress = self._node, self.peers.get(ask.to.peer)
        sent = progress.window.find(ask) if progress is not None else None
        if progress is None or sent is None:
            return
        window = progress.window
        if not window.pipelined:
            window.clear()
        if not self._counts(progress, reply.term):
            return
        if not window.pipelined:
            progress.heartbeat_at = node.now.mono + node.config.heartbeat_s
        progress.confirmed = max(progress.confirmed, sent.sequence)
        if reply.success:
            reached = min(reply.match_index, node.log.last) if isinstance(reply, PvAppendReply) else sent.last
            progress.state = Replicate()
            progress.match = max(progress.match, reached)
            progress.next = max(progress.next, progress.match + 1)
            window.answered(sent, progress.match)
            self._acknowledged(progress, min(sent.commit, sent.last))
        else:
            window.clear()
            self._refused(progress, reply)
        window.repeat_at = node.now.mono + self._silence_s(progress, sent)
        self._heard()

    def _refused(self, progress: Progress, reply: AppendEntriesReply | PvAppendReply) -> None:
        """Go back to where the logs may agree; what is under way behind what was refused is refused as well.

        An original peer is followed to its hint, or else by one step: a success below what matches would cut that off.
        """
        previous = progress.next - 1
        if isinstance(reply, PvAppendReply):
            index, term = reply.conflict if reply.conflict is not None else (previous, 0)
            own = self._node.log.last_of(term) if term else None  # 0: it has no entry there; the bootstrap's is alike
            target = min(index if own is None else own + 1, previous)
        else:
            hint = reply.conflict_index
            target = hint if hint is not None and hint <= previous else previous
        progress.state = Probe()
        self._step_back(progress, max(target, 1))

    def _announce(self) -> None:
        """See that peers of ours hear of a commit soon, and of that of a configuration at once."""
        node = self._node
        for progress in self.peers.values():
            window = progress.window
            configured = window.told_commit < node.configurations.index <= node.commit
            soon = node.now.mono if configured else node.now.mono + COMMIT_NEWS_S
            window.tell_at = min(window.tell_at, soon)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def _needs_snapshot(self, progress: Progress) -> bool:
        """Whether it is time for one: what is under way is answered, or given up, before."""
        return not progress.window and self._is_cut_off(progress)

    def _is_cut_off(self, progress: Progress) -> bool:
        """Whether the entry that the next message would have to name is gone."""
        return self._node.log.term_at(progress.next - 1) is None

    def _send_chunk(self, progress: Progress) -> None:
        node = self._node
        if not isinstance(progress.state, SendSnapshot):
            whole = self._programs.offers(progress.id, FEATURE_SNAPSHOT)
            begun = self._uploading.begin(progress.id, progress.url, whole=whole)
            if begun is None:
                return
            progress.state = SendSnapshot(begun)
        upload = progress.state.upload
        if upload.ask is not None or node.now.mono < progress.quiet_until or node.halted:
            return
        self._number()
        progress.sent = self.sequence
        self._uploading.send(upload, self.sequence)

    def _chunk_reply(self, ask: Ask, reply: InstallSnapshotReply) -> None:
        progress = self.peers.get(ask.to.peer)
        if progress is None or not isinstance(progress.state, SendSnapshot) or progress.state.upload.ask is not ask:
            return
        upload = progress.state.upload
        if not self._counts(progress, reply.term):
            upload.ask = None
            return
        progress.confirmed = max(progress.confirmed, upload.sequence)
        if self._uploading.take(upload, reply):
            self._uploading.end(upload)
            progress.state = Probe()
            progress.match = max(progress.match, upload.index)
            progress.next = upload.index + 1
            progress.heartbeat_at = self._node.now.mono
            self.commit()
        self._heard()

    # --- to both -------------------------------------------------------------------------------------------------

    def _term_before(self, progress: Progress) -> int:
        term = self._node.log.term_at(progress.next - 1)
        if term is None:
            raise LocalProtocolError(f"entry {progress.next - 1}, before the next of {progress.id}, is not in the log")
        return term

    def _counts(self, progress: Progress, term: int) -> bool:
        """Judge the term of an answer: step down, or take note that the peer follows us."""
        node = self._node
        if term > node.term:
            node.raise_term(term)
            self._leadership.depose("term")
            return False
        if term < node.term:
            progress.heartbeat_at = node.now.mono  # a follower always takes our term first: this answer is worthless
            return False
        progress.answered_at = node.now.mono
        return True

    def _number(self) -> None:
        """Count a message that is first sent now; one in each heartbeat interval begins a round (15.1)."""
        now = self._node.now.mono
        if self._round is None and now - self._round_at >= self._node.config.heartbeat_s:
            self._round, self._round_at = self.sequence, now
        self.sequence += 1

    def _heard(self) -> None:
        """A message was answered in our term: perhaps that of a majority."""
        if self._round is not None and self.confirmed(self._round):
            self._node.tally.rounds += 1
            self._node.tally.round_s += self._node.now.mono - self._round_at
            self._round = None
        self._leadership.follower_answered()

    def _count_batch(self, peer: str, entries: int) -> None:
        if entries:
            batches = self._node.tally.appended.setdefault(peer, Batches())
            batches.messages += 1
            batches.entries += entries

    def _acknowledged(self, progress: Progress, commit: int) -> None:
        """The peer has taken a commit index, and perhaps entries."""
        progress.commit = max(progress.commit, commit)
        if progress.leaving is not None and progress.commit >= progress.leaving.index:
            self._forget(progress)
        self.commit()

    def _step_back(self, progress: Progress, target: int) -> None:
        if target <= progress.match:
            progress.match = target - 1
            progress.commit = min(progress.commit, progress.match)
            self._node.event(FollowerLostLog(progress.id, progress.match))
        progress.next = target

    def _forget(self, progress: Progress) -> None:
        self._drop_asks(progress)
        self._requests.disconnect(progress.to)
        del self.peers[progress.id]

    def _drop_asks(self, progress: Progress) -> None:
        progress.window.clear()
        if isinstance(progress.state, SendSnapshot):
            self._uploading.end(progress.state.upload)

    # --- quorum --------------------------------------------------------------------------------------------------

    def _quorum_deadline(self) -> float:
        """Return when the majority will have been silent for too long."""
        node = self._node
        return self.quorum_heard_at() + QUORUM_TIMEOUTS * node.config.election_max / 1000

    def _disk_deadline(self) -> float:
        since = self._node.unsynced_since
        return math.inf if since is None else since + SLOW_DISK_TIMEOUTS * self._node.config.election_max / 1000

    def _heard_at(self, peer: str) -> float:
        if peer == self._node.id:
            return self._node.now.mono
        progress = self.peers.get(peer)
        return progress.answered_at if progress is not None else self._node.now.mono


def _entries_max(progress: Progress) -> int:
    return 1 if isinstance(progress.state, Probe) else BATCH_ENTRIES

"""The leader's side: what every peer is sent, and what may be committed (docs/specs/raft.md 7.2-7.4, 6.5).

Peers of the original program truncate at every success and end at a prev below their commit index. Therefore one
AppendEntries is outstanding, a repetition has the same bytes, the match is approached from above, and the commit index
told is at most prev. A peer of ours tolerates everything: it is sent ``pv.append``, many at a time, once it has told on
the open connection that it takes them.
"""

import math
from typing import Protocol

from pavane.raft.core.inflight import PEER_BATCH_BYTES, Inflight, Sent
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, FollowerLostLog, PeerChannel, QuorumLost, SlowDisk
from pavane.raft.core.programs import Program, Programs
from pavane.raft.core.progress import Leaving, Pipeline, Probe, Progress, Replicate, Snapshot, StopAndWait
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

BATCH_BYTES = 64 * 1024  # JS_BATCH of 14.4: what one handling of the original takes without stalling
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
                self.peers[peer] = Progress(peer, url, node.log.last + 1, answered_at=now, heartbeat_at=now)
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
            form = progress.form
            if isinstance(progress.state, Snapshot) or self._needs_snapshot(progress):
                self._send_chunk(progress)
            elif isinstance(form, Pipeline):
                while not self._node.halted and self._due_in_window(progress, form, wanted):
                    self._send_window(progress, form)
            elif form.outstanding is None and self._due(progress, wanted):
                self._send(progress, form)

    def connected(self, peer: str, up: bool) -> None:
        """An RPC connection came or went: repeat at once to ours, let an original peer drain the old one (1.4)."""
        progress = self.peers.get(peer)
        if progress is None or isinstance(progress.form, Pipeline):
            return
        now = self._node.now.mono
        if up:
            progress.form.repeat_at = max(now, progress.quiet_until)
        elif self._programs.kind(peer) != Program.OURS:
            progress.quiet_until = now + 2 * self._node.config.rpc_timeout_s

    def next_timer(self) -> float | None:
        """Return when a repetition, a heartbeat, the check of the quorum or the end of a lame duck is due."""
        if not self.peers:
            return None
        now = self._node.now.mono
        times = [self._quorum_at, self._disk_deadline()]
        for progress in self.peers.values():
            form = progress.form
            if isinstance(progress.state, Snapshot):
                upload, idle_at = progress.state.upload, max(now, progress.quiet_until)
                times.append(upload.repeat_at if upload.ask is not None else idle_at)
            elif isinstance(form, Pipeline):
                times.append(self._window_deadline(progress, form))
            else:
                idle_at = max(progress.heartbeat_at, progress.quiet_until)
                times.append(form.repeat_at if form.outstanding is not None else idle_at)
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
            form = progress.form
            if progress.leaving is not None and progress.leaving.until <= now:
                self._forget(progress)
            elif isinstance(progress.state, Snapshot):
                if progress.state.upload.repeat_at <= now:
                    self._uploading.repeat(progress.state.upload)
            elif form.repeat_at > now:
                continue
            elif isinstance(form, Pipeline):
                if form.window:
                    self._unanswered(progress, form)
            elif form.outstanding is not None:
                self._requests.again(form.outstanding.ask)
                form.repeat_at = now + self._patience_s(form.outstanding)

    # --- to peers of the original program ------------------------------------------------------------------------

    def _due(self, progress: Progress, wanted_sequence: int) -> bool:
        now = self._node.now.mono
        if now < progress.quiet_until:
            return False
        return (
            progress.next <= self._node.log.last
            or progress.heartbeat_at <= now
            or progress.commit < min(self._node.commit, progress.next - 1)
            or progress.sent <= wanted_sequence
        )

    def _send(self, progress: Progress, form: StopAndWait) -> None:
        node = self._node
        previous, previous_term = progress.next - 1, self._term_before(progress)
        entries: tuple[Frame, ...] = ()
        if progress.next <= node.log.last:
            entries = tuple(node.read(progress.next, node.log.last, BATCH_BYTES, _entries_max(progress)))
        if node.halted:
            return
        commit = min(node.commit, previous)
        self._number()
        self._count_batch(progress.id, len(entries))
        progress.sent = self.sequence
        ask = self._requests.ask(
            progress.to,
            AppendEntries(node.id, node.term, previous, previous_term, commit, entries),
            AppendEntriesReply,
            self._reply,
            after=node.term_ticket,
        )
        sent = Sent(ask, previous + len(entries), commit, self.sequence, sum(map(len, entries)))
        form.outstanding, form.repeat_at = sent, node.now.mono + self._patience_s(sent)

    def _patience_s(self, sent: Sent) -> float:
        return self._node.config.append_timeout_s if sent.size else self._node.config.heartbeat_s

    def _reply(self, ask: Ask, reply: AppendEntriesReply) -> None:
        node = self._node
        progress = self.peers.get(ask.to.peer)
        form = progress.form if progress is not None else None
        if progress is None or not isinstance(form, StopAndWait):
            return
        sent = form.outstanding
        if sent is None or sent.ask is not ask:
            return
        form.outstanding = None
        if not self._counts(progress, reply.term):
            return
        progress.heartbeat_at = node.now.mono + node.config.heartbeat_s
        progress.confirmed = sent.sequence
        if reply.success:
            progress.state = Replicate()
            progress.match = max(progress.match, sent.last)
            progress.next = progress.match + 1
            self._acknowledged(progress, sent.commit)
        else:
            self._refused(progress, reply.conflict_index)
        self._heard()

    def _refused(self, progress: Progress, hint: int | None) -> None:
        """Go back: to the hint, or by one step, for a success below what matches would cut that off."""
        previous = progress.next - 1
        progress.state = Probe()
        self._step_back(progress, max(hint if hint is not None and hint <= previous else previous, 1))

    # --- to peers of ours ----------------------------------------------------------------------------------------

    def _choose_form(self, progress: Progress) -> None:
        """Begin or end the window, as the peer's answer to a hello on the open connection says.

        A bare snapshot of which nothing was taken begins anew as a file: it was for a peer that had not told yet that
        it is ours, and one that serves keys takes no other (9.4).
        """
        upload = progress.state.upload if isinstance(progress.state, Snapshot) else None
        untaken = upload is not None and not (upload.whole or upload.offset)
        if upload is not None and untaken and self._programs.offers(progress.id, FEATURE_SNAPSHOT):
            self._uploading.end(upload)
            progress.state = Probe()
        form, pipelined = progress.form, self._programs.serves(progress.id, FEATURE_APPEND)
        if isinstance(progress.state, Snapshot) or pipelined == isinstance(form, Pipeline):
            return
        if isinstance(form, Pipeline):
            form.window.clear()
            progress.form = StopAndWait()
        else:
            # What is outstanding may have gone to a connection that carries nothing. One of ours may take it late.
            self._requests.cancel(form.outstanding.ask if form.outstanding is not None else None)
            progress.form = Pipeline(Inflight(self._requests))
        self._probe(progress)

    def _probe(self, progress: Progress) -> None:
        """Find out anew how far the peer is."""
        progress.state = Probe()
        progress.next = progress.match + 1 if progress.match else progress.next
        progress.heartbeat_at = self._node.now.mono

    def _due_in_window(self, progress: Progress, form: Pipeline, wanted_sequence: int) -> bool:
        window, now = form.window, self._node.now.mono
        if self._is_cut_off(progress):
            return False
        if isinstance(progress.state, Probe):
            return not window
        if progress.next <= self._node.log.last and window.takes_entries:
            return True
        news = progress.heartbeat_at <= now or form.tell_at <= now or progress.sent <= wanted_sequence
        return news and window.takes_news

    def _window_deadline(self, progress: Progress, form: Pipeline) -> float:
        """Return when to do something if the peer does not answer and nothing else happens."""
        repeat_at = form.repeat_at if form.window else math.inf
        if isinstance(progress.state, Probe) or not form.window.takes_news or self._is_cut_off(progress):
            return repeat_at
        return min(repeat_at, progress.heartbeat_at, form.tell_at)

    def _send_window(self, progress: Progress, form: Pipeline) -> None:
        """Send entries, as many as one message holds, one while probing, or none where none are left."""
        node, window = self._node, form.window
        previous, previous_term = progress.next - 1, self._term_before(progress)
        entries: tuple[Frame, ...] = ()
        if progress.next <= node.log.last and window.takes_entries:
            entries = tuple(node.read(progress.next, node.log.last, PEER_BATCH_BYTES, _entries_max(progress)))
        if node.halted:
            return
        now = node.now.mono
        self._number()
        self._count_batch(progress.id, len(entries))
        ask = self._requests.ask(
            PeerChannel(Channel.SIDE, progress.id, progress.url),
            PvAppend(node.id, node.term, previous, previous_term, node.commit, entries),
            PvAppendReply,
            self._window_reply,
            after=node.term_ticket,
        )
        sent = Sent(ask, previous + len(entries), node.commit, self.sequence, sum(map(len, entries)))
        if not window:
            form.repeat_at = now + self._silence_s(progress, sent)
        window.add(sent)
        progress.sent = self.sequence
        progress.next = previous + len(entries) + 1
        progress.heartbeat_at = now + node.config.heartbeat_s
        form.told_commit, form.tell_at = node.commit, math.inf

    def _silence_s(self, progress: Progress, sent: Sent) -> float:
        if isinstance(progress.state, Probe):
            return self._patience_s(sent)
        return SILENT_TIMEOUTS * self._node.config.append_timeout_s

    def _unanswered(self, progress: Progress, form: Pipeline) -> None:
        """The peer is silent: begin to ask how far it is, or ask once more."""
        if isinstance(progress.state, Probe):
            first = form.window.first
            self._requests.again(first.ask)
            form.repeat_at = self._node.now.mono + self._silence_s(progress, first)
        else:
            form.window.clear()
            self._probe(progress)

    def _window_reply(self, ask: Ask, reply: PvAppendReply) -> None:
        progress = self.peers.get(ask.to.peer)
        form = progress.form if progress is not None else None
        if progress is None or not isinstance(form, Pipeline):
            return
        sent = form.window.find(ask)
        if sent is None or not self._counts(progress, reply.term):
            return
        progress.confirmed = max(progress.confirmed, sent.sequence)
        if reply.success:
            progress.state = Replicate()
            progress.match = max(progress.match, min(reply.match_index, self._node.log.last))
            progress.next = max(progress.next, progress.match + 1)
            form.window.answered(sent, progress.match)
            self._acknowledged(progress, min(sent.commit, sent.last))
        else:
            form.window.clear()
            self._conflict(progress, reply.conflict)
        form.repeat_at = self._node.now.mono + self._silence_s(progress, sent)
        self._heard()

    def _conflict(self, progress: Progress, conflict: tuple[int, int] | None) -> None:
        """Go back to where the logs may agree; what is under way behind what was refused is refused as well."""
        index, term = conflict if conflict is not None else (progress.next - 1, 0)
        own = self._node.log.last_of(term) if term else None  # 0: it has no entry there; the bootstrap's is alike
        target = index if own is None else own + 1
        progress.state = Probe()
        self._step_back(progress, max(min(target, progress.next - 1), 1))

    def _announce(self) -> None:
        """See that peers of ours hear of a commit soon, and of that of a configuration at once."""
        node = self._node
        for progress in self.peers.values():
            if isinstance(progress.form, Pipeline):
                configured = progress.form.told_commit < node.configurations.index <= node.commit
                soon = node.now.mono if configured else node.now.mono + COMMIT_NEWS_S
                progress.form.tell_at = min(progress.form.tell_at, soon)

    # --- snapshots -----------------------------------------------------------------------------------------------

    def _needs_snapshot(self, progress: Progress) -> bool:
        """Whether it is time for one: what is under way is answered, or given up, before."""
        form = progress.form
        busy = bool(form.window) if isinstance(form, Pipeline) else form.outstanding is not None
        return not busy and self._is_cut_off(progress)

    def _is_cut_off(self, progress: Progress) -> bool:
        """Whether the entry that the next message would have to name is gone."""
        return self._node.log.term_at(progress.next - 1) is None

    def _send_chunk(self, progress: Progress) -> None:
        node = self._node
        if not isinstance(progress.state, Snapshot):
            whole = self._programs.offers(progress.id, FEATURE_SNAPSHOT)
            begun = self._uploading.begin(progress.id, progress.url, whole=whole)
            if begun is None:
                return
            progress.state = Snapshot(begun)
        upload = progress.state.upload
        if upload.ask is not None or node.now.mono < progress.quiet_until or node.halted:
            return
        self._number()
        progress.sent = self.sequence
        self._uploading.send(upload, self.sequence)

    def _chunk_reply(self, ask: Ask, reply: InstallSnapshotReply) -> None:
        progress = self.peers.get(ask.to.peer)
        if progress is None or not isinstance(progress.state, Snapshot) or progress.state.upload.ask is not ask:
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
        form = progress.form
        if isinstance(form, Pipeline):
            form.window.clear()
        elif form.outstanding is not None:
            self._requests.cancel(form.outstanding.ask)
        if isinstance(progress.state, Snapshot):
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

"""What all parts of the core share: term, log, configuration, commit index, role, and the outputs being gathered.

A part changes these only through the methods here, so that every change of the log reaches the dedup table, the
configurations and storage together. Parts do not call each other upwards: ``Hooks`` tells the core what happened.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pavane.raft.config import Config
from pavane.raft.core.outputs import (
    Appended,
    Apply,
    ConfigurationChanged,
    Corrupt,
    Dropped,
    Event,
    Fork,
    Freeze,
    LeaderKnown,
    MachineWork,
    Now,
    Outputs,
    PeerChannel,
    Restore,
    RoleChanged,
    Route,
    Send,
    StageReached,
    TermChanged,
)
from pavane.raft.core.tally import Tally
from pavane.raft.errors import DropReason
from pavane.raft.state.commands import (
    RECOVERING_FLOOR,
    Append,
    Compact,
    CorruptEntry,
    EntrySource,
    HardState,
    Note,
    Recovered,
    SnapshotInstall,
    StoreCommand,
    StoredSnapshot,
    Truncate,
)
from pavane.raft.state.configuration import EMPTY, Configuration, ConfigurationStack
from pavane.raft.state.dedup import DedupTable
from pavane.raft.state.invariant import require
from pavane.raft.state.log import Log
from pavane.raft.state.roles import TRANSITIONS, Role
from pavane.raft.wire.decoder import Reply
from pavane.raft.wire.entry import (
    ZERO_REQID,
    EntryType,
    encode_entry,
    entry_data,
    entry_digest,
    entry_reqid,
    entry_term,
    is_configuration,
)
from pavane.raft.wire.frames import REQID_BYTES, Frame, Frames
from pavane.wire import Stage

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

APPLY_BYTES = 1 << 20  # of one batch for the machine: it may not hold up the loop for long
APPLY_ENTRIES = 4096
SPAN_LINKS = 32  # request ids told with a stored batch (15.2)
NOTE_SURE = "sure"  # key of the note with the index of a bare snapshot whose configuration a leader has confirmed
COMMIT_NOTE_S = 1.0  # a hint; every write of it costs disk


class Hooks(Protocol):
    """What the node tells the core, which passes it on to its parts."""

    def role_changed(self, old: Role) -> None:
        """The role is another one now."""
        ...

    def committed(self) -> None:
        """The commit index rose."""
        ...

    def configured(self) -> None:
        """Another configuration is in force, or known committed."""
        ...

    def machine_idle(self) -> None:
        """The machine has applied everything that was given to it."""
        ...


@dataclass(frozen=True, slots=True)
class NewestSnapshot:
    """The newest snapshot: the last entry that it covers, and the bytes of the machine's data."""

    index: int
    term: int
    data_bytes: int


@dataclass(slots=True)
class _Unsynced:
    """A batch under way to the disk, or to the commit: with ``ticket`` the log is durable up to ``last``."""

    ticket: int
    last: int
    since: float


class Node:
    """The state of 5.1 that more than one part needs. ``now`` is the time of the input being handled."""

    def __init__(
        self,
        config: Config,
        recovered: Recovered,
        source: EntrySource,
        rng: "Random",
        now: Now,
        stage: Stage,
        hooks: Hooks,
    ) -> None:
        self.hooks = hooks
        self.config = config
        self.id = config.id
        self.rng = rng
        self.now = now
        self.stage = stage
        self.has_room = True  # on its volume, for further updates
        self.term = recovered.term
        self.vote = recovered.vote
        self.vote_floor = recovered.vote_floor
        self.log = Log(recovered, source)
        base = Configuration(config.peers) if config.peers else EMPTY
        stated = ((index, Configuration.decode(data)) for index, data in recovered.configurations)
        self.configurations = ConfigurationStack(base, stated)
        self.dedup = DedupTable()
        self.snapshot: NewestSnapshot | None = None
        self._bare_at = 0  # index of a snapshot that told no configuration, while no leader has confirmed ours
        if recovered.snapshot is not None:
            self._begin_with(recovered.snapshot)
        if recovered.notes.get(NOTE_SURE) == self._bare_at:
            self._bare_at = 0
        for (index, reqid), digest in zip(self.log.reqids(), memoryview(recovered.digests).cast("Q"), strict=True):
            self.dedup.add(reqid, index, digest)
        self.commit = min(recovered.commit, self.log.last)
        self.applied = 0
        self.applied_bytes = 0  # of entries applied since the start, for the question when to take a snapshot
        self.durable = self.log.last
        self.verified = self.commit
        self.leader: str | None = None
        self.exact = False  # 6.6: every entry up to commit, and no other, is committed
        self.recovering = recovered.corrupt or recovered.vote_floor == RECOVERING_FLOOR
        self.halted = False
        self.role = self.resting_role()
        self.dropped: Counter[str] = Counter()
        self.tally = Tally()
        self._ticket = 0
        self._stored = 0
        self._hard_ticket = 0
        self._pending: deque[_Unsynced] = deque()
        self._uncommitted: deque[_Unsynced] = deque()  # of ours, while we lead; as bounded as what is proposed
        self._batch: list[bytes] = []
        self._batch_ticket = 0
        self._batch_origin = ""
        self._install_ticket = 0
        self._applying: Apply | Restore | None = None
        self._commit_note = (now.mono, self.commit)
        self._store: list[StoreCommand] = []
        self._send: list[Send] = []
        self._apply: list[MachineWork] = []
        self._events: list[Event] = []

    # --- outputs -------------------------------------------------------------------------------------------------

    def send(self, to: Route | PeerChannel, frames: Frames, after: int | None = None) -> None:
        """Queue a message; ``after`` is a ticket, ignored if it is durable already."""
        if after is not None and after <= self._stored:
            after = None
        self._send.append(Send(to, tuple(frames), after))

    def answer(self, route: Route, request_id: Frame, reply: Reply, after: int | None = None) -> None:
        """Queue ``reply`` to a request that came from ``route``; ``after`` as for ``send``."""
        self.send(route, (request_id, *reply.encode()), after)

    def event(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)

    def drop(self, reason: DropReason) -> None:
        """Count an input that is not taken (3.4)."""
        self.dropped[reason.value] += 1
        self.event(Dropped(reason.value))

    def take_outputs(self) -> Outputs:
        """Return what was gathered and forget it."""
        self._flush()
        if self.now.mono >= self._commit_note[0] + COMMIT_NOTE_S:
            self.note_commit()
        outputs = Outputs(tuple(self._store), tuple(self._send), tuple(self._apply), tuple(self._events))
        self._store, self._send, self._apply, self._events = [], [], [], []
        return outputs

    # --- storage -------------------------------------------------------------------------------------------------

    def note(self, key: str, value: int | str | bytes) -> None:
        """Store a hint."""
        self._flush()
        self._store.append(Note(self._next_ticket(), key, value))

    def note_commit(self) -> None:
        """Store the commit index as a hint, if it has grown."""
        if self._commit_note[1] < self.commit:
            self._commit_note = (self.now.mono, self.commit)
            self.note("commit", self.commit)

    def persist(self) -> int:
        """Store term, vote and vote floor; return the ticket that has to be durable before any message tells it
        (P1)."""
        self._flush()
        self._hard_ticket = self._next_ticket()
        self._store.append(HardState(self._hard_ticket, self.term, self.vote, self.vote_floor))
        return self._hard_ticket

    def store(self, command: Callable[[int], StoreCommand]) -> int:
        """Give storage the command that ``command`` makes for a ticket, behind what came before; return the ticket."""
        self._flush()
        ticket = self._next_ticket()
        self._store.append(command(ticket))
        return ticket

    @property
    def term_ticket(self) -> int | None:
        """The ticket behind which a message with our term has to wait, ``None`` if the term is durable."""
        return self._hard_ticket if self._hard_ticket > self._stored else None

    def durable_ticket(self, index: int) -> int | None:
        """Return the ticket with which the log is durable up to ``index``, ``None`` if it is already (P2)."""
        if index <= self.durable:
            return None
        return next(unsynced.ticket for unsynced in self._pending if unsynced.last >= index)

    @property
    def unsynced_since(self) -> float | None:
        """Since when entries wait for the disk; ``None`` if none do."""
        return self._pending[0].since if self._pending else None

    def is_stored(self, ticket: int) -> bool:
        """Whether everything up to ``ticket`` is durable."""
        return ticket <= self._stored

    def stored(self, ticket: int) -> None:
        """Take note that everything up to ``ticket`` is durable."""
        self._stored = max(self._stored, ticket)
        while self._pending and self._pending[0].ticket <= self._stored:
            self.durable = self._pending.popleft().last
        self.feed()

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _flush(self) -> None:
        """End the batch of entries being gathered: one storage command, one fsync, for all of a turn."""
        if not self._batch:
            return
        entries, self._batch = tuple(self._batch), []
        first = self.log.last - len(entries) + 1
        self._store.append(Append(self._batch_ticket, first, entries))
        reqids = tuple(entry_reqid(entry) for entry in entries[:SPAN_LINKS])
        self.event(Appended(first, len(entries), self._batch_ticket, self._batch_origin, reqids))
        if self._batch_origin == "leader":
            self._uncommitted.append(self._pending[-1])

    # --- log -----------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[bytes], origin: str) -> None:
        """Add entries behind the last one: in memory at once, durable when their ticket is stored."""
        if not entries:
            return
        if not self._batch:
            self._batch_ticket = self._next_ticket()
            self._pending.append(_Unsynced(self._batch_ticket, 0, self.now.mono))
        self._batch_origin = origin
        self._batch += entries
        first, add = self.log.last + 1, self.dedup.add
        self.log.append(entries)
        configured = False
        for index, entry in enumerate(entries, first):
            add(entry[:REQID_BYTES], index, entry_digest(entry))
            if is_configuration(entry):
                configuration = Configuration.decode(entry_data(entry))
                self.configurations.push(index, configuration)
                self.event(ConfigurationChanged("effective", index, configuration))
                configured = True
        self._pending[-1].last = self.log.last
        if configured:
            self.hooks.configured()

    def append_own(self, kind: EntryType, data: Frame, reqid: bytes = ZERO_REQID) -> int:
        """Append one entry of the own term, as leader; return its index."""
        self.append([encode_entry(reqid, kind, self.term, data)], "leader")
        return self.log.last

    def merge(self, previous: int, entries: Sequence[Frame]) -> bool:
        """Take entries that belong behind ``previous``: keep equal ones, replace from the first difference on (7.1).

        Returns false, and changes nothing, if an entry at or below the commit index would have to be replaced.
        """
        for position, entry in enumerate(entries):
            index = previous + 1 + position
            if index < self.log.first:
                continue  # part of what is committed, and gone
            if index <= self.log.last:
                if self.log.term_at(index) == entry_term(entry):
                    continue
                if index <= self.commit:
                    return False
                self.truncate(index - 1)
            self.append([bytes(item) for item in entries[position:]], "follower")
            break
        return True

    def truncate(self, after: int) -> None:
        """Forget every entry above ``after``, which is not below the commit index."""
        require(after >= max(self.commit, self.log.first - 1), "a committed entry would be forgotten")
        self._flush()
        for index in range(after + 1, self.log.last + 1):
            self.dedup.remove(self.log.reqid_at(index))
        self.log.truncate(after)
        self._store.append(Truncate(self._next_ticket(), after))
        for unsynced in self._pending:
            unsynced.last = min(unsynced.last, after)
        self.durable = min(self.durable, after)
        self.verified = min(self.verified, after)
        gone = self.configurations.truncate(after)
        for index, configuration in gone:
            self.event(ConfigurationChanged("rolled_back", index, configuration))
        if gone:
            self.hooks.configured()

    def advance(self, commit: int) -> None:
        """Raise the commit index to ``commit``, an index of the log."""
        if commit <= self.commit:
            return
        require(commit <= self.log.last, "an entry is committed that is not here")
        before, _ = self.configurations.committed(self.commit)
        self.commit = commit
        index, configuration = self.configurations.committed(commit)
        self.exact = self.exact or self.log.term_at(commit) == self.term
        while self._uncommitted and self._uncommitted[0].last <= commit:
            self.tally.commits += 1
            self.tally.commit_s += self.now.mono - self._uncommitted.popleft().since
        if index != before:
            self.event(ConfigurationChanged("committed", index, configuration))
            self.hooks.configured()
        self.feed()
        self.hooks.committed()

    # --- machine -------------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Hand the next committed entries to the machine, one batch at a time.

        A follower waits for its disk, so that what a learner reports as applied survives a crash (8.3); a leader need
        not, because others hold what is committed (P5).
        """
        limit = self.commit if self.role == Role.LEADER else min(self.commit, self.durable)
        if self._applying is not None or self.applied >= limit or self.halted:
            return
        if self.snapshot is not None and self.applied < min(self.snapshot.index, self.log.first - 1):
            if limit >= self.snapshot.index and self.is_stored(self._install_ticket):
                self._applying = Restore(self.snapshot.index)
                self._apply.append(self._applying)
            return
        first = self.applied + 1
        entries = self.read(first, limit, APPLY_BYTES, APPLY_ENTRIES)
        if entries:
            self._applying = Apply(first, tuple(entries))
            self._apply.append(self._applying)

    def applied_up_to(self, index: int) -> Apply | None:
        """Take note that the machine has applied up to ``index``; return the batch that ended with it, if one did."""
        self.applied = max(self.applied, index)
        batch = self._applying
        if not isinstance(batch, Apply) or index < batch.first + len(batch.entries) - 1:
            return None
        self._applying = None
        self.applied_bytes += sum(map(len, batch.entries))
        self.hooks.machine_idle()
        self.feed()
        return batch

    def restored(self, index: int) -> None:
        """Take note that the machine holds the snapshot of ``index``."""
        if isinstance(self._applying, Restore) and self._applying.index == index:
            self._applying = None
            self.applied = max(self.applied, index)
            self.feed()

    @property
    def machine_busy(self) -> bool:
        """Whether the machine has something to do that it has not reported as done."""
        return self._applying is not None

    def freeze(self, index: int) -> int:
        """Have a snapshot of ``index``, which is applied and durable, saved; return the term of the entry.

        To be called when the machine is idle if the state is the machine's: then ``index`` is the last one applied.
        """
        require(index <= min(self.applied, self.durable), "a snapshot beyond what is applied and durable")
        term = self.log.term_at(index) or 0
        stated_at, configuration = self.configurations.committed(index)
        encoded = configuration.encode() if configuration.new else b""
        before = self.snapshot.index if self.snapshot is not None else 0
        bare = self._bare_at > stated_at
        self._apply.append(Freeze(index, term, encoded, stated_at, self.dedup, before, bare))
        return term

    # --- snapshots -----------------------------------------------------------------------------------------------

    def install(self, snapshot: StoredSnapshot) -> int:
        """Let the log go on behind a snapshot whose file was given to storage (9.4); return the ticket.

        The commit index does not move. The machine is fed once the leader tells that ``index`` is committed.
        """
        index, term = snapshot.index, snapshot.term
        keep_log = self.log.term_at(index) == term and index <= self.log.last
        ticket = self.store(lambda ticket: SnapshotInstall(ticket, index, term, keep_log))
        self._install_ticket = ticket
        if keep_log:
            self.log.compact(index + 1)
        else:
            for gone in range(max(self.log.first, self.commit + 1), self.log.last + 1):
                self.dedup.remove(self.log.reqid_at(gone))
            for at, configuration in self.configurations.truncate(max(self.commit, self.log.first - 1)):
                self.event(ConfigurationChanged("rolled_back", at, configuration))
            self.log.begin_behind(index, term)
            self._pending.clear()
            self._pending.append(_Unsynced(ticket, index, self.now.mono))
            self.durable = min(self.durable, self.commit)
            self.verified = 0
        self.verified = max(self.verified, index)
        self._begin_with(snapshot)
        self.hooks.configured()
        return ticket

    @property
    def doubts_configuration(self) -> bool:
        """Whether a bare snapshot may have hidden a change of members: vote, but do not stand (9.4, 5)."""
        return self._bare_at > self.configurations.index

    def trust_configuration(self) -> None:
        """Take note that a leader has told the configuration that is in force here."""
        self.note(NOTE_SURE, self._bare_at)
        self._bare_at = 0

    def compact(self, first_kept: int) -> None:
        """Forget entries below ``first_kept``, which a durable snapshot covers."""
        first_kept = min(first_kept, self.applied + 1)
        self.store(lambda ticket: Compact(ticket, first_kept))
        self.log.compact(first_kept)

    def _begin_with(self, snapshot: StoredSnapshot) -> None:
        """Take over what the snapshot tells about the entries that it replaces."""
        meta = snapshot.meta
        self.snapshot = NewestSnapshot(snapshot.index, snapshot.term, snapshot.data_bytes)
        self._bare_at = snapshot.index if meta.bare else 0
        if meta.configuration:
            configuration = Configuration.decode(meta.configuration)
            self.configurations.begin_with(snapshot.index, meta.configuration_index, configuration)
        self.dedup.restore(meta.ids, meta.floor, meta.digests)

    def read(self, first: int, last: int, bytes_max: int, count_max: int) -> Sequence[Frame]:
        """Read entries as ``Log.read``; a damaged one halts the peer and reads as nothing (13.3)."""
        try:
            return self.log.read(first, last, bytes_max, count_max)
        except CorruptEntry as error:
            self.halt(Corrupt(error.index))
            return ()

    def halt(self, event: Corrupt | Fork) -> None:
        """Answer nothing from now on; the adapter ends the process, the next start repairs or refuses."""
        if not self.halted:
            self.halted = True
            self.event(event)

    # --- term and role -------------------------------------------------------------------------------------------

    def raise_term(self, term: int, vote: str = "") -> int:
        """Enter a higher term, or vote in the present one; return the ticket that makes it durable."""
        require(term > self.term or (term == self.term and self.vote in {"", vote}), "a second vote in one term")
        if term > self.term:
            self.term = term
            self.event(TermChanged(term))
        self.vote = vote
        return self.persist()

    def resting_role(self) -> Role:
        """Return the role of a peer that is neither candidate nor leader, from its log alone (8.1)."""
        if self.recovering:
            return Role.RECOVERING
        if self.configurations.names_since(self.id, self.commit):
            return Role.FOLLOWER
        return Role.REMOVED if self.configurations.ever_named(self.id) else Role.LEARNER

    def rest(self, reason: str, leader: str | None = None) -> None:
        """Stop being a candidate or leader, and follow ``leader`` if one is known."""
        self.set_leader(leader)  # first, for those who are told of the role have to name it
        self.set_role(self.resting_role(), reason)

    def set_role(self, role: Role, reason: str) -> None:
        """Take another role; a pair that the table does not have is a bug."""
        old = self.role
        if role == old:
            return
        require((old, role) in TRANSITIONS, f"{old.title} may not become {role.title}")
        self.role = role
        self._uncommitted.clear()
        self.event(RoleChanged(old, role, self.term, reason))
        if role == Role.FOLLOWER and self.stage != Stage.READ_WRITE:
            self.stage = Stage.READ_WRITE  # the CONFIG entry is the fence, whether or not a command ever came (8.3)
            self.event(StageReached(self.stage))
        self.hooks.role_changed(old)

    def set_leader(self, leader: str | None) -> None:
        """Believe that ``leader`` leads."""
        if leader != self.leader:
            self.leader = leader
            self.event(LeaderKnown(leader, self.term))

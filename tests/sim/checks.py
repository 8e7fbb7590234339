"""The invariants of docs/specs/raft.md 18.2, checked as things happen; a broken one raises ``BrokenError``."""

from bisect import bisect_left
from dataclasses import dataclass, field

from pavane.raft.core.prevote import PHASE_PREVOTE
from pavane.raft.state.commands import Append, SnapshotInstall, StoreCommand, Truncate
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType, entry_data, entry_reqid, entry_term, entry_type
from pavane.raft.wire.pv import PvAppend, PvAppendReply, PvVote
from pavane.raft.wire.requests import AppendEntries, RequestVote
from pavane.wire import Stage
from tests.sim.disk import Disk
from tests.sim.kit.seeds import holds


@dataclass
class Mirror:
    """The log that a node believes to have, from its storage commands."""

    entries: list[bytes] = field(default_factory=list)
    configurations: list[int] = field(default_factory=list)
    commit: int = 0
    applied: int = 0
    term: int = 0


@dataclass
class Checks:
    """Everything that must be true of a cluster's whole history."""

    leaders: dict[int, str] = field(default_factory=dict)
    written: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    committed: list[bytes] = field(default_factory=list)
    committed_in: list[int] = field(default_factory=list)  # the term in which each was first seen committed
    committed_reqids: dict[bytes, int] = field(default_factory=dict)
    configurations: list[tuple[int, Configuration]] = field(default_factory=list)
    configuration: Configuration | None = None
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    originals: frozenset[str] = frozenset()  # peers whose promises are not ours to keep

    def stored(self, node: str, mirror: Mirror, command: StoreCommand) -> None:
        """S2, by induction: an entry with this index and term is always the same and has the same predecessor."""
        match command:
            case Append(_, first, entries):
                del mirror.entries[first - 1 :]
                self._forget_configurations(mirror)
                for index, entry in enumerate(entries, first):
                    before = entry_term(mirror.entries[-1]) if mirror.entries else 0
                    known = self.written.setdefault((index, entry_term(entry)), (entry, before))
                    holds(known == (entry, before), "S2", f"{node} writes another entry {index} of one term")
                    mirror.entries.append(entry)
                    if entry_type(entry) == EntryType.CONFIG:
                        mirror.configurations.append(index)
            case Truncate(_, after):
                del mirror.entries[after:]
                self._forget_configurations(mirror)
            case SnapshotInstall(_, index, _, keep_log):
                holds(index <= len(self.committed), "S3", f"{node} installs a snapshot of entries nobody committed")
                if not keep_log:
                    mirror.entries[:] = self.committed[:index]
                    mirror.configurations[:] = [at for at, _ in self.configurations if 0 < at <= index]
            case _:
                pass

    def advanced(self, node: str, mirror: Mirror, commit: int, applied: int, term: int, *, leads: bool) -> None:
        """S3: what is committed never changes, on no node; commit, applied and term never fall while it runs.

        A leader commits by an entry of its own term (7.2): anything else may still be overwritten by a later leader.
        """
        if leads and commit > mirror.commit:
            own = entry_term(mirror.entries[commit - 1])
            holds(own == term, "S3", f"{node} counts the copies of an entry of term {own} in term {term}")
        holds(commit >= mirror.commit and applied >= mirror.applied and term >= mirror.term, "S3", f"{node} falls back")
        mirror.applied, mirror.term = applied, term
        holds(applied <= commit, "S3", f"{node} applied more than is committed")
        for index in range(mirror.commit + 1, commit + 1):
            entry = mirror.entries[index - 1]
            if index <= len(self.committed):
                holds(self.committed[index - 1] == entry, "S3", f"{node} commits another entry {index}")
            else:
                self._commit(index, entry)
                self.committed_in.append(max(term, self.committed_in[-1] if self.committed_in else 0))
        mirror.commit = commit

    def led(self, node: str, mirror: Mirror, term: int) -> None:
        """S1: one leader per term. S3: it has every entry that was committed in a lower term."""
        holds(self.leaders.setdefault(term, node) == node, "S1", f"{node} and {self.leaders[term]} lead term {term}")
        owed = self.committed[: bisect_left(self.committed_in, term)]
        holds(mirror.entries[: len(owed)] == owed, "S3", f"{node} leads term {term} without all committed entries")

    def configured(self, node: str, mirror: Mirror, index: int) -> None:
        """S8: the configuration in force is that of the last CONFIG entry of the log."""
        last = mirror.configurations[-1] if mirror.configurations else 0
        holds(index == last, "S8", f"{node} uses the configuration of entry {index}, its log's last is at {last}")

    def voted(self, node: str, role: Role, stage: Stage) -> None:
        """S9: whoever may not vote does not."""
        fit = role != Role.RECOVERING and stage == Stage.READ_WRITE
        holds(fit, "S9", f"{node} votes as {role.title} in {stage.title}")

    def answered(self, node: str, disk: Disk, question: object, reply: object, success: bool) -> None:
        """S5: what an answer promises is on the disk when it leaves (P1, P2)."""
        match question:
            case PvVote(_, _, _, _, phase) if phase == PHASE_PREVOTE:
                pass  # it promises nothing
            case RequestVote(candidate, term, _, _) | PvVote(candidate, term, _, _, _) if success:
                holds(disk.votes.get(term) == candidate, "S5", f"{node} grants a vote that is not on its disk")
            case AppendEntries(_, term, previous, _, _, entries) if success:
                last = previous + len(entries)
                holds(disk.last >= last, "S5", f"{node} acknowledges entry {last} before its disk has it")
                holds(disk.term >= term, "S5", f"{node} acknowledges in term {term} before its disk knows it")
            case PvAppend(_, term, _, _, _, _) if isinstance(reply, PvAppendReply):
                last = reply.match_index
                holds(disk.last >= last, "S5", f"{node} acknowledges entry {last} before its disk has it")
                holds(disk.term >= term or not success, "S5", f"{node} acknowledges a term before its disk knows it")
            case _:
                pass

    def asked(self, node: str, disk: Disk, term: int) -> None:
        """S5, P1: a candidate's own vote is on its disk before it asks for others."""
        holds(disk.votes.get(term) == node, "S5", f"{node} stands in term {term} before its disk knows it")

    def done(self, node: str, mirror: Mirror, reqid: bytes, index: int) -> None:
        """S6: acknowledged once, at the index told. S14: not by a peer outside a later configuration."""
        holds(self.committed_reqids.get(reqid) == index, "S6", f"{node} tells index {index}, it is not committed there")
        holds(self.acknowledged.setdefault(reqid, index) == index, "S6", "one update was told two indices")
        named = [configuration.names(node) for _, configuration in self.configurations]
        before = [at < index for at, _ in self.configurations]
        last = sum(before) - 1  # the last configuration below the update
        own = mirror.configurations[-1] if mirror.configurations else 0
        if own > self.configurations[-1][0]:  # taken in again by an entry that nobody has seen committed yet
            named.append(Configuration.decode(entry_data(mirror.entries[own - 1])).names(node))
        removed = last >= 0 and any(named[:last]) and not any(named[last:]) and node not in self.originals
        holds(not removed, "S14", f"{node} acknowledges {index}, but entry {self.configurations[last][0]} left it out")

    def _commit(self, index: int, entry: bytes) -> None:
        self.committed.append(entry)
        reqid = entry_reqid(entry)
        if any(reqid):
            holds(reqid not in self.committed_reqids, "S6", f"one request id at {index} and before")
            self.committed_reqids[reqid] = index
        if entry_type(entry) != EntryType.CONFIG:
            return
        configuration = Configuration.decode(entry_data(entry))
        before, self.configuration = self.configuration, configuration
        if before is not None:
            follows = (
                configuration.old == before.new if configuration.old is not None else configuration.new == before.new
            )
            holds(follows, "S8", f"the configuration at {index} does not follow the one before")
        self.configurations.append((index, configuration))

    @staticmethod
    def _forget_configurations(mirror: Mirror) -> None:
        while mirror.configurations and mirror.configurations[-1] > len(mirror.entries):
            mirror.configurations.pop()

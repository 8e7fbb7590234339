"""A disk that forgets what was not fsynced: the storage commands of docs/specs/raft.md 5.2 without bytes."""

import random
from collections import deque
from collections.abc import Sequence

from pavane.raft.state.commands import Append, HardState, Note, Recovered, StoreCommand, Truncate
from pavane.raft.wire import EntryType, entry_data, entry_reqid, entry_term, entry_type


class Disk:
    """What is on the platter (``entries``, ``term``, …) and what is only on its way (``queue``)."""

    def __init__(self) -> None:
        self.queue: deque[StoreCommand] = deque()
        self.wipe()

    def wipe(self) -> None:
        self.queue.clear()
        self.entries: list[bytes] = []
        self.term = 0
        self.vote = ""
        self.vote_floor = 0
        self.votes: dict[int, str] = {}
        self.notes: dict[str, int | str | bytes] = {}

    def submit(self, commands: Sequence[StoreCommand]) -> None:
        self.queue.extend(commands)

    def sync(self, count: int) -> int:
        """Make the oldest ``count`` commands durable; return the last ticket."""
        ticket = 0
        for _ in range(count):
            command = self.queue.popleft()
            self._execute(command)
            ticket = command.ticket
        return ticket

    def crash(self, rng: random.Random) -> None:
        """Lose what was not fsynced, but for a prefix that happened to arrive; the write after it is torn."""
        self.sync(rng.randint(0, len(self.queue)))
        self.queue.clear()

    def damage(self, index: int) -> None:
        """Flip a bit in an entry that was fsynced: the scan at start sets it and everything behind it aside."""
        del self.entries[index - 1 :]

    def recovered(self, *, corrupt: bool) -> Recovered:
        runs: list[tuple[int, int]] = []
        configurations: list[tuple[int, bytes]] = []
        for index, entry in enumerate(self.entries, 1):
            term = entry_term(entry)
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
            if entry_type(entry) == EntryType.CONFIG:
                configurations.append((index, bytes(entry_data(entry))))
        commit = self.notes.get("commit", 0)
        return Recovered(
            term=self.term,
            vote=self.vote,
            vote_floor=self.vote_floor,
            last_index=len(self.entries),
            term_runs=tuple(runs),
            reqids=b"".join(entry_reqid(entry) for entry in self.entries),
            configurations=tuple(configurations),
            commit=min(commit, len(self.entries)) if isinstance(commit, int) else 0,
            notes=dict(self.notes),
            corrupt=corrupt,
        )

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[bytes]:
        entries: list[bytes] = []
        size = 0
        for entry in self.entries[first - 1 : last]:
            size += len(entry)
            if entries and size > bytes_max:
                break
            entries.append(entry)
        return entries

    def _execute(self, command: StoreCommand) -> None:
        match command:
            case HardState(_, term, vote, vote_floor):
                self.term, self.vote, self.vote_floor = term, vote, vote_floor
                if vote:
                    self.votes[term] = vote
            case Append(_, first, entries):
                assert first <= len(self.entries) + 1, "a gap in the log"
                self.entries[first - 1 :] = entries
            case Truncate(_, after):
                del self.entries[after:]
            case Note(_, key, value):
                self.notes[key] = value

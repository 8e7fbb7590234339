"""Repairs that only a person can order, because they may give up what was acknowledged (docs/specs/raft.md 17).

Each looks at a store and returns the commands that would change it; ``carry_out`` executes them.
"""

from collections.abc import Sequence
from pathlib import Path

from pavane.raft.offline.store import StoredLog
from pavane.raft.offline.writing import StoreWriter, configuration_entry, next_term
from pavane.raft.state.commands import RECOVERING_FLOOR, Append, HardState, Note, StoreCommand, Truncate
from pavane.raft.state.configuration import Members, fault_in
from pavane.raft.storage import Identity, StoreError
from pavane.raft.storage.recovery import NOTE_COMMIT


def repair(stored: StoredLog, after: int) -> tuple[StoreCommand, ...]:
    """Drop every entry behind ``after``, and make the peer Recovering (5.5).

    It may have promised what is dropped, so it must not vote until the others have brought it up to date. Raises
    ``StoreError`` if there is nothing behind ``after``, or the log does not reach down to it.
    """
    recovered = stored.recovered
    covered = recovered.snapshot.index if recovered.snapshot is not None else 0
    if not covered <= after < recovered.last_index:
        raise StoreError(f"nothing to drop after {after}: there are entries {covered + 1} to {recovered.last_index}")
    return (
        Truncate(0, after),
        Note(0, NOTE_COMMIT, min(recovered.commit, after)),
        HardState(0, recovered.term, recovered.vote, RECOVERING_FLOOR),
    )


def recover(stored: StoredLog, members: Members) -> tuple[StoreCommand, ...]:
    """Make the peer the only member of its cluster, in a new term, with every entry that it holds.

    The only one, because any other would have a vote without what this log holds, and could outvote it. Raises
    ``StoreError`` for other members.
    """
    fault = fault_in(members)
    if fault is not None:
        raise StoreError(fault)
    peer = stored.identity.peer
    if [member for member, _ in members] != [peer]:
        raise StoreError(f"this is the folder of {peer!r}: name it alone, and add members to it once it runs")
    recovered = stored.recovered
    term = next_term(recovered)
    entry = configuration_entry(term, members)
    return (Append(0, recovered.last_index + 1, (entry,)), HardState(0, term, ""))


def carry_out(path: Path, identity: Identity, commands: Sequence[StoreCommand]) -> None:
    """Change the store in ``path``; raises ``StoreError`` and ``OSError``."""
    with StoreWriter(path, identity) as writer:
        writer.execute(commands)

"""A log gets what an archive holds, under the same numbers (docs/specs/waltz.md 13.9)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client.transaction import Lock
from pavane.waltz.client.waltz import Waltz
from pavane.waltz.errors import ArchiveError, WaltzError
from pavane.waltz.state.archived import Archived, Piece
from pavane.waltz.state.locks import SLOTS, LockTable
from pavane.waltz.wire.locks import lock_hashes
from pavane.waltz.wire.storage import Record

UNDER_WAY = 100  # appends of a partition, as many as its server takes at a time


@dataclass(frozen=True, slots=True)
class Restored:
    """A partition holds all transactions before ``end``; those before ``there`` it had already."""

    partition: int
    there: int
    end: int


async def restore(log: Waltz, archive: Archive, last: Mapping[int, int]) -> AsyncIterator[Restored]:
    """Append what ``archive`` holds, and yield each partition when it is whole.

    ``last`` names the last transaction of a partition, -1 for none; of others all that is archived comes. The log has
    to be empty, or to have the first of these transactions and no others, as an interrupted restore leaves it. Until
    all of that is known nothing is written. Nobody else may append meanwhile.

    Raises ``ArchiveError`` if the archive does not begin with transaction 0, lacks some or is damaged, ``WaltzError``
    if the log has others, and what ``append`` raises. After each of them it can be done again.
    """
    numbers = range(len(await log.partitions()))
    await _check_partitions(log, archive, len(numbers), last)
    plans = {number: await _plan(archive, number, last.get(number)) for number in numbers}
    there = {number: await _there(log, number, plan.end) for number, plan in plans.items()}
    for number, plan in plans.items():
        await _bring(log, archive, number, plan, there[number])
        yield Restored(number, there[number], plan.end)


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces with all transactions of a partition before ``end``."""

    pieces: Sequence[Piece]
    end: int


async def _check_partitions(log: Waltz, archive: Archive, count: int, last: Mapping[int, int]) -> None:
    folders, keys = await archive.contents()
    numbers = sorted(int(name) for name in folders if name.isdecimal())
    if not numbers:
        seen = f"; it has {', '.join(sorted(folders)[:10])}" if folders else ""
        raise ArchiveError(f"{archive.url} holds no log: give the folder of one, such as …/ledger-6ba7b810{seen}")
    made, most = await log.key_partitions(), max([numbers[-1] + 1, *keys])
    if (keys and made not in keys) or count < most:
        first = f"with {keys[0]}" if keys else "with as many as the former log was made with"
        raise WaltzError(
            f"{archive.url} has {most} partitions, and {log.cluster} was made with {made} and has {count}: make it "
            f"{first}, which say on which partition a key is, then let it grow to {most}"
        )
    if unknown := sorted({number for number, end in last.items() if end >= 0} - set(numbers)):
        raise ArchiveError(f"{archive.url} has nothing of partition {unknown[0]}")


async def _plan(archive: Archive, partition: int, last: int | None) -> Plan:
    return planned(await archive.pieces(partition), last, f"{archive.url}: partition {partition}")


def planned(there: Sequence[Piece], last: int | None, where: str, *, gaps: bool = False) -> Plan:
    """Return the pieces with all transactions up to ``last``, or up to the end; ``gaps``: up to the first gap.

    Raises ``ArchiveError`` with ``where`` if some are not there.
    """
    pieces = [piece for piece in there if last is None or piece.first <= last]
    held = Archived()
    held.listed(pieces, 0)
    if begins := min((piece.first for piece in pieces), default=0):
        raise ArchiveError(f"{where} begins with transaction {begins}: what was before is in no archive")
    if not gaps and (behind := min((piece.first for piece in pieces if piece.first > held.end), default=0)):
        raise ArchiveError(f"{where} lacks what is before transaction {behind}: restore to one before the gap")
    if last is not None and held.end <= last:
        raise ArchiveError(f"{where} ends with transaction {held.end - 1}, before {last}")
    return Plan(held.pieces(), held.end if last is None else last + 1)


async def _there(log: Waltz, partition: int, end: int) -> int:
    there = await log.hwm(partition) + 1
    if await log.first(partition) or there > end:
        raise WaltzError(
            f"partition {partition} of {log.cluster} has transactions up to {there - 1} that a restore of {end} does "
            "not bring: a log has to be empty to be restored. Nothing was written"
        )
    return there


async def _bring(log: Waltz, archive: Archive, partition: int, plan: Plan, there: int) -> None:
    txid = 0
    for piece in plan.pieces:
        records = (await archive.read(partition, piece))[txid - piece.first : plan.end - piece.first]
        known = records[: max(0, there - txid)]
        found = [(each.header, each.data) async for each in log.read(partition, txid, txid + len(known))]
        if found != [(each.header, each.data) for each in known]:
            raise WaltzError(
                f"partition {partition} of {log.cluster} has other transactions from {txid} on than {archive.url}: "
                "somebody appends to it, or it is not what a restore has left. Begin with an empty log"
            )
        for at in range(len(known), len(records), UNDER_WAY):
            await _append(log, partition, records[at : at + UNDER_WAY], plan.end - 1)
        txid += len(records)


async def _append(log: Waltz, partition: int, records: Sequence[Record], last: int) -> None:
    sent = [
        log.append_nowait(partition, each.data, header=each.header, write=_all_locks() if each.txid == last else ())
        for each in records
    ]
    for record, txid in zip(records, await asyncio.gather(*sent, return_exceptions=True), strict=True):
        if isinstance(txid, BaseException):
            raise txid
        if txid != record.txid:
            raise WaltzError(
                f"partition {partition} of {log.cluster}: transaction {record.txid} of the archive became {txid}: "
                "somebody else appends to it. Begin with an empty log"
            )


def _all_locks() -> list[Lock]:
    """Return locks with all slots of a server's table.

    Nobody knows any more which locks the archived transactions wrote: so whoever has not seen the last has a conflict.
    """
    table, free, locks = LockTable(-1), set(range(SLOTS)), list[Lock]()
    for number in count():
        lock = "pavane-waltz-restore", number
        slots = table.slots_of(lock_hashes([lock]))
        if not free.isdisjoint(slots):
            locks.append(lock)
            free.difference_update(slots)
            if not free:
                break
    return locks

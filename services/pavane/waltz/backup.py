"""What of a log's archive is needed to restore it to now, as a backup with a name (docs/specs/waltz.md 13.9).

The archive has the data already, in pieces that are never changed. So a backup is a list: of each partition the end,
the pieces that lead to it, and a digest of the transactions. It is made once the archive has all that was acknowledged
when it was asked for, and it is good for as long as nobody deletes from the archive.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pavane.runtime.backups import DIGEST_BYTES, NAME, Copies, Manifest
from pavane.wal import DiskFolder
from pavane.wal.files import replace_file
from pavane.waltz.aio.archive import Archive
from pavane.waltz.client.restoring import planned
from pavane.waltz.client.waltz import Waltz
from pavane.waltz.errors import ArchiveError
from pavane.waltz.state.archived import Piece

KIND = "WaltzCluster"
FILE = re.compile(r"(?!)")  # a backup has no file but its manifest
LOOK_S = 1.0  # between two looks at what the archive has
SILENCE_S = 2 * 3600.0  # without anything new in the archive: `archive.delay` may be an hour


@dataclass(frozen=True, slots=True)
class Ends:
    """What a backup leads to: of each partition the transactions before its end."""

    cluster: str
    archive: str
    ends: Mapping[int, int]
    digest: str

    @property
    def transactions(self) -> int:
        """How many there are."""
        return sum(self.ends.values())


def ends_of(about: Mapping[str, Any]) -> Ends:
    """Return what a manifest states. Raises ``ValueError``, ``KeyError``, ``TypeError``, ``AttributeError``."""
    ends = {int(number): int(each["end"]) for number, each in about["partitions"].items()}
    for each in about["partitions"].values():
        if not all(isinstance(name, str) for name in each["pieces"]):
            raise ValueError("a piece has no name")
    return Ends(str(about["cluster"]), str(about["archive"]), ends, str(about["digest"]))


decode = partial(Manifest.decode, kind=KIND, file=FILE, error=ArchiveError, about=ends_of)
copies: Copies[Manifest] = Copies(decode, FILE, ArchiveError)


async def back_up(
    log: Waltz, archive: Archive, target: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> Ends:
    """Write the manifest of a backup into the folder ``target`` once the archive has all that is acknowledged now.

    ``progress`` is told partitions. Raises ``ArchiveError`` if the archive lacks the beginning, gets nothing for
    ``SILENCE_S``, or holds damaged pieces, and what ``Waltz.hwm`` raises.
    """
    wanted = {number: await log.hwm(number) + 1 for number in range(len(await log.partitions()))}
    plans: dict[int, Sequence[Piece]] = {}
    for number, end in wanted.items():
        progress(len(plans), len(wanted))
        plans[number] = await _complete(archive, number, end)
    digest = await _digest(archive, plans, wanted)
    partitions = {
        str(number): {"end": end, "pieces": [piece.name for piece in plans[number]]} for number, end in wanted.items()
    }
    about = {"cluster": log.cluster, "archive": archive.url, "partitions": partitions, "digest": digest}
    manifest = Manifest(KIND, about, {})
    await asyncio.to_thread(replace_file, DiskFolder(target), NAME, manifest.encode())
    return ends_of(about)


async def verify(manifest: Manifest, archive: Archive) -> Ends:
    """Read all pieces that a backup names, and compare them with its digest; raises ``ArchiveError``."""
    plans: dict[int, list[Piece]] = {}
    ends = ends_of(manifest.about)
    for number, end in ends.ends.items():
        names = manifest.about["partitions"][str(number)]["pieces"]
        there = {piece.name: piece for piece in await archive.pieces(number)}
        if missing := [name for name in names if name not in there]:
            raise ArchiveError(
                f"{archive.url}/{number}/{missing[0]} is missing: the backup of {end} transactions cannot be restored"
            )
        plans[number] = [there[name] for name in names]
    found = await _digest(archive, plans, ends.ends)
    if found != ends.digest:
        raise ArchiveError(f"{archive.url} has other transactions than the backup: digest {found}, not {ends.digest}")
    return ends


async def _complete(archive: Archive, partition: int, end: int) -> Sequence[Piece]:
    """Return the pieces with all transactions before ``end``, once they are there."""
    loop = asyncio.get_running_loop()
    had, heard_s = -1, loop.time()
    while end:
        plan = planned(await archive.pieces(partition), None, f"{archive.url}: partition {partition}", gaps=True)
        if plan.end >= end:
            return [piece for piece in plan.pieces if piece.first < end]
        if plan.end != had:
            had, heard_s = plan.end, loop.time()
        elif loop.time() - heard_s > SILENCE_S:
            raise ArchiveError(
                f"{archive.url}: partition {partition} ends before transaction {plan.end}, of {end}, and nothing "
                f"came for {SILENCE_S:.0f} s: see condition ArchiveBehind of the WaltzCluster"
            )
        await asyncio.sleep(LOOK_S)
    return ()


async def _digest(archive: Archive, plans: Mapping[int, Sequence[Piece]], ends: Mapping[int, int]) -> str:
    """Read all pieces; return a digest of the transactions, however they are cut into pieces."""
    hasher = blake2b(digest_size=DIGEST_BYTES)
    for number, pieces in sorted(plans.items()):
        following = 0
        for piece in pieces:
            if piece.first > following:
                break
            for record in (await archive.read(number, piece))[following - piece.first :]:
                if record.txid < ends[number]:
                    hasher.update(b"%d %d %d %d " % (number, record.txid, record.header, len(record.data)))
                    hasher.update(record.data)
            following = piece.last + 1
        if following < ends[number]:
            raise ArchiveError(f"{archive.url}: partition {number} lacks transaction {following}, of {ends[number]}")
    return hasher.hexdigest()

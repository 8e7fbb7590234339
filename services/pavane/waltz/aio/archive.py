"""An archive in object storage or in a folder: pieces, each written once (docs/specs/waltz.md 13.9)."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pavane.runtime.objects import ObjectStore
from pavane.waltz.errors import ArchiveError
from pavane.waltz.state.archived import Piece
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage.piece import records_of
from pavane.waltz.wire.storage import Record

PIECES_KEPT = 4  # read last: a feed takes a thousand transactions of a piece at a time
READS_MAX = 4  # pieces that are read at a time: each is in memory
KEYS = "key-partitions-"  # name of an object without data, up to the number


class Archive:
    """The archive at ``url``; ``options`` are the store's, such as its keys. All raise ``ArchiveError``."""

    def __init__(self, url: str, options: Mapping[str, str], *, make: bool = True) -> None:
        self._store = ObjectStore(url, options, ArchiveError, make=make)
        self.url = self._store.url
        self._lately: OrderedDict[tuple[int, Piece], asyncio.Task[list[Record]]] = OrderedDict()
        self._reading = asyncio.Semaphore(READS_MAX)

    async def contents(self) -> tuple[list[str], list[int]]:
        """Return the names of the folders at the URL, and what ``note_keys`` was told.

        The folders of a log are its partitions' numbers.
        """
        found = await self._store.ask("listing", "", lambda store: store.list_with_delimiter())
        names = [each["path"].rpartition("/")[2] for each in found["objects"]]
        counts = (name.removeprefix(KEYS) for name in names if name.startswith(KEYS))
        keys = [int(count) for count in counts if count.isascii() and count.isdecimal()]
        return [path.rpartition("/")[2] for path in found["common_prefixes"]], keys

    async def note_keys(self, partitions: int) -> None:
        """Write over how many partitions the log spreads keys, which never changes."""
        await self._store.write(f"{KEYS}{partitions}", b"")

    async def pieces(self, partition: int) -> list[Piece]:
        """Return the pieces of a partition, in no order."""

        def listed(store: Any) -> list[Piece]:
            found = (each for some in store.list(f"{partition}/") for each in some)
            named = (Piece.named(each["path"].rpartition("/")[2]) for each in found)
            return [piece for piece in named if piece is not None]

        return await self._store.ask("listing", str(partition), listed)

    async def put(self, partition: int, piece: Piece, data: bytes) -> None:
        """Write a piece, durably. One that is there already has these bytes."""
        await self._store.write(f"{partition}/{piece.name}", data)

    async def read(self, partition: int, piece: Piece) -> list[Record]:
        """Return the records of a piece; one that is damaged raises as well. Who wants the same one shares it."""
        known = partition, piece
        if known not in self._lately:
            self._lately[known] = task = asyncio.create_task(self._fetch(partition, piece), name="waltz archive piece")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            while len(self._lately) > PIECES_KEPT:
                self._lately.popitem(last=False)
        self._lately.move_to_end(known)
        return await asyncio.shield(self._lately[known])

    async def _fetch(self, partition: int, piece: Piece) -> list[Record]:
        name = f"{partition}/{piece.name}"

        def fetched(store: Any) -> list[Record]:
            try:
                return records_of(piece, bytes(store.get(name).buffer()), partition)[1]
            except Damaged as error:
                raise ArchiveError(f"reading {self.url}/{name}: {error}") from None

        try:
            async with self._reading:
                return await self._store.ask("reading", name, fetched)
        except BaseException:
            self._lately.pop((partition, piece), None)
            raise

"""A client of the log that reads below its start from the archive itself, and not through the partition's server."""

import ssl
from collections.abc import AsyncGenerator, Sequence

from pavane.spark.options import Store
from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Transaction, Waltz
from pavane.waltz.state.archived import Archived


class ArchivedLog(Waltz):
    """A log with its archive in ``store``; everything else is as with ``Waltz``. Raises ``ArchiveError``."""

    def __init__(self, servers: Sequence[str], tls: ssl.SSLContext | None, store: Store) -> None:
        super().__init__(list(servers), tls=tls)
        self._archive = Archive(store.url, store.options, make=False)

    async def first(self, partition: int) -> int:
        """Return the first transaction that can be read. Raises ``Unavailable``, ``ArchiveError``."""
        held, start = await self._held(partition)
        return held.begins(start)

    async def read(self, partition: int, start: int, stop: int) -> AsyncGenerator[Transaction, None]:
        """Yield what there is of ``start`` to ``stop`` - 1. Raises what ``Waltz.read`` does, and ``ArchiveError``."""
        held, begin = await self._held(partition)
        while start < min(stop, begin) and (piece := held.piece(start)) is not None:
            records = await self._archive.read(partition, piece)
            for record in records[start - piece.first : min(stop, begin) - piece.first]:
                start = record.txid + 1
                yield Transaction(record.txid, record.header, record.data, record.reqid)
        async for transaction in super().read(partition, start, stop):
            yield transaction

    async def _held(self, partition: int) -> tuple[Archived, int]:
        """Return what the archive has, and where the storage nodes begin: asked first, so that nothing is between."""
        start, held = await self.start(partition), Archived()
        held.listed(await self._archive.pieces(partition) if start else (), start)
        return held, start

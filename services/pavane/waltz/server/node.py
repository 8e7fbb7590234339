"""A storage node as a process has it: folder, lock, port."""

import asyncio
import os
import ssl
from pathlib import Path
from uuid import UUID

from pavane.runtime.metrics import Metric
from pavane.wal import DiskFolder
from pavane.waltz.aio.storage import StorageServer
from pavane.waltz.core.node import DISK_RESERVE_BYTES
from pavane.waltz.storage import Directory, FolderLock

RESERVE_SHARE = 16


class StorageNode:
    """Keeps all partitions of the cluster with ``key`` in ``folder``: ``partitions``, and what it got since.

    ``cluster`` is its name, for spans.

    ``start`` raises ``ForeignDirectory``, ``BlockingIOError`` while another process uses the folder, and ``OSError``.
    """

    def __init__(
        self, folder: Path, key: UUID, partitions: int, *, cluster: str = "", disk_reserve_bytes: int | None = None
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._key = key
        self._partitions = partitions
        self._reserve = disk_reserve_bytes
        self._kept_free = 0
        self._lock: FolderLock | None = None
        self.server: StorageServer | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.server.port if self.server is not None else 0

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, admin_port: int | None = None
    ) -> None:
        """Open the folder, look at what is in it, then listen, with ``admin_port`` also for tools."""
        self._lock, directory = await asyncio.to_thread(self._open)
        reserve = self._reserve if self._reserve is not None else await asyncio.to_thread(self._reserve_bytes)
        self._kept_free = reserve
        self.server = StorageServer(directory, self._key, cluster=self._cluster, disk_reserve_bytes=reserve)
        await self.server.start(host, port, tls)
        if admin_port is not None:
            await self.server.tools.start(host, admin_port, tls)

    @property
    def admin_port(self) -> int:
        """The port for tools."""
        return self.server.tools.port if self.server is not None else 0

    async def run(self) -> None:
        """Return, or raise, only when the node cannot go on."""
        if self.server is not None:
            await self.server.run()

    async def stop(self) -> None:
        """Close port, files and folder."""
        try:
            if self.server is not None:
                await self.server.stop()
        finally:
            self.server = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    @property
    def full(self) -> bool:
        """Whether the volume has no room for the next append: what is free is kept for marks and repairs."""
        if self.server is None:
            return False
        return self.server.directory.free_bytes() - max(1, self.server.node.lacking_bytes) < self._kept_free

    def faults(self) -> dict[int, str]:
        """Return the partitions that cannot be used, and why."""
        found = self.server.directory.assigned() if self.server is not None else ()
        return {files.number: files.fault for files in found if files.fault}

    def mended(self) -> dict[int, str]:
        """Return the partitions whose copy was rebuilt since the process began, and what was wrong with it."""
        found = self.server.directory.assigned() if self.server is not None else ()
        return {files.number: files.mended for files in found if files.mended and not files.fault}

    def metrics(self) -> list[Metric]:
        """Return the node's metrics."""
        if self.server is None:
            return []
        found = [
            Metric("pavane_waltz_storage_requests_total", {}, self.server.requests),
            Metric("pavane_waltz_storage_failures_total", {}, self.server.failures),
            Metric("pavane_waltz_storage_connections", {}, len(self.server.streams)),
            Metric("pavane_waltz_storage_scrubs_total", {}, self.server.scrub.passes),
            Metric("pavane_waltz_storage_damages_total", {}, self.server.directory.found_damaged),
        ]
        for files in self.server.directory.assigned():
            labels = {"partition": str(files.number)}
            found.append(Metric("pavane_waltz_storage_first_transaction", labels, files.first))
            found.append(Metric("pavane_waltz_storage_max_transaction", labels, files.max_txid))
            found.append(Metric("pavane_waltz_storage_bytes", labels, files.size))
            found.append(Metric("pavane_waltz_storage_available", labels, files.available))
        return found

    def _reserve_bytes(self) -> int:
        """Return what stays free for marks and repairs: less on a small volume, which would else be full at once."""
        found = os.statvfs(self._folder)
        return min(DISK_RESERVE_BYTES, found.f_blocks * found.f_frsize // RESERVE_SHARE)

    def _open(self) -> tuple[FolderLock, Directory]:
        lock = FolderLock(self._folder)
        try:
            directory = Directory(DiskFolder(self._folder), self._key, self._partitions)
            directory.assign(range(directory.partitions))
        except BaseException:
            lock.release()
            raise
        return lock, directory

"""A storage node's port: connections, and the one thread that does everything on the disk (docs/specs/waltz.md 10).

Messages queue up while the disk works; the thread then takes all of them, so they share their syncs. Only syncs of
several partitions are made by several threads: the file system makes one commit of what it is asked for together.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from pavane.waltz.aio.admin import AdminPort
from pavane.waltz.aio.listener import Listener
from pavane.waltz.aio.stream import Stream
from pavane.waltz.core.admin import Admin
from pavane.waltz.core.node import DISK_RESERVE_BYTES, Node, Sync
from pavane.waltz.state.store import PartitionStore
from pavane.waltz.storage import Directory
from pavane.waltz.tracing import Tracing
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import STORAGE_SERVER

UNANSWERED_HIGH, UNANSWERED_LOW = 600, 300  # messages of one connection: between them it is read or not as it was
BATCH_MESSAGES_MAX = 1000
BATCH_READS_MAX = 16  # of one batch: each answer may have 4 MiB, and all of them are kept until the batch is done
MARK_SYNC_S = 0.1
SYNCS_MAX = 8  # partitions that are synced together

_logger = logging.getLogger(__name__)


class StorageServer:
    """Serves ``directory`` to the servers of the cluster with ``key``, whose name is ``cluster``.

    Raises ``OSError`` when it starts.
    """

    def __init__(
        self, directory: Directory, key: UUID, *, cluster: str = "", disk_reserve_bytes: int = DISK_RESERVE_BYTES
    ) -> None:
        self.node = Node(directory, disk_reserve_bytes=disk_reserve_bytes, each=self._together)
        self.directory = directory
        self.key = key
        self.requests = self.failures = 0
        self._listener = Listener(lambda: _Connection(self))
        self._tracing = Tracing(cluster)
        self._queue: deque[tuple[_Connection, Any, int]] = deque()
        self._arrived = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, "waltz-disk")
        self._syncs = ThreadPoolExecutor(SYNCS_MAX - 1, "waltz-sync")
        self._worker: asyncio.Task[None] | None = None
        self._admin = Admin(directory, lambda: {"requests": self.requests, "failures": self.failures})
        self.tools = AdminPort(key, directory.partitions, self._administer)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.port

    @property
    def streams(self) -> "set[_Connection]":
        """Open connections."""
        return self._listener.streams

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen and serve."""
        await self._listener.start(host, port, tls)
        self._worker = asyncio.create_task(self._work(), name="waltz storage")

    async def start_admin(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen for tools on a port of their own."""
        await self.tools.start(host, port, tls)

    async def run(self) -> None:
        """Return only if the worker fails."""
        if self._worker is not None:
            await asyncio.shield(self._worker)

    async def stop(self) -> None:
        """End all connections, then make what is known durable and close the files."""
        await self._listener.stop()
        await self.tools.stop()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._disk.shutdown(wait=True)
        self._syncs.shutdown(wait=True)
        self.directory.close()

    def submit(self, connection: "_Connection", message: Any) -> None:
        """Queue a message of a connection that has opened."""
        self.node.arrive(message.head)
        self._queue.append((connection, message, self._tracing.now_ns()))
        self._arrived.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        synced = loop.time()
        dirty = False
        while True:
            if not self._queue:
                self._arrived.clear()
                try:
                    async with asyncio.timeout(MARK_SYNC_S if dirty else None):
                        await self._arrived.wait()
                except TimeoutError:
                    pass
            taken = self._take()
            if taken:
                answers = await loop.run_in_executor(
                    self._disk, self.node.execute, [message for _, message, _ in taken]
                )
                for (connection, message, arrived_ns), answer in zip(taken, answers, strict=True):
                    self.requests += 1
                    self.failures += isinstance(answer, s.Failure)
                    connection.answer(answer)
                    if arrived_ns and isinstance(message, s.Append) and isinstance(answer, s.Success):
                        self._tracing.stored(message.head.partition, arrived_ns, message.records)
                dirty = True
            if dirty and (not taken or loop.time() - synced >= MARK_SYNC_S):
                await loop.run_in_executor(self._disk, self._sync_marks)
                synced, dirty = loop.time(), False

    def _take(self) -> "list[tuple[_Connection, Any, int]]":
        """Take what is carried out next; what a connection wanted to read that is gone is not read."""
        taken: list[tuple[_Connection, Any, int]] = []
        reads = 0
        while self._queue and len(taken) < BATCH_MESSAGES_MAX and reads < BATCH_READS_MAX:
            one = self._queue.popleft()
            if isinstance(one[1], (s.RecordListRequest, s.RecordRequest)):
                if one[0].closed:
                    continue
                reads += 1
            taken.append(one)
        return taken

    async def _administer(self, request: Any) -> Any:
        """In turn with what servers ask: the disk has one thread, so a batch under way is finished first."""
        answer = await asyncio.get_running_loop().run_in_executor(self._disk, self._admin.execute, request)
        if isinstance(request, s.SetAssigned) and request.assign and isinstance(answer, s.AdminSuccess):
            # An owner that has nothing to append would not notice that the replica has to be copied again.
            for stream in list(self.streams):
                stream.hang_up("a partition was assigned")
        return answer

    def _together(self, sync: Sync, partitions: Sequence[PartitionStore]) -> list[OSError | None]:
        others = [self._syncs.submit(sync, one) for one in partitions[1:]]
        return [*map(sync, partitions[:1]), *(other.result() for other in others)]

    def _sync_marks(self) -> None:
        try:
            self.directory.sync_marks()
        except OSError as error:
            _logger.error("marks cannot be synced: %s", error)


class _Connection(Stream):
    def __init__(self, server: StorageServer) -> None:
        super().__init__(STORAGE_SERVER, connecting=False)
        self._server = server
        self._is_open = False
        self._unanswered = 0

    def heard(self, message: Any) -> None:
        if isinstance(message, s.Open):
            self._open(message)
        elif not self._is_open:
            self.hang_up("a message before OPEN")
        elif not 0 <= message.head.partition < self._server.directory.partitions:
            self.send(s.Failure(message.head, f"there is no partition {message.head.partition}"))
        else:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_HIGH:
                self.pause_reading(True)
            self._server.submit(self, message)

    def answer(self, message: Any) -> None:
        """Send the answer to a message that was submitted."""
        self._unanswered -= 1
        if self._unanswered <= UNANSWERED_LOW:
            self.pause_reading(False)
        self.send(message)

    def _open(self, message: s.Open) -> None:
        directory = self._server.directory
        if (message.key, message.partitions) != (self._server.key, directory.partitions):
            text = f"this storage belongs to cluster {self._server.key} with {directory.partitions} partitions"
            self.send(s.Failure(message.head, text))
        else:
            self._is_open = True
            self.send(s.Success(message.head))

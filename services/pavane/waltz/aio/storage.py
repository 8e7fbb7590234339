"""A storage node's port: connections, and the one thread that does everything on the disk (docs/specs/waltz.md 10).

Messages queue up while the disk works; the thread then takes all of them, so they share their syncs.
"""

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any
from uuid import UUID

from pavane.wal.times import SyncTimes
from pavane.waltz.aio.admin import AdminPort
from pavane.waltz.aio.listener import Listener, Served
from pavane.waltz.aio.stream import Turn, turn_of
from pavane.waltz.core.admin import Admin
from pavane.waltz.core.node import DISK_RESERVE_BYTES, Node
from pavane.waltz.storage import Directory
from pavane.waltz.storage.scrub import SCRUB_BYTES_PER_S, SCRUB_PAUSE_S, SCRUB_PIECE_BYTES, Scrub
from pavane.waltz.storage.segment import OVERHEAD_BYTES
from pavane.waltz.tracing import Tracing
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import STORAGE_SERVER

UNANSWERED_HIGH, UNANSWERED_LOW = 600, 300  # messages of one connection: between them it is read or not as it was
BATCH_MESSAGES_MAX = 1000
HERE_BYTES = 64 * 1024  # of data in a batch that the loop may write itself: more takes longer than a hand-over
HERE_S = 0.001  # what its syncs may take, by those before it: a storage node has nothing else to do meanwhile
BATCH_READS_MAX = 16  # of one batch: each answer may have 4 MiB, and all of them are kept until the batch is done
MARK_SYNC_S = 0.1
PARTITIONS_MAX = 4096  # that a server may ask for: as many as a cluster may have


class StorageServer:
    """Serves ``directory`` to the servers of the cluster with ``key``, whose name is ``cluster``.

    Raises ``OSError`` when it starts.
    """

    def __init__(
        self,
        directory: Directory,
        key: UUID,
        *,
        cluster: str = "",
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        scrub_pause_s: float = SCRUB_PAUSE_S,
    ) -> None:
        self.node = Node(directory, disk_reserve_bytes=disk_reserve_bytes)
        self.directory = directory
        self.key = key
        self.requests = self.failures = 0
        self.scrub = Scrub(directory)
        self._scrub_s = SCRUB_PIECE_BYTES / SCRUB_BYTES_PER_S
        self._scrub_pause_s = scrub_pause_s
        self._scrubbing: asyncio.Task[None] | None = None
        self._found_damaged = directory.found_damaged
        self._listener = Listener(lambda: _Connection(self))
        self._tracing = Tracing(cluster)
        self._queue: deque[tuple[_Connection, Any, int]] = deque()
        self._disk: _Disk | None = None
        self._working = False
        """Whether a batch is under way, or will be at the end of this turn."""
        self._admin = Admin(directory, lambda: {"requests": self.requests, "failures": self.failures})
        self.tools = AdminPort(key, lambda: directory.partitions, self._administer)

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
        self._disk = _Disk(self.directory)
        try:
            await self._listener.start(host, port, tls)
        except OSError:
            await self._disk.close()
            raise
        self._scrubbing = asyncio.create_task(self._scrub(), name="waltz scrub")

    async def run(self) -> None:
        """Return only if the disk's thread fails."""
        if self._disk is not None:
            await asyncio.shield(self._disk.failure)

    async def _scrub(self) -> None:
        """Check everything again and again, between what servers ask for."""
        while True:
            passes = self.scrub.passes
            await self._on_disk(self.scrub.step)
            self._tell_of_damage()
            await asyncio.sleep(self._scrub_s if self.scrub.passes == passes else self._scrub_pause_s)

    def _tell_of_damage(self) -> None:
        """An owner that has nothing to append would not notice that a copy is to be rebuilt: let it ask again."""
        if self.directory.found_damaged != self._found_damaged:
            self._found_damaged = self.directory.found_damaged
            for stream in list(self.streams):
                stream.hang_up("a copy is damaged")

    async def stop(self) -> None:
        """End all connections, then make what is known durable and close the files."""
        if self._scrubbing is not None:
            self._scrubbing.cancel()
            await asyncio.gather(self._scrubbing, return_exceptions=True)
        await self._listener.stop()
        await self.tools.stop()
        self._queue.clear()
        if self._disk is not None:
            await self._disk.close()
        self.directory.close()

    def submit(self, connection: "_Connection", message: Any) -> None:
        """Queue a message of a connection that has opened."""
        self.node.arrive(message.head)
        self._queue.append((connection, message, self._tracing.now_ns()))

    def begin(self, turn: Turn) -> None:
        """Work on what was queued, with what else comes in this turn."""
        if self._queue and not self._working:
            self._working = True
            if turn.alone:
                self._work()
            else:
                asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Give the disk all that waits: when something has come to an idle disk, and whenever a batch is done."""
        taken = self._take()
        self._working = bool(taken) and self._disk is not None
        if self._working and self._disk is not None:
            messages = [message for _, message, _ in taken]
            small = self._disk.idle and self._are_small(messages)
            self._disk.work(partial(self.node.execute, messages), partial(self._answer, taken), small=small)

    def _are_small(self, messages: list[Any]) -> bool:
        """Whether they take two syncs, and little writing; ask while the disk is idle.

        A new segment takes six more, and one sync of them may be slow where the last ones were quick.
        """
        if not all(isinstance(message, s.Append) for message in messages) or _size(messages) > HERE_BYTES:
            return False
        ahead: dict[int, int] = {}
        for message in messages:
            files, before = self.directory.partition(message.head.partition), ahead.get(message.head.partition, 0)
            if files is not None and files.is_full(before):
                return False
            ahead[message.head.partition] = before + sum(len(one.data) + OVERHEAD_BYTES for one in message.records)
        return True

    def _answer(self, taken: "list[tuple[_Connection, Any, int]]", answers: list[Any]) -> None:
        for (connection, message, arrived_ns), answer in zip(taken, answers, strict=True):
            self.requests += 1
            self.failures += isinstance(answer, s.Failure)
            connection.answer(answer)
            if arrived_ns and isinstance(message, s.Append) and isinstance(answer, s.Success):
                self._tracing.stored(message.head.partition, arrived_ns, message.records)
        self._tell_of_damage()
        self._work()

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

    async def grow(self, partitions: int) -> None:
        """Make partitions that the cluster has by now. Raises ``OSError``."""
        while self.directory.grown < partitions:
            if (error := await self._on_disk(partial(self._grow, partitions))) is not None:
                raise error

    def _grow(self, partitions: int) -> OSError | None:
        try:
            self.directory.grow(partitions)
        except OSError as error:
            return error
        return None

    async def _administer(self, request: Any) -> Any:
        answer = await self._on_disk(partial(self._admin.execute, request))
        if isinstance(request, s.SetAssigned) and request.assign and isinstance(answer, s.Success):
            # An owner that has nothing to append would not notice that the replica has to be copied again.
            for stream in list(self.streams):
                stream.hang_up("a partition was assigned")
        return answer

    async def _on_disk(self, work: Callable[[], Any]) -> Any:
        """Do it in turn with what servers ask: the disk has one thread, so a batch under way is finished first."""
        assert self._disk is not None  # noqa: S101 -- nobody is served before the start
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._disk.call(work, partial(_resolve, done))
        return await done


class _Disk:
    """The thread that works on the disk, one call after the other, and syncs marks now and then.

    An executor takes longer to hand a small batch over than the kernel to write it, and on a fast disk so does this
    thread: while it has nothing to do, small batches are written by the loop. ``failure`` is set when ``work`` or
    ``done`` raises: the node cannot go on then.
    """

    def __init__(self, directory: Directory) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = turn_of(self._loop)
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self._times = SyncTimes()
        self._directory = directory
        self._open = 0
        """Calls that the thread has not answered."""
        self._marks_due: asyncio.TimerHandle | None = None
        self._calls: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="waltz-disk", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to do."""
        return not self._open

    def call(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Call ``work`` on the thread, then ``done`` with what it returned on the loop."""
        self._open += 1
        self._calls.put((work, done))
        self._note_marks()

    def work(self, work: Callable[[], Any], done: Callable[[Any], None], *, small: bool) -> None:
        """``call``, or do it here and now if it is ``small`` and a hand-over would take longer than it."""
        timed = partial(self._times.timed, work) if small else work
        if self._open or not (small and self._times.are_below(HERE_S)):
            self.call(timed, done)
            return
        self._note_marks()
        try:
            result = timed()
            with self._turn:
                done(result)
        except Exception as error:
            self._fail(error)

    async def close(self) -> None:
        """Do what was asked for, then end the thread."""
        if self._marks_due is not None:
            self._marks_due.cancel()
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (wanted := self._calls.get()) is not None:
            work, done = wanted
            try:
                result = work()
            except Exception as error:
                self._loop.call_soon_threadsafe(self._fail, error)
                return
            self._loop.call_soon_threadsafe(self._deliver, done, result)
            del wanted, work, done, result  # while nothing comes, what was read and written is not to be held here

    def _deliver(self, done: Callable[[Any], None], result: Any) -> None:
        self._open -= 1
        try:
            with self._turn:
                done(result)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    def _note_marks(self) -> None:
        if self._marks_due is None:
            self._marks_due = self._loop.call_later(MARK_SYNC_S, self._marks)

    def _marks(self) -> None:
        self._open += 1
        self._marks_due = None
        self._calls.put((self._directory.sync_marks, lambda _: None))


def _size(appends: list[s.Append]) -> int:
    return sum(len(record.data) for append in appends for record in append.records)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


class _Connection(Served):
    def __init__(self, server: StorageServer) -> None:
        super().__init__(STORAGE_SERVER, UNANSWERED_HIGH, UNANSWERED_LOW)
        self._server = server
        self._growing: asyncio.Task[None] | None = None

    def fault(self, message: Any) -> str:
        number = message.head.partition
        return "" if 0 <= number < self._server.directory.partitions else f"there is no partition {number}"

    def submit(self, message: Any) -> None:
        self._server.submit(self, message)

    def turned(self) -> None:
        self._server.begin(self.turn)

    def open(self, message: s.Open) -> None:
        """Servers of ours know of partitions that were added; who knew fewer may use those."""
        directory, key = self._server.directory, self._server.key
        most = PARTITIONS_MAX if self.channel.version else directory.partitions
        if message.key != key or not 0 < message.partitions <= most:
            self.refuse(message, key, directory.partitions)
        elif message.partitions > directory.grown:
            self._growing = asyncio.create_task(self._grow(message), name="waltz storage growth")
        else:
            self.accept(message)

    async def _grow(self, message: s.Open) -> None:
        try:
            await self._server.grow(message.partitions)
        except OSError as error:
            self.send(s.Failure(message.head, f"partitions cannot be added: {error}"))
        else:
            self.open(message)

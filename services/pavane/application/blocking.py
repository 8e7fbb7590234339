"""``pavane.connect_sync``: the same for programs without asyncio."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pavane.application.cluster import CONNECT_S, LEASE_S, Cluster, Lock, Text, WatchEvent, connect
from pavane.application.finding import Connection
from pavane.raft.errors import Closed
from pavane.runtime.blocking import run_on
from pavane.runtime.forks import Process


class _Closable(Protocol):
    async def close(self) -> None: ...


Result = TypeVar("Result")
Connected = TypeVar("Connected", bound=_Closable)


class Blocking(Generic[Connected]):
    """What was connected, on an event loop in a thread of its own; for a ``with`` block."""

    closed: ClassVar[type[Exception]] = Closed

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Connected]]) -> None:
        self._process = Process()
        self._loop: asyncio.AbstractEventLoop | None = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pavane", daemon=True)
        self._thread.start()
        try:
            self.asynchronous = self.run(connect())
        except BaseException:
            self._stop()
            raise

    @property
    def is_open(self) -> bool:
        """Whether ``run`` can be called: it is neither closed nor of the process that forked this one."""
        return self._loop is not None and self._process.is_this

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a coroutine of ``asynchronous``."""
        if self._loop is None:
            work.close()
            raise self.closed("this connection is closed; connect again")
        if not self._process.is_this:
            work.close()
            raise self.closed("this was connected before this process was forked; connect in each process")
        return run_on(self._loop, work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; in a forked process those of its parent stay as they are."""
        if not self._process.is_this:
            self._loop = None
        elif self._loop is not None:
            self.run(self.asynchronous.close())
            self._stop()

    def _stop(self) -> None:
        loop = self._loop
        if loop is not None:
            self.run(loop.shutdown_asyncgens())
            self.run(loop.shutdown_default_executor())
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()


class BlockingCluster(Blocking[Cluster]):
    """A ``Cluster`` on an event loop in a thread of its own; methods block, and may be called from many threads."""

    def get(self, key: Text) -> bytes | None:
        """Return the value of a key, None if it is not there."""
        return self.run(self.asynchronous.get(key))

    def put(self, key: Text, value: Text, *, fenced_by: Lock | None = None) -> int:
        """Write a key and return the revision. Raises ``LockLost`` if ``fenced_by`` is not held any more."""
        return self.run(self.asynchronous.put(key, value, fenced_by=fenced_by))

    def delete(self, key: Text, *, fenced_by: Lock | None = None) -> int:
        """Delete a key if it is there and return the revision."""
        return self.run(self.asynchronous.delete(key, fenced_by=fenced_by))

    def list(self, prefix: Text = "") -> dict[str, bytes]:
        """Return the keys that begin with ``prefix``, and their values."""
        return self.run(self.asynchronous.list(prefix))

    @contextmanager
    def lock(self, key: Text, *, ttl_s: float = LEASE_S, value: Text = b"") -> Iterator[Lock]:
        """Wait for a lock and hold it; ``lost.is_set()`` may be asked from any thread."""
        held: Any = self.asynchronous.lock(key, ttl_s=ttl_s, value=value)
        try:
            yield self.run(_enter(held))
        finally:
            if self._process.is_this:
                self.run(held.gen.aclose())  # also where Ctrl-C came when it had just been taken

    def election(self, key: Text, candidate: Text, *, ttl_s: float = LEASE_S) -> AbstractContextManager[Lock]:
        """Wait to be elected, and lead to the end of the block."""
        return self.lock(key, ttl_s=ttl_s, value=candidate)

    def counter_add(self, key: Text, amount: int = 1) -> int:
        """Add to a number that many count with, and return what it is then; 0 only reads it."""
        counter = self.asynchronous.counter(key)
        return self.run(counter.add(amount) if amount else counter.value())

    def watch(self, key: Text, *, prefix: bool = False, from_revision: int = 0) -> Iterator[WatchEvent]:
        """Yield every change of a key, or of all that begin so, for ever."""
        watch = self.run(_made(self.asynchronous, key, prefix, from_revision))
        try:
            while True:
                yield self.run(watch.__anext__())
        finally:
            if self.is_open:
                self.run(watch.aclose())


def connect_sync(
    name: str = "",
    *,
    namespace: str | None = None,
    urls: Sequence[str] | None = None,
    connection: Connection | None = None,
    timeout_s: float = CONNECT_S,
) -> BlockingCluster:
    """Connect as ``connect`` does, for a ``with`` block of a program without asyncio."""
    return BlockingCluster(
        lambda: connect(name, namespace=namespace, urls=urls, connection=connection, timeout_s=timeout_s)
    )


async def _made(cluster: Cluster, key: Text, prefix: bool, from_revision: int) -> Any:
    return cluster.watch(key, prefix=prefix, from_revision=from_revision)


async def _enter(held: Any) -> Lock:
    lock: Lock = await held.__aenter__()
    return lock

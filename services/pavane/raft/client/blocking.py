"""``BlockingRaftClient``: the client for programs without an event loop (docs/specs/raft.md 11.1)."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from pavane.raft.client.calls import Entry
from pavane.raft.client.client import ClientConfig, RaftClient
from pavane.raft.client.subscription import Item
from pavane.raft.curve import CurveKeys
from pavane.raft.errors import Closed
from pavane.raft.wire.replies import RequestConfigReply, RequestLogInfoReply
from pavane.runtime.blocking import run_on
from pavane.runtime.forks import Process

Result = TypeVar("Result")


class BlockingRaftClient:
    """A ``RaftClient`` on an event loop in a thread of its own; use it in one ``with`` block.

    Methods block their thread, take and raise what those of ``RaftClient`` do, and may be called from many threads at
    once. ``run`` does the same for everything else: ``client.run(client.asynchronous.kv.put(b"key", b"value"))``.
    """

    def __init__(
        self,
        peers: Sequence[str],
        secret: bytes,
        *,
        config: ClientConfig | None = None,
        curve: CurveKeys | None = None,
    ) -> None:
        self.asynchronous = RaftClient(peers, secret, config=config, curve=curve)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise Closed("this client was opened before; make a new BlockingRaftClient")
        self._process = Process()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pavane-raft-client", daemon=True)
        self._thread.start()
        self.run(self.asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if not self._process.is_this:
            self._loop = None  # of the process that opened it, where the thread goes on
            return
        self.run(self.asynchronous.__aexit__(kind, error, traceback))
        self.run(loop.shutdown_asyncgens())
        self.run(loop.shutdown_default_executor())
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a coroutine of ``asynchronous`` and return its result; raises ``Closed`` outside the block."""
        loop = self._loop
        if loop is None:
            coroutine.close()
            state = "not open; use it inside" if self._thread is None else "closed; make a new one by"
            raise Closed(f"the client is {state} `with BlockingRaftClient(…)`")
        if not self._process.is_this:
            coroutine.close()
            raise Closed("the client was opened before this process was forked; open one in each process")
        return run_on(loop, coroutine)

    def update(self, data: bytes, *, reqid: bytes | None = None, timeout_s: float = 30.0) -> int:
        """Append ``data`` exactly once and return its index."""
        return self.run(self.asynchronous.update(data, reqid=reqid, timeout_s=timeout_s))

    def entries(self, after: int = 0, count: int | None = None) -> Iterator[Entry]:
        """Yield the entries behind index ``after``."""
        return self._iterate(self.asynchronous.entries(after, count))

    def subscribe(self, after: int = 0) -> Iterator[Item]:
        """Yield the entries behind index ``after`` for ever, as ``RaftClient.subscribe`` does."""
        return self._iterate(self.asynchronous.subscribe(after))

    def configuration(self) -> RequestConfigReply:
        """Return the leader's id and the members."""
        return self.run(self.asynchronous.configuration())

    def log_info(self, peer: str | None = None) -> RequestLogInfoReply:
        """Return the indices of a peer's log, by default the leader's."""
        return self.run(self.asynchronous.log_info(peer))

    def change_members(
        self, peers: Sequence[tuple[str, str]], *, reqid: bytes | None = None, timeout_s: float = 60.0
    ) -> int:
        """Make ``peers`` (id, url) the members and return the index of the joint configuration."""
        return self.run(self.asynchronous.change_members(peers, reqid=reqid, timeout_s=timeout_s))

    def transfer(self, to: str | None = None) -> str:
        """Hand leadership to a member and return the new leader's id."""
        return self.run(self.asynchronous.transfer(to))

    def _iterate(self, items: AsyncGenerator[Result, None]) -> Iterator[Result]:
        try:
            while True:
                try:
                    yield self.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            if self._loop is not None and self._process.is_this:
                self.run(items.aclose())


async def _next(items: AsyncGenerator[Result, None]) -> Result:
    return await anext(items)

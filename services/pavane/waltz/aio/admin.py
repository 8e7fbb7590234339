"""The admin port of a storage node, and a tool's connection to it (docs/specs/waltz.md 11)."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self
from uuid import UUID

from pavane.waltz.aio.listener import Listener, Served
from pavane.waltz.aio.stream import Asker, connect
from pavane.waltz.errors import StorageRefused, Unavailable
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import ADMIN_CLIENT, ADMIN_SERVER
from pavane.wire import LocalProtocolError

UNANSWERED_MAX = 100  # requests of one connection; more are not read
ANSWER_S = 30.0  # a tool waits so long for each answer


class AdminPort:
    """Serves tools that know ``key`` and no more than ``partitions``; ``execute`` carries a request out."""

    def __init__(self, key: UUID, partitions: Callable[[], int], execute: Callable[[Any], Awaitable[Any]]) -> None:
        self.key, self.partitions = key, partitions
        self._execute = execute
        self._listener = Listener(lambda: _Tool(self))
        self._queue: asyncio.Queue[tuple[_Tool, Any]] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.port

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen and serve. Raises ``OSError``."""
        await self._listener.start(host, port, tls)
        self._worker = asyncio.create_task(self._work(), name="waltz storage admin")

    async def stop(self) -> None:
        """End all connections; a request under way is finished."""
        await self._listener.stop()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def submit(self, tool: "_Tool", message: Any) -> None:
        """Queue a request."""
        self._queue.put_nowait((tool, message))

    async def _work(self) -> None:
        while True:
            tool, message = await self._queue.get()
            tool.answer(await self._execute(message))


class _Tool(Served):
    def __init__(self, port: AdminPort) -> None:
        super().__init__(ADMIN_SERVER, UNANSWERED_MAX, UNANSWERED_MAX - 1)
        self._port = port

    def submit(self, message: Any) -> None:
        self._port.submit(self, message)

    def open(self, message: s.Open) -> None:
        port = self._port
        if message.key != port.key or not 0 < message.partitions <= port.partitions():
            self.refuse(message, port.key, port.partitions())
        else:
            self.accept(message)


class StorageAdmin(Asker):
    """A tool's connection to the admin port of a storage node: ``await StorageAdmin.connect(…)``, then ``ask``."""

    def __init__(self, address: str) -> None:
        super().__init__(ADMIN_CLIENT, f"storage node {address}")
        self.address = address
        self._seq = 0

    @classmethod
    async def connect(cls, address: str, key: UUID, partitions: int, tls: ssl.SSLContext | None) -> Self:
        """Connect to ``host:port`` and open. Raises ``Unavailable``, ``StorageRefused``."""
        try:
            async with asyncio.timeout(ANSWER_S):
                self = await connect(lambda: cls(address), address, tls)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"storage node {address}: {error or 'no answer in time'}") from error
        try:
            await self.ask(s.Open(s.OPEN_HEAD, key, partitions))
        except BaseException:
            self.hang_up("it could not be opened")
            raise
        return self

    async def ask(self, request: Any) -> Any:
        """Return the answer to a request made with ``head``. Raises ``Unavailable``, ``StorageRefused``."""
        try:
            answer = await self.answer(request.head.seq, request, ANSWER_S)
        except LocalProtocolError as error:
            raise Unavailable(f"{self.who}: {error}") from error
        if isinstance(answer, s.Failure):
            raise StorageRefused(f"{self.who}: {answer.message}")
        return answer

    def head(self, partition: int = -1) -> s.Head:
        """Return the head of the next request."""
        self._seq += 1
        return s.Head(-1, self._seq, partition)

    def heard(self, message: Any) -> None:
        """Hand an answer to who waits for it."""
        self.answered(message.head.seq, message)

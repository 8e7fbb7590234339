"""Connections of a controller to its replicas: dial, tell the history, pump, again (docs/specs/compute.md 10.1)."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from pavane.compute.certificates import client_credentials
from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.core.controller import ControllerCore, Effect, Hang, Send
from pavane.compute.effects import EffectLoop
from pavane.compute.wire.commands import Command, CreateInstance, RuntimeConfig
from pavane.compute.wire.common import Epoch
from pavane.parts.backoff import backoff_s
from pavane.runtime.certificates import Certificates
from pavane.runtime.names import bracketed, look_up, resolve

DIAL_FIRST_SECONDS = 0.05
DIAL_SECONDS_MAX = 1.0
UNSENT_COMMANDS_MAX = 1_000_000  # a replica that takes nothing is dialled anew and gets the shorter history

_logger = logging.getLogger(__name__)


class ReplicaLinks:
    """Keeps a stream to each replica open and hands everything to ``core``.

    With ``certificates`` it speaks mutual TLS: those of the moment at each dial, and connections end when an authority
    is removed. ``on_effect`` gets what is not for a replica: answers, updates, ends. ``on_superseded`` is called when a
    replica follows another controller: one that knows of no successor should stop. With ``outbids`` a controller whose
    boot number is the time, which a machine may have wrong, takes a greater one than a replica has accepted, as long as
    no replica has accepted its own. Call ``carry_out`` with what other calls of the core return; all of it in one event
    loop.
    """

    def __init__(
        self,
        core: ControllerCore,
        instance: CreateInstance,
        on_effect: Callable[[Effect], None],
        on_superseded: Callable[[str], None],
        *,
        config: RuntimeConfig | None = None,
        certificates: Certificates | None = None,
        outbids: bool = False,
    ) -> None:
        self.core = core
        self._may_outbid = outbids
        self._instance = instance
        self._config = config
        self._certificates = certificates
        self._on_effect = on_effect
        self._on_superseded = on_superseded
        self._queues: dict[str, _Queue] = {}
        self.carry_out = EffectLoop(self._carry_out)
        self._rng = random.Random()  # noqa: S311 -- spreads dialling, guards nothing

    async def run(self, replica: str, address: str) -> None:
        """Stay connected to ``replica`` at ``host:port`` until cancelled."""
        failures = 0
        try:
            while True:
                connection = self.core.connect(replica)
                queue = self._queues[replica] = _Queue(connection)
                try:
                    async with await self._stream(address, queue) as stream:
                        failures = 0
                        self._may_outbid = False
                        self.carry_out(self.core.opened(replica, connection))
                        await self._pump(replica, stream, queue)
                except StreamEnded as ended:
                    _logger.info("replica %s: %s", replica, ended)
                    former = ended.accepted
                    if ended.superseded or (former is not None and former.major > self.core.boot):
                        if former is None or not self._may_outbid:
                            self._on_superseded(replica)
                        else:
                            self.core.boot = former.major + 1
                    failures += 1
                    if ended.exit_code is not None:
                        now = asyncio.get_running_loop().time()
                        self.carry_out(self.core.exited(ended.exit_code, ended.text, now))
                except (OSError, ValueError) as error:  # no such host, or certificates that cannot be read
                    _logger.info("replica %s cannot be dialled: %s", replica, error)
                    failures += 1
                finally:
                    self.carry_out(self.core.closed(replica, connection))
                await asyncio.sleep(backoff_s(failures, DIAL_FIRST_SECONDS, DIAL_SECONDS_MAX, self._rng))
        finally:
            self._queues.pop(replica, None)
            self.carry_out(self.core.remove(replica))

    async def _stream(self, address: str, queue: "_Queue") -> ReplicaStream:
        host, _, port = address.rpartition(":")
        found = (await look_up(resolve, host.strip("[]")))[0]
        credentials = None
        if self._certificates is not None:
            files = self._certificates.current()
            credentials = client_credentials(files)
            self._certificates.watch(queue, generation=files.generation)
        return ReplicaStream(
            f"{bracketed(found)}:{port}", queue.connection, self._instance, config=self._config, credentials=credentials
        )

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(replica, connection, command):
                queue = self._queues.get(replica)
                if queue is not None and queue.connection == connection:
                    queue.put(command)
            case Hang(replica, connection, reason):
                _logger.warning("replica %s broke the protocol: %s", replica, reason)
                queue = self._queues.get(replica)
                if queue is not None and queue.connection == connection:
                    queue.hang(reason)
            case _:
                self._on_effect(effect)

    async def _pump(self, replica: str, stream: ReplicaStream, queue: "_Queue") -> None:
        async def send() -> None:
            while True:
                await stream.send(await queue.get())

        async def receive() -> None:
            while True:
                self.carry_out(self.core.receive(replica, queue.connection, await stream.receive()))

        tasks = [asyncio.create_task(each, name=f"replica {replica}") for each in (send(), receive())]
        ends: set[asyncio.Future[Any]] = {*tasks, queue.hung}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if queue.hung in done:
                raise StreamEnded(stream.address, "ABORTED", queue.hung.result())
            for end in done:
                await end
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Queue:
    """Commands that wait for one connection."""

    def __init__(self, connection: Epoch) -> None:
        self.connection = connection
        self.hung: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting: deque[Command] = deque()
        self._changed = asyncio.Event()

    def put(self, command: Command) -> None:
        if len(self._waiting) >= UNSENT_COMMANDS_MAX:
            self.hang(f"the replica does not take its commands: {UNSENT_COMMANDS_MAX} wait")
        else:
            self._waiting.append(command)
            self._changed.set()

    def hang(self, reason: str) -> None:
        if not self.hung.done():
            self.hung.set_result(reason)

    def abort(self) -> None:
        """See ``Watched``."""
        self.hang("an authority of the certificates was removed")

    async def get(self) -> Command:
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

"""An assembled peer: settings in, a running member or learner out (docs/specs/raft.md 5.3, 8.3, 8.6, 17).

    server = RaftServer(config, data=Path("/data"), bind="tcp://10.0.0.1:8047", stage=Stage.READ_ONLY)
    await server.start()
    ...
    await server.stop()

A pod drives it by ``bootstrap``, ``store_token`` and ``set_stage`` and watches ``status`` and ``changed``; a peer
without a platform starts in stage ReadWrite and needs none of that.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pavane.raft.aio import Adapter, Exit, Failure
from pavane.raft.config import Config
from pavane.raft.core.status import Fence, Status
from pavane.raft.curve import CurveServer
from pavane.raft.machine import StateMachine, machine_of
from pavane.raft.metrics import metrics
from pavane.raft.sockets import CannotBind, Sockets
from pavane.raft.state.commands import Token
from pavane.raft.state.configuration import Members
from pavane.raft.state.roles import Role
from pavane.raft.storage import ForeignStore, Identity, RaftStorage, StoreError, StoreLocked
from pavane.runtime.metrics import Metric
from pavane.runtime.names import resolve as resolve_name
from pavane.wal import DiskFolder
from pavane.wire import LocalProtocolError, Stage

__all__ = ["CannotBind", "Exit", "Failure", "ForeignStore", "RaftServer", "StoreError", "StoreLocked"]

_logger = logging.getLogger(__name__)

TRANSFER_MAX_S = 0.5  # a leader that is stopped hands over first, but a stop must not wait for a broken cluster (6.7)


class RaftServer:
    """One peer in this process, on the running event loop.

    ``data`` is its folder, ``bind`` the ØMQ url of its ROUTER, ``publish`` that of its PUB (empty: none), ``source``
    the address that its own connections come from (empty: the system's choice). ``cluster_id`` must be the one that
    the store was made with. ``resolve`` gives all addresses of a host name and may block. ``curve`` encrypts all
    connections and says who may connect (14.2); without it they are in clear.

    ``machine`` is an application's own (12.10), by default what ``config.machine`` names.

    ``stage`` is ReadWrite for a peer without a platform; a pod passes ReadOnly and walks on by ``set_stage``.
    """

    def __init__(
        self,
        config: Config,
        *,
        data: Path,
        bind: str,
        publish: str = "",
        source: str = "",
        cluster_id: str = "",
        stage: Stage = Stage.READ_WRITE,
        machine: StateMachine | None = None,
        curve: CurveServer | None = None,
        resolve: Callable[[str], Sequence[str]] = resolve_name,
    ) -> None:
        """Check the settings; raises ``ValueError`` that names key, value and rule. Nothing is opened yet."""
        config.validate()
        self._machine = machine if machine is not None else machine_of(config.machine)
        self._config = replace(config, machine=self._machine.name)
        self._config.validate()
        self._data = data
        self._bind = bind
        self._publish = publish
        self._source = source
        self._cluster_id = cluster_id
        self._stage = stage
        self._curve = curve
        self._resolve = resolve
        self._storage: RaftStorage | None = None
        self._adapter: Adapter | None = None
        self._sockets: Sockets | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._change = asyncio.Event()
        self.failure: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Open the store, bind, begin.

        Raises ``ForeignStore`` (exit code 5) when the store is another peer's or cluster's, ``StoreLocked``,
        ``StoreError`` and ``OSError`` (exit code 4) when it cannot be read, ``CannotBind`` (exit code 1).
        """
        loop = asyncio.get_running_loop()
        identity = Identity(self._config.id, self._machine.name, self._cluster_id)
        # Reading a large log takes seconds; probes and stage streams are answered meanwhile.
        self._storage = await loop.run_in_executor(None, lambda: RaftStorage(DiskFolder(self._data), identity))
        self._report(self._storage)
        try:
            self._adapter = Adapter(
                self._config, self._storage, self._machine, self._stage, changed=self._notify, failed=self._fail
            )
            self._sockets = Sockets(
                self._bind,
                self._publish,
                self._source,
                self._resolve,
                loop,
                self._adapter.ready,
                self._curve,
                self._config.ident,
            )
        except BaseException:
            self._storage.close()
            self._storage = None
            raise
        self._compare_members()
        self._adapter.start(self._sockets)

    async def stop(self) -> None:
        """End in order: a leader hands over (at most ``TRANSFER_MAX_S``), what is queued is written, sockets close."""
        adapter, storage = self._adapter, self._storage
        if adapter is None or storage is None:
            return
        if not self.failure.done() and self.status().role is Role.LEADER:
            await self._hand_over(adapter)
        self._adapter = None
        await adapter.stop()
        storage.close()
        self._storage = None

    @property
    def bound(self) -> str:
        """The url that the ROUTER is bound to; tells the port when port 0 was asked for."""
        if self._sockets is None:
            raise LocalProtocolError("the peer is not started")
        return self._sockets.bound

    @property
    def token(self) -> Token | None:
        """The token of the last AllowWrites that was stored."""
        return self._started_storage.token

    async def store_token(self, token: Token) -> None:
        """Store the token of AllowWrites; returns when it is durable, which must be before ``set_stage`` (8.6)."""
        sequence = self._started_storage.store_token(token)
        await self._started.synced(sequence)

    def set_stage(self, stage: Stage) -> None:
        """Walk forward to ``stage``; raises ``LocalProtocolError`` for a step back."""
        adapter = self._started
        adapter.core.set_stage(stage, adapter.now())
        adapter.wake()

    def bootstrap(self, initial: Members) -> None:
        """Tell an empty peer the first configuration; it is written when the stage becomes ReadWrite (8.4 ``entry``).

        Ignored where the log is not empty. Raises ``ValueError`` for a list that is no configuration.
        """
        adapter = self._started
        adapter.core.bootstrap(initial, adapter.now())
        adapter.wake()

    def transfer(self, target: str | None = None) -> None:
        """Begin to hand leadership to ``target`` or the best voter; raises ``LocalProtocolError`` if not leader."""
        adapter = self._started
        adapter.core.transfer(target, adapter.now())
        adapter.wake()

    def keep_log(self, *, snapshot_entries: int, log_retention: int) -> None:
        """Change how often a snapshot is taken, and how much of the log stays in front of it (9.1).

        Raises ``ValueError`` for numbers out of range.
        """
        replace(self._config, snapshot_entries=snapshot_entries, log_retention=log_retention).validate()
        self._started.core.keep_log(snapshot_entries, log_retention)

    def status(self) -> Status:
        """Return a picture of the peer."""
        adapter = self._started
        return adapter.core.status()

    def full(self) -> str | None:
        """Say why no updates are taken where the volume has no room left (13.4)."""
        return self._started.full()

    def fence(self) -> Fence:
        """Return what is known about this peer's right to take part (8.6)."""
        return self._started.core.fence()

    def metrics(self) -> list[Metric]:
        """Return the metrics of 15.1 that exist."""
        return metrics(self.status(), self._started)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the loop whenever role, leader, configuration, stage or the like may have changed."""
        self._callbacks.append(callback)

    async def changed(self) -> None:
        """Return at the next such change."""
        await self._change.wait()

    @property
    def _started(self) -> Adapter:
        if self._adapter is None:
            raise LocalProtocolError("the peer is not started")
        return self._adapter

    @property
    def _started_storage(self) -> RaftStorage:
        if self._storage is None:
            raise LocalProtocolError("the peer is not started")
        return self._storage

    def _report(self, storage: RaftStorage) -> None:
        if storage.torn_bytes:
            _logger.info(
                "dropped %d bytes of a write that was not finished when the last run ended", storage.torn_bytes
            )
        if storage.set_aside:
            _logger.error(
                "the log in %s is damaged; entries behind the damage were set aside as %s and are fetched again",
                self._data,
                ", ".join(storage.set_aside),
            )

    def _compare_members(self) -> None:
        """Say that the seed list no longer counts, where it differs from what the log says (8.4)."""
        status, seeds = self.status(), self._config.peers
        if seeds and status.effective_index > 0 and set(seeds) != set(status.effective.members):
            _logger.warning(
                "the stored configuration wins over the given one; change members with `pavane raft config`. "
                "Stored: %s. Given: %s",
                ", ".join("=".join(member) for member in status.effective.members),
                ", ".join("=".join(member) for member in seeds),
            )

    async def _hand_over(self, adapter: Adapter) -> None:
        status = self.status()
        if len(status.members) < 2:
            return
        try:
            self.transfer()
        except LocalProtocolError:
            return
        try:
            async with asyncio.timeout(TRANSFER_MAX_S):
                while self.status().role is Role.LEADER and not self.failure.done():
                    await self.changed()
        except TimeoutError:
            return

    def _notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
        for callback in self._callbacks:
            callback()

    def _fail(self, failure: Failure) -> None:
        if not self.failure.done():
            self.failure.set_result(failure)
        self._notify()

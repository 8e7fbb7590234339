"""A RaftCluster's server pod: peer, stage port, ops port, and the pod's own judgement of its fence.

Specified in docs/specs/operator.md 2.12 and 4.2, docs/specs/raft.md 8.3, 8.4 and 8.6, docs/specs/compute.md 6.
"""

import asyncio
import json
import logging
import os
from collections.abc import Iterable, Mapping

from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker
from pavane.pods.common import certificates_of, run_pod
from pavane.pods.live import follow
from pavane.pods.raft_settings import RaftPodConfig, RaftSettings, load
from pavane.pods.staged import PodRole, StagedPod
from pavane.raft.core.status import Fence, Status
from pavane.raft.server import Exit, ForeignStore, RaftServer, StoreError
from pavane.raft.state.commands import Token as StoredToken
from pavane.raft.state.configuration import Members, generation_of
from pavane.runtime.metrics import Metric
from pavane.runtime.process import Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire import Stage

_BLOCKERS: Mapping[str, str] = {
    "Fenced": "a later generation has taken over, and the pod no longer follows",
    "NoLeader": "the pod knows no leader yet",
    "StateLost": "the cluster's configuration names this pod, but its volume is empty or damaged; "
    "it may vote again once a configuration change has removed and added it",
    "VolumeFull": "the pod's volume is full, so it should not lead",
}

_logger = logging.getLogger(__name__)


class RaftRole(PodRole):
    """The stage server's view of a peer."""

    kind = "raft"
    unit = "entries"
    told_settings = frozenset({"bootstrap", "initial"})

    def __init__(self, server: RaftServer, generation: int) -> None:
        super().__init__(generation)
        self._server = server
        self._refused: tuple[Blocker, ...] = ()

    @property
    def token(self) -> Token | None:
        """The token of the last AllowWrites on the volume."""
        stored = self._server.token
        return None if stored is None else Token(stored.generation, stored.epoch)

    async def read_only(self) -> None:
        """Follow as a learner, serve reads."""
        self._advance(Stage.READ_ONLY)

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Store ``token``, then take part as far as the log's configuration says.

        An empty peer that this stream tells the members of a new cluster writes them as its first entry; ReadWrite is
        reported when that entry is durable. A peer that lost its volume stays where it is (``StateLost``).
        """
        status = self._server.status()
        bootstrapping = status.last == 0 and told.get("bootstrap") == "entry"
        if is_lost(status) and not bootstrapping:
            return False
        if bootstrapping:
            try:
                self._server.bootstrap(initial_members(told))
            except ValueError as error:
                self._refused = (Blocker("InvalidConfig", f"the members of the new cluster are unusable: {error}"),)
                return False
        await self._server.store_token(StoredToken(token.generation, token.epoch))
        self._advance(Stage.READ_WRITE)
        while bootstrapping and self._server.status().durable == 0:
            await self._server.changed()
            if self._server.failure.done():
                return False
        self._refused = ()
        return True

    def report(self) -> RoleReport:
        """Return what the peer's status says to an operator."""
        status = self._server.status()
        reasons = (*status.blockers, *(("Fenced",) if self.fenced else ()))
        return RoleReport(
            progress=status.applied,
            target=max(status.target, status.commit),
            blockers=(*self._refused, *(Blocker(reason, _BLOCKERS.get(reason, "")) for reason in reasons)),
            leads=generation_leads(status, self.generation),
            done=self.fenced,
            first_write_ms=status.first_write_ms or 0,
            last_write_ms=status.last_write_ms or 0,
        )

    def _advance(self, stage: Stage) -> None:
        # The core may be further: an entry that names the peer makes it ReadWrite without asking (raft.md 8.3).
        if self._server.status().stage < stage:
            self._server.set_stage(stage)


def initial_members(told: Mapping[str, str]) -> Members:
    """Return the members of a new cluster that a stream has told (raft.md 8.4 ``entry``).

    Raises ``ValueError`` when ``initial`` is not JSON of the shape ``[[id, url], …]``.
    """
    match json.loads(told.get("initial", "")):
        case [*pairs] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return tuple((str(peer), str(url)) for peer, url in pairs)
        case other:
            raise ValueError(f"initial is no list of [id, url]: {other!r}")


def is_lost(status: Status) -> bool:
    """Whether the cluster names this peer while its own store has forgotten what it promised (raft.md 5.5)."""
    return status.fence is Fence.LOST or "StateLost" in status.blockers


def generation_leads(status: Status, generation: int) -> bool:
    """Whether the committed configuration holds only members of ``generation`` and one of them leads (raft.md 8.6)."""
    committed = status.committed
    members = [peer for peer, _ in committed.members]
    return (
        not committed.transitional
        and status.leader in members
        and all(generation_of(peer) == generation for peer in members)
    )


class RaftPod(StagedPod[RaftRole]):
    """One pod: the peer and everything around it."""

    def __init__(self, settings: RaftSettings, config: RaftPodConfig, process: Process) -> None:
        self._live = settings.live
        self._data = config.data
        self._server = RaftServer(
            config.peer,
            data=config.data,
            bind=config.bind,
            publish=config.publish,
            source=config.source,
            cluster_id=config.cluster_id,
            stage=Stage.CREATION,
            machine=config.machine,
            curve=config.curve,
        )
        self._judged = False
        self._known: Fence | None = None
        role = RaftRole(self._server, settings.generation)
        super().__init__(settings, process, role, certificates_of(settings, process))

    async def _open(self) -> None:
        """Open the peer. Raises what ``RaftServer.start`` does."""
        await self._server.start()
        self._server.on_change(self._notify)
        status = self._server.status()
        _logger.info("%s is up with %d entries, generation %d", status.id, status.last, self._role.generation)
        if self._live is not None:
            self._process.spawn(follow(self._live, self._set_live), name="live settings")

    async def _end(self) -> None:
        """A leader hands over, the store and the peer's ports close."""
        await self._server.stop()

    def _set_live(self, values: dict[str, object]) -> None:
        entries, retention = values.get("snapshot_entries"), values.get("log_retention")
        if not isinstance(entries, int) or not isinstance(retention, int):
            raise ValueError("snapshot_entries and log_retention must be whole numbers")
        self._server.keep_log(snapshot_entries=entries, log_retention=retention)
        _logger.info("a snapshot every %d entries, %d entries kept before it", entries, retention)

    async def _run(self) -> None:
        failure = await asyncio.shield(self._server.failure)
        self._process.exit(failure.exit_code, failure.reason)

    async def _look(self, stage: StageServer) -> None:
        """Walk as far as the pod's own store and its cluster allow (operator.md 2.12)."""
        role, status = self._role, self._server.status()
        fence = status.fence
        if fence is not self._known:
            _logger.info("fence: %s", fence)
            self._known = fence
        if fence is Fence.SUPERSEDED and not self._judged:
            await self._rest_fenced(stage)
            role.fenced = False
        # Who restarts with a log that no longer names it may vote until a member says that this is committed.
        doubtful = fence is Fence.NAMED and not status.effective.names(status.id)
        self._judged = self._judged or not (doubtful or fence is Fence.UNKNOWN)
        may_write = fence in (Fence.NAMED, Fence.AWAY) and not is_lost(status)
        # Permission that was given before a crash holds; but an empty log has to be told the members again.
        permitted = fence in (Fence.AHEAD, Fence.UNKNOWN) and status.last > 0 and _holds_permission(role)
        if stage.stage < Stage.READ_WRITE and (may_write or permitted):
            await stage.walk()
        elif stage.stage < Stage.READ_ONLY and is_lost(status):
            await stage.walk(to_read_write=False)

    async def _pause(self) -> None:
        await self._server.changed()

    def _live_fault(self) -> str | None:
        if self._server.failure.done():
            return self._server.failure.result().reason
        if self._stage is not None and not os.access(self._data, os.W_OK):
            return f"{self._data} is not writable"
        return None

    def _unready(self, stage: Stage) -> str | None:
        if stage is Stage.READ_WRITE and self._server.status().leader is None:
            return "no leader is known"
        return self._server.full()

    def _own_metrics(self) -> Iterable[Metric]:
        return self._server.metrics()


def _holds_permission(role: RaftRole) -> bool:
    return role.token is not None and role.token.generation == role.generation


def run() -> int:
    """Run this pod and return its exit code (docs/specs/raft.md 17: 0 stopped or fenced, 2 usage, 4 disk, 5 fork)."""
    failures = {ForeignStore: Exit.FOREIGN, StoreError: Exit.DISK, OSError: Exit.DISK}
    return run_pod("raft-server", RaftSettings, load, RaftPod, failures, keeps_much=True)

"""A RaftCluster's server pod: peer, stage port, ops port, and the pod's own judgement of its fence.

Specified in docs/specs/operator.md 2.12 and 4.2, docs/specs/raft.md 8.3, 8.4 and 8.6, docs/specs/compute.md 6.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from pavane.compute.wire import Blocker, Token
from pavane.pods.common import certificates_of, rest_fenced, run_pod, stage_json, stage_metrics
from pavane.pods.live import follow
from pavane.pods.raft_settings import RaftPodConfig, RaftSettings, load
from pavane.raft.core.status import Fence, Status
from pavane.raft.server import Exit, ForeignStore, RaftServer, StoreError
from pavane.raft.state.commands import Token as StoredToken
from pavane.raft.state.configuration import Members, generation_of
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire import Stage

KIND = "raft"  # CreateInstance.kind (docs/specs/compute.md 5)

_BLOCKERS: Mapping[str, str] = {
    "NoLeader": "the pod knows no leader yet",
    "StateLost": "the cluster's configuration names this pod, but its volume is empty or damaged; "
    "it may vote again once a configuration change has removed and added it",
    "VolumeFull": "the pod's volume is full, so it should not lead",
}

_logger = logging.getLogger(__name__)


class RaftRole:
    """The stage server's view of a peer."""

    kind = KIND
    unit = "entries"
    live_settings: frozenset[str] = frozenset()
    told_settings = frozenset({"bootstrap", "initial"})

    def __init__(self, server: RaftServer, generation: int) -> None:
        self._server = server
        self.generation = generation
        self.fenced = False
        self._refused: tuple[Blocker, ...] = ()

    @property
    def token(self) -> Token | None:
        """The token of the last AllowWrites on the volume."""
        stored = self._server.token
        return None if stored is None else Token(stored.generation, stored.epoch)

    def configure(self, settings: Mapping[str, str]) -> None:
        """A server has no live settings yet, so the stage server never calls this."""

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
        return RoleReport(
            progress=status.applied,
            target=max(status.target, status.commit),
            blockers=(*self._refused, *(Blocker(reason, _BLOCKERS.get(reason, "")) for reason in status.blockers)),
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


class RaftPod:
    """One pod: the peer and everything around it, between ``start`` and ``stop``."""

    def __init__(self, settings: RaftSettings, config: RaftPodConfig, process: Process) -> None:
        self._settings = settings
        self._config = config
        self._process = process
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
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=self._live_fault,
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": self._stage_json},
        )
        self._role: RaftRole | None = None
        self._last_words: dict[str, Any] | None = None
        """What the pod said of itself when it began to stop; a peer that is being closed cannot be asked."""
        self._stage: StageServer | None = None

    async def start(self) -> None:
        """Open the ops port, then the peer, then the stage port. Raises what ``RaftServer.start`` does."""
        await self._ops.start(self._process)
        await self._server.start()
        self._role = RaftRole(self._server, self._settings.generation)
        certificates = certificates_of(self._settings, self._process)
        self._stage = StageServer(self._role, self._process.exit, host=self._settings.pod_ip, certificates=certificates)
        await self._stage.start()
        self._server.on_change(self._stage.notify)
        status = self._server.status()
        _logger.info("%s is up with %d entries, generation %d", status.id, status.last, self._settings.generation)
        self._process.spawn(self._end_with_peer(), name="raft peer")
        self._process.spawn(self._follow_fence(self._role, self._stage), name="fence")
        if self._settings.live is not None:
            self._process.spawn(follow(self._settings.live, self._set_live), name="live settings")

    async def stop(self) -> None:
        """Stop in order: streams hear that the pod goes, a leader hands over, the store and the ports close."""
        if self._stage is not None:
            self._last_words = self._stage_json()
            await self._stage.stop()
        await self._server.stop()
        await self._ops.stop()

    def _set_live(self, values: dict[str, object]) -> None:
        entries, retention = values.get("snapshot_entries"), values.get("log_retention")
        if not isinstance(entries, int) or not isinstance(retention, int):
            raise ValueError("snapshot_entries and log_retention must be whole numbers")
        self._server.keep_log(snapshot_entries=entries, log_retention=retention)
        _logger.info("a snapshot every %d entries, %d entries kept before it", entries, retention)

    async def _end_with_peer(self) -> None:
        failure = await asyncio.shield(self._server.failure)
        self._process.exit(failure.exit_code, failure.reason)

    async def _follow_fence(self, role: RaftRole, stage: StageServer) -> None:
        """Walk as far as the pod's own store and its cluster allow, whenever they allow more (operator.md 2.12)."""
        judged, known = False, None
        while not self._process.ending:
            status = self._server.status()
            fence = status.fence
            if fence is not known:
                _logger.info("fence: %s", fence)
                known = fence
            if fence is Fence.SUPERSEDED and not judged:
                role.fenced = True
                await rest_fenced(self._process, stage, role.generation)
            # Who restarts with a log that no longer names it may vote until a member says that this is committed.
            doubtful = fence is Fence.NAMED and not status.effective.names(status.id)
            judged = judged or not (doubtful or fence is Fence.UNKNOWN)
            may_write = fence in (Fence.NAMED, Fence.AWAY) and not is_lost(status)
            # Permission that was given before a crash holds; but an empty log has to be told the members again.
            permitted = fence in (Fence.AHEAD, Fence.UNKNOWN) and status.last > 0 and _holds_permission(role)
            if stage.stage < Stage.READ_WRITE and (may_write or permitted):
                await stage.walk()
            elif stage.stage < Stage.READ_ONLY and is_lost(status):
                await stage.walk(to_read_write=False)
            await self._server.changed()

    def _live_fault(self) -> str | None:
        if self._server.failure.done():
            return self._server.failure.result().reason
        if self._stage is not None and not os.access(self._config.data, os.W_OK):
            return f"{self._config.data} is not writable"
        return None

    def _ready_fault(self) -> str | None:
        if self._stage is None or self._role is None or self._process.ending:
            return "the peer is not running"
        if self._role.fenced:
            return "fenced by a later generation"
        if self._stage.stage < Stage.READ_ONLY:
            return f"stage {self._stage.stage.title}"
        if self._stage.stage is Stage.READ_WRITE and self._server.status().leader is None:
            return "no leader is known"
        return self._server.full()

    def _metrics(self) -> list[Metric]:
        if self._stage is None or self._process.ending:
            return []
        return [*stage_metrics(self._stage), *(Metric(*sample) for sample in self._server.metrics())]

    def _stage_json(self) -> dict[str, Any]:
        if self._last_words is not None:
            return self._last_words
        return stage_json(self._stage.report() if self._stage is not None else None, self._settings.generation)


def _holds_permission(role: RaftRole) -> bool:
    return role.token is not None and role.token.generation == role.generation


def run() -> int:
    """Run this pod and return its exit code (docs/specs/raft.md 17: 0 stopped or fenced, 2 usage, 4 disk, 5 fork)."""
    failures = {ForeignStore: Exit.FOREIGN, StoreError: Exit.DISK, OSError: Exit.DISK}
    return run_pod("raft-server", RaftSettings, load, RaftPod, failures, keeps_much=True)

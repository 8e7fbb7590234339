"""A WaltzCluster's server pod: server, stage port, ops port, and the pod's own judgement of its fence.

The fence is the node ``rollout`` in the metadata store: the number of the generation that shall own everything.
Specified in docs/specs/waltz.md 14.6, docs/specs/operator.md 2.12 and 4.2, docs/specs/compute.md 6.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from pavane.compute.wire import Blocker, Token
from pavane.pods.common import certificates_of, rest_fenced, run_pod, stage_json, stage_metrics
from pavane.pods.waltz_metadata import store_of
from pavane.pods.waltz_settings import ADMIN_PORT, SERVER_PORT, WaltzConfig, WaltzServerSettings, load
from pavane.pods.waltz_settings import metadata as metadata_of
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.runtime.settings import SettingsError
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.waltz.aio.cluster import ClusterConfig, check_tree, make_tree, read_rollout, read_view, set_rollout
from pavane.waltz.server import WaltzServer
from pavane.waltz.state.metadata import MetadataError
from pavane.wire import Stage

KIND = "waltz"  # CreateInstance.kind (docs/specs/compute.md 5)
LOOK_S = 0.2  # how often the pod looks at the fence and at its own partitions

_logger = logging.getLogger(__name__)


class WaltzRole:
    """The stage server's view of a server."""

    kind = KIND
    unit = "partitions"
    live_settings: frozenset[str] = frozenset()
    told_settings = frozenset({"bootstrap", "servers"})
    token: Token | None = None  # without a volume there is none to remember; the node ``rollout`` does

    def __init__(self, server: WaltzServer, generation: int) -> None:
        self.server = server
        self.generation = generation
        self.fenced = False
        self.active: int | None = None
        """The generation that shall own everything, as far as this pod knows."""
        self.metadata_fault = "the metadata store was not reached yet"
        self.listening = asyncio.Event()
        self._writing = False

    def configure(self, settings: Mapping[str, str]) -> None:
        """A server has no live settings, so the stage server never calls this."""

    async def read_only(self) -> None:
        """Nothing is to be copied: what a server serves is on the storage nodes."""

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Say that this generation shall own everything, then register as a server that may."""
        config = self.server.config
        try:
            if told.get("bootstrap") == "tree":
                await make_tree(self.server.metadata, config)
            if self.active is None or self.active < self.generation:
                await set_rollout(self.server.metadata, config.root, self.generation, int(told.get("servers", "1")))
        except MetadataError as error:
            self.metadata_fault = str(error)
            return False
        await self.listening.wait()
        self.server.allow_writes()
        self._writing = True
        return True

    def report(self) -> RoleReport:
        """Return what the server says of itself to an operator."""
        core, view = self.server.core, self.server.core.view if self.server.core is not None else None
        total = self.server.config.partitions
        if core is None or view is None:
            return RoleReport(target=total, blockers=self._blockers(), done=self.fenced)
        owners = {server for server, owned in view.owned().items() if owned}
        ours = all(view.numbers.get(server) == self.generation for server in owners)
        healthy = [partition for partition in core.owned.values() if partition.healthy]
        leads = bool(owners) and ours and view.consistent and len(healthy) == len(core.owned)
        # Until it may write, a server has nothing to catch up with.
        progress = sum(len(owned) for server, owned in view.owned().items() if view.numbers.get(server))
        return RoleReport(
            progress=total if not self._writing else min(progress, total),
            target=total,
            blockers=self._blockers(),
            leads=leads and self._writing,
            done=self.fenced and not core.owned,
            write_gap_ms=self._gap_ms(),
        )

    def _gap_ms(self) -> int:
        """The longest time from the assignment of a partition to this server until it took appends; 0: not known."""
        core = self.server.core
        opened = [one.opened_in_s for one in core.owned.values()] if core is not None else []
        return max((max(1, round(seconds * 1000)) for seconds in opened if seconds is not None), default=0)

    def _blockers(self) -> tuple[Blocker, ...]:
        if self.metadata_fault:
            return (Blocker("MetadataUnreachable", self.metadata_fault),)
        core = self.server.core
        stuck = [partition for partition in core.owned.values() if partition.blocker] if core is not None else []
        return tuple(Blocker("PartitionNotWritable", f"partition {one.number}: {one.blocker}") for one in stuck[:8])


class WaltzPod:
    """One pod: the server and everything around it, between ``start`` and ``stop``."""

    def __init__(self, settings: WaltzServerSettings, config: WaltzConfig, process: Process) -> None:
        self._settings = settings
        self._process = process
        self._store = store_of(metadata_of(settings.waltz_metadata))
        certificates = certificates_of(settings, process)
        self._server = WaltzServer(
            ClusterConfig(
                config.cluster_name,
                config.root,
                config.key,
                config.partitions,
                config.storage,
                config.session_timeout_ms / 1000,
                ADMIN_PORT,
            ),
            self._store,
            advertise=f"{settings.waltz_host}:{SERVER_PORT}",
            generation=settings.generation,
            client_tls=certificates.open_port if certificates is not None else None,
            storage_tls=certificates.dialling if certificates is not None else None,
        )
        self._role = WaltzRole(self._server, settings.generation)
        self._stage = StageServer(self._role, process.exit, host=settings.pod_ip, certificates=certificates)
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=self._live_fault,
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": self._stage_json, "/partitions": self._partitions_json},
        )
        self._last_words: dict[str, Any] | None = None
        """What the pod said of itself when it began to stop."""

    async def start(self) -> None:
        """Open the ops port, the stage port and the way to the metadata store; the rest follows from there."""
        await self._ops.start(self._process)
        await self._store.__aenter__()
        await self._stage.start()
        self._process.spawn(self._listen(), name="waltz server")
        self._process.spawn(self._follow_fence(), name="fence")

    async def stop(self) -> None:
        """Stop in order: streams hear that the pod goes, partitions are given up, the ports close."""
        self._last_words = self._stage_json()
        await self._stage.stop()
        await self._server.stop()
        await self._store.__aexit__(None, None, None)
        await self._ops.stop()

    async def _listen(self) -> None:
        """Begin to serve as soon as the cluster's tree is there, then wait for the server's failure."""
        server = self._server
        while True:
            try:
                await check_tree(server.metadata, server.config)
                if await read_view(server.metadata, server.config.root) is not None:
                    await server.start(self._settings.listened_on, SERVER_PORT)
                    break
                self._role.metadata_fault = ""
            except MetadataError as error:
                self._role.metadata_fault = str(error)
            await asyncio.sleep(LOOK_S)
        self._role.listening.set()
        failure = await asyncio.shield(server.failure)
        self._process.exit(EXIT_FAILED, f"the server failed: {failure!r}")

    async def _follow_fence(self) -> None:
        """Walk as far as the metadata store allows (waltz.md 14.6): an absent ``rollout`` waits for the operator."""
        role, stage = self._role, self._stage
        judged = ours = False
        while not self._process.ending:
            try:
                if not ours:  # what another cluster left at this root is no fence of ours
                    await check_tree(self._server.metadata, self._server.config)
                found = await read_rollout(self._server.metadata, self._server.config.root)
                ours = ours or found is not None
                role.metadata_fault = ""
            except MetadataError as error:
                role.metadata_fault = str(error)
            else:
                role.active = found.number if found is not None else None
                if role.active is not None and role.active > role.generation:
                    role.fenced = True
                    if not judged:
                        await rest_fenced(self._process, stage, role.generation)
                # Who was once allowed to own stays until it is taken down, though its generation is superseded.
                judged = judged or role.active == role.generation
                if role.active == role.generation and stage.stage < Stage.READ_WRITE:
                    await stage.walk()
            stage.notify()
            await asyncio.sleep(LOOK_S)

    def _live_fault(self) -> str | None:
        failure = self._server.failure
        return repr(failure.result()) if failure.done() else None

    def _ready_fault(self) -> str | None:
        if self._process.ending:
            return "the server stops"
        if self._role.fenced:
            return "fenced by a later generation"
        if self._stage.stage < Stage.READ_ONLY:
            return f"stage {self._stage.stage.title}"
        if self._stage.stage is Stage.READ_WRITE and not self._server.running.writable:
            return "no lease in the metadata store"
        return None

    def _metrics(self) -> list[Metric]:
        return [] if self._process.ending else [*stage_metrics(self._stage), *self._server.metrics()]

    def _partitions_json(self) -> dict[str, Any] | None:
        return None if self._process.ending or self._server.core is None else self._server.partitions_json()

    def _stage_json(self) -> dict[str, Any]:
        if self._last_words is not None:
            return self._last_words
        return stage_json(self._stage.report(), self._settings.generation)


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 failed, 2 usage."""
    failures = {SettingsError: EXIT_FAILED, OSError: EXIT_FAILED}
    # The newest transactions of each partition are kept in memory.
    return run_pod("waltz-server", WaltzServerSettings, load, WaltzPod, failures, keeps_much=True)

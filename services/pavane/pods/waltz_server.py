"""A WaltzCluster's server pod: server, stage port, ops port, and the pod's own judgement of its fence.

The fence is the node ``rollout`` in the metadata store: the number of the generation that shall own everything.
Specified in docs/specs/waltz.md 14.6, docs/specs/operator.md 2.12 and 4.2, docs/specs/compute.md 6.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker
from pavane.pods.common import certificates_of, run_pod
from pavane.pods.settings import store_options
from pavane.pods.staged import PodRole, StagedPod
from pavane.pods.waltz_adoption import adopt_if_asked
from pavane.pods.waltz_metadata import store_of
from pavane.pods.waltz_settings import ADMIN_PORT, SERVER_PORT, WaltzConfig, WaltzServerSettings, load
from pavane.pods.waltz_settings import metadata as metadata_of
from pavane.runtime.certificates import AUTHORITIES_FILE
from pavane.runtime.metrics import Metric
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.runtime.settings import SettingsError
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.waltz.aio.archive import Archive
from pavane.waltz.aio.cluster import ClusterConfig, check_tree, make_tree, read_rollout, read_view, set_rollout
from pavane.waltz.core.retention import Policy
from pavane.waltz.core.rights import Rights, Rule
from pavane.waltz.errors import ArchiveError
from pavane.waltz.server import WaltzServer
from pavane.waltz.state.archived import folder_of
from pavane.waltz.state.metadata import MetadataError
from pavane.wire import Stage

_logger = logging.getLogger(__name__)

LOOK_S = 0.2  # how often the pod looks at the fence and at its own partitions


class WaltzRole(PodRole):
    """The stage server's view of a server, which has no volume: the node ``rollout`` remembers who may write."""

    kind = "waltz"
    unit = "partitions"
    told_settings = frozenset({"bootstrap", "servers"})

    def __init__(self, server: WaltzServer, generation: int) -> None:
        super().__init__(generation)
        self.server = server
        self.active: int | None = None
        """The generation that shall own everything, as far as this pod knows."""
        self.metadata_fault = "the metadata store was not reached yet"
        self.listening = asyncio.Event()
        self.rests = False
        """It is fenced and does not follow: it was never allowed to own, or has restarted since."""
        self._writing = False

    async def read_only(self) -> None:
        """Nothing is to be copied: what a server serves is on the storage nodes."""

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Say that this generation shall own everything, then register as a server that may."""
        config = self.server.config
        try:
            if told.get("bootstrap") == "tree":
                await make_tree(self.server.metadata, config)
            if self.active is None or self.active < self.generation:  # one that was left changes nothing
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
        if core is None or view is None:
            total = self.server.config.partitions
            return RoleReport(target=total, blockers=self._blockers(), done=self.rests)
        total = view.partitions
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
            done=self.rests,
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


class WaltzPod(StagedPod[WaltzRole]):
    """One pod: the server and everything around it."""

    look_s = LOOK_S

    def __init__(self, settings: WaltzServerSettings, config: WaltzConfig, process: Process) -> None:
        self._listened_on = settings.listened_on
        self._metadata_folder = settings.waltz_metadata
        self._metadata_keys = metadata_of(settings.waltz_metadata)
        self._store = store_of(self._metadata_keys)
        certificates = certificates_of(settings, process)
        self._storage_tls = certificates.dialling if certificates is not None else None
        self._adopting: asyncio.Task[None] | None = None
        client_tls = certificates.open_port if certificates is not None else None
        if settings.waltz_clients is not None:
            # Apart from those for storage nodes, which trust the pods' authority alone.
            known = certificates_of(settings, process, settings.waltz_clients / AUTHORITIES_FILE)
            if known is None:
                raise SettingsError("PAVANE_WALTZ_CLIENTS needs PAVANE_TLS: there are no certificates without TLS")
            client_tls = known.mutual_port
        rules = config.client_rights
        archives, drops = bool(config.archive_url), config.archive_drops
        respect = config.retention_respects_consumers
        policy = Policy(config.retention_bytes, config.retention_age_ms, respect, archives=archives, drops=drops)
        self._holds = policy.limited and policy.respect
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
            client_tls=client_tls,
            storage_tls=self._storage_tls,
            policy=policy,
            archive=partial(_archive, config, settings.waltz_archive) if archives else None,
            archive_delay_s=config.archive_delay_ms / 1000,
            rights=Rights(None if rules is None else [Rule(one.identity, one.may, one.partitions) for one in rules]),
            quotas=config.client_quotas,
        )
        self._judged = self._ours = False
        role = WaltzRole(self._server, settings.generation)
        super().__init__(settings, process, role, certificates, {"/partitions": self._partitions_json})

    async def _open(self) -> None:
        """Open the way to the metadata store."""
        await self._store.__aenter__()

    async def _end(self) -> None:
        """Partitions are given up."""
        if self._adopting is not None:
            self._adopting.cancel()
        await self._server.stop()
        await self._store.__aexit__(None, None, None)

    async def _run(self) -> None:
        """Begin to serve as soon as the cluster's tree is there, then wait for the server's failure."""
        server = self._server
        while True:
            try:
                await check_tree(server.metadata, server.config)
                if await read_view(server.metadata, server.config.root) is not None:
                    await server.start(self._listened_on, SERVER_PORT)
                    break
                self._role.metadata_fault = ""
            except MetadataError as error:
                self._role.metadata_fault = str(error)
            await asyncio.sleep(LOOK_S)
        self._role.listening.set()
        failure = await asyncio.shield(server.failure)
        self._process.exit(EXIT_FAILED, f"the server failed: {failure!r}")

    async def _look(self, stage: StageServer) -> None:
        """Walk as far as the metadata store allows (waltz.md 14.6): an absent ``rollout`` waits for the operator."""
        role = self._role
        try:
            if not self._ours:  # what another cluster left at this root is no fence of ours
                await check_tree(self._server.metadata, self._server.config)
            found = await read_rollout(self._server.metadata, self._server.config.root)
            if found is None and (self._adopting is None or self._adopting.done()):
                self._adopting = asyncio.create_task(self._adopt(), name="waltz adoption")
        except MetadataError as error:
            role.metadata_fault = str(error)
            with contextlib.suppress(SettingsError):  # while the files change
                if metadata_of(self._metadata_folder) != self._metadata_keys:
                    self._process.exit(EXIT_FAILED, "the metadata store has other keys now, as one that was made anew")
            return
        self._ours = self._ours or found is not None
        role.metadata_fault = ""
        role.active = found.number if found is not None else None
        role.fenced = found is not None and found.has_passed(role.generation)
        role.rests = role.fenced and not self._judged
        if role.rests:
            await self._rest_fenced(stage)
            self._judged, role.rests = True, False
        # Who was once allowed to own stays until it is taken down, though its generation is superseded: it may get
        # its turn again.
        self._judged = self._judged or role.active == role.generation
        if role.active == role.generation and stage.stage < Stage.READ_WRITE:
            await stage.walk()

    async def _adopt(self) -> None:
        """Where the metadata were lost: make them again if somebody asks for it."""
        server = self._server
        with contextlib.suppress(MetadataError):
            generation, tls = self._role.generation, self._storage_tls
            done = await adopt_if_asked(server.metadata, server.config, generation, tls, hold=self._holds)
            if done is not None:
                _logger.warning("adoption of the log: %s", done.model_dump_json())

    def _live_fault(self) -> str | None:
        failure = self._server.failure
        return repr(failure.result()) if failure.done() else None

    def _unready(self, stage: Stage) -> str | None:
        if stage is Stage.READ_WRITE and not self._server.running.writable:
            return "no lease in the metadata store"
        return None

    def _own_metrics(self) -> Iterable[Metric]:
        return self._server.metrics()

    def _partitions_json(self) -> dict[str, Any] | None:
        return None if self._process.ending or self._server.core is None else self._server.partitions_json()


def _archive(config: WaltzConfig, folder: Path | None) -> Archive:
    """Open the archive with the options that its Secret has now. Raises ``ArchiveError``."""
    try:
        options = store_options(folder, "PAVANE_WALTZ_ARCHIVE")
    except SettingsError as error:
        raise ArchiveError(str(error)) from None
    return Archive(f"{config.archive_url.rstrip('/')}/{folder_of(config.cluster_name, config.key)}", options)


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 failed, 2 usage."""
    # The newest transactions of each partition are kept in memory.
    return run_pod("waltz-server", WaltzServerSettings, load, WaltzPod, keeps_much=True)

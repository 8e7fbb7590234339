"""A Coordinator's pod: the coordinator beside the application, stage port, ops port, and the pod's fence.

Of the pods of one generation the one leads that has the lock of the log; only that one is ready.

The fence is a file in the log's folder, on the volume or on a partition of Waltz: the number of the generation that may
write. The pod of the next generation replays the log beside the old one, writes its number there, and leads as soon as
the old one has let the log go.
Specified in docs/specs/ambrosia.md 14.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pavane.ambrosia.errors import Fatal, FatalError, Superseded
from pavane.ambrosia.server import Options, Server
from pavane.ambrosia.storage import Place, Registry
from pavane.ambrosia.tenure import read_fence
from pavane.ambrosia.wire.limits import MIB
from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker
from pavane.pods import immortal_log
from pavane.pods.common import certificates_of, run_pod
from pavane.pods.coordinator_settings import (
    LINK_PORT,
    PEERS_FILE,
    RECEIVE_PORT,
    SEND_PORT,
    VOLUME_FULL,
    CoordinatorConfig,
    CoordinatorSettings,
    load,
)
from pavane.pods.immortal_log import PartitionFolder
from pavane.pods.staged import PodRole, StagedPod
from pavane.runtime import names
from pavane.runtime.certificates import Certificates
from pavane.runtime.metrics import Metric
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wal.files import DiskFolder, Folder
from pavane.waltz.client import WaltzError
from pavane.wire import Stage

TAKEOVER_S = 1.0  # a pod that takes over stays ready for so long: a probe that fails would hide it for its whole period
AGAIN_S = 0.25  # until the coordinator is started anew beside an application that is started anew
NOT_YET = "the coordinator does not lead yet"
ROOM_BYTES = 16 * MIB  # less of a volume is full: the next checkpoint does not fit, though a few more records may
ROOM_SHARE = 16  # of a small volume this part
SERVICE = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
AGAIN = frozenset({Fatal.STORAGE, Fatal.CHECKPOINT})
"""What ends by itself: the application has gone, the predecessor holds the lock, another pod took over while this one
stood still, there is no checkpoint to follow yet.
After all others nobody may go on as if nothing had happened."""

_logger = logging.getLogger(__name__)


class Instance(PodRole):
    """One immortal on the volume: its coordinator, begun anew as often as the application is.

    The fence file on the volume remembers who may write.
    """

    kind = "coordinator"
    unit = "bytes"

    def __init__(
        self,
        config: CoordinatorConfig,
        folder: Path,
        host: str,
        namespace: str,
        generation: int,
        waltz_client: Path | None = None,
        tls: Certificates | None = None,
    ) -> None:
        """With ``waltz_client`` the files are on that log, and ``folder`` is for what was read of them."""
        super().__init__(generation)
        self.fault = ""
        self.full = ""
        """Why the volume takes no more, in words; empty while it has room, and with a log on Waltz."""
        self.server: Server | None = None
        self.writing = asyncio.Event()
        """This generation may write."""
        self.following = asyncio.Event()
        """It replays what another one writes."""
        self._writing_since = 0.0
        self._config = config
        self._namespace = namespace
        self._options = Options(
            name=config.instance,
            port=LINK_PORT,
            receive_port=RECEIVE_PORT,
            send_port=SEND_PORT,
            log=f"{folder}/{config.log}/",
            log_trigger_bytes=config.checkpoint_mib * MIB,
            address=host,
            host=host,
            listen=host,
            generation=generation,
            upgrade_version=config.version,
            standby=True,  # another pod of this generation may lead
            tls=tls,
        )
        self._path = folder / config.log / f"{config.instance}_0"
        self._client = waltz_client
        self._place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        if waltz_client is None:
            registry = Registry(DiskFolder(Path(f"{self._options.log}registry")))
            self._place.set_result(Place(DiskFolder(self._path), registry))

    async def fence(self) -> int:
        """Return the generation that may write, 0 while nobody ever could; waits until the files are there."""
        folder = (await self._files()).folder
        number, self.full = await asyncio.to_thread(lambda: (read_fence(folder), self._full(folder)))
        return number

    def _full(self, folder: Folder) -> str:
        free, room = folder.free_bytes(), min(ROOM_BYTES, folder.total_bytes() // ROOM_SHARE)
        full = self._client is None and free < room
        return f"the volume is full: {free // 1024} KiB are free, {room // 1024} KiB are needed" if full else ""

    async def _files(self) -> Place:
        return await asyncio.shield(self._place)

    async def allow_writes(self) -> None:
        """Stop every lower generation for good, then lead. Raises ``OSError`` and ``FatalError``."""
        loop = asyncio.get_running_loop()
        files = await self._files()
        began = loop.time()
        await asyncio.to_thread(files.tenure(files.folder, self._options.name, self.generation).fence)
        self._writing_since = loop.time()
        self.writing.set()
        if self.server is not None:
            self.server.promote(self.generation, began)

    async def read_only(self) -> None:
        """Follow the log of an older generation, if there is one."""
        if 0 < await self.fence() < self.generation:
            self.following.set()

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Write the fence, durably, then lead."""
        try:
            await self.allow_writes()
        except (OSError, FatalError) as error:
            self.fault = f"the fence cannot be written: {error}"
            return False
        return True

    async def run(self) -> None:
        """Serve until this generation is superseded; raises ``FatalError`` for what only a person can mend."""
        async with contextlib.AsyncExitStack() as stack:
            if self._client is not None:
                self._place.set_result(await self._open(self._client, stack))
            await self._serve(await self._place)

    async def _open(self, client: Path, stack: contextlib.AsyncExitStack) -> Place:
        """Return the files on the partition, once they have been read."""
        while True:
            log = immortal_log.client(client)
            files = PartitionFolder(log, self._config.partition or 0, self._path, self._config.log)
            try:
                await stack.enter_async_context(files)
            except (FatalError, WaltzError) as error:
                self.fault = str(error)
                _logger.warning("the log cannot be read: %s", error)
                await asyncio.sleep(AGAIN_S)
            else:
                self.fault = ""
                return immortal_log.place(files)

    async def _serve(self, place: Place) -> None:
        while True:
            await _either(self.writing, self.following)
            options = replace(self._options, read_only=not self.writing.is_set(), place=place)
            self.server = Server(options, _logger.info, resolve=self._resolve)
            try:
                await self.server.run()
            except Superseded:
                self.fenced = True
                return
            except FatalError as error:
                if error.fatal not in AGAIN:
                    raise
                self.fault = str(error)
                _logger.warning("restarting the coordinator: %s", error)
            finally:
                self.server = None
            await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        """End what runs."""
        if self.server is not None:
            self.server.stop()

    def report(self) -> RoleReport:
        """Return what the coordinator says of itself to an operator."""
        server = self.server
        if server is None:
            return RoleReport(blockers=self._blockers(), done=self.fenced)
        done, behind = server.replayed_bytes, server.behind_bytes
        gap = server.took_over_s
        return RoleReport(
            progress=done,
            target=done if server.live else done + behind,
            blockers=self._blockers(),
            leads=server.live and self.writing.is_set(),
            done=self.fenced,
            write_gap_ms=0 if gap is None else max(1, round(gap * 1000)),
        )

    def unready(self) -> str | None:
        """Return why the pod cannot do its work now."""
        server = self.server
        if self.writing.is_set() and (server is None or not server.live) and not self._takes_over():
            following = server is not None and server.stage == "ReadOnly"
            return "another pod leads; this one follows its log" if following else self.fault or NOT_YET
        if self.following.is_set() and (server is None or server.stage == "Initialization"):
            return self.fault or "the log is not being followed yet"
        return None

    def _takes_over(self) -> bool:
        """Whether it has only just begun to lead what it followed: whoever calls is refused, and comes again."""
        return self.following.is_set() and asyncio.get_running_loop().time() < self._writing_since + TAKEOVER_S

    def _blockers(self) -> tuple[Blocker, ...]:
        server = self.server
        full = (Blocker(VOLUME_FULL, self.full),) if self.full and self.writing.is_set() else ()
        if server is not None and server.missing:
            return (*full, Blocker("ApplicationMissing", f"{server.missing}; look at the log of its container"))
        if server is not None or not self.fault or self.fenced:
            return full
        return (*full, Blocker("CoordinatorDown", self.fault))

    async def _resolve(self, peer: str) -> list[tuple[str, int]]:
        """Find where another immortal is called: what the resource says, else the Service of its name."""
        host, _, port = self._config.peers.get(peer, f"{peer}.{self._namespace}.svc:{LINK_PORT}").rpartition(":")
        if peer not in self._config.peers and not SERVICE.fullmatch(peer):
            return []
        try:
            return [(address, int(port)) for address in await names.look_up(names.resolve, host)]
        except socket.gaierror:
            return []


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


class CoordinatorPod(StagedPod[Instance]):
    """One pod: the instance and everything around it."""

    look_s = 0.1

    def __init__(self, settings: CoordinatorSettings, config: CoordinatorConfig, process: Process) -> None:
        peers = settings.live.with_name(PEERS_FILE) if settings.live is not None else None
        instance = Instance(
            config,
            settings.ambrosia_log,
            settings.pod_ip,
            settings.pod_namespace,
            settings.generation,
            settings.waltz_client,
            certificates_of(settings, process, peers),
        )
        # The authorities of its peers count on its links alone, not on the stage port.
        documents = {"/instance": self._instance_json}
        super().__init__(settings, process, instance, certificates_of(settings, process), documents)

    async def _end(self) -> None:
        await self._role.stop()

    async def _run(self) -> None:
        try:
            await self._role.run()
        except FatalError as error:
            self._process.exit(error.exit_code, str(error))
        except OSError as error:
            self._process.exit(EXIT_FAILED, f"{error.filename}: {error.strerror}")
        else:
            await self._rest_fenced()

    async def _look(self, stage: StageServer) -> None:
        instance = self._role
        fence = await instance.fence()
        if fence > instance.generation and not instance.writing.is_set() and not instance.following.is_set():
            await self._rest_fenced()
        if fence == instance.generation and stage.stage < Stage.READ_WRITE:
            await stage.walk()

    def _unready(self, stage: Stage) -> str | None:
        return self._role.unready()

    def _own_metrics(self) -> Iterable[Metric]:
        server = self._role.server
        yield Metric("pavane_ambrosia_links_refused_total", {}, 0 if server is None else server.links_refused)
        told = {} if server is None else server.status()
        if "nextSeq" in told:
            yield Metric("pavane_ambrosia_records_total", {}, told["nextSeq"])
            yield Metric("pavane_ambrosia_behind_bytes", {}, told["behindBytes"])

    def _instance_json(self) -> dict[str, Any] | None:
        server = self._role.server
        return None if server is None else server.status()


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 to 5 and 70 as the coordinator's."""
    return run_pod("coordinator", CoordinatorSettings, load, CoordinatorPod)

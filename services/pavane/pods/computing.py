"""What the pods of a ComputeCluster have in common: their log, their engine, and views that are kept until a fence."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker
from pavane.dataflow.duckstate import Files
from pavane.dataflow.entries import Rank
from pavane.dataflow.keeping import Clocks, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Engine as SqlEngine
from pavane.dataflow.ports import Fenced
from pavane.pods import consumers
from pavane.pods.compute_settings import LEFT, ComputeConfig, ComputeSettings, Engine
from pavane.pods.staged import PodRole
from pavane.runtime.certificates import client_of
from pavane.runtime.settings import SettingsError
from pavane.waltz.client import NoConsumer, Rejected, Trimmed, Unavailable, Waltz, WaltzError
from pavane.waltz.core.client import PASSING

AGAIN_S = 1.0  # until a log that did not answer is asked again
TRIMMED_AGAIN_S = 30.0  # until views that cannot be built are tried again; only another script or log helps
HOLD_S = 60.0  # between two signs to the log that a generation still reads its partitions
GONE_S = 5 * HOLD_S  # without one, after which the generation that writes lets go of what it does not read

_TRIMMED = (
    "partition {} begins with transaction {}: what was before it is trimmed, and views cannot be built without it. Let "
    "the script read a partition that is whole"
)

_logger = logging.getLogger(__name__)


class Keeping(Protocol):
    """What keeps views: `Keeper` in this process, `Controller` with replicas."""

    allowed: asyncio.Event
    leads: bool
    leaves: int

    async def rank(self) -> Rank:
        """Return who has the right to write."""

    async def run(self, moved: Callable[[Any], None], trouble: Callable[[str], None]) -> None:
        """Keep the views until somebody else writes: `Fenced`."""


K = TypeVar("K", bound=Keeping)


class Kept(PodRole, Generic[K]):
    """The views of this pod, and what it says of them; the log remembers who may write."""

    kind = "computecluster"
    unit = "ticks"
    live_settings = frozenset({LEFT})

    def __init__(self, settings: ComputeSettings, config: ComputeConfig) -> None:
        super().__init__(settings.generation)
        self.fault = "the log was not reached yet"
        self.keeping: K | None = None
        self.allowed = asyncio.Event()
        self.following = asyncio.Event()
        """It builds its views beside another generation."""
        self.rank = Rank()
        """Who has the right to write, as far as it was read in the log."""
        self.leaves = 0
        """The later generation from which it may take the right to write back; 0 = none."""
        self._settings = settings
        self._scripts = config.parsed()
        self._place = Place(config.ticks, config.views)
        self._interval_s = config.interval_ms / 1000
        self._begins: dict[int, int] = {}
        """With which transaction a partition begins whose first ones are trimmed."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """The operator says that the right to write goes back from a later generation."""
        self.leaves = int(settings[LEFT])

    async def read_only(self) -> None:
        """Build the views while another generation writes them."""
        self.following.set()

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Let the keeper fence and write; the fence in the log is what counts, and may come late."""
        self.allowed.set()
        return True

    async def run(self) -> None:
        """Keep the views until somebody else writes them; again, once it is led again. Raises ``EngineError``,
        ``EntryError``, ``OSError``."""
        self.fenced = False
        while not self.fenced:
            try:
                await self._connected()
            except Trimmed as error:
                self.keeping = None
                _logger.warning("the views cannot be built: %s", error)
                await asyncio.sleep(TRIMMED_AGAIN_S)
            except WaltzError as error:
                if not passes(error):
                    raise
                self.fault = str(error)
                await asyncio.sleep(AGAIN_S)
            except Fenced:
                self.fenced = True
                self.allowed.clear()
                self.following.clear()
            finally:
                self.keeping = None

    async def _connected(self) -> None:
        async with log_of(self._settings) as log:
            await self._register(log)
            keeping = self._made(log)

            def moved(_: object) -> None:
                self.fault = ""

            holding = asyncio.create_task(self._hold(log, keeping), name="hold partitions")
            self.keeping, self.fault = keeping, ""
            permission = asyncio.ensure_future(self.allowed.wait())
            begin = asyncio.ensure_future(self.following.wait())
            try:
                await asyncio.wait({permission, begin}, return_when=asyncio.FIRST_COMPLETED)
                running = asyncio.ensure_future(keeping.run(moved, self._troubled))
                try:
                    await asyncio.wait({running, permission}, return_when=asyncio.FIRST_COMPLETED)
                    if permission.done():
                        keeping.leaves = self.leaves
                        keeping.allowed.set()
                    await running
                finally:
                    running.cancel()
            finally:
                for task in (permission, begin, holding):
                    task.cancel()

    async def _register(self, log: Waltz) -> None:
        """Let the log keep all of what it reads: who starts without the pod's files builds everything from there.

        So its position is where the partition began when it came, and stays there; what an archive has stays anyway.
        Raises ``Trimmed``, ``Unavailable``.
        """
        consumer, begins = log.consumer(consumers.of_views(self._settings.resource)), {}
        for partition in sorted(self._reads):
            begins[partition] = await log.first(partition)
            try:
                await consumer.start(partition, await log.start(partition))
            except Trimmed:
                raise  # just now; it begins anew
            except Rejected as error:
                _logger.warning("retention does not wait for the views in partition %d: %s", partition, error)
        self._begins = {partition: first for partition, first in begins.items() if first > 0}

    async def _hold(self, log: Waltz, keeping: K) -> None:
        """Show that it reads its partitions, and let go of those that nobody has read for long once it writes.

        So what a former generation reads is kept while that follows: the right to write may go back to it. One that was
        not heard of for so long that it was let go of begins anew. The others have time, and may take long: they come
        behind its own.
        """
        consumer, reads = log.consumer(consumers.of_views(self._settings.resource)), self._reads
        while True:
            for partition in sorted(range(log.partition_count), key=lambda each: each not in reads):
                try:
                    if partition in reads:
                        try:
                            await consumer.commit(partition, -1)  # moves nothing, but is dated
                        except NoConsumer:
                            await consumer.start(partition, await log.start(partition))
                    elif keeping.leads and any(
                        one.name == consumer.name and one.idle_seconds > GONE_S
                        for one in await log.consumers(partition)
                    ):
                        await consumer.remove(partition)
                except WaltzError as error:
                    _logger.warning("consumer %s of partition %d: %s", consumer.name, partition, error)
            await asyncio.sleep(HOLD_S)

    @property
    def _reads(self) -> frozenset[int]:
        """All partitions without whose first transactions it cannot start."""
        tables = (table for script in self._scripts for table in script.tables)
        read = {partition for table in tables for partition in table.partitions}
        return frozenset({self._place.ticks, self._place.views, *read})

    def _troubled(self, what: str) -> None:
        self.fault = what
        _logger.warning("the views are held up: %s", what)

    @abstractmethod
    def _made(self, log: Waltz) -> K:
        """Return what keeps the views over this connection."""

    @property
    @abstractmethod
    def leads(self) -> bool:
        """Whether it writes the views."""

    @property
    @abstractmethod
    def unbuilt(self) -> str | None:
        """Why the views are not built up to the tick at which they began."""

    @abstractmethod
    def views(self) -> dict[str, Any]:
        """Return what ``/views`` shows."""

    def unready(self) -> str | None:
        """Return why the pod cannot do its work now."""
        if self.fault:
            return self.fault
        if self.keeping is None or (self.following.is_set() and self.unbuilt is not None):
            return self.unbuilt or "the views are not built yet"
        if self.allowed.is_set() and not self.leads:
            return "the views are not written yet"
        return None

    @property
    def _fence(self) -> Token | None:
        return Token(self.rank.generation, self.rank.epoch) if self.rank.generation else None

    def _blockers(self) -> tuple[Blocker, ...]:
        if self.fenced:
            return ()
        found = [Blocker("LogUnavailable", self.fault)] if self.fault else []
        if self.following.is_set() and (why := self.unbuilt) is not None:
            found.append(Blocker("NotHydrated", why))  # and so has not caught up, whatever the progress
            found += [Blocker("HistoryTrimmed", _TRIMMED.format(*each)) for each in sorted(self._begins.items())]
        return tuple(found)


def passes(error: WaltzError) -> bool:
    """Whether the log may answer later: it did not, or it refused for the moment, for longer than a client waits."""
    return isinstance(error, Unavailable) or (isinstance(error, Rejected) and error.code in PASSING)


def log_of(settings: ComputeSettings) -> Waltz:
    """Return a client of the log. Raises ``OSError``."""
    return Waltz(_servers(settings), tls=client_of(settings.waltz_client))


def _servers(settings: ComputeSettings) -> tuple[str, ...]:
    return tuple((settings.waltz_client / "servers").read_text(encoding="utf-8").split())


def make_clocks() -> Clocks:
    """Return the clocks of this machine."""
    return Clocks(lambda: time.time_ns() // 1_000_000, time.monotonic, lambda: uuid.uuid4().hex)


def engine_of(settings: ComputeSettings, config: ComputeConfig) -> Callable[[], SqlEngine]:
    """Return what makes the engine. Raises ``SettingsError`` for one that this pod cannot have."""
    if config.engine is Engine.PLAIN:
        scripts = max(1, len(config.scripts))
        files = Files(settings.state, settings.state_memory_mib, settings.state_disk_mib, scripts)
        return lambda: PlainEngine(files)
    try:
        from pavane.spark import engine, kubernetes, session, tables  # noqa: PLC0415 - in images with Spark only
        from pavane.spark.kept import Keeping  # noqa: PLC0415

        session.prepare()
    except (ModuleNotFoundError, RuntimeError) as error:
        raise SettingsError(f"engine Spark: {error}; use an image with Spark, or engine Plain") from None
    folder = config.checkpoint and f"{config.checkpoint}/{settings.pod_namespace}/{settings.pod_name}"
    if config.executors is None:
        local = Keeping(folder) if folder else None
        place = str(settings.waltz_client)
        return lambda: engine.SparkEngine(keeping=local, place=tables.Place(_servers(settings), place))
    if not settings.api_server:
        raise SettingsError("spark.master kubernetes: KUBERNETES_SERVICE_HOST is not set; run in a pod of a cluster")
    driver = kubernetes.Driver(settings.pod_name, settings.pod_namespace, settings.pod_ip, settings.api_server)
    executors = kubernetes.Executors(**dict(config.executors))
    keeping = Keeping(folder) if folder else None
    return lambda: engine.SparkEngine(start=lambda: kubernetes.start(driver, executors), keeping=keeping)

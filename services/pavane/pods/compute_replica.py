"""A ComputeCluster's pod: views over a log, stage port, ops port, and the pod's fence.

The fence is in the log itself: the greatest token in the partition of ticks. The pod of the next generation builds its
views beside the old one, and writes from the moment on at which its own token stands there. Specified in
docs/specs/compute.md 11.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pavane.compute.wire import Blocker, Token
from pavane.dataflow.entries import EntryError
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Engine as SqlEngine
from pavane.dataflow.ports import EngineError, Fenced
from pavane.dataflow.runner import Runner
from pavane.dataflow.tracing import Tracing
from pavane.pods.common import rest_fenced, run_pod, stage_json, stage_metrics
from pavane.pods.compute_settings import ComputeConfig, ComputeSettings, Engine, load
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.runtime.settings import SettingsError
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.waltz.client import Unavailable, Waltz, WaltzError, trusting
from pavane.wire import Stage

KIND = "computecluster"  # CreateInstance.kind (docs/specs/compute.md 5)
LOOK_S = 0.2  # how often the pod looks at its fence while it does not write
AGAIN_S = 1.0  # until a log that did not answer is asked again

_logger = logging.getLogger(__name__)


class Replica:
    """The views of this pod: their keeper, and what it says."""

    def __init__(self, settings: ComputeSettings, config: ComputeConfig) -> None:
        self.generation = settings.generation
        self.fenced = False
        self.fault = "the log was not reached yet"
        self.keeper: Keeper | None = None
        self.allowed = asyncio.Event()
        self.following = asyncio.Event()
        """It builds its views beside an older generation."""
        self._settings = settings
        self._config = config
        self._scripts = config.parsed()
        self._engine = _engine(settings, config)

    async def run(self) -> None:
        """Keep the views until a later generation writes. Raises ``EngineError``, ``EntryError``, ``OSError``."""
        while not self.fenced:
            try:
                await self._connected()
            except Unavailable as error:
                self.fault = str(error)
                await asyncio.sleep(AGAIN_S)
            except Fenced:
                self.fenced = True
            finally:
                self.keeper = None

    async def _connected(self) -> None:
        folder = self._settings.waltz_client
        servers = (folder / "servers").read_text(encoding="utf-8").split()
        authority = folder / "ca.crt"
        tls = trusting(authority.read_text(encoding="utf-8")) if authority.exists() else None
        async with Waltz(servers, tls=tls) as log:
            clocks = Clocks(lambda: time.time_ns() // 1_000_000, time.monotonic, lambda: uuid.uuid4().hex)
            place, interval_s = Place(self._config.ticks, self._config.views), self._config.interval_ms / 1000
            tracing = Tracing(log.cluster)
            keeper = Keeper(log, self._scripts, place, self._engine, interval_s, clocks, self.generation, tracing)
            self.keeper, self.fault = keeper, ""
            permission = asyncio.ensure_future(self.allowed.wait())
            begin = asyncio.ensure_future(self.following.wait())
            try:
                await asyncio.wait({permission, begin}, return_when=asyncio.FIRST_COMPLETED)
                running = asyncio.ensure_future(keeper.run(self._moved, self._troubled))
                try:
                    await asyncio.wait({running, permission}, return_when=asyncio.FIRST_COMPLETED)
                    if permission.done():
                        keeper.allowed.set()
                    await running
                finally:
                    running.cancel()
            finally:
                permission.cancel()
                begin.cancel()

    def _moved(self, _: Runner) -> None:
        self.fault = ""

    def _troubled(self, what: str) -> None:
        self.fault = what
        _logger.warning("rebuilding the views: %s", what)

    def report(self) -> RoleReport:
        """Return what the views say of themselves to an operator."""
        keeper = self.keeper
        runner = keeper.runner if keeper is not None else None
        blockers = self._blockers(runner)
        if keeper is None or runner is None:
            return RoleReport(blockers=blockers, done=self.fenced)
        gap = keeper.took_over_s
        return RoleReport(
            progress=runner.reached,
            target=max(runner.tick, runner.reached),
            blockers=blockers,
            leads=keeper.leads,
            done=self.fenced,
            write_gap_ms=0 if gap is None else max(1, round(gap * 1000)),
        )

    def unready(self) -> str | None:
        """Return why the pod cannot do its work now."""
        keeper = self.keeper
        if self.fenced:
            return "fenced by a later generation"
        if self.fault:
            return self.fault
        if keeper is None or (self.following.is_set() and not self._built):
            return "the views are not built yet"
        if self.allowed.is_set() and not keeper.leads:
            return "the views are not written yet"
        return None

    @property
    def _built(self) -> bool:
        """Whether the engine has started and brought the views to the tick at which they began."""
        runner = self.keeper.runner if self.keeper is not None else None
        return runner is not None and runner.built

    def views(self) -> dict[str, Any]:
        """Return what ``/views`` shows."""
        keeper = self.keeper
        runner = keeper.runner if keeper is not None else None
        if keeper is None or runner is None:
            return {"tick": 0, "views": [], "badRows": 0, "lastBadRows": []}
        views = [
            {
                "name": each.view.name,
                "upper": each.upper,
                "failure": each.failure or None,
                "badRows": {table.name: keeper.source.bad_of[table] for table in each.tables},
            }
            for each in runner.views
        ]
        bad = [
            {
                "table": row.table,
                "tick": row.tick,
                "partition": row.partition,
                "transaction": row.txid,
                "reason": row.reason,
            }
            for row in keeper.source.bad
        ]
        return {
            "tick": runner.tick,
            "views": views,
            "badRows": keeper.source.bad_count,
            "lastBadRows": bad,
        }

    def _blockers(self, runner: Runner | None) -> tuple[Blocker, ...]:
        if self.fenced:
            return ()
        found = [Blocker("LogUnavailable", self.fault)] if self.fault else []
        if self.following.is_set() and not self._built:  # and so has not caught up, whatever the progress
            found.append(Blocker("NotHydrated", "the views are being built"))
        views = runner.views if runner is not None else ()
        return (*found, *(Blocker("ViewFailed", f"{each.view.name}: {each.failure}") for each in views if each.failure))


def _engine(settings: ComputeSettings, config: ComputeConfig) -> Callable[[], SqlEngine]:
    if config.engine is Engine.PLAIN:
        return PlainEngine
    try:
        from pavane.spark import engine, kubernetes, session  # noqa: PLC0415 - in images with Spark only

        session.prepare()
    except (ModuleNotFoundError, RuntimeError) as error:
        raise SettingsError(f"engine Spark: {error}; use an image with Spark, or engine Plain") from None
    if config.executors is None:
        return engine.SparkEngine
    if not settings.api_server:
        raise SettingsError("spark.master kubernetes: KUBERNETES_SERVICE_HOST is not set; run in a pod of a cluster")
    driver = kubernetes.Driver(settings.pod_name, settings.pod_namespace, settings.pod_ip, settings.api_server)
    executors = kubernetes.Executors(**dict(config.executors))
    return lambda: engine.SparkEngine(start=lambda: kubernetes.start(driver, executors))


class ReplicaRole:
    """The stage server's view of the views."""

    kind = KIND
    unit = "ticks"
    live_settings: frozenset[str] = frozenset()
    told_settings: frozenset[str] = frozenset()
    token: Token | None = None  # the log remembers

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.generation = replica.generation

    def configure(self, settings: Mapping[str, str]) -> None:
        """A pod has no live settings, so the stage server never calls this."""

    async def read_only(self) -> None:
        """Build the views beside who writes them."""
        self.replica.following.set()

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Let the keeper fence and write; the fence in the log is what counts, and it takes what time it takes."""
        self.replica.allowed.set()
        return True

    def report(self) -> RoleReport:
        """Return what the views say of themselves."""
        return self.replica.report()


class ComputePod:
    """One pod: the views and everything around them, between ``start`` and ``stop``."""

    def __init__(self, settings: ComputeSettings, config: ComputeConfig, process: Process) -> None:
        self._settings = settings
        self._process = process
        self._replica = Replica(settings, config)
        self._stage = StageServer(
            ReplicaRole(self._replica), process.exit, host=settings.pod_ip, certificates=settings.tls
        )
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=lambda: None,  # what ends the keeper ends the process
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": self._stage_json, "/views": self._replica.views},
        )
        self._last_words: dict[str, Any] | None = None

    async def start(self) -> None:
        """Open the ops port and the stage port; the rest follows from there."""
        await self._ops.start(self._process)
        await self._stage.start()
        self._process.spawn(self._run(), name="views")
        self._process.spawn(self._follow_fence(), name="fence")

    async def stop(self) -> None:
        """Stop in order: streams hear that the pod goes, then the ports close."""
        self._last_words = self._stage_json()
        await self._stage.stop()
        await self._ops.stop()

    async def _run(self) -> None:
        try:
            await self._replica.run()
        except (EngineError, EntryError, WaltzError) as error:
            self._process.exit(EXIT_FAILED, str(error))
        except OSError as error:
            self._process.exit(EXIT_FAILED, f"{error.filename}: {error.strerror}")
        else:
            await rest_fenced(self._process, self._stage, self._settings.generation)

    async def _follow_fence(self) -> None:
        """Walk as far as the log allows: a pod that starts again in the generation that writes needs nobody."""
        replica, stage = self._replica, self._stage
        while not self._process.ending and not replica.allowed.is_set():
            try:
                fence = await replica.keeper.written_by() if replica.keeper is not None else 0
            except WaltzError:
                fence = 0
            if fence > replica.generation and not replica.following.is_set():
                replica.fenced = True
                await rest_fenced(self._process, stage, replica.generation)
            if fence == replica.generation and stage.stage < Stage.READ_WRITE:
                await stage.walk()
            stage.notify()
            await asyncio.sleep(LOOK_S)
        while not self._process.ending:
            stage.notify()
            await asyncio.sleep(LOOK_S)

    def _ready_fault(self) -> str | None:
        if self._process.ending:
            return "the pod stops"
        if self._stage.stage < Stage.READ_ONLY:
            return f"stage {self._stage.stage.title}"
        return self._replica.unready()

    def _metrics(self) -> list[Metric]:
        return [] if self._process.ending else stage_metrics(self._stage)

    def _stage_json(self) -> dict[str, Any]:
        if self._last_words is not None:
            return self._last_words
        return stage_json(self._stage.report(), self._settings.generation)


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 what a person must look at, 2 wrong settings."""
    return run_pod("compute", ComputeSettings, load, ComputePod, {SettingsError: EXIT_FAILED, OSError: EXIT_FAILED})

"""A ComputeCluster's replica: computes views for the controller of its generation (docs/specs/compute.md 2, 16).

The operator does not lead it: its controller tells what to compute, and when it may write. The state of views is in
files of the pod; without them one that starts again builds the views from the log.
"""

import asyncio
from typing import Any

from pavane.compute.core.replica import ReplicaCore
from pavane.dataflow.keeping import Place
from pavane.dataflow.replica import ReplicaEngine
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.tracing import Tracing
from pavane.pods.common import certificates_of, rest_fenced, run_pod, stage_json
from pavane.pods.compute_settings import REPLICA_PORT, ComputeConfig, ComputeSettings, load
from pavane.pods.computing import AGAIN_S, TRIMMED_AGAIN_S, engine_of, log_of, make_clocks, passes
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.waltz.client import Trimmed, Waltz, WaltzError
from pavane.wire import Stage


class ReplicaPod:
    """One pod: the engine behind its port, and the ops port."""

    def __init__(self, settings: ComputeSettings, config: ComputeConfig, process: Process) -> None:
        self._settings = settings
        self._config = config
        self._process = process
        self._core = ReplicaCore(settings.generation)
        self._make_engine = engine_of(settings, config)
        self._certificates = certificates_of(settings, process)
        self._engine: ReplicaEngine | None = None
        self._fault = "the log was not reached yet"
        self._rests = False
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=lambda: None,  # what ends the engine ends the process
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": self._stage_json},
        )

    async def start(self) -> None:
        """Open the ops port; the port for the controller follows once the log answers."""
        await self._ops.start(self._process)
        self._process.spawn(self._run(), name="replica")

    async def stop(self) -> None:
        """Close the ops port; the other one closes with its task."""
        await self._ops.stop()

    async def _run(self) -> None:
        while True:
            try:
                async with log_of(self._settings) as log:
                    if await self._superseded(log) and not self._rests:
                        self._process.spawn(self._rest(), name="fence")
                    await self._serve(log)
            except Trimmed as error:  # its controller names it (`Kept`)
                self._fault = str(error)
                await asyncio.sleep(TRIMMED_AGAIN_S)
            except WaltzError as error:
                if not passes(error):
                    self._process.exit(EXIT_FAILED, str(error))
                    return
                self._fault = str(error)
                await asyncio.sleep(AGAIN_S)

    async def _superseded(self, log: Waltz) -> bool:
        """Whether another generation took over, so that a controller comes only if this one is to follow."""
        rank = await Ticks(log, self._config.ticks, (), make_clocks().now_ms).rank()
        return rank.has_passed(self._settings.generation)

    async def _serve(self, log: Waltz) -> None:
        place, interval_s = Place(self._config.ticks, self._config.views), self._config.interval_ms / 1000
        tracing = Tracing(log.cluster)
        self._engine = ReplicaEngine(self._core, log, place, self._make_engine, interval_s, make_clocks(), tracing)
        self._fault = ""
        await self._engine.serve(
            self._process.exit,  # fenced, too: whatever is to follow begins anew
            host=self._settings.pod_ip,
            port=REPLICA_PORT,
            listening=lambda _: None,
            certificates=self._certificates,
        )

    async def _rest(self) -> None:
        self._rests = True
        await rest_fenced(self._process, self._settings.generation, lambda: self._core.stage >= Stage.READ_ONLY)
        self._rests = False
        await self._process.ended()  # a task that ends would end the process

    def _ready_fault(self) -> str | None:
        if self._process.ending:
            return "the pod stops"
        if self._rests:
            return "fenced by another generation"
        if self._fault:
            return self._fault
        blocker = next((each for each in self._core.blockers if not each.info), None)
        if blocker is not None:
            return blocker.text
        if self._engine is None or self._core.stage < Stage.READ_ONLY:
            return "no controller has told what to compute"
        return None if self._engine.built else "the views are not built yet"

    def _metrics(self) -> list[Metric]:
        return [] if self._process.ending else [Metric("pavane_stage", {}, self._core.stage)]

    def _stage_json(self) -> dict[str, Any]:
        return stage_json(self._core.report(), self._settings.generation)


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 what a person must look at, 2 wrong settings, and
    what the protocol says of its commands: 3 incompatible, 4 a dataflow that cannot be, 5 no engine."""
    return run_pod("compute", ComputeSettings, load, ReplicaPod)

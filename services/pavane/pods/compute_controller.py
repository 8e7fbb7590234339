"""The pod of a ComputeCluster that the operator leads: views over a log, stage port, ops port, and the pod's fence.

It computes the views itself, or is the controller of replicas that do (`compute_replica`). The fence is in the log: the
greatest token in the partition of ticks. The pod of the next generation builds its views beside the old one, and writes
from the moment on at which its own token stands there. Specified in docs/specs/compute.md 11.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from pavane.compute.wire.responses import Blocker
from pavane.dataflow.badrows import BadRows
from pavane.dataflow.controlling import Controller
from pavane.dataflow.entries import EntryError
from pavane.dataflow.keeping import Keeper
from pavane.dataflow.ports import EngineError, SqlView, Table
from pavane.dataflow.tracing import Tracing
from pavane.pods.common import certificates_of, run_pod
from pavane.pods.compute_settings import ComputeConfig, ComputeSettings, load
from pavane.pods.computing import Kept, engine_of, make_clocks
from pavane.pods.staged import StagedPod
from pavane.runtime.certificates import Certificates
from pavane.runtime.metrics import Metric
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.waltz.client import Waltz, WaltzError
from pavane.wire import Stage


class OwnViews(Kept[Keeper]):
    """Views that this process computes."""

    def __init__(self, settings: ComputeSettings, config: ComputeConfig) -> None:
        super().__init__(settings, config)
        self._engine = engine_of(settings, config)

    def _made(self, log: Waltz) -> Keeper:
        tracing = Tracing(log.cluster)
        return Keeper(
            log, self._scripts, self._place, self._engine, self._interval_s, make_clocks(), self.generation, tracing
        )

    @property
    def leads(self) -> bool:
        """See `Kept`."""
        return self.keeping is not None and self.keeping.leads

    @property
    def unbuilt(self) -> str | None:
        """See `Kept`; the engine, too, has started."""
        runner = self.keeping.runner if self.keeping is not None else None
        return None if runner is not None and runner.built else "the views are not built yet"

    def report(self) -> RoleReport:
        """See `Kept`."""
        keeper = self.keeping
        runner = keeper.runner if keeper is not None else None
        failed = [each for each in (runner.views if runner is not None else ()) if each.failure]
        blockers = self._blockers()
        if not self.fenced:
            blockers += tuple(Blocker("ViewFailed", f"{each.view.name}: {each.failure}") for each in failed)
        if keeper is None or runner is None:
            return RoleReport(blockers=blockers, done=self.fenced, fence=self._fence)
        return RoleReport(
            progress=runner.reached,
            target=max(runner.tick, runner.reached),
            blockers=blockers,
            leads=keeper.leads,
            done=self.fenced,
            write_gap_ms=milliseconds(keeper.took_over_s),
            fence=self._fence,
        )

    def views(self) -> dict[str, Any]:
        """See `Kept`."""
        runner = self.keeping.runner if self.keeping is not None else None
        if self.keeping is None or runner is None:
            return shown(0, [], BadRows())
        bad = BadRows.of_source(self.keeping.source)
        return shown(runner.tick, [(each.view, each.upper, each.failure, each.tables) for each in runner.views], bad)


class LedViews(Kept[Controller]):
    """Views that replicas in pods of their own compute; this process is their controller (docs/specs/compute.md 10)."""

    def __init__(
        self, settings: ComputeSettings, config: ComputeConfig, certificates: Certificates | None = None
    ) -> None:
        super().__init__(settings, config)
        self._certificates = certificates
        self._replicas = dict(config.replicas)

    def _made(self, log: Waltz) -> Controller:
        return Controller(
            log,
            self._scripts,
            self._place,
            self._replicas,
            self._interval_s,
            make_clocks(),
            self.generation,
            self._certificates,
        )

    @property
    def leads(self) -> bool:
        """See `Kept`; the views stand in the log, which only replicas can do."""
        return self.keeping is not None and self.keeping.writes

    @property
    def unbuilt(self) -> str | None:
        """See `Kept`: before the generation writes all replicas must have built the views, and then one of them."""
        if self.keeping is None:
            return "the views are not built yet"
        enough = 1 if self.keeping.leads else len(self._replicas)
        return None if len(self._replicas) - len(self.keeping.missing) >= enough else self._missing()

    def _missing(self) -> str:
        missing = self.keeping.missing if self.keeping is not None else {}
        return "; ".join(f"{name} {why}" for name, why in missing.items())

    def report(self) -> RoleReport:
        """See `Kept`."""
        controller = self.keeping
        if controller is None:
            return RoleReport(blockers=self._blockers(), done=self.fenced, fence=self._fence)
        blockers = self._blockers()
        if controller.leads and controller.missing:
            blockers += (Blocker("ReplicaMissing", self._missing()),)
        failed = [each for each in controller.views if each.failure]
        blockers += tuple(Blocker("ViewFailed", f"{each.view.name}: {each.failure}") for each in failed)
        return RoleReport(
            progress=controller.reached,
            target=max(controller.tick, controller.reached),
            blockers=() if self.fenced else blockers,
            leads=controller.writes,
            done=self.fenced,
            write_gap_ms=milliseconds(controller.took_over_s),
            fence=self._fence,
        )

    def views(self) -> dict[str, Any]:
        """See `Kept`."""
        controller = self.keeping
        if controller is None:
            return shown(0, [], BadRows())
        tables = {
            view: [table for table in script.tables if table.name in view.tables]
            for script in self._scripts
            for view in script.views
        }
        found = [(each.view, each.upper, each.failure, tables[each.view]) for each in controller.views]
        return shown(controller.tick, found, controller.bad_rows)


def milliseconds(gap_s: float | None) -> int:
    """A write gap as it is reported: 0 = there was none."""
    return 0 if gap_s is None else max(1, round(gap_s * 1000))


def shown(tick: int, views: Iterable[tuple[SqlView, int, str, Iterable[Table]]], bad: BadRows) -> dict[str, Any]:
    """Return what ``/views`` shows: of each view its upper, its failure and its tables."""
    return {
        "tick": tick,
        "views": [
            {
                "name": view.name,
                "upper": upper,
                "failure": failure or None,
                "badRows": {table.name: bad.of_table(table) for table in tables},
            }
            for view, upper, failure, tables in views
        ],
        "badRows": bad.count,
        "lastBadRows": [
            {
                "table": row.table,
                "tick": row.tick,
                "partition": row.partition,
                "transaction": row.txid,
                "reason": row.reason,
            }
            for row in bad.last
        ],
    }


class ComputePod(StagedPod[Kept[Any]]):
    """One pod: the views and everything around them."""

    look_s = 0.2

    def __init__(self, settings: ComputeSettings, config: ComputeConfig, process: Process) -> None:
        certificates = certificates_of(settings, process)
        kept = LedViews(settings, config, certificates) if config.replicas else OwnViews(settings, config)
        super().__init__(settings, process, kept, certificates, {"/views": kept.views})

    async def _run(self) -> None:
        try:
            while True:
                await self._role.run()
                if self._stage is not None:
                    await self._stage.begin_anew("another generation writes the views")
                await self._rest_fenced(self._stage)  # until it is to follow
        except (EngineError, EntryError, WaltzError) as error:
            self._process.exit(EXIT_FAILED, str(error))
        except OSError as error:
            self._process.exit(EXIT_FAILED, f"{error.filename}: {error.strerror}")

    async def _look(self, stage: StageServer) -> None:
        kept = self._role
        told = kept.allowed.is_set() and (not kept.leads or kept.rank.writer == kept.generation)
        if kept.keeping is None or told:
            return
        with contextlib.suppress(WaltzError):
            kept.rank = await kept.keeping.rank()
            if kept.allowed.is_set():
                return
            if kept.rank.has_passed(kept.generation) and not kept.following.is_set():
                await self._rest_fenced(stage)
                kept.fenced = False
            elif kept.rank.writer == kept.generation and stage.stage < Stage.READ_WRITE:
                await stage.walk()

    def _unready(self, stage: Stage) -> str | None:
        return self._role.unready()

    def _own_metrics(self) -> Iterable[Metric]:
        told = self._role.views()
        yield Metric("pavane_dataflow_ticks_total", {}, told["tick"])
        yield Metric("pavane_dataflow_bad_rows", {}, told["badRows"])
        for view in told["views"]:
            lag = max(0, told["tick"] + 1 - view["upper"])
            yield Metric("pavane_dataflow_lag_ticks", {"view": view["name"]}, lag)


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 what a person must look at, 2 wrong settings."""
    return run_pod("compute", ComputeSettings, load, ComputePod)

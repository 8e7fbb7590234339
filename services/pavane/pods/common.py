"""What the pods of all kinds have in common: how they show their stage, and how a fenced one ends."""

import asyncio
import logging
from typing import Any

from pavane.compute.wire import StageReport
from pavane.runtime.metrics import Metric
from pavane.runtime.process import Process, write_termination_log
from pavane.stage.server import StageServer
from pavane.wire import Stage

EXIT_STOPPED = 0
FENCED_SECONDS = 30.0  # a fenced pod rests before it ends, so that no restart loop burns (operator.md 2.12)

_logger = logging.getLogger(__name__)


def stage_json(report: StageReport | None, generation: int) -> dict[str, Any]:
    """Return what ``/stage`` shows; without a report the pod has not opened its stage port yet."""
    if report is None:
        return {"stage": Stage.CREATION.title, "generation": generation, "progress": 0, "target": 0, "blockers": []}
    return {
        "stage": report.stage.title,
        "generation": report.generation,
        "fence": None if report.fence_seen is None else report.fence_seen.generation,
        "progress": report.progress,
        "target": report.target,
        "unit": report.unit,
        "leads": report.leads,
        "done": report.done,
        "blockers": [
            {"reason": b.reason, "text": b.text, "detail": dict(b.detail), "info": b.info} for b in report.blockers
        ],
        "firstWriteMs": report.first_write_ms,
        "lastWriteMs": report.last_write_ms,
    }


def stage_metrics(stage: StageServer) -> list[Metric]:
    """Return the metrics of the stage port."""
    return [
        Metric("pavane_stage", {}, stage.stage),
        Metric("pavane_stage_streams", {}, stage.streams),
        Metric("pavane_stage_ignored_settings_total", {}, stage.ignored_settings),
    ]


async def rest_fenced(process: Process, stage: StageServer, generation: int) -> None:
    """Tell that a later generation took over, rest, and end the process with code 0 (operator.md 2.12)."""
    reason = f"fenced: generation {generation} was superseded by a later one; this pod has nothing left to do"
    _logger.warning(reason)
    write_termination_log(reason)
    stage.notify()
    await asyncio.sleep(FENCED_SECONDS)
    process.exit(EXIT_STOPPED, reason)
    await process.ended()

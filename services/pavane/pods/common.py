"""What the pods of all kinds have in common: how they run, how they show their stage, and how a fenced one ends."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pavane.compute.wire.responses import StageReport
from pavane.pods.settings import PodSettings
from pavane.runtime.certificates import Certificates
from pavane.runtime.garbage import freeze_survivors
from pavane.runtime.metrics import Metric
from pavane.runtime.process import EXIT_FAILED, EXIT_USAGE, Process, write_termination_log
from pavane.runtime.process import run as run_process
from pavane.runtime.settings import SettingsError
from pavane.stage.server import StageServer
from pavane.wire import Stage

EXIT_STOPPED = 0
FENCED_SECONDS = 30.0  # a fenced pod rests before it ends, so that no restart loop burns (operator.md 2.12)
LED_LOOK_S = 0.2  # how often a pod that rests looks whether the operator leads it

_logger = logging.getLogger(__name__)

FAILURES: Mapping[type[Exception], int] = {SettingsError: EXIT_FAILED, OSError: EXIT_FAILED}

OwnSettings = TypeVar("OwnSettings", bound=PodSettings)
Config = TypeVar("Config")


class Pod(Protocol):
    """The parts of one pod, between their start and their stop."""

    async def start(self) -> None:
        """Start them in order; what may be wrong here are the ``failures`` of ``run_pod``."""

    async def stop(self) -> None:
        """Stop them in order, those too that a failed start has left."""


def run_pod(
    service: str,
    settings_of: type[OwnSettings],
    load: Callable[[OwnSettings], Config],
    pod_of: Callable[[OwnSettings, Config, Process], Pod],
    failures: Mapping[type[Exception], int] = FAILURES,
    *,
    keeps_much: bool = False,
) -> int:
    """Run a pod until the process is told to end, and return its exit code.

    ``failures`` gives the exit code for each error of making and starting the pod, the narrower class first. Unusable
    settings (``SettingsError`` of their own or of ``load``) end it with ``EXIT_USAGE`` before anything has begun. A pod
    that ``keeps_much`` has large state without cycles: Python's collector looks at it only once.
    """
    try:
        settings = settings_of.load()
        config = load(settings)
    except SettingsError as error:
        sys.stderr.write(f"the pod's settings are wrong: {error}\n")
        write_termination_log(str(error))
        return EXIT_USAGE
    if keeps_much:
        freeze_survivors()

    async def body(process: Process) -> None:
        pod = None
        try:
            pod = pod_of(settings, config, process)
            await pod.start()
        except tuple(failures) as error:
            process.exit(next(code for kind, code in failures.items() if isinstance(error, kind)), str(error))
        try:
            await process.ended()
        finally:
            if pod is not None:
                await pod.stop()

    return run_process(body, service=service)


def certificates_of(settings: PodSettings, process: Process, others: Path | None = None) -> Certificates | None:
    """Return the pod's certificates, and follow them as long as the process lives; ``None`` if it speaks in clear.

    Authorities in the file ``others`` count too. Raises ``OSError`` when they cannot be read.
    """
    if settings.tls is None:
        return None
    certificates = Certificates(settings.tls, others)
    process.spawn(certificates.follow(), name="certificates")
    return certificates


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
        "writeGapMs": report.write_gap_ms,
    }


def stage_metrics(stage: StageServer) -> list[Metric]:
    """Return the metrics of the stage port."""
    return [
        Metric("pavane_stage", {}, stage.stage),
        Metric("pavane_stage_streams", {}, stage.streams),
        Metric("pavane_stage_ignored_settings_total", {}, stage.ignored_settings),
    ]


async def rest_fenced(process: Process, generation: int, is_led: Callable[[], bool] = lambda: False) -> None:
    """Tell that a later generation took over, rest, and end the process with code 0 (operator.md 2.12).

    Returns when the operator leads the pod meanwhile: it is to follow.
    """
    reason = f"fenced: generation {generation} was superseded by a later one; this pod has nothing left to do"
    _logger.warning(reason)
    write_termination_log(reason)
    for _ in range(round(FENCED_SECONDS / LED_LOOK_S)):
        await asyncio.sleep(LED_LOOK_S)
        if is_led():
            return
    process.exit(EXIT_STOPPED, reason)
    await process.ended()

"""A pod whose work goes on beside its ops port, its stage port and its fence (docs/specs/operator.md 2)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pavane.pods.common import certificates_of, stage_json, stage_metrics
from pavane.pods.settings import PodSettings
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.stage.role import Role
from pavane.stage.server import StageServer
from pavane.wire import Stage


class StagedPod(ABC):
    """The ports, between ``start`` and ``stop``; a subclass does the work and follows the fence."""

    def __init__(
        self,
        settings: PodSettings,
        process: Process,
        role: Role,
        documents: Mapping[str, Callable[[], dict[str, Any] | None]],
    ) -> None:
        self._process = process
        self._generation = settings.generation
        certificates = certificates_of(settings, process)
        self._stage = StageServer(role, process.exit, host=settings.pod_ip, certificates=certificates)
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=lambda: None,  # what ends the work ends the process
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": self._stage_json, **documents},
        )
        self._last_words: dict[str, Any] | None = None

    async def start(self) -> None:
        """Open the ops port and the stage port; the rest follows from there."""
        await self._ops.start(self._process)
        await self._stage.start()
        self._process.spawn(self._run(), name="work")
        self._process.spawn(self._follow_fence(), name="fence")

    async def stop(self) -> None:
        """Stop in order: streams hear that the pod goes, the work ends, the ops port closes."""
        self._last_words = self._stage_json()
        await self._stage.stop()
        await self._end()
        await self._ops.stop()

    @abstractmethod
    async def _run(self) -> None:
        """Work until a later generation has taken over, then rest; end the process for any other reason."""

    @abstractmethod
    async def _follow_fence(self) -> None:
        """Walk as far as the fence allows: a pod that starts again in the generation that writes needs nobody."""

    @abstractmethod
    def _unready(self) -> str | None:
        """Return why the work cannot be done now."""

    @abstractmethod
    async def _end(self) -> None:
        """Let go of what the work holds, if anything."""

    def _ready_fault(self) -> str | None:
        if self._process.ending:
            return "the pod stops"
        if self._stage.stage < Stage.READ_ONLY:
            return f"stage {self._stage.stage.title}"
        return self._unready()

    def _metrics(self) -> list[Metric]:
        return [] if self._process.ending else stage_metrics(self._stage)

    def _stage_json(self) -> dict[str, Any]:
        if self._last_words is not None:
            return self._last_words
        return stage_json(self._stage.report(), self._generation)

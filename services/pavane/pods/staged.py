"""A pod that walks the stages: its ports, its fence, its order of start and stop (docs/specs/operator.md 2)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from pavane.compute.wire.common import Token
from pavane.pods.common import rest_fenced, stage_json, stage_metrics
from pavane.pods.settings import PodSettings
from pavane.runtime.certificates import Certificates
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire import Stage


class PodRole(ABC):
    """The stage server's view of a pod's program (``pavane.stage.role.Role``)."""

    kind: str
    """``CreateInstance.kind`` (docs/specs/compute.md 5)."""
    unit: str
    live_settings: frozenset[str] = frozenset()
    told_settings: frozenset[str] = frozenset()
    fenced = False
    """A later generation has taken over from this one."""

    def __init__(self, generation: int) -> None:
        self.generation = generation

    @property
    def token(self) -> Token | None:
        """The greatest token on the pod's volume; None where another store remembers who may write."""
        return None

    def configure(self, settings: Mapping[str, str]) -> None:
        """No pod has live settings on the stage port, so the stage server never calls this."""
        raise NotImplementedError(f"a pod of kind {self.kind} has no live settings on the stage port")

    @abstractmethod
    async def read_only(self) -> None:
        """Begin to follow and to serve reads."""

    @abstractmethod
    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Begin to write; returns whether the role did. If not, its report says why."""

    @abstractmethod
    def report(self) -> RoleReport:
        """Return what the program says of itself to an operator."""


R = TypeVar("R", bound=PodRole)


class StagedPod(ABC, Generic[R]):
    """The ports, between ``start`` and ``stop``; a subclass does the work and judges its fence.

    ``documents`` are shown on the ops port beside ``/stage``.
    """

    look_s: float
    """How often the pod looks at its fence."""

    def __init__(
        self,
        settings: PodSettings,
        process: Process,
        role: R,
        certificates: Certificates | None,
        documents: Mapping[str, Callable[[], dict[str, Any] | None]] | None = None,
    ) -> None:
        self._process = process
        self._role = role
        self._host = settings.pod_ip
        self._certificates = certificates
        self._stage: StageServer | None = None
        self._opened = False
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=self._live_fault,
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": lambda: self._last_words or self._stage_json(), **(documents or {})},
        )
        self._last_words: dict[str, Any] | None = None
        """What the pod said of itself when it began to stop; work that has ended cannot be asked."""

    async def start(self) -> None:
        """Open the ops port, then what the work needs, then the stage port.

        Raises ``OSError`` when an address is not free, and what ``_open`` raises.
        """
        await self._ops.start(self._process)
        self._opened = True
        await self._open()
        stage = StageServer(self._role, self._process.exit, host=self._host, certificates=self._certificates)
        self._stage = stage
        await stage.start()
        self._process.spawn(self._run(), name="work")
        self._process.spawn(self._follow_fence(stage), name="fence")

    async def stop(self) -> None:
        """Stop in order: streams hear that the pod goes, the work ends, the ops port closes."""
        if self._stage is not None:
            self._last_words = self._stage_json()
            await self._stage.stop()
        if self._opened:
            await self._end()
        await self._ops.stop()

    async def _open(self) -> None:
        """Open what the role needs before a stream may ask for it."""

    @abstractmethod
    async def _run(self) -> None:
        """Work until a later generation has taken over, then rest; end the process for any other reason."""

    @abstractmethod
    async def _look(self, stage: StageServer) -> None:
        """Walk as far as the fence allows: a pod that starts again in the generation that writes needs nobody."""

    async def _pause(self) -> None:
        """Return when it is time to look at the fence again."""
        self._notify()
        await asyncio.sleep(self.look_s)

    @abstractmethod
    def _unready(self, stage: Stage) -> str | None:
        """Return why the work cannot be done now, from ReadOnly on."""

    async def _end(self) -> None:
        """Let go of what the work holds, if anything; also of what a failed `_open` left."""

    def _live_fault(self) -> str | None:
        """Return why only a new process helps; by default what ends the work ends the process."""
        return None

    def _own_metrics(self) -> Iterable[Metric]:
        """Return the metrics of the work."""
        return ()

    def _stage_json(self) -> dict[str, Any]:
        return stage_json(self._stage.report() if self._stage is not None else None, self._role.generation)

    def _notify(self) -> None:
        if self._stage is not None:
            self._stage.notify()

    async def _rest_fenced(self, stage: StageServer | None = None) -> None:
        """Rest, then end; with `stage`, return when the operator has a stream and it follows (operator.md 2.7)."""
        self._role.fenced = True
        self._notify()

        def is_led() -> bool:
            return stage is not None and stage.streams > 0 and stage.stage >= Stage.READ_ONLY

        await rest_fenced(self._process, self._role.generation, is_led)

    async def _follow_fence(self, stage: StageServer) -> None:
        while not self._process.ending:
            await self._look(stage)
            await self._pause()

    def _ready_fault(self) -> str | None:
        if self._process.ending:
            return "the pod stops"
        if self._role.fenced:
            return "fenced by a later generation"
        stage = self._stage.stage if self._stage is not None else Stage.CREATION
        return f"stage {stage.title}" if stage < Stage.READ_ONLY else self._unready(stage)

    def _metrics(self) -> list[Metric]:
        if self._stage is None or self._process.ending:
            return []
        return [*stage_metrics(self._stage), *self._own_metrics()]

"""Clients that use resources without a pause while pods are killed and rolled out, then check that nothing is lost."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

import httpx2

from pavane_api.kinds import SWIM_GROUPS
from pavane_cli.access import raft_client
from pavane_cli.probe import SteadyWriter
from pavane_cli.target import Where
from pavane_operator import kube
from pavane_operator.kinds.swim.access import NotServing, group_members

ASK_PAUSE_S = 0.1
WRITE_PAUSE_S = 0.02
"""Clients leave the processors to pods that start, so that pauses are those of the store and not of a busy machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load did: so much was acknowledged, of that so much lost and doubled; ``said`` is its proof in words."""

    done: int
    lost: int
    doubled: int
    said: str
    holds: bool


class Load(ABC):
    """Uses one resource from entering to ``stop``."""

    warm_up: ClassVar[int]
    """Acknowledgements after which the load counts as running."""

    def __init__(self, client: kube.KubeClient) -> None:
        self.kube = client
        self.stopping = False
        self.tasks: list[asyncio.Task[None]] = []
        self.open = contextlib.AsyncExitStack()
        self._times: list[float] = []
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Begin."""
        try:
            await self.begin()
        except BaseException:
            await self.open.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, whatever is under way."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.open.aclose()

    @property
    def done(self) -> int:
        """How much was acknowledged so far."""
        return len(self._times)

    def acknowledged(self) -> None:
        """Count one more."""
        self._times.append(time.monotonic())
        self._moved.set()

    def longest_gap_s(self, since: float, until: float) -> float:
        """Return the longest time between two acknowledgements that touches [since, until] (monotonic seconds)."""
        pairs = zip(self._times, self._times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later >= since and earlier <= until), default=0.0)

    async def go_on(self) -> None:
        """Wait until ``warm_up`` more is done; raises the error that ended a client."""
        done = self.done + self.warm_up
        while self.done < done:
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait([moved, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
            for task in self.tasks:
                if task.done():
                    task.result()

    async def stop(self) -> Outcome:
        """Finish what is under way, and return whether all of it took effect once."""
        self.stopping = True
        await asyncio.gather(*self.tasks)
        return await self.prove()

    @abstractmethod
    async def begin(self) -> None:
        """Connect with what ``open`` closes, and start ``tasks`` that end when ``stopping`` is set."""

    @abstractmethod
    async def prove(self) -> Outcome:
        """Compare all that was acknowledged with what the resource holds."""


def new_label() -> str:
    """Return what marks everything that one run writes."""
    return f"demo-{time.time_ns()}"


class RaftLoad(Load):
    """Writes to a RaftCluster, and reads its log."""

    warm_up = 100

    def __init__(self, client: kube.KubeClient, document: kube.Object, where: Where) -> None:
        super().__init__(client)
        self._document = document
        self._where = where

    async def begin(self) -> None:
        """Start the writer."""
        made = await raft_client(self.kube, self._document, self._where.kubeconfig)
        raft = await self.open.enter_async_context(made)
        self._writer = SteadyWriter(raft, new_label(), pause_s=WRITE_PAUSE_S, told=self.acknowledged)
        self.open.push_async_callback(self._writer.cancel)
        self._writer.start()

    async def prove(self) -> Outcome:
        """Compare the log with what was acknowledged."""
        await self._writer.stop()
        proof = await self._writer.proof()
        said = f"{proof.unfenced} writes by a generation that might not write"
        return Outcome(proof.acknowledged, proof.lost, proof.doubled, said, proof.holds)


class SwimLoad(Load):
    """Asks a SwimGroup for its members."""

    warm_up = 10

    def __init__(self, client: kube.KubeClient, document: kube.Object) -> None:
        super().__init__(client)
        self._document = document

    async def begin(self) -> None:
        """Start to ask."""
        self._fewest = int(self._document["spec"]["replicas"])
        http = await self.open.enter_async_context(kube.pods_http())
        self.tasks.append(asyncio.create_task(self._ask(http)))

    async def _ask(self, http: httpx2.AsyncClient) -> None:
        metadata = self._document["metadata"]
        while not self.stopping:
            try:
                table = await group_members(http, self._document)
                self._fewest = min(self._fewest, len(table.members))
                self.acknowledged()
            except NotServing:  # pods of another generation may serve by now
                self._document = await self.kube.get(SWIM_GROUPS, metadata["name"], metadata["namespace"])
            await asyncio.sleep(ASK_PAUSE_S)

    async def prove(self) -> Outcome:
        """Nothing that was acknowledged can be lost: a lookup writes nothing."""
        return Outcome(self.done, 0, 0, f"never fewer than {self._fewest} members", self.done > 0)

"""Scenarios in which the operator is killed at one of its API calls, and what must hold whatever happens (7.5)."""

import asyncio
import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_local.platform import LocalCluster, LocalSettings, local_cluster
from pavane_operator.kube import KubeClient, KubeError, Target
from pavane_operator.kube.resources import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
    Object,
    Resource,
)
from tests.operator.api_proxy import ApiProxy, Moment, a_proxy
from tests.operator.invariants import Invariants
from tests.operator.operator_cluster import FAST, condition, state

NAME = "log"
UNTIL_S = 120.0
KEPT = (CONFIG_MAPS, CONTROLLER_REVISIONS, SECRETS, SERVICES, STATEFUL_SETS, VOLUME_CLAIMS, PODS)
"""What a final state consists of, beside the status."""
COMMAND = "import sys; from pavane_operator.runtime.main import run; sys.stdin.readline(); sys.exit(run())"
"""Ready to go, but for one line: a killed operator is followed as fast as its container would be."""


@dataclass
class Operators:
    """One operator at a time, all of one pod; the next one waits with everything imported."""

    variables: Mapping[str, str]
    log: Path
    running: asyncio.subprocess.Process | None = None
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def supervise(self) -> None:
        """Let one run, and another one whenever it ends, as a kubelet would; does not return."""
        spare = await self._make()
        while True:
            self.running = spare
            assert self.running.stdin is not None
            self.running.stdin.write(b"\n")
            spare = await self._make()
            await self.running.wait()

    def kill(self) -> None:
        """SIGKILL."""
        assert self.running is not None
        self.running.kill()

    async def close(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _make(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", COMMAND, env=self.variables, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log
            )
        self.started.append(process)
        return process


@dataclass
class Run(ABC):
    """One resource in a namespace of its own, from its birth to its end."""

    type: ClassVar[Resource]
    defaults: ClassVar[Mapping[str, Any]]
    """Of the spec."""
    given: ClassVar[frozenset[str]] = frozenset()
    """Objects that the resource uses and does not own, as `plural/name`."""

    kube: KubeClient
    local: LocalCluster
    namespace: str
    log: Path
    invariants: Invariants = field(default_factory=Invariants)
    spec: dict[str, Any] = field(default_factory=dict)

    @abstractmethod
    def members(self, status: Object) -> Any:
        """What the status says of who belongs to it."""

    def rests(self, status: Object) -> bool:
        """Whether what only this kind's status has will stay as it is."""
        return True

    def judges(self, resource: Resource, body: Object) -> bool:
        """Whether the invariants of its generations hold for this object."""
        return True

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """What there is beside the resource, and what must hold, from its birth to its end."""
        yield

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """What somebody does with the resource while the operator may be killed, and what must hold of that."""
        yield

    async def apply(self, **spec: Any) -> None:
        """Change these fields of the spec."""
        rollout = {**FAST, **self.spec.get("rollout", {}), **spec.pop("rollout", {})}
        self.spec = {**self.defaults, **self.spec, **spec, "rollout": rollout}
        body = {"metadata": {"name": NAME}, "spec": self.spec}
        await self.kube.apply(self.type, body, self.namespace, manager="test")

    async def body(self) -> Object | None:
        return await self.kube.get_or_none(self.type, NAME, self.namespace)

    async def until(self, check: Callable[[Object], object], what: str) -> None:
        """Wait until the resource, {} once it is gone, fulfils the condition."""
        last: Object = {}
        try:
            async with asyncio.timeout(UNTIL_S):
                while not check(last := await self.body() or {}):
                    await asyncio.sleep(0.03)
        except TimeoutError:
            words = self.log.read_text()[-2000:]
            raise AssertionError(f"{self.namespace}: not {what}; status {last.get('status')}\n{words}") from None

    async def until_active(self, generation: int) -> None:
        def check(body: Object) -> bool:
            status = body.get("status") or {}
            current = status.get("observedGeneration") == (body.get("metadata") or {}).get("generation")
            return current and status.get("activeGeneration") == generation and is_idle_and_current(status)

        await self.until(check, f"active generation {generation}")

    async def settled(self) -> tuple[Object, set[str]]:
        """The final state: what stays of the status, and the names of all objects, once no more of them come or go."""
        async with asyncio.timeout(UNTIL_S):
            while True:
                names = {name async for name in self._names()}
                body = await self.body() or {}
                if not any("/deleting" in name for name in names) and self.only_what_stays(body, names):
                    return self._essence(body.get("status") or {}), names
                await asyncio.sleep(0.03)

    def only_what_stays(self, body: Object, names: set[str]) -> bool:
        """Whether nothing is under way and all has gone that goes by itself.

        That is volumes of former generations, and what a deleted resource owned.
        """
        volumes = {name for name in names if name.startswith("persistentvolumeclaims/")}
        if not body:
            return names == volumes | self.given
        status = body.get("status") or {}
        active = status.get("activeGeneration")
        moving = condition(status, "Reconciling") is not None or not self.rests(status)
        return not moving and all(f"-g{active}-" in name for name in volumes)

    async def _names(self) -> AsyncIterator[str]:
        for resource in KEPT:
            for item in (await self.kube.list_all(resource, self.namespace)).items:
                mark = "/deleting" if "deletionTimestamp" in item["metadata"] else ""
                if resource is SECRETS or item["metadata"]["name"].startswith((NAME, f"data-{NAME}")):
                    yield f"{resource.plural}/{item['metadata']['name']}{mark}"

    def _essence(self, status: Object) -> Object:
        """What of a status must not depend on when the operator was killed."""
        failed = status.get("failed") or {}
        return {
            "active": status.get("activeGeneration"),
            "next": status.get("nextGeneration"),
            "last": status.get("lastGeneration"),
            "state": state(status),
            "failed": (failed.get("generation"), failed.get("reason")),
            "history": [(one["generation"], one["result"], one.get("reason")) for one in status.get("history") or ()],
            "conditions": sorted((one["type"], one["status"], one["reason"]) for one in status.get("conditions") or ()),
            "members": self.members(status),
        }


Phase = Callable[[Run], Awaitable[None]]


async def nothing(_: Run) -> None:
    return


@dataclass(frozen=True)
class Scenario:
    """`prepare` is not counted; `act` is, until `done` returns."""

    run: type[Run]
    prepare: Phase
    act: Phase
    done: Phase
    works: bool = True
    """Whether somebody uses the resource meanwhile."""


def is_idle_and_current(status: Object) -> bool:
    return state(status) == "Idle" and (condition(status, "UpToDate") or ("", ""))[1] == "Applied"


async def born(run: Run) -> None:
    await run.apply()
    await run.until_active(1)


async def _waits_for_approval(run: Run) -> None:
    await born(run)
    await run.apply(rollout={"strategy": "Manual", "restart": "now"})
    await run.until(
        lambda body: (condition(body.get("status") or {}, "UpToDate") or ("", ""))[1] == "WaitingForApproval",
        "waiting for approval",
    )


async def _aborted(run: Run) -> None:
    def check(body: Object) -> bool:
        status = body.get("status") or {}
        return state(status) == "Idle" and (status.get("failed") or {}).get("generation") == 2

    await run.until(check, "aborted")


async def _deleted(run: Run) -> None:
    run.invariants.deletion_asked()
    await run.kube.delete(run.type, NAME, run.namespace)


async def _suspended_and_resumed(run: Run) -> None:
    def ready(body: Object) -> tuple[str, str]:
        return condition(body.get("status") or {}, "Ready") or ("", "")

    await run.until(lambda body: ready(body) == ("False", "Suspended"), "suspended")
    while (await run.kube.list(PODS, run.namespace)).items:
        await asyncio.sleep(0.03)
    await run.apply(suspend=False)
    await run.until(lambda body: ready(body)[0] == "True", "resumed")


async def _bakes(run: Run) -> None:
    def follows(body: Object) -> bool:
        return condition(body.get("status") or {}, "CanSwitchBack") == ("True", "Following")

    await born(run)
    await run.apply(rollout={"bake": "1h", "restart": "now"})
    await run.until(follows, "followed by the former generation")


async def _wanted_back(run: Run) -> None:
    run.invariants.way_back = True
    await run.apply(rollout={"restart": ""})


def way_back(run: type[Run]) -> Scenario:
    """Of the kinds that bake."""
    return Scenario(run, _bakes, _wanted_back, lambda run: run.until_active(1))


def scenarios(run: type[Run]) -> dict[str, Scenario]:
    """Those that every kind has."""
    return {
        "bootstrap": Scenario(run, nothing, lambda run: run.apply(), lambda run: run.until_active(1), works=False),
        "roll": Scenario(run, born, lambda run: run.apply(rollout={"restart": "now"}), lambda run: run.until_active(2)),
        "abort": Scenario(run, _waits_for_approval, lambda run: run.apply(rollout={"abort": 2}), _aborted),
        "suspend": Scenario(run, born, lambda run: run.apply(suspend=True), _suspended_and_resumed),
        "delete": Scenario(run, born, _deleted, lambda run: run.until(lambda body: not body, "gone"), works=False),
    }


@dataclass
class Killing:
    """A cluster in which scenarios run one after the other, each in a namespace of its own."""

    local: LocalCluster
    kube: KubeClient
    proxy: ApiProxy
    operators: Operators
    runs: int = 0

    async def run(self, scenario: Scenario, call: int = 0, moment: Moment = Moment.BEFORE) -> tuple[Any, int, bool]:
        """Run it once. Returns the final state, the number of counted calls, and whether the operator was killed."""
        self.runs += 1
        run = scenario.run(self.kube, self.local, f"run-{self.runs}", self.operators.log)
        await self.kube.create(NAMESPACES, {"metadata": {"name": run.namespace}})
        async with self._watched(run):
            async with run.living():
                await scenario.prepare(run)
                async with run.working() if scenario.works else contextlib.nullcontext():
                    self.proxy.arm(call, moment)
                    await scenario.act(run)
                    await scenario.done(run)
                    final = await run.settled()
                    calls, killed = len(self.proxy.calls), self.proxy.killed.is_set()
                self.proxy.arm()
                if await run.body() is not None:
                    await _deleted(run)
                    await run.until(lambda body: not body, "gone")
            await self.kube.delete(NAMESPACES, run.namespace)
        return final, calls, killed

    @asynccontextmanager
    async def _watched(self, run: Run) -> AsyncIterator[None]:
        """Check the invariants on each change of the namespace; the first broken one is raised at the end."""
        watching = [
            asyncio.create_task(self._watch(run, resource))
            for resource in (run.type, STATEFUL_SETS, SERVICES, VOLUME_CLAIMS)
        ]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
        assert run.invariants.broken == [], (run.namespace, run.invariants.broken)

    async def _watch(self, run: Run, resource: Resource) -> None:
        while True:
            with contextlib.suppress(KubeError):
                async for change in self.kube.watch(resource, run.namespace):
                    if run.judges(resource, change.object):
                        run.invariants.seen(resource, change)


@asynccontextmanager
async def killing(folder: Path) -> AsyncIterator[Killing]:
    """A local cluster, a proxy before its API server, and an operator behind the proxy."""
    settings = LocalSettings(folder / "cluster", fast=True, platform_pods=False)
    async with local_cluster(settings) as local, await KubeClient.connect(Target(local.kubeconfig)) as kube:
        variables = {
            **os.environ,
            "KUBECONFIG": str(folder / "kubeconfig"),
            "POD_IP": "127.0.0.1",
            "POD_UID": "the-same-pod",
            "POD_NAMESPACE": "pavane-system",
            "PAVANE_HEALTH_PORT": "0",
            "PAVANE_DEFAULT_IMAGE": "pavane:local",
            HOSTS_FILE_VARIABLE: str(local.folder / "hosts" / "default"),  # as the kubelet tells an operator in a pod
        }
        operators = Operators(variables, folder / "operator.log")
        async with a_proxy(local.kubeconfig.read_text(), operators.kill) as (proxy, kubeconfig):
            (folder / "kubeconfig").write_text(kubeconfig)
            supervising = asyncio.create_task(operators.supervise())
            try:
                yield Killing(local, kube, proxy, operators)
            finally:
                supervising.cancel()
                await asyncio.wait({supervising})
                await operators.close()

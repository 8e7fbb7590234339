"""Many resources on a real API server, against rows 5 to 7 of docs/specs/operator.md 9."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from bench.cluster import BenchError
from bench.machine import cpu_s, resident_mb
from bench.options import Options
from bench.report import Measure
from bench.stub_pods import StubClient, StubNode, without_stores
from e2e.kubernetes.control_plane import ControlPlane, ControlPlaneError, control_plane
from e2e.kubernetes.tools import ToolError
from pavane_cli import output
from pavane_operator.crds.definitions import definitions
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kube import KubeError, Object, Target
from pavane_operator.kube.resources import CRDS, NAMESPACES, STATEFUL_SETS, custom
from tests.services.ports import free_ports

RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")
NAMESPACE, SYSTEM = "bench", "pavane-system"
REPLICAS = 1
CREATES_AT_ONCE = 20
CREATED_S, RECONCILED_S, RESIDENT_MB = 5.0, 10.0, 150.0  # row 5
IDLE_CORES, IDLE_WRITES = 0.2, 5.0  # row 6
IDLE_RECONCILES = 2.0  # per resource and minute: one look per poll of a pod, anything more is a loop
IDLE_S = 60.0
TIMEOUT_S = 600.0
POLL_S = 0.25
STEP = 50  # resources between two lines of progress
CALL = re.compile(r'pavane_operator_api_calls_total\{verb="(\w+)",code="(\d+)"\} (\d+)')
RECONCILE = re.compile(r'pavane_operator_reconciles_total\{kind="\w+",outcome="(\w+)"\} (\d+)')
STREAMS = re.compile(r"pavane_operator_streams (\d+)")
LEASE_VERB = "put"  # nothing but the Lease is replaced


@dataclass(frozen=True)
class Counts:
    """What the operator's metrics say at one moment."""

    calls: Counter[tuple[str, int]]
    reconciles: Counter[str]
    cpu: float
    streams: int

    def writes(self) -> int:
        """Calls that change something, without the renewals of the Lease."""
        return sum(count for (verb, _), count in self.calls.items() if verb not in ("get", LEASE_VERB))

    def reads(self) -> int:
        """Calls that only look."""
        return sum(count for (verb, _), count in self.calls.items() if verb == "get")

    def errors(self) -> int:
        """Answers that an operator at work should never meet; absence and lost races are daily life."""
        return sum(count for (_, code), count in self.calls.items() if code == 0 or code >= 500 or code in (400, 422))


@dataclass(frozen=True)
class Operator:
    """A running operator process."""

    process: "subprocess.Popen[bytes]"
    port: int

    async def counts(self) -> Counts:
        """Read its metrics."""
        text = await self._get("/metrics")
        calls = Counter({(verb, int(code)): int(count) for verb, code, count in CALL.findall(text)})
        reconciles = Counter({outcome: int(count) for outcome, count in RECONCILE.findall(text)})
        streams = int(STREAMS.findall(text)[0])
        return Counts(calls, reconciles, cpu_s(self.process.pid), streams)

    def check(self) -> None:
        """Raise BenchError if it has ended."""
        if self.process.poll() is not None:
            raise BenchError(
                f"the operator ended with code {self.process.returncode}; 3: the machine is too slow for it"
            )

    async def until_ready(self) -> None:
        """Wait until it looks after resources."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                with contextlib.suppress(httpx2.HTTPError):
                    await self._get("/readyz")
                    return
                self.check()
                await asyncio.sleep(POLL_S)

    async def _get(self, path: str) -> str:
        async with httpx2.AsyncClient() as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}{path}", timeout=10.0)
            return answer.raise_for_status().text


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Create many resources at once, wait until all are Ready, watch a minute of silence, start the operator anew."""
    try:
        with control_plane(folder / "plane", endpoints=False) as plane:
            return await _measure(folder, plane, options.resources)
    except (ToolError, ControlPlaneError) as error:
        raise BenchError(str(error)) from error


async def _measure(folder: Path, plane: ControlPlane, resources: int) -> list[Measure]:
    async with _stubs(plane) as kube:
        with _operator(folder, plane) as operator:
            await operator.until_ready()
            began = time.monotonic()
            await _create(kube, resources)
            created = time.monotonic() - began
            await _until_ready(kube, resources, operator)
            reconciled = time.monotonic() - began
            resident = resident_mb(operator.process.pid)
            busy = await operator.counts()
            idle, minutes = await _idle(operator, busy)
        before = await _versions(kube)
        with _operator(folder, plane) as operator:
            began = time.monotonic()
            await operator.until_ready()
            again = await _settled(operator)
            restarted = time.monotonic() - began
            anew = await operator.counts()
        after = await _versions(kube)
    per_object = (busy.writes() + busy.reads()) / resources
    for when, counts in (("until all were Ready", busy), ("of the start anew", anew)):
        calls = ", ".join(f"{verb} {code}: {count}" for (verb, code), count in sorted(counts.calls.items()))
        output.note(f"calls {when}: {calls}")
    changed = sum(before[name] != version for name, version in after.items())
    return [
        Measure(f"{resources} RaftClusters created at once", created, "s", CREATED_S),
        Measure(f"created → all {resources} Ready", reconciled, "s", RECONCILED_S),
        Measure("operator, resident", resident, "MB", RESIDENT_MB),
        Measure("API calls per resource until Ready", per_object, "", None),
        Measure("of them writes", busy.writes() / resources, "", None),
        Measure("failed reconciles", busy.reconciles["failed"] + anew.reconciles["failed"], "", 0.0, vital=True),
        Measure("calls with an error", busy.errors() + anew.errors(), "", 0.0, vital=True),
        Measure("idle: API writes per minute in all, without the Lease", idle.writes() / minutes, "", IDLE_WRITES),
        Measure("idle: API reads per minute in all", idle.reads() / minutes, "", None),
        Measure("idle: looks per resource and minute", _looks(idle) / minutes / resources, "", IDLE_RECONCILES),
        Measure("idle: stage streams", idle.streams, "", 0.0),
        Measure("idle: cores", idle.cpu / (minutes * 60), "", IDLE_CORES),
        Measure("operator started anew → all looked at", restarted, "s", None),
        Measure("writes of that start, without the Lease", again, "", 0.0),
        Measure("StatefulSets that it changed", changed, "", 0.0, vital=True),
    ]


def _looks(counts: Counts) -> int:
    return sum(counts.reconciles.values())


async def _idle(operator: Operator, before: Counts) -> tuple[Counts, float]:
    """What happened in a minute in which nobody did anything, and how many minutes it was."""
    await _settled(operator)
    before, began = await operator.counts(), time.monotonic()
    await asyncio.sleep(IDLE_S)
    after = await operator.counts()
    spent = Counts(
        after.calls - before.calls, after.reconciles - before.reconciles, after.cpu - before.cpu, after.streams
    )
    return spent, (time.monotonic() - began) / 60


async def _settled(operator: Operator) -> int:
    """Wait until the operator has not reconciled for a moment; returns its writes so far."""
    former = -1
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            counts = await operator.counts()
            if _looks(counts) == former:
                return counts.writes()
            former = _looks(counts)
            await asyncio.sleep(1.0)


async def _create(kube: StubClient, resources: int) -> None:
    slots = asyncio.Semaphore(CREATES_AT_ONCE)

    async def create(number: int) -> None:
        spec: Object = {
            "stateMachine": "Broadcast",
            "replicas": REPLICAS,
            "tls": {"mode": "Disabled"},
            "rollout": {"retireDelay": "0s"},
        }
        async with slots:
            await kube.create(RAFT_CLUSTERS, {"metadata": {"name": f"raft-{number}"}, "spec": spec}, NAMESPACE)

    await asyncio.gather(*(create(number) for number in range(resources)))


async def _until_ready(kube: StubClient, resources: int, operator: Operator) -> None:
    told = 0
    began = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            operator.check()
            items = (await kube.list_all(RAFT_CLUSTERS, NAMESPACE)).items
            ready = sum(_is_ready(item) for item in items)
            if ready // STEP > told // STEP:
                told = ready
                output.note(f"{ready} of {resources} Ready after {time.monotonic() - began:.1f} s")
            if ready == resources:
                return
            await asyncio.sleep(POLL_S)


def _is_ready(body: Object) -> bool:
    status = body.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return (status.get("rollout") or {}).get("state") == "Idle" and conditions.get("Ready") == "True"


async def _versions(kube: StubClient) -> dict[str, str]:
    """StatefulSets and the generation of their spec."""
    items = (await kube.list_all(STATEFUL_SETS, NAMESPACE)).items
    return {item["metadata"]["name"]: f"{item['metadata']['uid']}/{item['metadata']['generation']}" for item in items}


@asynccontextmanager
async def _stubs(plane: ControlPlane) -> AsyncIterator[StubClient]:
    """A client of a server that knows our kinds, and pods that are stubs."""
    defaults = RenderDefaults(image="", version="", otlp_endpoint=None, secret_key=b"-" * 32, platform_namespace=SYSTEM)
    (kind,) = (kind for kind in without_stores(defaults) if kind.plural == RAFT_CLUSTERS.plural)
    async with await StubClient.connect(Target(plane.kubeconfig)) as kube:
        for definition in definitions():
            await kube.create(CRDS, dict(definition))
        for name in (NAMESPACE, SYSTEM):
            await kube.create(NAMESPACES, {"metadata": {"name": name}})
        await _until_served(kube)
        living = asyncio.create_task(StubNode(kube, kind.stage_kind).live())
        try:
            yield kube
        finally:
            living.cancel()
            await asyncio.wait({living})


async def _until_served(kube: StubClient) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with contextlib.suppress(KubeError):
                await kube.list(RAFT_CLUSTERS, NAMESPACE)
                return
            await asyncio.sleep(POLL_S)


@contextmanager
def _operator(folder: Path, plane: ControlPlane) -> Iterator[Operator]:
    (port,) = free_ports(1)
    variables = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig),
        "POD_IP": "127.0.0.1",
        "POD_UID": "bench",
        "POD_NAMESPACE": SYSTEM,
        "PAVANE_HEALTH_PORT": str(port),
        "PAVANE_DEFAULT_IMAGE": "pavane:bench",
        "PAVANE_LOG_LEVEL": "WARNING",
    }
    with (folder / "operator.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.stub_pods"], env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Operator(process, port)
    finally:
        process.terminate()
        process.wait()

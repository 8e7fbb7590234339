"""Bad generations that are left while they bake, by a gate and by a person, under load (docs/specs/operator.md 2.7).

Each run promotes a generation, spoils it, and goes back to the one before; it stays bad until that serves again.
The gate's answers are the bench's: what is measured is the way back, not how soon somebody notices.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from bench.cluster import LocalCluster, running
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from bench.view_rollouts import CHANGES_PER_S, CUSTOMERS
from bench.waltz_chaos import judged, logs
from bench.waltz_oracle import Oracle
from pavane.dataflow.chain import Chain
from pavane.dataflow.entries import Batch, Minted, decode
from pavane.dataflow.rows import Row, updates_of
from pavane.waltz.client import Waltz
from pavane_api.kinds import COMPUTE_CLUSTERS, RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import Refused, undo
from pavane_cli import output
from pavane_cli.access import raft_client
from pavane_cli.commands.resources import condition
from pavane_cli.probe import SteadyWriter
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube import Conflict, KubeClient, Object
from pavane_operator.kube.resources import PODS, Resource
from tests.services.ports import free_ports

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMESPACE = "default"
GAP_MS = 1000.0
PATIENCE_S = 90.0
POLL_S = 0.01
SPOILT_S = 2.0  # before somebody goes back
STOPPED_S, GOING_S = 0.12, 0.04  # in turn: it answers slowly
LATE_S = 0.3  # of ten times as long its pods stand still: a tenth of the requests fail, or wait as long
CRASH_S = 2.0  # between two crashes of its first pod
EVERYTHING = 2**40
TICKS, VIEWS = 2, 3
SLOW, TENTH, CRASHES, WRONG = "slow", "a tenth late", "crashes", "wrong"
TABLE = "CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT) USING waltz OPTIONS (partitions '0-1');"
VIEW = "CREATE MATERIALIZED VIEW revenue AS SELECT customer, {0}(cents) AS total FROM orders GROUP BY customer;"
GOOD, BAD = (TABLE + VIEW.format(function) for function in ("sum", "max"))


class Load(ABC):
    """One kind of resource under load."""

    resource: Resource
    name: str
    example: str
    role: str
    """Of the pods that are exchanged."""
    faults: tuple[str, ...] = (SLOW, TENTH, CRASHES)

    verdict: list[Measure]
    """What was lost or doubled; after the load has ended."""

    def __init__(self, kube: KubeClient, cluster: LocalCluster) -> None:
        self.kube, self.cluster = kube, cluster

    @abstractmethod
    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep the load up meanwhile."""

    @abstractmethod
    async def more(self) -> None:
        """Wait until something further has come through."""

    @abstractmethod
    def longest_gap_s(self, since: float, until: float) -> float:
        """Return the longest time without that (monotonic seconds)."""

    def spec(self, what: str) -> dict[str, Any]:
        """What the next generation is made of, where not only its pods are bad."""
        return {}

    def pods(self, generation: int) -> str:
        """How the names of a generation's pods begin."""
        return f"{self.name}-{self.role}-g{generation}-"


class RaftLoad(Load):
    """Writes to a RaftCluster."""

    resource, name, example, role = RAFT_CLUSTERS, "quickstart", "quickstart.yaml", "server"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        document = await self.kube.get(self.resource, self.name, NAMESPACE)
        async with await raft_client(self.kube, document, self.cluster.kubeconfig) as client:
            self._writer = SteadyWriter(client, "bench")
            self._writer.start()
            try:
                yield
                await self._writer.stop()
            finally:
                await self._writer.cancel()
            proof = await self._writer.proof()
        self.verdict = [
            Measure("writes acknowledged", proof.acknowledged, ""),
            Measure("writes with unknown outcome", proof.unknown, ""),
            Measure("acknowledged writes lost", proof.lost, "", 0, vital=True),
            Measure("writes doubled", proof.doubled, "", 0, vital=True),
            Measure("writes beside the fence", proof.unfenced, "", 0, vital=True),
        ]

    async def more(self) -> None:
        await self._writer.reach(self._writer.acknowledged + 20)

    def longest_gap_s(self, since: float, until: float) -> float:
        return self._writer.longest_gap_s(since, until)


class WaltzLoad(Load):
    """Appends to all partitions of a WaltzCluster."""

    resource, name, example, role = WALTZ_CLUSTERS, "ledger", "waltz.yaml", "server"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with logs(self.kube, self.cluster) as (log, fresh):
            self._oracle = Oracle(log)
            async with self._oracle.running():
                yield
            self.verdict = judged(await self._oracle.compare(fresh))

    async def more(self) -> None:
        for partition in self._oracle.acknowledged:
            await self._oracle.more(partition)

    def longest_gap_s(self, since: float, until: float) -> float:
        return self._oracle.longest_gap_s(since, until)


class ViewsLoad(Load):
    """Orders for the views of a ComputeCluster: what comes through are batches of the view."""

    resource, name, example, role = COMPUTE_CLUSTERS, "main", "compute.yaml", "controller"
    faults = (SLOW, WRONG, CRASHES)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with logs(self.kube, self.cluster) as (log, _):
            self._times: list[float] = []
            self._ending = asyncio.Event()
            tasks = [asyncio.create_task(self._write(log)), asyncio.create_task(self._follow(log))]
            try:
                yield
                self._ending.set()
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            ticks, wrong, kinds = await wrong_ticks(log)
        self.verdict = [
            Measure("ticks", ticks, ""),
            Measure("of these by the wrong script, before it was left", kinds[BAD], ""),
            Measure("ticks at which the view is not that of one script", wrong, "", 0, vital=True),
        ]

    def spec(self, what: str) -> dict[str, Any]:
        return {"scripts": {"revenue": BAD if what is WRONG else GOOD}}

    async def more(self) -> None:
        before = len(self._times)
        async with asyncio.timeout(PATIENCE_S):
            while len(self._times) < before + 2:
                await asyncio.sleep(POLL_S)

    def longest_gap_s(self, since: float, until: float) -> float:
        times = [since, *(each for each in self._times if since < each < until), until]
        return max(after - before for before, after in itertools.pairwise(times))

    async def _write(self, log: Waltz) -> None:
        for number in itertools.count():
            if self._ending.is_set():
                return
            order = {"id": number, "customer": f"c{number % CUSTOMERS}", "cents": number % 97}
            await log.append(number % 2, json.dumps(order).encode())
            await asyncio.sleep(1 / CHANGES_PER_S)

    async def _follow(self, log: Waltz) -> None:
        position = 0
        while not self._ending.is_set():
            async for transaction in log.read(VIEWS, position, await log.hwm(VIEWS) + 1):
                position = transaction.id + 1
                if isinstance(decode(transaction.header, transaction.data), Batch):
                    self._times.append(time.monotonic())
            await asyncio.sleep(POLL_S)


async def wrong_ticks(log: Waltz) -> tuple[int, int, Counter[str]]:
    """Return how many ticks the view has, at how many it is what neither script says, and how many each one wrote.

    One generation writes a whole batch by one script, and the next batch corrects what the one before has written.
    """
    rows = {p: [json.loads(tx.data) async for tx in log.read(p, 0, EVERYTHING)] for p in (0, 1)}
    entries = [decode(tx.header, tx.data) async for tx in log.read(TICKS, 0, EVERYTHING)]
    minted = [entry for entry in entries if isinstance(entry, Minted)]
    chain, held, counted, wrong = Chain("revenue"), Counter[Row](), Counter[str](), 0
    shown: Mapping[str, dict[str, int]] = {GOOD: {}, BAD: {}}
    reached = {0: 0, 1: 0}
    async for transaction in log.read(VIEWS, 0, EVERYTHING):
        entry = decode(transaction.header, transaction.data)
        if entry is None:
            continue
        before = chain.upper
        table = chain.take(entry)
        updates = list(updates_of(table)) if table is not None else []
        for tick in range(before, chain.upper) if isinstance(entry, Batch) else ():
            wanted = minted[tick - 1]
            wrong += wanted.tick != tick
            for partition, end in wanted.next.items():
                for row in rows[partition][reached[partition] : end]:
                    customer, cents = row["customer"], row["cents"]
                    shown[GOOD][customer] = shown[GOOD].get(customer, 0) + cents
                    shown[BAD][customer] = max(shown[BAD].get(customer, 0), cents)
                reached[partition] = max(end, reached[partition])
            for row, time_, diff in updates:
                if time_ == tick:
                    held[row] += diff
            of = [script for script, view in shown.items() if held == Counter(dict.fromkeys(view.items(), 1))]
            wrong += not of
            counted.update(of[:1])
    return chain.upper - 1, wrong, counted


LOADS: Mapping[str, type[Load]] = {"raft": RaftLoad, "waltz": WaltzLoad, "compute": ViewsLoad}


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Go back again and again, from each sort of bad generation in turn, by a gate and by a person in turn."""
    kind = LOADS[options.kind]
    (port,) = free_ports(1)
    waits_ms: dict[str, list[float]] = {}
    told_ms: list[float] = []
    with running(folder, "--fast", str(_example(folder, kind, port))) as cluster:
        await cluster.until_ready()
        async with cluster.client() as kube, Gate().listening(port) as gate:
            load = kind(kube, cluster)
            async with load.running():
                await load.more()
                ways = itertools.cycle(itertools.product(kind.faults, ("gate", "person")))
                for number, (what, by) in zip(range(options.runs), ways, strict=False):
                    waited_ms, gap_ms = await _there_and_back(load, gate, number, what, by)
                    output.note(f"way back {number + 1}, {what}, by a {by}: pause {waited_ms:.0f}, writeGapMs {gap_ms}")
                    waits_ms.setdefault(f"{what}, by a {by}", []).append(waited_ms)
                    told_ms += [] if gap_ms is None else [gap_ms]
    every = list(itertools.chain.from_iterable(waits_ms.values()))
    return [
        *(greatest_of(f"pause, {what}, the longest", "ms", found) for what, found in waits_ms.items()),
        median_of("pause, median", "ms", every),
        greatest_of("pause, each", "ms", every, GAP_MS),
        *([greatest_of("writeGapMs of status.history, each", "ms", told_ms, GAP_MS)] if told_ms else []),
        Measure("ways back without writeGapMs", len(every) - len(told_ms), ""),
        *load.verdict,
    ]


class Gate:
    """What the gate is told of the pods: an HTTP server on all addresses, among them those of pods."""

    def __init__(self) -> None:
        self.bad = 0

    @contextlib.asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[Self]:
        """Answer meanwhile."""
        async with await asyncio.start_server(self._answer, "0.0.0.0", port):
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps({"bad": self.bad}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()


async def _there_and_back(load: Load, gate: Gate, number: int, what: str, by: str) -> tuple[float, float | None]:
    """One bad generation; returns the longest pause of clients on the way back, and what the pods measured, in ms."""
    kube, gate.bad = load.kube, 0
    before = (await kube.get(load.resource, load.name, NAMESPACE))["status"]["activeGeneration"]
    spec = {**load.spec(what), "rollout": {"restart": f"run-{number}"}}
    await kube.patch(load.resource, load.name, {"spec": spec}, NAMESPACE)
    document = await _until(load, lambda item: _can_switch_back(item) and item["status"]["activeGeneration"] > before)
    bad = document["status"]["activeGeneration"]
    await load.more()
    spoiling = asyncio.create_task(_spoil(kube, load.pods(bad), what))
    try:
        await asyncio.sleep(SPOILT_S)
        if by == "gate":
            gate.bad = 1
        else:
            await _until_done(lambda: undo(kube, load.resource, NAMESPACE, load.name, before))
        ways = ("nextGeneration", "activeGeneration")
        await _until(load, lambda item: before in [item["status"].get(name) for name in ways])
        began = time.monotonic()
        await _until(load, lambda item: item["status"]["activeGeneration"] == before)
    finally:
        spoiling.cancel()
        await asyncio.wait({spoiling})
    await load.more()
    ended = time.monotonic()  # behind the first that came through again, so that no pause is cut off
    document = await _until(load, lambda item: _state(item) == "Idle" and len(item["status"]["generations"]) == 1)
    gap_ms = document["status"]["history"][0].get("writeGapMs")
    return load.longest_gap_s(began, ended) * 1000, gap_ms


async def _spoil(kube: KubeClient, prefix: str, what: str) -> None:
    """Let the pods of a generation be bad."""
    while what is not WRONG:
        # Always the same pod crashes: others are its majority. While it waits for its restart it has no container.
        found = await _containers(kube, f"{prefix}0" if what is CRASHES else prefix)
        if what is CRASHES:
            for container in found:
                signal_container(container, signal.SIGKILL)
            await asyncio.sleep(CRASH_S)
            continue
        stopped_s, going_s = (STOPPED_S, GOING_S) if what is SLOW else (LATE_S, 9 * LATE_S)
        try:
            for container in found:
                signal_container(container, signal.SIGSTOP)
            await asyncio.sleep(stopped_s)
        finally:
            for container in found:
                signal_container(container, signal.SIGCONT)
        await asyncio.sleep(going_s)


async def _containers(kube: KubeClient, prefix: str) -> list[str]:
    return [
        status["containerID"]
        for pod in (await kube.list_all(PODS, NAMESPACE)).items
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
        if pod["metadata"]["name"].startswith(prefix) and status.get("containerID")
    ]


async def _until(load: Load, check: Callable[[Object], bool]) -> Object:
    async with asyncio.timeout(PATIENCE_S):
        while not check(document := await load.kube.get(load.resource, load.name, NAMESPACE)):
            await asyncio.sleep(POLL_S)
    return document


async def _until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Refused is who comes while a pod is slow to answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Refused, Conflict):
                await call()
                return
            await asyncio.sleep(POLL_S)


def _state(document: Object) -> str:
    return str((document["status"].get("rollout") or {}).get("state", "Idle"))


def _can_switch_back(document: Object) -> bool:
    return (condition(document, "CanSwitchBack") or {}).get("status") == "True"


def _example(folder: Path, kind: type[Load], port: int) -> Path:
    """The example, with a bake, a gate that asks here, and short waits."""
    question = {"port": port, "path": "/", "jsonPath": "{.bad}", "max": 0}
    gate = {"name": "bench", "for": "0s", "phase": "Baking", "onFailure": "SwitchBack", "http": question}
    documents = list(yaml.safe_load_all((EXAMPLES / kind.example).read_text(encoding="utf-8")))
    documents = [each for each in documents if each["kind"] != "Dataflow"]
    for document in documents:
        if document["kind"] == kind.resource.kind:
            waits = {"caughtUp": {"stabilityPeriod": "500ms"}, "retireDelay": "1s"}
            document["spec"]["rollout"] = {**waits, "bake": "1h", "gates": [gate]}
            document["spec"] |= {"scripts": {"revenue": GOOD}} if kind is ViewsLoad else {}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "way-back.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path

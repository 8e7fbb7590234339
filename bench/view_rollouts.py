"""Rollouts of a ComputeCluster under changes of its table (docs/specs/compute.md 19): write gap, every tick compared.

Some runs go wrong on purpose: the old pod is killed when the new one is to write, the operator is killed in the middle,
or the rollout is aborted. Whoever may not write must leave no entry in any chain.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from bench.cluster import BenchError, running
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from bench.ticks import EVERYTHING, Oracle, Shape, wrong_ticks
from pavane.dataflow.entries import Batch, Create, Fence, Minted, decode
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Waltz
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.commands.resources import changes, is_current
from pavane_cli.reach import ControlPlane
from pavane_cli.waltz_reach import WaltzReach
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube import KubeClient, Object
from pavane_operator.kube.resources import PODS

EXAMPLE = Path(__file__).parents[1] / "examples" / "compute.yaml"
NAME, NAMESPACE, LOG = "main", "default", "ledger"
TICKS, VIEWS = 2, 3
CHANGES_PER_S = 50
CUSTOMERS = 20
GAP_MS = 1000.0
PATIENCE_S = 90.0
ROLLOUT_TIMEOUT_S = 180.0
SHAPE = Shape(
    "SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer",  # as in the example
    "SELECT tick, customer, count(*), sum(cents) FROM orders GROUP BY tick, customer",
)
PLAIN, KILL_OLD, KILL_OPERATOR, ABORT = "plain", "old pod killed", "operator killed", "aborted"
RUNS = (PLAIN, PLAIN, KILL_OLD, PLAIN, KILL_OPERATOR, PLAIN, ABORT)
"""What happens in one run after the other, again and again."""


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Roll out again and again while orders come, and compare every tick."""
    gaps: dict[str, list[float]] = {}
    with running(folder, "--fast", str(EXAMPLE)) as cluster:
        await cluster.until_ready()
        os.environ[HOSTS_FILE_VARIABLE] = str(folder.resolve() / ".pavane" / "hosts" / NAMESPACE)
        reach = WaltzReach(ControlPlane(cluster.kubeconfig, None, NAMESPACE), LOG, patience=PATIENCE_S)
        async with reach.log() as log:
            aborted: set[int] = set()
            async with _orders(log) as appended, cluster.client() as kube:
                for number, what in zip(range(options.runs), itertools.cycle(RUNS), strict=False):
                    took_s, gap_ms = await _roll(kube, what, aborted)
                    output.note(f"rollout {number + 1}, {what}: {took_s:.1f} s, write gap {gap_ms:.0f} ms")
                    if what is not ABORT:
                        gaps.setdefault(what, []).append(gap_ms)
            oracle = await Oracle.read(log, {"orders": [0, 1]}, TICKS)
            columns = {"orders": "id BIGINT, customer STRING, cents BIGINT"}
            wrong = await wrong_ticks(oracle, log, VIEWS, output.note, {"revenue": SHAPE}, columns)
            strangers = await _written_by(log) & aborted
    return [
        Measure("orders", appended[0], ""),
        *(median_of(f"write gap, {what}: median", "ms", found) for what, found in gaps.items()),
        greatest_of("write gap, each", "ms", list(itertools.chain.from_iterable(gaps.values())), GAP_MS),
        Measure("ticks", oracle.ticks, ""),
        Measure("views at ticks compared", oracle.compared, ""),
        Measure("of these wrong", len(wrong), "", 0, vital=True),
        Measure("ticks that fell or were skipped", oracle.broken, "", 0, vital=True),
        Measure("aborted generations that wrote", len(strangers), "", 0, vital=True),
        Measure("aborted generations", len(aborted), ""),
    ]


@contextlib.asynccontextmanager
async def _orders(log: Waltz) -> AsyncIterator[list[int]]:
    """Append orders meanwhile; the list has their number."""
    appended, stopping = [0], asyncio.Event()

    async def write() -> None:
        while not stopping.is_set():
            number = appended[0]
            order = {"id": number, "customer": f"c{number % CUSTOMERS}", "cents": number % 97}
            await log.append(number % 2, json.dumps(order).encode())
            appended[0] += 1
            await asyncio.sleep(1 / CHANGES_PER_S)

    task = asyncio.create_task(write())
    try:
        yield appended
    finally:
        stopping.set()
        await task


async def _roll(kube: KubeClient, what: str, aborted: set[int]) -> tuple[float, float]:
    """One rollout; returns its seconds and the milliseconds in which nobody could write."""
    loop = asyncio.get_running_loop()
    before = (await kube.get(COMPUTE_CLUSTERS, NAME, NAMESPACE))["status"]["activeGeneration"]
    began, done = loop.time(), False
    await act(kube, COMPUTE_CLUSTERS, NAMESPACE, NAME, ACTIONS["restart"])
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        async with changes(kube, COMPUTE_CLUSTERS, NAMESPACE, NAME) as seen:
            async for change in seen:
                status = change.object["status"]
                state = (status.get("rollout") or {}).get("state", "Idle")
                if not done and what is ABORT and state in ("Initializing", "CatchingUp"):
                    aborted.add(max(each["number"] for each in status["generations"]))
                    await act(kube, COMPUTE_CLUSTERS, NAMESPACE, NAME, ACTIONS["abort"])
                    done = True
                elif not done and what is KILL_OLD and state == "Promoting":
                    done = await kill_pod(kube, NAMESPACE, f"{NAME}-controller-g{before}-")
                elif not done and what is KILL_OPERATOR and state in ("CatchingUp", "CaughtUp", "Promoting"):
                    done = await kill_pod(kube, "pavane-system", "operator")
                if (
                    what is ABORT
                    and done
                    and state in ("Idle", "Aborted", "Failed")
                    and len(status["generations"]) == 1
                ):
                    return loop.time() - began, 0.0
                if what is not ABORT and is_current(change.object) and status["activeGeneration"] > before:
                    if what is not PLAIN and not done:
                        raise BenchError(f"the rollout was over before there was anything to be {what}")
                    return loop.time() - began, float(status["history"][0]["writeGapMs"])
    raise BenchError("the watch of the resource ended")


async def kill_pod(kube: KubeClient, namespace: str, prefix: str) -> bool:
    """Kill the pod whose name begins so; whether there was one."""
    for pod in (await kube.list_all(PODS, namespace)).items:
        if _name(pod).startswith(prefix) or prefix in _name(pod):
            for status in (pod.get("status") or {}).get("containerStatuses") or ():
                if signal_container(status["containerID"], signal.SIGKILL):
                    return True
    return False


def _name(pod: Object) -> str:
    name: str = pod["metadata"]["name"]
    return name


async def _written_by(log: Waltz) -> set[int]:
    """Return the generations that wrote to ticks and chains."""
    found = set()
    for partition in (TICKS, VIEWS):
        async for transaction in log.read(partition, 0, EVERYTHING):
            entry = decode(transaction.header, transaction.data)
            if isinstance(entry, Create | Batch | Fence | Minted):
                found.add(entry.rank.generation)
    return found

"""The bank with its logs on partitions of Waltz (ambrosia.md 14.8): owners killed and rollouts under calls.

At last the RaftCluster that holds the log's metadata loses its leader and is rolled out: no Coordinator may restart.
"""

import asyncio
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.cluster import BenchError, running
from bench.coordinator_rollouts import EXAMPLE as BANK
from bench.coordinator_rollouts import (
    MONEY,
    PAYEE,
    PAYER,
    PLAIN,
    ROLLOUT_TIMEOUT_S,
    Callers,
    ask,
    balance,
    calling,
    roll,
)
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from bench.waltz_chaos import EXAMPLE as LEDGER
from bench.waltz_chaos import NAME, NAMESPACE, POLL_S, SESSION, containers_of, logs, until_settled
from pavane.waltz.client import Waltz
from pavane_api.kinds import COORDINATORS, RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.commands.resources import changes, is_current
from pavane_cli.plane import control_plane
from pavane_cli.target import Where
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import PODS

METADATA = "meta"
"""The RaftCluster of the example."""
LEAST = 4
"""Containers of both accounts: a coordinator and an application each."""
ANSWERS = 100
"""Waited for after each kill."""


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Disturb what is below both accounts while coins move from one to the other."""
    with running(folder, "--fast", str(_example(folder))) as cluster:
        await cluster.until_ready()
        async with control_plane(Where(cluster.kubeconfig), None, None) as rest, cluster.client() as kube:
            await ask(rest, "POST", f"{PAYER}/call/open", [MONEY], uuid.uuid4().hex)
            callers = Callers(rest)
            async with logs(kube, cluster) as (log, _), calling(callers):
                found = [
                    *await _owners(kube, log, callers, options.kills),
                    *await _rollouts(kube, callers, options.runs),
                    *await _metadata(kube, callers, options.runs),
                ]
            payer, payee = await balance(rest, PAYER), await balance(rest, PAYEE)
    return [
        *found,
        Measure("calls answered", callers.answered, ""),
        Measure("answered calls lost", max(0, callers.answered - payee), "", 0, vital=True),
        Measure("calls doubled", max(0, payee - callers.answered), "", 0, vital=True),
        Measure("coins missing at the end", MONEY - payer - payee, "", 0, vital=True),
    ]


async def _owners(kube: KubeClient, log: Waltz, callers: Callers, kills: int) -> list[Measure]:
    """Kill the owner of one account's partition and then of the other's."""
    longest: list[float] = []
    began = time.monotonic()
    for number in range(kills):
        await until_settled(kube)
        callers.longest_s = 0.0
        owner = await _kill_owner(kube, log, number % 2)
        await callers.reach(callers.answered + ANSWERS)
        longest.append(callers.longest_s)
        output.note(f"kill {number + 1}: {owner}, {callers.answered} answered, longest wait {longest[-1]:.2f} s")
    if not longest:
        return []
    return [
        Measure("owners of an account's partition killed", kills, ""),
        Measure("time under calls", time.monotonic() - began, "s"),
        median_of(f"longest time without an answer, session {SESSION}, median", "s", longest),
        greatest_of(f"longest time without an answer, session {SESSION}, each", "s", longest),
    ]


async def _rollouts(kube: KubeClient, callers: Callers, runs: int) -> list[Measure]:
    """Roll the payer out."""
    gaps: list[float] = []
    waits: list[float] = []
    await until_settled(kube)
    for _ in range(runs):
        await callers.reach(callers.answered + ANSWERS)
        callers.longest_s = 0.0
        gaps.append((await roll(kube, PLAIN, 0))[0])
        await callers.reach(callers.answered + ANSWERS)
        waits.append(callers.longest_s)
        output.note(f"rollout: writeGapMs {gaps[-1]:.0f}, longest wait {waits[-1]:.2f} s")
    return [
        median_of("of a rollout", "s", waits),
        greatest_of("writeGapMs of status.history, each", "ms", gaps),
    ]


async def _metadata(kube: KubeClient, callers: Callers, runs: int) -> list[Measure]:
    """Kill the leader of the RaftCluster and roll it out, again and again; whatever ran of the accounts runs on."""
    waits: dict[str, list[float]] = {"leader killed": [], "rolled out": []}
    await until_settled(kube)
    before = await _containers(kube)
    if len(before) < LEAST:
        raise BenchError(f"of the accounts' containers only these run: {', '.join(before)}")
    for _ in range(runs):
        for what, disturb in zip(waits, (_kill_leader, _roll_metadata), strict=True):
            await callers.reach(callers.answered + ANSWERS)
            callers.longest_s = 0.0
            await disturb(kube)
            await callers.reach(callers.answered + ANSWERS)
            waits[what].append(callers.longest_s)
            output.note(f"metadata's RaftCluster: {what}, longest wait {waits[what][-1]:.2f} s")
    after = await _containers(kube)
    changed = len(before.items() ^ after.items())
    return [
        *(greatest_of(f"metadata's RaftCluster {what}: longest wait, each", "s", each) for what, each in waits.items()),
        Measure("containers of Coordinators that ended or began meanwhile", changed, "", 0, vital=True),
    ]


async def _containers(kube: KubeClient) -> dict[str, str]:
    """Return the process of each container of both accounts, by pod and name."""
    return {
        f"{pod['metadata']['uid']}/{status['name']}": status["containerID"]
        for pod in (await kube.list_all(PODS, NAMESPACE)).items
        for status in pod["status"]["containerStatuses"]
        if pod["metadata"]["name"].startswith(tuple(f"{name}-instance-" for name in (PAYER, PAYEE)))
    }


async def _kill_leader(kube: KubeClient) -> None:
    """Kill the leader, and wait until another peer leads and all run again."""
    leader = (await kube.get(RAFT_CLUSTERS, METADATA, NAMESPACE))["status"]["leader"]
    if not signal_container((await containers_of(kube))[leader], signal.SIGKILL):
        raise BenchError(f"{leader} does not run")
    await kube.delete(PODS, leader, NAMESPACE)  # another pod comes at once; this one would wait longer each time
    await _until_metadata(kube, lambda status: status.get("leader") not in (None, "", leader))


async def _roll_metadata(kube: KubeClient) -> None:
    """`pavane rollout restart raft/meta --wait`."""
    before = (await kube.get(RAFT_CLUSTERS, METADATA, NAMESPACE))["status"]["activeGeneration"]
    await act(kube, RAFT_CLUSTERS, NAMESPACE, METADATA, ACTIONS["restart"])
    await _until_metadata(kube, lambda status: status["activeGeneration"] > before)


async def _until_metadata(kube: KubeClient, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the RaftCluster is well and ``holds`` of its status."""
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        async with changes(kube, RAFT_CLUSTERS, NAMESPACE, METADATA) as seen:
            async for change in seen:
                if is_current(change.object) and holds(change.object["status"]):
                    return
    raise BenchError("the watch of the resource ended")


async def _kill_owner(kube: KubeClient, log: Waltz, partition: int) -> str:
    """Kill who owns a partition, and wait until somebody else does."""
    before = (await log.partitions())[partition]
    owner = (before.server or "").partition(".")[0]
    if not signal_container((await containers_of(kube))[owner], signal.SIGKILL):
        raise BenchError(f"{owner} does not run")
    await kube.delete(PODS, owner, NAMESPACE)  # another pod comes at once; this one would wait longer each time
    while (await log.partitions())[partition].generation == before.generation:
        await asyncio.sleep(POLL_S)
    return owner


def _example(folder: Path) -> Path:
    """Both examples, each account with a partition of its own, and a session that is as short as one may be."""
    documents = [each for path in (LEDGER, BANK) for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    accounts = [each for each in documents if each["kind"] == COORDINATORS.kind]
    for number, account in enumerate(accounts):
        account["spec"]["log"] = {"waltzClusterRef": {"name": NAME}, "partition": number}
    for document in documents:
        if document["kind"] == WALTZ_CLUSTERS.kind:
            document["spec"]["metadata"]["sessionTimeout"] = SESSION
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bank.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path

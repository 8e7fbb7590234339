"""The bank with its logs on partitions of Waltz (ambrosia.md 14.8): owners killed and rollouts under calls."""

import asyncio
import signal
import time
import uuid
from pathlib import Path

import yaml

from bench.cluster import BenchError, running
from bench.coordinator_rollouts import EXAMPLE as BANK
from bench.coordinator_rollouts import MONEY, PAYEE, PAYER, PLAIN, Callers, ask, balance, calling, roll
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from bench.waltz_chaos import EXAMPLE as LEDGER
from bench.waltz_chaos import NAME, NAMESPACE, POLL_S, SESSION, containers_of, logs, until_settled
from pavane.waltz.client import Waltz
from pavane_api.kinds import COORDINATORS, WALTZ_CLUSTERS
from pavane_cli import output
from pavane_cli.plane import control_plane
from pavane_cli.target import Where
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import PODS

ANSWERS = 100
"""Waited for after each kill."""


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Kill owners of both accounts' partitions while coins move from one to the other; then roll the payer out."""
    longest: list[float] = []
    with running(folder, "--fast", str(_example(folder))) as cluster:
        await cluster.until_ready()
        async with control_plane(Where(cluster.kubeconfig), None, None) as rest, cluster.client() as kube:
            await ask(rest, "POST", f"{PAYER}/call/open", [MONEY], uuid.uuid4().hex)
            callers = Callers(rest)
            began = time.monotonic()
            async with logs(kube, cluster) as (log, _), calling(callers):
                for number in range(options.kills):
                    await until_settled(kube)
                    callers.longest_s = 0.0
                    owner = await _kill_owner(kube, log, number % 2)
                    await callers.reach(callers.answered + ANSWERS)
                    longest.append(callers.longest_s)
                    output.note(
                        f"kill {number + 1}: {owner}, {callers.answered} answered, longest wait {longest[-1]:.2f} s"
                    )
                took_s = time.monotonic() - began
                gaps: list[float] = []
                waits: list[float] = []
                await until_settled(kube)
                for _ in range(options.runs):
                    await callers.reach(callers.answered + ANSWERS)
                    callers.longest_s = 0.0
                    gaps.append((await roll(kube, PLAIN, 0))[0])
                    await callers.reach(callers.answered + ANSWERS)
                    waits.append(callers.longest_s)
                    output.note(f"rollout: writeGapMs {gaps[-1]:.0f}, longest wait {waits[-1]:.2f} s")
            payer, payee = await balance(rest, PAYER), await balance(rest, PAYEE)
    return [
        Measure("owners of an account's partition killed", options.kills, ""),
        Measure("time under calls", took_s, "s"),
        Measure("calls answered", callers.answered, ""),
        Measure("answered calls lost", max(0, callers.answered - payee), "", 0, vital=True),
        Measure("calls doubled", max(0, payee - callers.answered), "", 0, vital=True),
        Measure("coins missing at the end", MONEY - payer - payee, "", 0, vital=True),
        median_of(f"longest time without an answer, session {SESSION}, median", "s", longest),
        greatest_of(f"longest time without an answer, session {SESSION}, each", "s", longest),
        median_of("of a rollout", "s", waits),
        greatest_of("writeGapMs of status.history, each", "ms", gaps),
    ]


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

"""The bank of `make demo` under SIGKILL of random processes of its pods, with one rollout of each kind meanwhile."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from bench.cluster import BenchError, LocalCluster, running
from bench.options import Options
from bench.report import Measure
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane_api.kinds import COMPUTE_CLUSTERS, COORDINATORS, RAFT_CLUSTERS, SWIM_GROUPS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.bank import BankLoad, ViewLoad
from pavane_cli.commands.resources import is_settled
from pavane_cli.loads import Load, RaftLoad, SwimLoad
from pavane_cli.target import Where
from pavane_local.kubelet.spawn import signal_container
from pavane_operator.kube import KubeClient, Object, Resource
from pavane_operator.kube.resources import PODS

EXAMPLE = Path(__file__).parents[1] / "examples" / "platform.yaml"
NAMESPACE = "default"
KINDS = (RAFT_CLUSTERS, SWIM_GROUPS, WALTZ_CLUSTERS, COORDINATORS, COMPUTE_CLUSTERS)
PAUSE_S = (0.2, 3.0)
"""Between two kills: often one comes while the last one is not healed."""
POLL_S = 0.5
SETTLED_S = 600.0
PATIENCE_S = 300.0
"""Of a client: containers that are killed again and again are started later and later."""


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Kill, roll out, wait until all is well, and compare accounts, log and view with what clients were told."""
    with running(folder, "--fast", str(EXAMPLE)) as cluster:
        await cluster.until_ready()
        os.environ[HOSTS_FILE_VARIABLE] = str(folder.resolve() / ".pavane" / "hosts" / NAMESPACE)
        async with cluster.client() as kube:
            return await _shake(kube, await _documents(kube), cluster, options.kills)


async def _shake(
    kube: KubeClient, found: dict[Resource, list[Object]], cluster: LocalCluster, kills: int
) -> list[Measure]:
    loop = asyncio.get_running_loop()
    where = Where(cluster.kubeconfig)
    bank = BankLoad(kube, found[COORDINATORS], found[WALTZ_CLUSTERS][0], where, PATIENCE_S)
    view = ViewLoad(kube, found[COMPUTE_CLUSTERS][0], bank)
    raft = RaftLoad(kube, found[RAFT_CLUSTERS][0], where)
    loads: list[Load] = [raft, SwimLoad(kube, found[SWIM_GROUPS][0]), bank, view]
    async with _begun(loads):
        began = loop.time()
        await _kill_and_roll_out(kube, found, kills, bank)
        await _until_settled(kube)
        ended = loop.time()
        await asyncio.gather(*(load.go_on() for load in loads))
        outcomes = [await load.stop() for load in loads]
    for load, outcome in zip(loads, outcomes, strict=True):
        figures = f"{outcome.done} done, {outcome.lost} lost, {outcome.doubled} doubled"
        output.note(f"{type(load).__name__}: {figures}; {outcome.said}")
    assert bank.proof is not None  # it has stopped
    assert view.proof is not None
    right = [
        Measure("lost: writes, transfers, rows of the view", sum(each.lost for each in outcomes), "", 0, vital=True),
        Measure("doubled: the same", sum(each.doubled for each in outcomes), "", 0, vital=True),
        Measure("money that came or went", abs(bank.proof.after - bank.proof.before), "", 0, vital=True),
        Measure("accounts that differ from the log", len(bank.proof.differing), "", 0, vital=True),
        Measure("ticks at which the view did not add up", view.proof.wrong, "", 0, vital=True),
        Measure("view unlike the log at the end", int(not view.proof.equal), "", 0, vital=True),
        Measure("proofs that do not hold", sum(not each.holds for each in outcomes), "", 0, vital=True),
    ]
    return [
        Measure("kills", kills, ""),
        Measure("time under kills, until all was well", ended - began, "s"),
        Measure("transfers", outcomes[2].done, ""),
        *right,
        Measure("longest time without a transfer", bank.longest_gap_s(began, ended), "s"),
        Measure("longest time without a Raft write", raft.longest_gap_s(began, ended), "s"),
        Measure("longest time without a tick", view.longest_gap_s(began, ended), "s"),
    ]


@contextlib.asynccontextmanager
async def _begun(loads: list[Load]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for load in loads:
            await stack.enter_async_context(load)
        await asyncio.gather(*(load.go_on() for load in loads))
        yield


async def _kill_and_roll_out(kube: KubeClient, found: dict[Resource, list[Object]], kills: int, bank: BankLoad) -> None:
    """Kill again and again; in between, at even distances, begin a rollout of one kind after the other."""
    waiting, began = list(KINDS), asyncio.get_running_loop().time()
    for number in range(kills):
        if waiting and number >= kills * (len(KINDS) - len(waiting) + 1) // (len(KINDS) + 1):
            kind = waiting.pop(0)
            for document in found[kind]:
                name = document["metadata"]["name"]
                await act(kube, kind, NAMESPACE, name, ACTIONS["restart"])
                output.note(f"rollout of {kind.kind} {name} begins")
        when = f"{asyncio.get_running_loop().time() - began:.0f} s, {bank.done} transfers"
        output.note(f"kill {number + 1} ({when}): {await _kill(kube)}")
        await asyncio.sleep(random.uniform(*PAUSE_S))


async def _kill(kube: KubeClient) -> str:
    """Kill a process of any pod, also of operator and control plane; return which."""
    while True:
        containers = [
            (f"{pod['metadata']['name']} {status['name']}", status["containerID"])
            for pod in (await kube.list_all(PODS)).items
            for status in (pod.get("status") or {}).get("containerStatuses") or ()
            if status.get("containerID")
        ]
        name, container = random.choice(containers)
        if signal_container(container, signal.SIGKILL):
            return name


async def _documents(kube: KubeClient) -> dict[Resource, list[Object]]:
    known = {kind.kind: kind for kind in KINDS}
    found: dict[Resource, list[Object]] = {kind: [] for kind in KINDS}
    for document in yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8")):
        if kind := known.get(document["kind"]):
            found[kind].append(await kube.get(kind, document["metadata"]["name"], NAMESPACE))
    return found


async def _until_settled(kube: KubeClient) -> None:
    """Wait until every resource is Ready in its last generation, with all of its pods."""
    end = asyncio.get_running_loop().time() + SETTLED_S
    while True:
        documents = itertools.chain.from_iterable((await _documents(kube)).values())
        behind = [each for each in documents if not is_settled(each)]
        if not behind:
            return
        if asyncio.get_running_loop().time() > end:
            words = ", ".join(f"{each['kind']} {each['metadata']['name']}: {each.get('status')}" for each in behind)
            raise BenchError(f"not well again after {SETTLED_S:.0f} s: {words}")
        await asyncio.sleep(POLL_S)

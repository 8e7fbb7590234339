"""Rollouts of a RaftCluster under a client that writes without a pause (docs/specs/operator.md 9, row 1)."""

import asyncio
import time
from pathlib import Path

from bench.cluster import BenchError, LocalCluster, running
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.access import raft_client
from pavane_cli.commands.resources import changes, is_current
from pavane_cli.probe import Proof, SteadyWriter
from pavane_operator.kube import KubeClient, Object

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
NAME, NAMESPACE = "quickstart", "default"
GAP_MS = 1000.0  # row 1, each run
WARM_UP_WRITES = 200  # acknowledged before a rollout begins, and again after it
ROLLOUT_TIMEOUT_S = 120.0


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Roll the quickstart out again and again; every run has a writer and a proof of its own."""
    proofs: list[Proof] = []
    seconds: list[float] = []
    gaps_ms: list[float] = []
    with running(folder, str(EXAMPLE)) as cluster:
        await cluster.until_ready()
        for number in range(options.runs):
            proof, took_s, gap_ms = await _roll(cluster, number)
            output.note(
                f"rollout {number + 1}: {proof.acknowledged} acknowledged, {proof.lost} lost, {proof.doubled} doubled, "
                f"{proof.unknown} unknown, longest gap {proof.longest_gap_s * 1000:.0f} ms, writeGapMs {gap_ms:.0f}, "
                f"{took_s:.1f} s"
            )
            proofs.append(proof)
            seconds.append(took_s)
            gaps_ms.append(gap_ms)
    client_gaps_ms = [proof.longest_gap_s * 1000 for proof in proofs]
    return [
        median_of("spec change → current and old generation gone", "s", seconds),
        median_of("longest gap between acknowledgements, median", "ms", client_gaps_ms),
        greatest_of("longest gap between acknowledgements, each", "ms", client_gaps_ms, GAP_MS),
        median_of("writeGapMs of status.history, median", "ms", gaps_ms),
        greatest_of("writeGapMs of status.history, each", "ms", gaps_ms, GAP_MS),
        median_of("writes acknowledged per rollout", "", [float(proof.acknowledged) for proof in proofs]),
        Measure("acknowledged writes lost, all runs", sum(proof.lost for proof in proofs), "", 0, vital=True),
        Measure("writes doubled, all runs", sum(proof.doubled for proof in proofs), "", 0, vital=True),
        Measure("writes beside the fence, all runs", sum(proof.unfenced for proof in proofs), "", 0, vital=True),
        Measure("writes with unknown outcome, all runs", sum(proof.unknown for proof in proofs), ""),
    ]


async def _roll(cluster: LocalCluster, number: int) -> tuple[Proof, float, float]:
    """One rollout; returns its proof, its seconds and the milliseconds without a write as the pods saw them."""
    async with cluster.client() as kube:
        before = await kube.get(RAFT_CLUSTERS, NAME, NAMESPACE)
        async with await raft_client(kube, before, cluster.kubeconfig) as client:
            writer = SteadyWriter(client, f"bench-{number}")
            writer.start()
            await writer.reach(WARM_UP_WRITES)
            began = time.monotonic()
            await act(kube, RAFT_CLUSTERS, NAMESPACE, NAME, ACTIONS["restart"])
            after = await _until_rolled(kube, before["status"]["activeGeneration"])
            took_s = time.monotonic() - began
            await writer.reach(writer.acknowledged + WARM_UP_WRITES)
            await writer.stop()
            proof = await writer.proof()
    return proof, took_s, float(after["status"]["history"][0]["writeGapMs"])


async def _until_rolled(kube: KubeClient, old_generation: int) -> Object:
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        async with changes(kube, RAFT_CLUSTERS, NAMESPACE, NAME) as seen:
            async for change in seen:
                if is_current(change.object) and change.object["status"]["activeGeneration"] > old_generation:
                    return change.object
    raise BenchError("the watch of the resource ended")

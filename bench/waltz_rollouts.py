"""Rollouts of a log's servers under load, then its storage nodes changed in place, more of them, more partitions, and
another authority of its certificates.

docs/specs/waltz.md 2.5, 8.6, 13.10, 14.6.

The writers know what each transaction has to be, so whatever is lost, doubled or out of order shows.
"""

import asyncio
import base64
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from bench.cluster import BenchError, running
from bench.options import Options
from bench.report import Measure, greatest_of, median_of
from bench.waltz_chaos import NAME, NAMESPACE, POLL_S, containers_of, example, judged, logs, until_settled
from bench.waltz_oracle import Oracle
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, act
from pavane_cli import output
from pavane_cli.commands.resources import changes, is_current
from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import SECRETS
from pavane_operator.tls.certificates import Pair, new_authority, new_certificate

GAP_MS, MEDIAN_MS = 1000.0, 300.0
ROLLOUT_TIMEOUT_S = 180.0
STORAGE = "ledger-storage-"
CHANGED_CPU = "11m"
SECRET = "shared"
SPREAD_S = 15.0  # after which all pods use changed certificates: they look every 10 s
LIFE = timedelta(days=2)
GROWTH: tuple[dict[str, Any], ...] = ({"partitions": 16}, {"storage": {"nodes": 5}}, {"storage": {"nodes": 3}})


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Roll out again and again, change the storage nodes, then read everything again."""
    gaps_ms: list[float] = []
    told_ms: list[float] = []
    authorities = [new_authority(name, datetime.now(UTC), LIFE) for name in ("old", "new")]
    secret = folder / "secret.yaml"
    source = example(folder, tls={"mode": "Secret", "secretName": SECRET})
    secret.write_text(yaml.safe_dump(_secret(authorities[0], *authorities)), encoding="utf-8")
    with running(folder, "--fast", str(secret), str(source)) as cluster:
        await cluster.until_ready()
        async with cluster.client() as kube, logs(kube, cluster) as (log, fresh):
            oracle = Oracle(log)
            async with oracle.running():
                for number in range(options.runs):
                    count, began = oracle.count, time.monotonic()
                    told_ms.append(await roll(kube))
                    await _appended(oracle)
                    ended = time.monotonic()
                    gaps_ms.append(oracle.longest_gap_s(began, ended) * 1000)
                    output.note(
                        f"rollout {number + 1}: {oracle.count - count} acknowledged, longest gap of a partition "
                        f"{gaps_ms[-1]:.0f} ms, writeGapMs {told_ms[-1]:.0f}, {ended - began:.1f} s"
                    )
                began = time.monotonic()
                await _change_storage(kube)
                await _appended(oracle)
                in_place_ms = oracle.longest_gap_s(began, time.monotonic()) * 1000
                began = time.monotonic()
                for spec in GROWTH:
                    await _grow(kube, spec)
                    await _appended(oracle)
                    output.note(f"{spec}: {time.monotonic() - began:.1f} s since the first change")
                grown_ms = oracle.longest_gap_s(began, time.monotonic()) * 1000
                began, count = time.monotonic(), oracle.count
                for trusted in authorities, authorities[1:]:
                    await kube.apply(SECRETS, _secret(authorities[1], *trusted), NAMESPACE, manager="bench", force=True)
                    await asyncio.sleep(SPREAD_S)
                    await _appended(oracle)
                ended = time.monotonic()
                rotated_ms = oracle.longest_gap_s(began, ended) * 1000
                rate = (oracle.count - count) / (ended - began)
            verdict = await oracle.compare(fresh)
    return [
        median_of("longest gap of a partition in a rollout, median", "ms", gaps_ms, MEDIAN_MS),
        greatest_of("longest gap of a partition in a rollout, each", "ms", gaps_ms, GAP_MS),
        median_of("writeGapMs of status.history, median", "ms", told_ms),
        greatest_of("writeGapMs of status.history, each", "ms", told_ms, GAP_MS),
        Measure("longest gap of a partition while storage is changed in place", in_place_ms, "ms"),
        Measure("longest gap of a partition while partitions and storage nodes are added and removed", grown_ms, "ms"),
        Measure("longest gap of a partition while the authority is replaced", rotated_ms, "ms"),
        Measure("appends a second meanwhile", rate, "/s"),
        *judged(verdict),
    ]


def _secret(signer: Pair, *trusted: Pair) -> dict[str, Any]:
    """A certificate for the pods of the log, and the authorities that they are to trust."""
    own = new_certificate(signer, ["all.example.org"], datetime.now(UTC), LIFE / 2)
    files = {"tls.crt": own.certificate, "tls.key": own.key, "ca.crt": b"".join(one.certificate for one in trusted)}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    metadata = {"name": SECRET, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}


async def roll(kube: KubeClient) -> float:
    """Roll out once; return the milliseconds without an append as the servers saw them."""
    before = (await kube.get(WALTZ_CLUSTERS, NAME, NAMESPACE))["status"]["activeGeneration"]
    await act(kube, WALTZ_CLUSTERS, NAMESPACE, NAME, ACTIONS["restart"])
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        async with changes(kube, WALTZ_CLUSTERS, NAMESPACE, NAME) as seen:
            async for change in seen:
                status = change.object["status"]
                if is_current(change.object) and status["activeGeneration"] > before:
                    return float(status["history"][0].get("writeGapMs", 0))
    raise BenchError("the watch of the resource ended")


async def _change_storage(kube: KubeClient) -> None:
    """Give the storage nodes other resources, and wait until each of them runs anew."""
    before = await containers_of(kube)
    spec = {"storage": {"resources": {"requests": {"cpu": CHANGED_CPU}}}}
    await kube.patch(WALTZ_CLUSTERS, NAME, {"spec": spec}, NAMESPACE)
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        while True:
            now = await containers_of(kube)
            nodes = [pod for pod in before if pod.startswith(STORAGE)]
            if all(now.get(pod, before[pod]) != before[pod] for pod in nodes):
                break
            await asyncio.sleep(POLL_S)
    await until_settled(kube)


async def _grow(kube: KubeClient, spec: dict[str, Any]) -> None:
    """Change partitions or storage nodes, and wait until all partitions count on the nodes that they are to."""
    await kube.patch(WALTZ_CLUSTERS, NAME, {"spec": spec}, NAMESPACE)
    async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
        while True:
            found = await kube.get(WALTZ_CLUSTERS, NAME, NAMESPACE)
            wanted, counts = found["spec"], found["status"]["partitions"]
            whole = counts["total"] == counts["replicated"] == counts["writable"] == wanted["partitions"]
            if whole and counts.get("nodes") == wanted["storage"]["nodes"] and not counts.get("moving"):
                return
            await asyncio.sleep(POLL_S)


async def _appended(oracle: Oracle) -> None:
    for partition in oracle.acknowledged:
        await oracle.more(partition)

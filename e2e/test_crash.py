"""The whole local cluster is killed at random moments; a new start needs no hand and keeps every acknowledged entry."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from e2e.cluster import RaftTest
from e2e.conftest import RUNS
from e2e.targets import Capability
from e2e.targets.local import children_in, started
from e2e.waiting import eventually
from pavane.raft.client import RaftClient
from pavane.raft.errors import RaftError
from pavane.raft.wire.entry import EntryType
from pavane_operator.kube import KubeClient, Target

pytestmark = pytest.mark.needs(Capability.EMBEDDED)

KILLS = 2 * RUNS
WRITES_MAX = 100


async def _write_until_killed(client: RaftClient, label: str, limit: int, pid: int) -> set[bytes]:
    """Write; after ``limit`` acknowledgements kill the cluster and go on until a write fails."""
    acknowledged: set[bytes] = set()
    number = 0
    while True:
        number += 1
        if number == limit:
            os.kill(pid, signal.SIGKILL)
        data = f"{label}/{number}".encode()
        try:
            await client.update(data, timeout_s=2.0)
        except RaftError:
            return acknowledged
        acknowledged.add(data)


async def _log(client: RaftClient) -> Counter[bytes]:
    return Counter([bytes(entry.data) async for entry in client.entries() if entry.type == EntryType.STATE])


async def test_a_killed_cluster_comes_back_with_every_acknowledged_entry(tmp_path: Path) -> None:
    dice = random.Random(KILLS)
    acknowledged: set[bytes] = set()
    for run in range(KILLS + 1):
        with started(tmp_path, "--fast") as running:
            await running.until_ready()
            async with await KubeClient.connect(Target(running.kubeconfig)) as kube:
                raft = RaftTest(running, kube, "default")
                if run == 0:
                    await raft.apply()
                await raft.until_current(generation=1)
                async with raft.client() as client:
                    found = await _log(client)
                    assert acknowledged <= found.keys()
                    assert [data for data in acknowledged if found[data] != 1] == []
                    if run < KILLS:
                        limit = dice.randint(1, WRITES_MAX)
                        acknowledged |= await _write_until_killed(client, f"run-{run}", limit, running.process.pid)
                if run < KILLS:

                    async def nobody_is_left() -> bool:
                        return children_in(tmp_path) == []

                    await eventually(nobody_is_left, "all pods died with the cluster", 10)
                else:
                    names = sorted(pod["metadata"]["name"] for pod in await raft.pods())
                    assert names == ["q-server-g1-0", "q-server-g1-1", "q-server-g1-2"]

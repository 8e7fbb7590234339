"""A WaltzCluster whose metadata lie in ZooKeeper: used, killed, without ZooKeeper for a while, and rolled out."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from e2e.cluster import QUICK, RaftTest
from e2e.targets import Capability
from e2e.test_waltz import LogTest, ledger
from e2e.waiting import eventually
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_operator.kube import Object
from tests.services.zookeeper import ZooKeeper

__all__ = ["ledger"]

pytestmark = pytest.mark.needs(Capability.DIRECT)

ROOT = "/waltz/ledger"
TEST_S = 300.0


def rollout_in(connect: str) -> bytes:
    client = KazooClient(connect)
    client.start(timeout=60)
    data, _ = client.get(f"{ROOT}/rollout")
    client.stop()
    client.close()
    return bytes(data)


@pytest.mark.timeout(TEST_S)
async def test_a_log_on_zookeeper_survives_a_kill_and_is_rolled_out(
    ledger: LogTest,
    tmp_path: Path,
) -> None:
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    await asyncio.to_thread(zookeeper.start)
    try:
        spec = {
            "partitions": 2,
            "servers": {"replicas": 1},
            "storage": {"nodes": 1, "size": "64Mi"},
            "metadata": {"zookeeper": {"connectString": zookeeper.connect, "root": ROOT}, "sessionTimeout": "3s"},
            **QUICK,
        }
        body = {"metadata": {"name": "q"}, "spec": spec}
        await ledger.kube.apply(WALTZ_CLUSTERS, body, ledger.namespace, manager="e2e", strict=True)
        await ledger.until_current(generation=1)
        async with ledger.client_of_log() as log:
            assert await log.append(0, b"first") == 0
            ledger.signal("q-server-g1-0", signal.SIGKILL)
            assert await log.append(0, b"after the kill") == 1
            await silent(ledger, zookeeper)
            ledger.platform.run("rollout", "restart", "waltz/q", "-n", ledger.namespace)
            assert await log.append(0, b"meanwhile") == 2
            await ledger.until_current(generation=2)
            assert await log.append(0, b"after the rollout") == 3
            found = [tx.data async for tx in log.read(0, 0, 9)]
            assert found == [b"first", b"after the kill", b"meanwhile", b"after the rollout"]
        assert await asyncio.to_thread(rollout_in, zookeeper.connect) == bytes.fromhex("010000000200000001")
    finally:
        zookeeper.stop()


async def silent(test: RaftTest, zookeeper: ZooKeeper) -> None:
    """Without ZooKeeper the conditions say which one is missed; with it everything goes on."""

    def told(document: Object) -> bool:
        conditions = document["status"]["conditions"]
        return any(f"ZooKeeper at {zookeeper.connect}" in one.get("message", "") for one in conditions)

    async def shown(wanted: bool) -> bool:
        return told(await test.get()) is wanted

    zookeeper.pause()
    await eventually(lambda: shown(True), "the conditions name ZooKeeper")
    zookeeper.go_on()
    await eventually(lambda: shown(False), "the conditions forget it")

"""The bank with its logs on partitions of Waltz: owners and accounts are killed, a generation takes over (14.8)."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

from e2e.cluster import QUICK, RaftTest
from e2e.test_coordinator import ACCOUNTS, MONEY, BankTest, transfers
from e2e.waiting import eventually
from pavane_api.kinds import COORDINATORS, RAFT_CLUSTERS, WALTZ_CLUSTERS

KILLS = 3
TEST_S = 400.0
DOC = Path(__file__).parents[1] / "docs" / "immortals.md"
SAID = re.search(r"^```yaml\n(spec:\n  log:.*?)^```$", DOC.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
assert SAID is not None
LOG = yaml.safe_load(SAID[1])["spec"]["log"]
"""As the documentation says."""
LOGS = {name: {**LOG, "partition": LOG["partition"] + number} for number, name in enumerate(ACCOUNTS)}


async def _apply_log(test: RaftTest) -> None:
    meta = {"stateMachine": "Tree", "replicas": 1, "storage": {"size": "64Mi"}, **QUICK}
    log = {
        "partitions": 2,
        "servers": {"replicas": 2},
        "storage": {"nodes": 1, "size": "64Mi"},
        "metadata": {"raftClusterRef": {"name": "meta"}, "sessionTimeout": "3s"},
        **QUICK,
    }
    for kind, name, spec in ((RAFT_CLUSTERS, "meta", meta), (WALTZ_CLUSTERS, "ledger", log)):
        body = {"metadata": {"name": name}, "spec": spec}
        await test.kube.apply(kind, body, test.namespace, manager="e2e", strict=True)


async def _owner(bank: BankTest, partition: int) -> str:
    """The pod that owns a partition, once one does."""

    async def owner() -> str:
        words = ("waltz", "partitions", "ledger", "-o", "json", "-n", bank.namespace)
        done = await asyncio.to_thread(bank.platform.run, *words, check=False)
        rows = json.loads(done.stdout)["items"] if done.returncode == 0 else []
        return next((str(row["server"] or "") for row in rows if row["partition"] == partition), "")

    return (await eventually(owner, f"somebody owns partition {partition}")).partition(".")[0]


@pytest.mark.timeout(TEST_S)
@pytest.mark.kinds
@pytest.mark.long  # the bank with its logs in files: test_coordinator.py; logs on a partition: tests/services/ambrosia
async def test_the_bank_keeps_its_money_on_waltz_under_kills_of_owners_and_a_rollout(raft: RaftTest) -> None:
    bank = BankTest(raft.platform, raft.kube, raft.namespace, COORDINATORS)
    await _apply_log(raft)
    await bank.start(**LOGS)
    async with transfers(bank) as moving:
        await moving.more("the start")
        for number in range(KILLS):
            partition = number % len(ACCOUNTS)
            killed = await _owner(bank, partition)
            bank.kill(killed)
            await moving.more(f"{killed}, which owned partition {partition}, was killed")
        bank.kill("bob-instance-g1-0")
        await moving.more("bob was killed")
        await bank.upgrade("alice", LOGS["alice"])
        await bank.until_current("alice", generation=2)
        await moving.more("the rollout")
        statement = await bank.query("alice", "lines")
        assert statement[0].startswith("brought forward: "), statement
    sent = moving.by
    money = {name: await bank.query(name, "money") for name in ACCOUNTS}
    assert money["alice"] == {"balance": MONEY - sent["alice"] + sent["bob"], "on_the_way": 0}
    assert money["bob"] == {"balance": MONEY - sent["bob"] + sent["alice"], "on_the_way": 0}
    assert [await bank.claims(name) for name in ACCOUNTS] == [[], []]

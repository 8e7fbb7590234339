"""Views over a WaltzCluster by its name, while their process is killed and the log is rolled out (docs/compute.md)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.test_waltz import LogTest
from pavane_api.kinds import WALTZ_CLUSTERS

# The views' process and the command speak with the servers themselves.
pytestmark = pytest.mark.needs(Capability.DIRECT)

SCRIPT = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT) USING waltz OPTIONS (partitions '0-1');
CREATE MATERIALIZED VIEW revenue AS SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer;
"""
TICKS, VIEWS = 2, 3
WAIT_S = 90.0
TEST_S = 300.0


class Revenue:
    """The script's process, the orders, and what the view must be."""

    def __init__(self, log: LogTest, folder: Path) -> None:
        self.log = log
        self.script = folder / "revenue.sql"
        self.script.write_text(SCRIPT)
        self.total: dict[str, list[int]] = {}

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the script until the end of the block; it says when the view is up to date."""
        words = ["run", "q", str(self.script), "--ticks", str(TICKS), "-p", str(VIEWS), "-n", self.log.namespace]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pavane_cli.main", "sql", *words,
            cwd=self.log.platform.folder, env=self.log.platform.environment(), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(WAIT_S):
                assert b"revenue: up to date" in await process.stdout.readline()
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def order(self, customer: str, cents: int) -> tuple[int, int]:
        """Append an order; return its partition and transaction."""
        partition = cents % 2
        text = json.dumps({"id": cents, "customer": customer, "cents": cents})
        said = await asyncio.to_thread(self.log.say, "append", text, "-p", str(partition))
        self.total.setdefault(customer, []).append(cents)
        return partition, int(said)

    async def check(self, after: tuple[int, int]) -> None:
        """See that the view, read at a tick that includes a transaction, has all orders once."""
        words = ["query", "q", "SELECT * FROM revenue", "-p", str(VIEWS), "--ticks", str(TICKS), "-o", "json"]
        place = f"{after[0]}:{after[1]}"
        done = await asyncio.to_thread(self.log.platform.run, "sql", *words, "--after", place, "-n", self.log.namespace)
        found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
        rows = {row["customer"]: (row["n"], row["total"]) for row in found}
        assert rows == {customer: (len(cents), sum(cents)) for customer, cents in self.total.items()}


@pytest.mark.timeout(TEST_S)
async def test_views_are_right_after_kills_and_a_rollout_of_the_log(raft: RaftTest, tmp_path: Path) -> None:
    log = LogTest(raft.platform, raft.kube, raft.namespace, WALTZ_CLUSTERS)
    await log.start()
    revenue = Revenue(log, tmp_path)
    await revenue.order("ann", 1)
    async with revenue.kept() as process:
        await revenue.check(await revenue.order("ann", 2))
        process.kill()
    await revenue.order("bob", 3)
    async with revenue.kept():
        await revenue.check(await revenue.order("ann", 4))
        log.platform.run("rollout", "restart", "waltz/q", "-n", log.namespace)
        await revenue.order("bob", 5)
        await log.until_current(generation=2)
        await revenue.check(await revenue.order("zoe", 6))

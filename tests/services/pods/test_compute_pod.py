"""A ComputeCluster's pod beside the one that writes: what it says of itself while its engine starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from pavane.dataflow.plain import PlainEngine
from pavane.pods import compute_replica
from pavane.pods.compute_replica import Replica
from pavane.pods.compute_settings import ComputeConfig, ComputeSettings
from pavane.waltz.client import Waltz
from tests.services.eventually import eventually
from tests.services.waltz.running import running_log

SCRIPT = """
CREATE TABLE orders (id BIGINT, cents BIGINT) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW total AS SELECT sum(cents) AS total FROM orders;
"""
WAIT_S = 40.0


class SlowEngine(PlainEngine):
    """Starts when it is let, as Spark does after seconds, and evaluates when it is let."""

    start = threading.Event()
    work = threading.Event()

    def __init__(self) -> None:
        assert self.start.wait(WAIT_S)
        super().__init__()

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        assert self.work.wait(WAIT_S)
        return super().evaluate(sql, tables)


@asynccontextmanager
async def replica(folder: Path, generation: int) -> AsyncIterator[Replica]:
    """The views of one generation, led to ReadOnly."""
    settings = ComputeSettings.model_validate(
        {
            "resource": "main",
            "kind": "ComputeCluster",
            "role": "replica",
            "generation": generation,
            "config": folder / "config.yaml",
            "waltz_client": folder,
            "POD_NAME": "main-0",
            "POD_NAMESPACE": "default",
            "POD_IP": "127.0.0.1",
        }
    )
    found = Replica(settings, ComputeConfig(scripts={"totals": SCRIPT}, ticks=1, views=2, interval_ms=20))
    found.following.set()
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.wait({running})


def waits_for(of: Replica) -> list[str]:
    return [blocker.reason for blocker in of.report().blockers]


async def test_a_replica_is_not_hydrated_until_its_engine_started_and_its_views_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client, replica(tmp_path, 1) as first:
            # With no tick in the log there is nothing to build: the first generation may write.
            await eventually(lambda: waits_for(first) == [], WAIT_S)
            await client.append(0, b'{"id": 1, "cents": 7}')
            first.allowed.set()
            await eventually(lambda: first.report().progress > 0, WAIT_S)
            monkeypatch.setattr(compute_replica, "PlainEngine", SlowEngine)
            async with replica(tmp_path, 2) as second:
                await eventually(lambda: second.keeper is not None, WAIT_S)
                assert waits_for(second) == ["NotHydrated"]
                assert second.unready() == "the views are not built yet"
                SlowEngine.start.set()
                await eventually(lambda: second.report().target > 0, WAIT_S)  # it has read the ticks
                assert waits_for(second) == ["NotHydrated"]
                SlowEngine.work.set()
                await eventually(lambda: waits_for(second) == [], WAIT_S)
                told = second.report()
                assert told.progress == told.target > 0
                assert second.unready() is None

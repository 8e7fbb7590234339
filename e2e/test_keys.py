"""Keys, leases and watches while their cluster is replaced by the next generation (docs/specs/raft.md 12)."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from e2e.cluster import RaftTest
from e2e.conftest import RUNS
from e2e.targets import Capability
from e2e.test_rollout import roll
from e2e.waiting import eventually
from e2e.writer import WARM_UP_WRITES
from pavane.raft.client import Keys, Reset, guard
from pavane.raft.machines.commands import Compare, Put, Relation, Target

WRITERS = 4
LEASE_S = 5.0
"""Much shorter than a rollout, so a lease that is held after one was renewed at both generations."""
COUNTER, LOCK = b"counter", b"lock"


@dataclass
class Counting:
    """Writers that count one key up by compare-and-set, each step under a lock, and a watcher of it."""

    kv: Keys
    token: int
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Revision → number that was written."""
    refused: int = 0
    """Steps that another writer was faster with."""
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Revision and number of each change, as the watcher was told."""
    stopping: bool = False

    async def write(self) -> None:
        while not self.stopping:
            item = await self.kv.get(COUNTER)
            number, revision = (int(item.value), item.mod_revision) if item is not None else (0, 0)
            unchanged = Compare(Target.MOD_REVISION, Relation.EQUAL, COUNTER, revision)
            step = Put(COUNTER, b"%d" % (number + 1))
            result = await self.kv.txn([unchanged, guard(LOCK, self.token)], [step], timeout_s=60)
            if result.succeeded:
                assert result.revision not in self.acknowledged
                self.acknowledged[result.revision] = number + 1
            self.refused += not result.succeeded

    async def watch(self, revision: int) -> None:
        async with aclosing(self.kv.watch(COUNTER, from_=revision)) as changes:
            async for change in changes:
                assert not isinstance(change, Reset), "the watcher was never behind"
                self.seen += [(change.revision, int(event.data or b"")) for event in change.events]

    async def more(self, steps: int) -> None:
        wanted = len(self.acknowledged) + steps

        async def done() -> bool:
            return len(self.acknowledged) >= wanted

        await eventually(done, f"{steps} more steps")


@pytest.mark.needs(Capability.DIRECT)
async def test_no_step_is_lost_or_doubled_no_change_missed_and_a_lease_survives(raft: RaftTest) -> None:
    await raft.apply(stateMachine="KeyValue")
    await raft.until_current(generation=1)
    async with raft.client() as client, client.kv.lease(LEASE_S, holder=b"e2e") as lease:
        token = await client.kv.lock(LOCK, lease.id)
        counting = Counting(client.kv, token)
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(counting.watch(token))
            writers = [tasks.create_task(counting.write()) for _ in range(WRITERS)]
            for run in range(1, RUNS + 1):
                await counting.more(WARM_UP_WRITES)
                await roll(raft, run)
                await raft.until_current(generation=run + 1)
            await counting.more(WARM_UP_WRITES)
            counting.stopping = True
            await asyncio.wait(writers)
            counter = await client.kv.get(COUNTER)
            assert counter is not None

            async def told() -> bool:
                return bool(counting.seen) and counting.seen[-1][0] >= counter.mod_revision

            await eventually(told, "the watcher was told of the last step")
            watcher.cancel()
        assert not lease.lost.is_set()
        held = await client.kv.get(LOCK)
    assert held is not None
    assert held.create_revision == token
    steps = sorted(counting.acknowledged.items())
    assert counting.seen == steps
    assert [number for _, number in steps] == list(range(1, int(counter.value) + 1))
    assert counting.refused > 0, "the writers did compete"
    print(f"keys: {len(steps)} steps acknowledged, {counting.refused} refused, 0 lost, 0 doubled, 0 missed")  # noqa: T201


async def test_a_tree_cluster_serves_keys_and_nodes_over_a_rollout(raft: RaftTest) -> None:
    await raft.apply(stateMachine="Tree")
    await raft.until_current(generation=1)

    def pavane(*words: str) -> str:
        group, command, *rest = words
        return raft.platform.run("raft", group, command, "q", *rest, "-n", raft.namespace).stdout.strip()

    pavane("kv", "put", "colour", "red")
    pavane("tree", "create", "/w", "data")
    first = pavane("tree", "create", "/w/s_", "--sequential")
    await roll(raft, 1)
    await raft.until_current(generation=2)
    assert pavane("kv", "get", "colour") == "red"
    assert json.loads(pavane("tree", "get", "/w", "-o", "json"))["children"] == 1
    assert pavane("tree", "create", "/w/s_", "--sequential") > first
    happened = [line.split()[1:] for line in pavane("tree", "watch", "/w", "--from", "1", "--count", "5").splitlines()]
    assert happened == [
        ["Created", "/w", "data"],
        ["Created", first],
        ["Children", "/w"],
        ["Created", "/w/s_0000000001"],
        ["Children", "/w"],
    ]

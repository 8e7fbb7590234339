"""Pods of a WaltzCluster: from nothing to a log, from one generation of servers to the next, and through kills."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pavane.compute.wire.common import Epoch
from pavane.waltz.client import Waltz
from pavane.waltz.client.link import Link
from pavane.waltz.errors import OutcomeUnknown, RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from tests.services.eventually import eventually
from tests.services.pods.raft_pods import Pods
from tests.services.pods.waltz_pods import PARTITIONS, WAIT_S, WaltzPod, WaltzPods


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WaltzPods]:
    (tmp_path / "raft").mkdir()
    raft = Pods(tmp_path / "raft")
    found = WaltzPods(raft, tmp_path)
    yield found
    found.end()
    raft.end()


class Writer:
    """Appends to one partition, again and again, and remembers what it was told."""

    def __init__(self, log: Waltz, partition: int) -> None:
        self._log = log
        self.partition = partition
        self.acknowledged: dict[int, bytes] = {}
        self.in_doubt: set[bytes] = set()
        self._stopping = False
        self._task = asyncio.create_task(self._write())

    async def more(self, count: int = 3) -> None:
        """Wait until so many more appends are acknowledged."""
        wanted = len(self.acknowledged) + count
        await eventually(lambda: self._task.done() or len(self.acknowledged) >= wanted, WAIT_S)

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def check(self) -> None:
        """Read the whole partition: nothing is lost, doubled or moved."""
        last, found = max(self.acknowledged), dict[int, bytes]()
        async for one in self._log.feed(self.partition, from_=0):
            found[one.id] = one.data
            if one.id >= last:
                break
        assert list(found) == list(range(last + 1))
        assert {txid: found[txid] for txid in self.acknowledged} == self.acknowledged
        assert len(set(found.values())) == len(found)
        assert set(found.values()) <= set(self.acknowledged.values()) | self.in_doubt

    async def _write(self) -> None:
        number = 0
        while not self._stopping:
            number += 1
            data = b"%d" % number
            try:
                self.acknowledged[await self._log.append(self.partition, data)] = data
            except OutcomeUnknown:
                self.in_doubt.add(data)
            await asyncio.sleep(0.01)


async def compare_beside(pod: WaltzPod, log: Waltz) -> None:
    """A server that may not write yet reads what the owners have, and takes no append."""
    async with asyncio.timeout(WAIT_S):
        while not await pod.get("/partitions"):  # it does not listen yet
            await asyncio.sleep(0.05)
    link = await Link.connect((pod.address, 55180), None, 1)
    try:
        for partition in range(PARTITIONS):
            numbers = (ReqId(1, 1, partition, number) for number in count())
            async with asyncio.timeout(WAIT_S):  # it may not have seen the partition yet
                while isinstance(told := await link.ask(m.HighWaterMarkRequest(next(numbers)), WAIT_S), m.Reject):
                    await asyncio.sleep(0.05)
            hwm = told.txid
            assert hwm >= 0
            async for one in log.read(partition, 0, hwm + 1):
                assert (await link.ask(m.TransactionDataRequest(next(numbers), one.id), WAIT_S)).result == one.data
            refused = await link.ask(m.AppendIdempotent(next(numbers), hwm, (), (), (), 0, 0, -1, 1, b""), WAIT_S)
            assert refused.code is RejectCode.READ_ONLY
    finally:
        await link.close()


@pytest.mark.long  # kills and a rollout under an operator: e2e/test_waltz.py
@pytest.mark.timeout(240)  # seven processes start, and the machine may be busy
async def test_a_log_goes_on_through_a_new_generation_of_servers_and_kills_of_each_kind(cluster: WaltzPods) -> None:
    await cluster.begin()
    old = cluster.server(1)
    await cluster.lead_up([old], Epoch(1, 1), {"bootstrap": "tree"})
    new = [cluster.server(2, index) for index in range(2)]
    async with Waltz([f"{old.address}:55180"], patience=WAIT_S) as log:
        writers = [Writer(log, partition) for partition in range(PARTITIONS)]
        for writer in writers:
            await writer.more()
        await compare_beside(new[0], log)
        await cluster.lead_up(new, Epoch(2, 1), {})
        for writer in writers:
            await writer.more()
        owned = [await pod.get("/partitions") for pod in (old, *new)]
        assert owned[0]["partitions"] == []
        assert sum(len(found["partitions"]) for found in owned[1:]) == PARTITIONS
        assert not (await old.get("/stage"))["done"], "it may get its turn again"
        assert max([(await pod.get("/stage"))["writeGapMs"] for pod in new]) > 0
        assert await asyncio.to_thread(old.terminate) == 0
        for pod in (cluster.storage[0], new[0], cluster.storage[0], cluster.storage[1]):
            if pod.process is not None and pod.process.poll() is not None:
                pod.start()  # a storage node finds what it had
                while not await pod.takes_tools():
                    await asyncio.sleep(0.05)
            else:
                pod.kill()
            for writer in writers:
                await writer.more()
        cluster.storage[1].start()
        async with asyncio.timeout(WAIT_S):
            while not await cluster.storage[1].takes_tools():
                await asyncio.sleep(0.05)
        for writer in writers:
            await writer.more()
        for writer in writers:
            await writer.stop()
            await writer.check()

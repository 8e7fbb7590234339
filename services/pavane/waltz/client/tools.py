"""What the tools of ``pavane waltz`` do with a log: check its order, measure it, give a node a new copy (16)."""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from uuid import UUID

from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.client.waltz import Waltz
from pavane.waltz.errors import OutcomeUnknown, StorageRefused, WaltzError
from pavane.waltz.wire import storage as s

VALIDATE_LOCK = ("pavane-waltz-validate", 0)
FAULTS_SHOWN_MAX = 20
LOOK_S = 0.2
CATCH_UP_LOOKS_MAX = 150  # half a minute, for a node that was away and copies what it missed


@dataclass
class Validation:
    """What a validation found; ``faults`` is empty if the log kept its promise."""

    partition: int
    first: int
    appended: int = 0
    conflicts: int = 0
    unknown: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


async def validate(log: Waltz, partition: int, clients: int, count: int) -> Validation:
    """Append ``count`` transactions by ``clients`` views that all write one lock, then read them again.

    The data of each is the number that it has to get: the last transaction its writer had seen, plus one. So the log
    is in order exactly if the data of every transaction is its own number; this holds for what others append under
    no lock of ours only while nobody else writes to the partition.
    """
    found = Validation(partition, await log.hwm(partition) + 1)
    begun = perf_counter()
    acknowledged: dict[int, int] = {}
    left = count

    async def write() -> None:
        nonlocal left
        tries = decided = 0

        def decide() -> bytes:
            nonlocal tries, decided
            tries, decided = tries + 1, view.hwm + 1
            return b"%d" % decided

        async with log.view(partition, lambda _: None, from_=found.first) as view:
            while left > 0:
                left -= 1
                tries = 0
                try:
                    txid = await view.transact(decide, write=[VALIDATE_LOCK])
                except OutcomeUnknown:
                    found.unknown += 1
                    continue
                assert txid is not None  # noqa: S101 -- decide always wants something to be written
                found.conflicts += tries - 1
                if txid in acknowledged:
                    found.faults.append(f"transaction {txid} was acknowledged twice")
                acknowledged[txid] = decided

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(write())
    found.appended = len(acknowledged)
    await _read_again(log, found, acknowledged)
    found.seconds = perf_counter() - begun
    return found


async def _read_again(log: Waltz, found: Validation, acknowledged: dict[int, int]) -> None:
    expected, left = found.first, set(acknowledged)
    async for tx in log.read(found.partition, found.first, await log.hwm(found.partition) + 1):
        if tx.id != expected:
            found.faults.append(f"transaction {tx.id} follows {expected - 1}")
        expected = tx.id + 1
        left.discard(tx.id)
        if tx.data != b"%d" % tx.id:
            found.faults.append(f"transaction {tx.id} holds {tx.data[:40]!r}: it was decided on another state")
        elif tx.id in acknowledged and acknowledged[tx.id] != tx.id:
            found.faults.append(f"transaction {tx.id} was acknowledged for {acknowledged[tx.id]}")
    found.faults += [f"transaction {txid} was acknowledged and is not there" for txid in sorted(left)]
    del found.faults[FAULTS_SHOWN_MAX:]


@dataclass(frozen=True, slots=True)
class Measured:
    """Appends of one run; times in milliseconds."""

    appends: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        """Appends a second."""
        return self.appends / self.seconds


async def measure(log: Waltz, partitions: Sequence[int], data: bytes, count: int, under_way: int) -> Measured:
    """Append ``data`` ``count`` times, spread over ``partitions``, with ``under_way`` at once."""
    times: list[float] = []
    left = count

    async def write(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begun = perf_counter()
            await log.append(partitions[number % len(partitions)], data)
            times.append(perf_counter() - begun)

    begun = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(under_way):
            group.create_task(write(number))
    seconds = perf_counter() - begun
    times.sort()
    at = [times[min(len(times) - 1, len(times) * share // 100)] * 1000 for share in (50, 99)]
    return Measured(len(times), seconds, *at)


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition on a storage node, as the node says; ``last`` is its last transaction."""

    address: str
    session: int
    last: int
    available: bool
    fault: str


async def recover(
    nodes: Sequence[str],
    address: str,
    partition: int,
    key: UUID,
    partitions: int,
    tls: ssl.SSLContext | None,
    say: Callable[[str], None],
) -> Replica:
    """Let the node at ``address`` give up its files of a partition, and wait until it has them from the others.

    ``nodes`` are the admin addresses of all nodes. A majority of all has to hold the partition without this one;
    else nothing is changed and ``StorageRefused`` says why. The log goes on meanwhile.
    """
    async with AsyncExitStack() as stack:
        admins = {}
        for one in dict.fromkeys([address, *nodes]):
            admins[one] = await StorageAdmin.connect(one, key, partitions, tls)
            stack.callback(admins[one].hang_up, "done")
        others = [admin for one, admin in admins.items() if one != address]
        target, session = await _kept_by_majority(others, partition)
        admin = admins[address]
        await admin.ask(s.SetAssigned(admin.next_seq(), (partition,), assign=False, delete_files=True))
        await admin.ask(s.SetAssigned(admin.next_seq(), (partition,), assign=True, delete_files=False))
        say(f"{address} has given up partition {partition}; it is copied up to transaction {target}")
        while (replica := await _replica(admin, partition)) is not None:
            if replica.last >= target and replica.session >= session:
                return replica
            await asyncio.sleep(LOOK_S)
    raise WaltzError(f"{address} does not keep partition {partition} any more")


async def _kept_by_majority(others: Sequence[StorageAdmin], partition: int) -> tuple[int, int]:
    """Wait until enough of ``others`` hold all that one of them has now; return its last transaction and session."""
    nodes, target = len(others) + 1, -1
    for look in range(CATCH_UP_LOOKS_MAX):
        found = [await _replica(admin, partition) for admin in others]
        whole = [replica for replica in found if replica is not None and replica.available and replica.session >= 0]
        if look == 0:
            target = max((replica.last for replica in whole), default=-1)
        session = max((replica.session for replica in whole), default=-1)
        current = [replica for replica in whole if replica.session == session and replica.last >= target]
        if len(current) > nodes // 2:
            return target, session
        if len(whole) <= nodes // 2:
            break
        await asyncio.sleep(LOOK_S)
    named = ", ".join(replica.address for replica in current) or "none"
    raise StorageRefused(
        f"partition {partition}: only {len(current)} of {nodes} nodes would be left with all its transactions "
        f"({named}), which is no majority: nothing was changed"
    )


async def _replica(admin: StorageAdmin, partition: int) -> Replica | None:
    answer: s.MetricsResponse = await admin.ask(s.MetricsRequest(admin.next_seq()))
    found: dict[str, Any] | None = json.loads(answer.json)["partitions"].get(str(partition))
    if found is None:
        return None
    return Replica(admin.address, found["session-id"], found["max-transaction-id"], found["available"], found["fault"])

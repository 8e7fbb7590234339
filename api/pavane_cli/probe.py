"""A client that writes all the time and then proves what became of its writes (docs/specs/operator.md 7.5).

Each write carries a text of its own, so the log itself tells afterwards which acknowledged writes are missing and which
stand there twice. The demo shows the result; the end-to-end tests assert it.
"""

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

from pavane.raft.client import Entry, RaftClient
from pavane.raft.errors import RaftError
from pavane.raft.state.configuration import Configuration, generation_of
from pavane.raft.wire import EntryType

WRITE_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Proof:
    """What a probe found out."""

    acknowledged: int
    """Writes that the cluster acknowledged."""
    lost: int
    """Acknowledged writes that are not in the log, or not at the index that was told."""
    doubled: int
    """Writes that stand in the log more than once."""
    unknown: int
    """Writes whose outcome the client did not learn; they may stand in the log once."""
    unfenced: int
    """Writes of a generation that the configuration before them in the log did not let write."""
    leaders: int
    """Leaders that were seen, each with a term of its own: what ``unfenced`` is judged by."""
    longest_gap_s: float
    """Longest time between two acknowledgements."""
    failures: list[str] = field(default_factory=list)
    """Errors that the client reported, first ones only."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, nothing doubled, and one generation wrote at a time."""
        return self.acknowledged > 0 and self.lost == self.doubled == self.unfenced == 0


FAILURES_KEPT_MAX = 5
LOOK_PAUSE_S = 0.05
"""Between two looks at who leads: most leaders of a rollout are seen, and the cluster hardly notices."""


class Fence:
    """Whose writes the log allows: who led in which term, against the configurations in the log.

    A configuration counts from its own entry on; in a joint one both generations may lead.
    """

    def __init__(self) -> None:
        self.leaders: dict[int, set[str]] = {}
        self.broken = 0
        self._may_write: set[int | None] | None = None

    def led(self, term: int, leader: str) -> None:
        """Note that a peer was seen as the leader of a term."""
        self.leaders.setdefault(term, set()).add(leader)

    def entry(self, entry: Entry) -> None:
        """Judge the next entry of the log."""
        if entry.type == EntryType.CONFIG:
            members = Configuration.decode(entry.data).members
            self._may_write = {generation_of(peer) for peer, _ in members}
        elif entry.type == EntryType.STATE and self._may_write is not None:
            leaders = self.leaders.get(entry.term, set())
            self.broken += len(leaders) > 1 or not {generation_of(leader) for leader in leaders} <= self._may_write


class SteadyWriter:
    """Writes through ``client`` without a pause, ``writers`` at a time, until it is stopped."""

    def __init__(self, client: RaftClient, label: str, *, writers: int = 2, pause_s: float = 0.005) -> None:
        self._client = client
        self._label = label
        self._pause_s = pause_s
        self._writers = writers
        self._tasks: list[asyncio.Task[None]] = []
        self._acknowledged: dict[bytes, int] = {}
        self._times: list[float] = []
        self._unknown: set[bytes] = set()
        self._failures: list[str] = []
        self._fence = Fence()
        self._progress = asyncio.Event()
        self._stopping = False

    @property
    def acknowledged(self) -> int:
        """Writes acknowledged so far."""
        return len(self._acknowledged)

    def longest_gap_s(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Return the longest time between two acknowledgements that touches [since, until] (monotonic seconds)."""
        pairs = zip(self._times, self._times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later >= since and earlier <= until), default=0.0)

    def start(self) -> None:
        """Begin to write."""
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(self._writers)]
        self._tasks.append(asyncio.create_task(self._look()))

    async def reach(self, acknowledged: int) -> None:
        """Wait until so many writes are acknowledged."""
        while self.acknowledged < acknowledged:
            self._progress.clear()
            await self._progress.wait()

    async def stop(self) -> None:
        """Finish the writes under way and stop."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _write(self, number: int) -> None:
        sequence = 0
        while not self._stopping:
            sequence += 1
            data = f"{self._label}/{number}/{sequence}".encode()
            try:
                self._acknowledged[data] = await self._client.update(data, timeout_s=WRITE_TIMEOUT_S)
                self._times.append(time.monotonic())
                self._progress.set()
            except RaftError as error:
                self._unknown.add(data)
                if len(self._failures) < FAILURES_KEPT_MAX:
                    self._failures.append(f"{data.decode()}: {error}")
            await asyncio.sleep(self._pause_s)

    async def _look(self) -> None:
        while not self._stopping:
            with contextlib.suppress(RaftError):
                info = await self._client.log_info()
                if info.leader is not None:
                    self._fence.led(info.term, info.leader)
            await asyncio.sleep(LOOK_PAUSE_S)

    async def proof(self) -> Proof:
        """Read the whole log and compare it with what was acknowledged; the writer must be stopped."""
        prefix = f"{self._label}/".encode()
        found: Counter[bytes] = Counter()
        where: dict[bytes, int] = {}
        async for entry in self._client.entries():
            self._fence.entry(entry)
            if entry.type == EntryType.STATE and bytes(entry.data).startswith(prefix):
                data = bytes(entry.data)
                found[data] += 1
                where.setdefault(data, entry.index)
        return Proof(
            acknowledged=len(self._acknowledged),
            lost=sum(where.get(data) != index for data, index in self._acknowledged.items()),
            doubled=sum(count > 1 for count in found.values()),
            unknown=len(self._unknown),
            unfenced=self._fence.broken,
            leaders=len(self._fence.leaders),
            longest_gap_s=self.longest_gap_s(),
            failures=self._failures,
        )

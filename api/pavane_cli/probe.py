"""A client that writes all the time and then compares its writes with the log (docs/specs/operator.md 7.5).

Each write carries a text of its own, so the log itself tells which acknowledged writes are missing and which stand
there twice: in a plain log it is the entry, where keys are served the command that puts it. The log is read while it
grows, for it may be compacted behind us. The demo shows the result; the end-to-end tests assert it.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pavane.raft.client import Entry, RaftClient
from pavane.raft.errors import RaftError, Unsupported
from pavane.raft.machines.commands import Put, Range, Txn, encode_command
from pavane.raft.state.configuration import Configuration, generation_of
from pavane.raft.wire.entry import EntryType

WRITE_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Proof:
    """What a probe found out."""

    acknowledged: int
    """Writes that the cluster acknowledged."""
    lost: int
    """Acknowledged writes that are not in the log, or not at the acknowledged index."""
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

    A configuration counts from its own entry on; in a joint one both generations may lead. Entries before the first
    configuration are not judged.
    """

    def __init__(self) -> None:
        self.leaders: dict[int, set[str]] = {}
        self._may_write: frozenset[int | None] | None = None
        self._writes: Counter[tuple[int, frozenset[int | None]]] = Counter()

    def led(self, term: int, leader: str) -> None:
        """Note that a peer was seen as the leader of a term."""
        self.leaders.setdefault(term, set()).add(leader)

    def entry(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        if entry.type == EntryType.CONFIG:
            members = Configuration.decode(entry.data).members
            self._may_write = frozenset(generation_of(peer) for peer, _ in members)
        elif entry.type == EntryType.STATE and self._may_write is not None:
            self._writes[entry.term, self._may_write] += 1

    @property
    def broken(self) -> int:
        """Writes of a generation that might not write, by all that is known of leaders now."""
        return sum(count for (term, may_write), count in self._writes.items() if not self._allows(term, may_write))

    def _allows(self, term: int, may_write: frozenset[int | None]) -> bool:
        leaders = self.leaders.get(term, set())
        return len(leaders) <= 1 and {generation_of(leader) for leader in leaders} <= may_write


class SteadyWriter:
    """Writes through ``client`` without a pause, ``writers`` at a time, until stopped; calls ``told`` after each."""

    def __init__(
        self,
        client: RaftClient,
        label: str,
        *,
        writers: int = 2,
        pause_s: float = 0.005,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._told = told
        self._label = label
        self._pause_s = pause_s
        self._writers = writers
        self._tasks: list[asyncio.Task[None]] = []
        self._acknowledged: dict[bytes, int] = {}
        self._times: list[float] = []
        self._unknown: set[bytes] = set()
        self._failures: list[str] = []
        self._fence = Fence()
        self._known = asyncio.Event()  # where the log begins for us, and what it takes
        self._serves_keys = False
        self._position = 0
        self._found: Counter[bytes] = Counter()
        self._where: dict[bytes, int] = {}
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

    async def cancel(self) -> None:
        """End, whatever is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, number: int) -> None:
        sequence = 0
        await self._known.wait()
        while not self._stopping:
            sequence += 1
            text = f"{self._label}/{number}/{sequence}".encode()
            key = f"{self._label}/{number}".encode()
            data = encode_command(Txn((), (Put(key, text),), ())) if self._serves_keys else text
            try:
                self._acknowledged[data] = await self._client.update(data, timeout_s=WRITE_TIMEOUT_S)
                self._times.append(time.monotonic())
                self._progress.set()
                self._told()
            except RaftError as error:
                self._unknown.add(data)
                if len(self._failures) < FAILURES_KEPT_MAX:
                    self._failures.append(f"{text.decode()}: {error}")
            await asyncio.sleep(self._pause_s)

    async def _look(self) -> None:
        while not self._stopping:
            with contextlib.suppress(RaftError):
                info = await self._client.log_info()
                if info.leader is not None:
                    self._fence.led(info.term, info.leader)
                if not self._known.is_set():
                    self._serves_keys = await _serves_keys(self._client)
                    self._position = info.first_index - 1
                    self._known.set()
                await self._read_on()
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _read_on(self) -> None:
        """Take note of what the log holds by now."""
        async with contextlib.aclosing(self._client.entries(after=self._position)) as entries:
            async for entry in entries:
                self._position = entry.index
                self._fence.entry(entry)
                if entry.type == EntryType.STATE and f"{self._label}/".encode() in (data := bytes(entry.data)):
                    self._found[data] += 1
                    self._where.setdefault(data, entry.index)

    async def proof(self) -> Proof:
        """Read the rest of the log and compare it with what was acknowledged; the writer must be stopped."""
        await self._read_on()
        return Proof(
            acknowledged=len(self._acknowledged),
            lost=sum(self._where.get(data) != index for data, index in self._acknowledged.items()),
            doubled=sum(count > 1 for count in self._found.values()),
            unknown=len(self._unknown),
            unfenced=self._fence.broken,
            leaders=len(self._fence.leaders),
            longest_gap_s=self.longest_gap_s(),
            failures=self._failures,
        )


async def _serves_keys(client: RaftClient) -> bool:
    try:
        await client.kv.read(Range(b"probe"))
    except Unsupported:
        return False
    return True

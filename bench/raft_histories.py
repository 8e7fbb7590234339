"""Keys of a cluster whose peers are killed and stopped and whose connections are cut: was every answer linearizable?

docs/specs/raft.md 18.4. All connections, of clients and between peers, lead through proxies.
"""

import asyncio
import contextlib
import itertools
import math
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.contestants import READY_TIMEOUT_S
from bench.linearizable import Kind, Operation, Undecided, impossible
from bench.options import Options
from bench.proxies import Address, Proxies
from bench.raft import PEERS, running
from bench.raft_keys import KeyPeers
from bench.report import Measure
from pavane.raft.client import Keys, RaftClient
from pavane.raft.errors import Expired, ResultLost, Unreachable
from pavane.raft.machines.commands import Compare, Delete, Put, Range, Relation, Target
from pavane_cli import output
from tests.services.ports import free_ports

HISTORY_S = 12.0
SNAPSHOT_ENTRIES = 300  # few: peers that come back are brought up by snapshots too
KEYS = tuple(b"key-%d" % number for number in range(8))
CLIENTS = 6
SESSION_OPERATIONS = (2, 30)
HALFWAY = 0.2  # of the sessions end while an operation is under way
THINK_S = (0.0, 0.02)
TIMEOUT_S = 1.5  # about an election; then the same request goes on with another client
ATTEMPTS = 3
PAUSE_S = (0.1, 1.0)
AWAY_S = (0.1, 2.5)
KILLED = 0.6  # of the peers that go away; the others are stopped
SILENT = 0.3  # of the faults of connections; the others are cut


class ProxiedPeers(KeyPeers):
    """Three peers behind proxies: each announces its proxy's address and listens elsewhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SNAPSHOT_ENTRIES)
        self.proxies = Proxies()
        self._ports = dict(zip(PEERS, free_ports(len(PEERS)), strict=True))

    def _command(self, peer: str) -> list[str]:
        return [*super()._command(peer), "--bind", f"tcp://127.0.0.1:{self._ports[peer]}"]

    async def listen(self) -> None:
        """Let the proxies accept connections."""
        for peer, url in self._urls.items():
            host, port = url.removeprefix("tcp://").split(":")
            await self.proxies.listen((host, int(port)), partial(self._address, peer))

    def _address(self, peer: str) -> Address:
        return "127.0.0.1", self._ports[peer]

    @contextlib.contextmanager
    def stopped(self, peer: str) -> Iterator[None]:
        """Stop a peer's process for a while."""
        process = self._processes[peer]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)


class History:
    """What clients did in one cluster, and what was done to it."""

    def __init__(self, peers: ProxiedPeers) -> None:
        self._peers = peers
        self._values = itertools.count()
        self._last: dict[bytes, bytes | None] = {}  # what some client saw or wrote, for compare-and-set
        self._ending = False
        self.operations: list[Operation] = []
        self.kills = self.stops = self.silences = 0

    @property
    def unknown(self) -> int:
        """How many operations had no answer."""
        return sum(each.ended == math.inf for each in self.operations)

    @property
    def cut(self) -> int:
        """How many connections were cut."""
        return self._peers.proxies.cut

    async def run(self, seconds: float) -> None:
        """Work under faults for so long; then all peers run, and each key is read."""
        clients = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]
        end = time.monotonic() + seconds
        await asyncio.gather(self._shake_processes(end), self._shake_connections(end))
        self._ending = True
        await asyncio.gather(*clients)
        async with self._peers.client() as client, asyncio.timeout(READY_TIMEOUT_S):
            for key in KEYS:
                await self._operate([client], Kind.GET, key)
            for peer in PEERS:
                await self._peers.until_level(client, peer)

    async def _shake_processes(self, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(*PAUSE_S))
            peer = random.choice(PEERS)
            if random.random() < KILLED:
                self.kills += 1
                self._peers.kill(peer)
                await asyncio.sleep(random.uniform(*AWAY_S))
                self._peers.start(peer)
            else:
                self.stops += 1
                with self._peers.stopped(peer):
                    await asyncio.sleep(random.uniform(*AWAY_S))

    async def _shake_connections(self, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(random.uniform(*AWAY_S))
            if random.random() < SILENT:
                self.silences += 1
                async with self._peers.proxies.silent():
                    await asyncio.sleep(random.uniform(*PAUSE_S))
            self._peers.proxies.abort()

    async def _client(self) -> None:
        while not self._ending:
            async with contextlib.AsyncExitStack() as stack:
                # The second one repeats what the first had no answer to.
                clients = [await stack.enter_async_context(self._peers.client()) for _ in range(2)]
                for _ in range(random.randint(*SESSION_OPERATIONS)):
                    await self._operate(clients, random.choice([*Kind]), random.choice(KEYS))
                    await asyncio.sleep(random.uniform(*THINK_S))
                if random.random() < HALFWAY:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(random.uniform(*THINK_S)):
                            await self._operate(clients, random.choice([*Kind]), random.choice(KEYS))

    async def _operate(self, clients: list[RaftClient], kind: Kind, key: bytes) -> None:
        value = b"%d" % next(self._values) if kind in (Kind.PUT, Kind.CAS) else None
        expected = self._last.get(key) if kind is Kind.CAS else None
        reqid, began = clients[0].new_reqid(), time.monotonic()
        found: bytes | bool | None = None
        ended = math.inf
        try:
            for client in itertools.islice(itertools.cycle(clients), ATTEMPTS):
                with contextlib.suppress(Unreachable, Expired, ResultLost):
                    found = await _ask(client.kv, kind, key, value, expected, reqid)
                    ended = time.monotonic()
                    break
        finally:  # also when the session ends halfway: what was asked for may take effect
            self.operations.append(Operation(kind, key, began, ended, value, expected, found))
        if ended < math.inf and found is not False:
            self._last[key] = found if isinstance(found, bytes) else value


async def _ask(
    keys: Keys, kind: Kind, key: bytes, value: bytes | None, expected: bytes | None, reqid: bytes
) -> bytes | bool | None:
    if kind is Kind.GET:
        outcome = await keys.read(Range(key), timeout_s=TIMEOUT_S)
        [[_, items, _]] = outcome.value
        return bytes(items[0][1]) if items else None
    then = Delete(key) if value is None else Put(key, value)
    target, operand = (Target.VERSION, 0) if expected is None else (Target.VALUE, expected)
    compares = [Compare(target, Relation.EQUAL, key, operand)] if kind is Kind.CAS else []
    result = await keys.txn(compares, [then], reqid=reqid, timeout_s=TIMEOUT_S)
    match kind:
        case Kind.CAS:
            return result.succeeded
        case Kind.DELETE:
            return bool(result.results[0][0])
    return None


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Make ``--runs`` histories and judge each; those of keys that nothing explains are kept in ``folder``."""
    histories, wrong, undecided = [], 0, 0
    for number in range(options.runs):
        here = folder / f"history-{number}"
        history = await record(here, HISTORY_S)
        histories.append(history)
        try:
            keys = impossible(history.operations)
        except Undecided as error:
            output.note(f"history {number}: {error}")
            undecided += 1
            continue
        verdict = "not linearizable" if keys else "linearizable"
        output.note(f"history {number}: {len(history.operations)} operations, {history.unknown} unknown, {verdict}")
        wrong += bool(keys)
        for operations in keys:
            path = here / f"{operations[0].key.decode()}.txt"
            path.write_text("".join(f"{each}\n" for each in operations), encoding="utf-8")
    return [
        Measure("histories", len(histories), ""),
        Measure("operations", sum(len(each.operations) for each in histories), ""),
        Measure("operations of unknown outcome", sum(each.unknown for each in histories), ""),
        Measure("kills", sum(each.kills for each in histories), ""),
        Measure("stops", sum(each.stops for each in histories), ""),
        Measure("connections cut", sum(each.cut for each in histories), ""),
        Measure("times all connections were silent", sum(each.silences for each in histories), ""),
        Measure("histories that are not linearizable", wrong, "", 0, vital=True),
        Measure("histories that are undecided", undecided, "", 0, vital=True),
    ]


async def record(folder: Path, seconds: float) -> History:
    """Return what clients saw in a fresh cluster under faults for so long."""
    peers = ProxiedPeers(folder)
    await peers.listen()
    try:
        with running(peers):
            await peers.until_up()
            history = History(peers)
            await history.run(seconds)
            return history
    finally:
        await peers.proxies.close()

"""Connections of the platform go silent, without RST or FIN, while new ones work: all goes on by itself, soon.

A firewall in a network namespace of its own drops chosen connections that are established. What is measured is printed
(`-rP`): from the silence until the first thing works that was begun after it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from e2e.artefacts import keep
from e2e.cluster import QUICK, RaftTest
from e2e.conftest import FAILED, RUNS
from e2e.silence import Link, Namespace, namespace
from e2e.targets import Capability, Target, local
from e2e.test_coordinator import ACCOUNTS, BankTest
from e2e.test_waltz import PARTITIONS, LogTest
from e2e.waiting import eventually
from pavane.raft.client import RaftClient, Reset
from pavane.raft.errors import RaftError
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Waltz, WaltzError
from pavane_api.kinds import COORDINATORS, WALTZ_CLUSTERS
from pavane_operator.kube import KubeClient, KubeError
from pavane_operator.kube import Target as KubeTarget
from pavane_operator.kube.resources import NAMESPACES

pytestmark = pytest.mark.needs(Capability.EMBEDDED)

WORKS_S = 15.0
"""Everything works again so soon after the silence of any connections: 10 s are promised, and a machine may be busy."""
STEP_S = 10.0
"""What a rollout takes beside that until the command that watches it ends."""
TEST_S = 400.0
TIMES = 5
"""How often everything goes silent at once where runs are repeated (`make e2e`)."""
SPACE = "silent"
WATCHED = "watched"
META: dict[str, Any] = {"stateMachine": "Tree", "replicas": 1, "storage": {"size": "64Mi"}}
MANUAL: dict[str, Any] = {"rollout": {**QUICK["rollout"], "strategy": "Manual"}}
ME = str(os.getpid())


@pytest.fixture(scope="module")
def network() -> Iterator[Namespace]:
    with namespace() as found:
        yield found


@pytest.fixture(scope="module")
def silent(network: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.LocalTarget]:
    """The embedded cluster in the namespace: a log with its registry, two immortals, and what is rolled out."""
    with local.started(tmp_path_factory.mktemp("silent"), "--fast") as running:
        asyncio.run(running.until_ready())
        asyncio.run(_start(running))
        yield running


async def _start(running: Target) -> None:
    async with await KubeClient.connect(KubeTarget(running.kubeconfig)) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": SPACE}})
        test = RaftTest(running, kube, SPACE)
        await test.apply(WATCHED, **META, **MANUAL)
        await LogTest(running, kube, SPACE, WALTZ_CLUSTERS).start()
        await BankTest(running, kube, SPACE, COORDINATORS).start()
        await test.until_current(WATCHED, generation=1)


@dataclass
class Following:
    """A command that prints what happens, line by line."""

    process: asyncio.subprocess.Process
    file: Path

    def lines(self) -> list[str]:
        return self.file.read_text("utf-8").splitlines()

    @property
    def name(self) -> str:
        return str(self.process.pid)


@dataclass
class Town:
    """All who have connections: the platform, this program with a client of each, and commands that follow."""

    platform: local.LocalTarget
    test: RaftTest
    bank: BankTest
    log: LogTest
    raft: RaftClient
    waltz: Waltz
    numbers: Iterator[int]
    commands: dict[str, Following] = field(default_factory=dict)
    wanted: dict[str, list[str]] = field(default_factory=lambda: {"kv": [], "feed": []})
    """What the commands must have printed at the end."""
    watched: list[str] = field(default_factory=list)
    """What this program's own watch was told."""
    fed: list[int] = field(default_factory=list)
    """The transactions of partition 1 that this program's own feed brought."""

    async def feed(self, first: int) -> None:
        async for transaction in self.waltz.feed(1, from_=first):
            self.fed.append(transaction.id)

    async def watch(self, revision: int) -> None:
        async for change in self.raft.kv.watch(b"own/", b"own0", from_=revision):
            assert not isinstance(change, Reset)
            self.watched += [(event.data or b"").decode() for event in change.events]

    async def put(self) -> None:
        """Write by this program's client; its watch is told."""
        value = str(next(self.numbers))
        await self.raft.kv.put(b"own/key", value.encode())
        await self._until(lambda: value in self.watched)
        assert len(self.watched) == len(set(self.watched)), "a change was told twice"

    async def rest(self) -> None:
        """Write through the control plane, by connections of the control plane."""
        await self._say("raft", "kv", "put", "meta", "rest", str(next(self.numbers)))

    async def view(self) -> None:
        """A new client of the log sees who writes which partition."""
        async with self.log.client_of_log() as log:
            # An owner whose session ended in the silence takes its partitions again.
            while not all(each.server for each in (await log.partitions()).values()):
                await asyncio.sleep(0.05)

    async def append(self) -> None:
        """Append to each partition by this program's client; its feed brings that."""
        txid, *_ = await asyncio.gather(*(self.waltz.append(each, b"own") for each in range(1, PARTITIONS)))
        await self._until(lambda: txid in self.fed)
        first = self.fed[0]
        assert self.fed == list(range(first, first + len(self.fed))), "a gap, or a transaction twice"

    async def transfer(self) -> None:
        """Each sends the other one a coin."""
        ways = (ACCOUNTS, ACCOUNTS[::-1])
        calls = [("ambrosia", "call", name, "transfer", json.dumps(to), "1") for name, to in ways]
        await asyncio.gather(*(self._say(*call, "--key", f"k{next(self.numbers)}") for call in calls))

    async def operate(self) -> None:
        """The operator sees a change of the spec."""
        spec = {"rollout": {**MANUAL["rollout"], "retireDelay": f"{1000 + next(self.numbers)}ms"}}
        async with await KubeClient.connect(KubeTarget(self.platform.kubeconfig)) as kube:
            applied = await RaftTest(self.test.platform, kube, SPACE).apply(WATCHED, **META, **spec)

            async def seen() -> bool:
                found = await kube.get(self.test.type, WATCHED, SPACE)
                return bool(found["status"]["observedGeneration"] >= applied["metadata"]["generation"])

            await eventually(seen, "the operator has seen the change")

    async def objects(self) -> None:
        """A read by the present kube-client."""
        await self.test.get("meta")

    async def follow_keys(self) -> None:
        value = str(next(self.numbers))
        await self._say("raft", "kv", "put", "meta", "followed", value)
        self.wanted["kv"].append(value)
        await self._until(lambda: self._keys() == self.wanted["kv"])

    async def follow_log(self) -> None:
        value = str(next(self.numbers))
        await self._say("waltz", "append", "q", value)
        self.wanted["feed"].append(value)
        await self._until(lambda: self.commands["feed"].lines() == self.wanted["feed"])

    async def promote(self) -> None:
        """A rollout that waits for it is approved: the command that watches it says so and ends."""
        command = self.commands["status"].process
        await self._say("rollout", "promote", f"raft/{WATCHED}")
        assert await command.wait() == 0, self.commands["status"].lines()

    def _keys(self) -> list[str]:
        return [line.split()[-1] for line in self.commands["kv"].lines()]

    async def _say(self, *words: str) -> None:
        """Run a command until it succeeds; each has an end of its own."""
        while True:
            done = await asyncio.to_thread(self.platform.run, *words, "-n", SPACE, check=False)
            if done.returncode == 0:
                return
            say(f"{' '.join(words)}: {done.stderr.strip()}")
            await asyncio.sleep(0.05)

    async def _until(self, check: Callable[[], bool]) -> None:
        while not check():
            assert all(each.process.returncode in (None, 0) for each in self.commands.values()), "a command has ended"
            await asyncio.sleep(0.05)

    async def begin(self, name: str, *words: str) -> None:
        """Start a command that follows something."""
        file = self.platform.folder / f"{name}-{next(self.numbers)}.out"
        with file.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pavane_cli.main", *words, "-n", SPACE,
                cwd=self.platform.folder, stdout=out, stderr=sys.stderr,
                env={**os.environ, "KUBECONFIG": str(self.platform.kubeconfig), "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self.commands[name] = Following(process, file)

    async def begin_rollout(self) -> None:
        """Start a rollout that waits for approval, and the command that watches it."""
        self.platform.run("rollout", "restart", f"raft/{WATCHED}", "--reason", str(next(self.numbers)), "-n", SPACE)
        await self.test.until_state("CaughtUp", name=WATCHED)
        await self.begin("status", "rollout", "status", "--watch", f"raft/{WATCHED}")
        await self._until(lambda: bool(self.commands["status"].lines()))


@pytest.fixture
async def town(
    silent: local.LocalTarget, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Town]:
    monkeypatch.setenv(HOSTS_FILE_VARIABLE, str(silent.folder / ".pavane" / "hosts" / SPACE))
    monkeypatch.setenv("KUBECONFIG", str(silent.kubeconfig))
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(await KubeClient.connect(KubeTarget(silent.kubeconfig)))
        test = RaftTest(silent, kube, SPACE)
        log = LogTest(silent, kube, SPACE, WALTZ_CLUSTERS)
        town = Town(
            silent,
            test,
            BankTest(silent, kube, SPACE, COORDINATORS),
            log,
            await stack.enter_async_context(test.client("meta")),
            await stack.enter_async_context(log.client_of_log()),
            NUMBERS,
        )
        first, revision = await town.waltz.hwm(1) + 1, await town.raft.kv.put(b"own/key", b"")
        own = [asyncio.create_task(town.watch(revision + 1)), asyncio.create_task(town.feed(first))]
        try:
            await town.begin("kv", "raft", "kv", "watch", "meta", "followed", "--from", str(revision + 1))
            await town.begin("feed", "waltz", "feed", "q", "--from", str(await town.waltz.hwm(0) + 1))
            yield town
        finally:
            for command in town.commands.values():
                if command.process.returncode is None:
                    command.process.kill()
                await command.process.wait()
            for task in own:
                task.cancel()
            await asyncio.gather(*own, return_exceptions=True)
            if request.node.stash.get(FAILED, True):
                async with await KubeClient.connect(KubeTarget(silent.kubeconfig)) as fresh:
                    await keep(RaftTest(silent, fresh, SPACE), tmp_path / "artefacts")


NUMBERS = count(1)
Probe = Callable[[Town], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    """Connections that go silent, and what must work again then."""

    chosen: Callable[[Town, Link], bool]
    probe: Probe
    bound_s: float = WORKS_S


def between(client: str, server: str) -> Callable[[Town, Link], bool]:
    return lambda _, link: link.client.startswith(client) and link.server.startswith(server)


def of(*names: str) -> Callable[[Town, Link], bool]:
    return lambda _, link: link.client.startswith(names) or link.server.startswith(names)


def command(name: str) -> Callable[[Town, Link], bool]:
    return lambda town, link: link.client == town.commands[name].name


def _of_the_api_server(town: Town, link: Link) -> bool:
    return (link.client, link.server) == (ME, str(town.platform.process.pid))


ROWS: Mapping[str, Row] = {
    "raft-peers": Row(between("meta-", "meta-"), Town.put),
    "raft-client": Row(between(ME, "meta-"), Town.put),
    "waltz-registry": Row(between("q-server", "meta-"), Town.view),
    "rest-raft": Row(between("pavane-api", "meta-"), Town.rest),
    "waltz-client": Row(between(ME, "q-server"), Town.append),
    "immortals": Row(of(*ACCOUNTS), Town.transfer),
    "operator": Row(of("pavane-operator"), Town.operate),
    "waltz-storage": Row(between("q-server", "q-storage"), Town.append),
    "kube-client": Row(_of_the_api_server, Town.objects),
    "kv-watch": Row(command("kv"), Town.follow_keys),
    "waltz-feed": Row(command("feed"), Town.follow_log),
    "rollout-status": Row(command("status"), Town.promote, WORKS_S + STEP_S),
}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def works(town: Town, name: str, began: float) -> str:
    """Return how long it took until what ``name`` is about worked again; "" if it did not in time."""
    row = ROWS[name]
    try:
        async with asyncio.timeout(row.bound_s):
            while True:
                try:
                    await row.probe(town)
                    break
                except (RaftError, WaltzError, KubeError) as error:
                    say(f"{name}: {time.monotonic() - began:.1f} s: {error!r}")
                    await asyncio.sleep(0.05)
    except TimeoutError:
        return f"{name}: not within {row.bound_s:g} s"
    say(f"{name}: works again after {time.monotonic() - began:.1f} s")
    return ""


async def warm(town: Town, names: list[str]) -> None:
    """Use all once, so that its connections are there."""
    if "rollout-status" in names:
        await town.begin_rollout()
    for name in names:
        if ROWS[name].probe is not Town.promote:
            await ROWS[name].probe(town)


@pytest.mark.parametrize("name", ROWS)
async def test_what_went_silent_works_again(name: str, town: Town, network: Namespace) -> None:
    await warm(town, [name])
    found = network.silence(lambda link: ROWS[name].chosen(town, link))
    say(f"{name}: {len(found)} connections are silent")
    assert not await works(town, name, time.monotonic())


@pytest.mark.timeout(TEST_S)
async def test_all_works_again_when_everything_went_silent_at_once(town: Town, network: Namespace) -> None:
    for _ in range(TIMES if RUNS > 1 else 1):
        await warm(town, list(ROWS))
        found = network.silence(lambda link: True)
        say(f"everything: {len(found)} connections are silent")
        began = time.monotonic()
        failures = await asyncio.gather(*(works(town, name, began) for name in ROWS))
        assert not any(failures), [each for each in failures if each]

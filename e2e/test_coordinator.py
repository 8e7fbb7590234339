"""The bank as Coordinators: transfers under kills and a rollout, and the money stays (docs/specs/ambrosia.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.cluster import QUICK, RaftTest
from e2e.targets import Capability
from e2e.waiting import eventually
from pavane.ambrosia.wire.links import Channel, Hello
from pavane.pods.coordinator_settings import LINK_PORT
from pavane_api.kinds import COORDINATORS
from pavane_cli.failures import ExitCode
from pavane_operator.kube.resources import CONFIG_MAPS

BANK = Path(__file__).parents[1] / "examples" / "bank" / "bank.py"
ACCOUNTS = ("alice", "bob")
MONEY = 1000
MORE = 10
"""Transfers that are waited for after each disturbance."""
TEST_S = 300.0


class BankTest(RaftTest):
    """One namespace of a platform and the accounts in it."""

    async def start(self, **logs: dict[str, Any]) -> None:
        """Apply the application and the accounts at once, wait until they serve, and put money in.

        ``logs``: where an account's log is, unless on a volume.
        """
        files = {"metadata": {"name": "bank-1"}, "data": {"bank.py": BANK.read_text(encoding="utf-8")}}
        await self.kube.apply(CONFIG_MAPS, files, self.namespace, manager="e2e", strict=True)
        application = {"command": ["pavane", "ambrosia", "run", "bank:Account"], "files": "bank-1"}
        for name in ACCOUNTS:
            body = {
                "metadata": {"name": name},
                "spec": {"application": application, **_kept(logs.get(name)), **QUICK},
            }
            await self.kube.apply(self.type, body, self.namespace, manager="e2e", strict=True)
        for name in ACCOUNTS:
            document = await self.until_current(name, generation=1)
            assert document["status"]["instance"] == name
            assert await self.call(name, "open", MONEY) == MONEY

    async def upgrade(self, name: str, log: dict[str, Any] | None = None) -> None:
        """Roll an account out to the second version of the bank."""
        data = {path.name: path.read_text(encoding="utf-8") for path in (BANK, BANK.with_name("bank2.py"))}
        await self.kube.apply(
            CONFIG_MAPS, {"metadata": {"name": "bank-2"}, "data": data}, self.namespace, manager="e2e", strict=True
        )
        command = ["pavane", "ambrosia", "run", "bank:Account", "--upgrade", "bank2:Account"]
        application = {"command": command, "files": "bank-2", "version": 2}
        body = {"metadata": {"name": name}, "spec": {"application": application, **_kept(log), **QUICK}}
        await self.kube.apply(self.type, body, self.namespace, manager="e2e", strict=True)

    async def call(self, name: str, method: str, *arguments: Any, key: str = "") -> Any:
        """Call by the command, which goes through the control plane."""
        options = ["--key", key or str(uuid.uuid4()), "-n", self.namespace]
        words = ["call", name, method, *(json.dumps(each) for each in arguments)]
        done = await asyncio.to_thread(self.platform.run, "ambrosia", *words, *options)
        return json.loads(done.stdout)

    async def query(self, name: str, query: str) -> Any:
        done = await asyncio.to_thread(self.platform.run, "ambrosia", "query", name, query, "-n", self.namespace)
        return json.loads(done.stdout)

    async def total(self) -> int:
        """All the money there is, wherever it is at the moment."""
        money = [await self.query(name, "money") for name in ACCOUNTS]
        return sum(each["balance"] + each["on_the_way"] for each in money)

    async def clear_is_refused(self, name: str) -> None:
        """Call as the coordinator of bob would, but without a certificate: nobody answers, and it is counted."""
        (pod,) = await self.pods(name)
        host = pod["status"]["podIP"]
        before = await self.refused(host)
        _, writer = await asyncio.open_connection(host, LINK_PORT)
        writer.write(Hello("bob", name, Channel.DATA, "stranger", (99, 0), 1).encode())

        async def counted() -> bool:
            return await self.refused(host) > before

        await eventually(counted, "a link in clear is refused")
        writer.close()

    async def refused(self, host: str) -> int:
        """What the pod has counted."""
        async with httpx2.AsyncClient(trust_env=False) as http:
            told = (await http.get(f"http://{host}:7071/metrics")).text
        found = re.search(r"^pavane_ambrosia_links_refused_total (\d+)", told, re.MULTILINE)
        assert found is not None, told
        return int(found[1])


def _kept(log: dict[str, Any] | None) -> dict[str, Any]:
    return {"storage": {"size": "64Mi"}} if log is None else {"log": log}


@dataclass
class Transfers:
    """Moves one coin after the other, from each account to the other one."""

    bank: BankTest
    by: Counter[str] = field(default_factory=Counter)
    """How many each account has made."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def more(self, what: str) -> None:
        """Wait for transfers that end from now on."""
        before = self.by.total()

        async def enough() -> bool:
            for task in self.tasks:
                assert not task.done() or task.result() is None, "a writer has ended"
            return self.by.total() >= before + MORE

        await eventually(enough, f"transfers after {what}")

    async def _move(self, source: str, to: str) -> None:
        while not self.stopped.is_set():
            assert await self.bank.call(source, "transfer", to, 1) is True
            self.by[source] += 1


@contextlib.asynccontextmanager
async def transfers(bank: BankTest) -> AsyncIterator[Transfers]:
    found = Transfers(bank)
    pairs = zip(ACCOUNTS, reversed(ACCOUNTS), strict=True)
    found.tasks = [asyncio.create_task(found._move(source, to)) for source, to in pairs]
    try:
        yield found
    finally:
        found.stopped.set()
        await asyncio.gather(*found.tasks)


@pytest.mark.timeout(TEST_S)
@pytest.mark.kinds
async def test_the_bank_keeps_its_money_under_kills_and_a_rollout(raft: RaftTest) -> None:
    bank = BankTest(raft.platform, raft.kube, raft.namespace, COORDINATORS)
    await bank.start()
    assert await bank.call("alice", "transfer", "bob", 10, key="once") is True
    assert await bank.call("alice", "transfer", "bob", 10, key="once") is True
    assert (await bank.query("bob", "money"))["balance"] == MONEY + 10
    if Capability.DIRECT in raft.platform.capabilities:
        await bank.clear_is_refused("alice")
    refused = raft.platform.run("ambrosia", "call", "alice", "rob", "-n", raft.namespace, check=False)
    assert "alice has the methods deposit, open, transfer" in refused.stderr
    nobody = raft.platform.run("ambrosia", "call", "nobody", "open", "1", "-n", raft.namespace, check=False)
    assert nobody.returncode == ExitCode.NOT_FOUND
    assert '"nobody" not found' in nobody.stderr
    async with transfers(bank) as moving:
        await moving.more("the start")
        for name in ACCOUNTS:
            raft.kill(f"{name}-instance-g1-0")
            await moving.more(f"{name} was killed")
        await bank.upgrade("alice")
        document = await bank.until_current("alice", generation=2)
        assert document["status"]["history"][0]["writeGapMs"] > 0
        await moving.more("the rollout")
        statement = await bank.query("alice", "lines")
        assert statement[0].startswith("brought forward: "), statement
        assert len(statement) > 1, statement
    assert await bank.stateful_sets("alice") == ["alice-instance-g2"]
    assert await bank.total() == MONEY * len(ACCOUNTS)
    assert [claim.startswith("alice-log-") for claim in await bank.claims("alice")] == [True]

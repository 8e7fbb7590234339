"""A WaltzCluster and the RaftCluster with its metadata: used by all ways, killed, rolled out (docs/specs/waltz.md)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pavane
from e2e.cluster import QUICK, RaftTest, blockers_of, can_switch_back
from e2e.targets import Capability
from e2e.targets.local import ProcessTarget
from e2e.waiting import eventually
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Conflict, Waltz, trusting
from pavane.waltz.client.link import Link, parse_address
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane_api.kinds import RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_api.rollout.actions import Refused, undo
from pavane_cli.commands.resources import is_current
from pavane_operator.kube import Object
from pavane_operator.kube.resources import PODS, SECRETS

# The client of the tests is in their own process.
pytestmark = pytest.mark.needs(Capability.DIRECT)

PARTITIONS = 4
NODES = 3
MORE = 20
"""Appends in each partition that are waited for after each disturbance."""
UNDER_WAY = 5
"""Appends of a partition that are under way at once where they need not be in order."""
SESSION = "3s"  # a loaded machine keeps its leases
CONFLICT = 7  # exit code of the command
PATIENCE_S = 90.0
TEST_S = 480.0
"""It took up to 140 s on a machine with other work."""


class LogTest(RaftTest):
    """One namespace of a platform and the log in it."""

    async def start(self, strategy: str = "WhenCaughtUp") -> Object:
        """Apply both resources at once, as a user does, and wait until the log serves."""
        meta = {"stateMachine": "Tree", "replicas": 3, "storage": {"size": "64Mi"}, **QUICK}
        log = {
            "clusterName": self.namespace,  # spans of logs of one name cannot be told apart
            "partitions": PARTITIONS,
            "servers": {"replicas": 2},
            "storage": {"nodes": NODES, "size": "64Mi"},
            "metadata": {"raftClusterRef": {"name": "meta"}, "sessionTimeout": SESSION},
            **QUICK,
            "rollout": {**QUICK["rollout"], "strategy": strategy},
        }
        for kind, name, spec in ((RAFT_CLUSTERS, "meta", meta), (self.type, "q", log)):
            body = {"metadata": {"name": name}, "spec": spec}
            await self.kube.apply(kind, body, self.namespace, manager="e2e", strict=True)
        document = await self.until_current(generation=1)
        assert document["status"]["writable"] == f"{PARTITIONS}/{PARTITIONS}"
        return document

    @contextlib.asynccontextmanager
    async def client_of_log(self, patience: float = PATIENCE_S) -> AsyncIterator[Waltz]:
        """Lend a client as an application on this machine makes it."""
        async with await pavane.connect_log("q", namespace=self.namespace, patience=patience) as log:
            yield log

    def say(self, command: str, *arguments: str) -> str:
        return self.platform.run("waltz", command, "q", *arguments, "-n", self.namespace).stdout

    async def until_restarted(self, pod: str, *, ready: bool = False) -> None:
        """Wait until a killed pod runs again."""

        async def runs() -> bool:
            status = (await self.kube.get(PODS, pod, self.namespace)).get("status") or {}
            found = status.get("containerStatuses") or ()
            return any(one["restartCount"] and (one["ready"] or not ready) for one in found)

        await eventually(runs, f"{pod} runs again")

    async def until_replaced(self, pod: str) -> None:
        """Wait until a killed pod runs and is ready again."""
        await self.until_restarted(pod, ready=True)


@pytest.fixture
def ledger(raft: RaftTest, monkeypatch: pytest.MonkeyPatch) -> LogTest:
    if isinstance(raft.platform, ProcessTarget):
        hosts = raft.platform.folder / ".pavane" / "hosts" / raft.namespace
        monkeypatch.setenv(HOSTS_FILE_VARIABLE, str(hosts))  # for a bare link; an application does without
    monkeypatch.setenv("KUBECONFIG", str(raft.platform.kubeconfig))
    return LogTest(raft.platform, raft.kube, raft.namespace, WALTZ_CLUSTERS)


async def owner_of(log: Waltz, partition: int) -> str:
    """The pod that owns a partition; empty while nobody does."""
    return ((await log.partitions())[partition].server or "").partition(".")[0]


@dataclass
class Writers:
    """Write into every partition all the time, and compare the log with what was acknowledged.

    In even partitions each append is made of the log's end, under one lock: it has to get the very next number. In odd
    ones several appends are under way at once. All pause a little: the pods that start need the machine too.
    """

    log: Waltz
    first: list[int] = field(default_factory=list)
    """Where each partition ended before."""
    acknowledged: list[dict[int, bytes]] = field(default_factory=lambda: [{} for _ in range(PARTITIONS)])
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Writers:
        self.first = [await self.log.hwm(partition) + 1 for partition in range(PARTITIONS)]
        writers = (self._decide, self._pipeline)
        self._tasks = [asyncio.create_task(writers[number % 2](number)) for number in range(PARTITIONS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def more(self, what: str) -> None:
        """Wait until appends of every partition that were begun from now on are acknowledged."""
        before = [len(found) for found in self.acknowledged]

        async def enough() -> bool:
            for task in self._tasks:
                assert not task.done() or task.result() is None, "a writer has ended"
            pairs = zip(self.acknowledged, before, strict=True)
            return all(len(found) >= was + MORE + UNDER_WAY for found, was in pairs)

        await eventually(enough, f"appends after {what}")

    async def compare(self) -> None:
        """Finish what is under way; then the log holds what was acknowledged, once, and nothing else."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        for partition, expected in enumerate(self.acknowledged):
            found = {tx.id: tx.data async for tx in self.log.read(partition, self.first[partition], 1 << 40)}
            assert found == expected, f"partition {partition}"
            assert len(set(found.values())) == len(found), f"partition {partition} holds an append twice"

    async def _decide(self, partition: int) -> None:
        async with self.log.view(partition, lambda _: None, from_=self.first[partition]) as view:
            while not self._stop.is_set():
                decided = b""

                def decide() -> bytes:
                    nonlocal decided
                    decided = b"%d" % (view.hwm + 1)
                    return decided

                txid = await view.transact(decide, write=[("all", 0)])
                assert txid == int(decided), "an append was committed elsewhere than it was decided for"
                self.acknowledged[partition][txid] = decided
                await asyncio.sleep(0.02)

    async def _pipeline(self, partition: int) -> None:
        async def write(writer: int) -> None:
            number = 0
            while not self._stop.is_set():
                data = b"%d/%d" % (writer, number)
                self.acknowledged[partition][await self.log.append(partition, data)] = data
                number += 1
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            for writer in range(UNDER_WAY):
                group.create_task(write(writer))


async def used(ledger: LogTest) -> None:
    """Write and read by the command, which goes by the REST API, and by the client."""
    assert ledger.say("append", "--write", "account/7", "by command") == "0\n"
    late = ledger.platform.run(
        "waltz", "append", "q", "--write", "account/7", "--seen", "-1", "late", "-n", ledger.namespace, check=False
    )
    assert late.returncode == CONFLICT, late
    assert "Nothing was written" in late.stderr
    async with ledger.client_of_log() as log:
        with pytest.raises(Conflict) as caught:
            await log.append(0, b"late too", write=[("account", 7)], seen=-1)
        assert caught.value.txid == 0
        assert await log.append(0, b"by client", header=5, write=[("account", 7)], seen=0) == 1
        assert (await log.get(0, 1)).data == b"by client"
        assert ledger.say("append", "by command again") == "2\n"
        fed = [transaction async for transaction in log.read(0, 0, 9)]
    assert [(one.id, one.header, one.data) for one in fed] == [
        (0, 0, b"by command"),
        (1, 5, b"by client"),
        (2, 0, b"by command again"),
    ]
    assert ledger.say("feed", "--count", "3") == "by command\nby client\nby command again\n"
    shown = json.loads(ledger.say("get", "1", "-o", "json"))
    assert base64.b64decode(shown["data"]) == b"by client"


def typed(ledger: LogTest) -> None:
    """The program of docs/waltz.md in a process of this machine, on a partition that is empty."""
    page = (Path(__file__).parents[1] / "docs" / "waltz.md").read_text("utf-8")
    program, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[:2]
    program = program.replace('"ledger"', f'"q", namespace="{ledger.namespace}"')
    program = re.sub(r"log\.(append|feed|view)\(0,", rf"log.\1({PARTITIONS - 1},", program)
    given = {name: value for name, value in os.environ.items() if name != HOSTS_FILE_VARIABLE}
    ran = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == (printed, "")


async def traced(ledger: LogTest) -> None:
    """An append through REST is one trace, from the request over the owner and three disks to who reads the feed."""
    last = ledger.say("append", "traced").strip()
    ledger.say("feed", "--from", last, "--count", "1")

    async def find() -> list[dict[str, Any]] | None:
        listed = ledger.platform.run("trace", "list", "--name", "POST", "--limit", "3", "-o", "json").stdout
        for item in json.loads(listed):
            shown = ledger.platform.run("trace", "show", item["trace_id"], "-o", "json").stdout
            spans: list[dict[str, Any]] = json.loads(shown)["spans"]
            names = [span["name"] for span in spans]
            if f"/namespaces/{ledger.namespace}/" in shown and names.count("waltz/store") == NODES:
                appended = [span["attributes"].get("pavane.waltz.transaction_id") for span in spans]
                if int(last) in appended and "waltz/feed" in names:
                    return spans
        return None

    spans = await eventually(find, "the trace with storage nodes and reader")
    by_name = {(span["name"], span["kind"]): span for span in spans}
    http = next(span for span in spans if span["name"].startswith("POST"))
    client = by_name["waltz/append", "CLIENT"]
    assert client["trace_id"] == http["trace_id"]
    assert client["parent_span_id"] == http["span_id"]
    (context,) = client["links"]
    linked = {
        (span["service"], span["instance"], span["name"])
        for span in spans
        if context in span["links"] and not span["parent_span_id"]
    }
    (server,) = {instance for service, instance, name in linked if (service, name) == ("waltz-server", "waltz/append")}
    assert server.startswith("q-server-")
    stored = {instance for service, instance, name in linked if (service, name) == ("waltz-storage", "waltz/store")}
    assert stored == {f"q-storage-{number}" for number in range(NODES)}
    assert [name for service, _, name in linked if service == "pavane-api"] == ["waltz/feed"]


async def reads_beside(ledger: LogTest, log: Waltz) -> None:
    """While its rollout is held, a server of the next generation reads what the owners have, and takes no append."""
    data = (await ledger.kube.get(SECRETS, "q-client", ledger.namespace))["data"]
    files = [base64.b64decode(data[name]).decode() for name in ("ca.crt", "tls.crt", "tls.key")]
    owner = (await log.partitions())[0].server or ""
    link = await Link.connect(parse_address(owner.replace("-g1", "-g2")), trusting(*files), 1)
    try:
        for partition in range(PARTITIONS):
            numbers = (ReqId(1, 1, partition, number) for number in count())
            async with asyncio.timeout(PATIENCE_S):  # it may not have seen the partition yet
                while isinstance(told := await link.ask(m.HighWaterMarkRequest(next(numbers)), PATIENCE_S), m.Reject):
                    await asyncio.sleep(0.05)
            hwm = told.txid
            assert hwm >= 0
            async for one in log.read(partition, max(0, hwm - MORE), hwm + 1):
                assert (await link.ask(m.TransactionDataRequest(next(numbers), one.id), PATIENCE_S)).result == one.data
            refused = await link.ask(m.AppendIdempotent(next(numbers), hwm, (), (), (), 0, 0, -1, 1, b""), PATIENCE_S)
            assert refused.code is RejectCode.READ_ONLY
    finally:
        await link.close()


@pytest.mark.timeout(TEST_S)
@pytest.mark.kinds
async def test_a_log_loses_and_doubles_nothing_under_kills_and_a_rollout(ledger: LogTest) -> None:
    await ledger.start(strategy="Manual")
    typed(ledger)
    await used(ledger)
    await traced(ledger)
    async with ledger.client_of_log() as log, Writers(log) as writers:
        await writers.more("the start")
        for victim in ("q-storage-1", "q-server-g1-0"):
            ledger.signal(victim, signal.SIGKILL)
            await writers.more(f"{victim} was killed")
            await ledger.until_replaced(victim)
        stopped = await owner_of(log, 0)
        ledger.signal(stopped, signal.SIGSTOP)  # with appends under way, which it finds when it goes on

        async def moved() -> bool:
            return await owner_of(log, 0) not in ("", stopped)

        await eventually(moved, f"partition 0 has left {stopped}, which stands still")
        await writers.more(f"{stopped} was stopped")
        ledger.signal(stopped, signal.SIGCONT)
        await writers.more(f"{stopped} went on")
        ledger.platform.run("rollout", "restart", "waltz/q", "-n", ledger.namespace)
        await ledger.until(lambda item: "WaitingForApproval" in blockers_of(item), "it waits for approval")
        await reads_beside(ledger, log)
        await writers.more("the next generation has read")
        ledger.platform.run("rollout", "promote", "waltz/q", "-n", ledger.namespace)
        document: dict[str, Any] = await ledger.until_current(generation=2)
        newest = document["status"]["history"][0]
        assert newest["result"] == "Promoted"
        assert newest["writeGapMs"] > 0
        await writers.more("the rollout")
        owners = {one.server for one in (await log.partitions()).values()}
        assert owners
        assert all("-g2-" in str(owner) for owner in owners), owners
        await writers.compare()
    assert await ledger.stateful_sets() == ["q-server-g2", "q-storage"]


@pytest.mark.timeout(TEST_S)
async def test_a_log_goes_back_to_the_servers_that_stand_by_and_keeps_what_it_took(ledger: LogTest) -> None:
    await ledger.start()
    await ledger.kube.patch(ledger.type, "q", {"spec": {"rollout": {"bake": "1h"}}}, ledger.namespace)
    async with ledger.client_of_log() as log, Writers(log) as writers:
        await writers.more("the start")
        ledger.platform.run("rollout", "restart", "waltz/q", "-n", ledger.namespace)
        await ledger.until(can_switch_back, "generation 1 stands by")
        await writers.more("the rollout")
        ledger.signal("q-server-g1-0", signal.SIGKILL)
        await ledger.until_restarted("q-server-g1-0")

        async def undone() -> bool:
            try:
                await undo(ledger.kube, ledger.type, ledger.namespace, "q")
            except Refused:
                return False
            return True

        await eventually(undone, "the pod that was killed follows again")
        document: dict[str, Any] = await ledger.until(
            lambda item: is_current(item) and item["status"]["activeGeneration"] == 1, "generation 1 serves again"
        )
        results = [(each["generation"], each["result"]) for each in document["status"]["history"]]
        assert results == [(1, "Promoted"), (2, "RolledBack")]
        assert document["status"]["history"][0]["writeGapMs"] > 0
        await writers.more("the way back")
        owners = {one.server for one in (await log.partitions()).values()}
        assert all("-g1-" in str(owner) for owner in owners), owners
        await writers.compare()
    assert await ledger.stateful_sets() == ["q-server-g1", "q-storage"]


@pytest.mark.timeout(TEST_S)
async def test_partitions_and_storage_nodes_change_under_appends_and_nothing_is_lost(ledger: LogTest) -> None:
    await ledger.start()

    async def change(**spec: Any) -> None:
        await ledger.kube.patch(ledger.type, "q", {"spec": spec}, ledger.namespace)

    wanted = NODES

    def on(item: Object) -> bool:
        counts = (item.get("status") or {}).get("partitions") or {}
        settled = counts.get("nodes") == wanted and not counts.get("moving")
        return settled and counts["total"] == counts["writable"] == counts["replicated"] == 4 * PARTITIONS

    async with ledger.client_of_log() as log, Writers(log) as writers:
        await writers.more("the start")
        await change(partitions=4 * PARTITIONS)
        await ledger.until(on, "it has more partitions")
        assert await log.append(4 * PARTITIONS - 1, b"new") == 0, "a client that was open finds them"
        await writers.more("more partitions")
        for wanted in (5, NODES):
            await change(storage={"nodes": wanted})
            await ledger.until(on, f"partitions count on {wanted} storage nodes")
            await writers.more(f"{wanted} storage nodes")

        async def gone() -> bool:
            pods = await ledger.kube.list(PODS, ledger.namespace)
            return {f"q-storage-{number}" for number in (3, 4)}.isdisjoint(
                pod["metadata"]["name"] for pod in pods.items
            )

        await eventually(gone, "pods of the nodes that nothing counts on any more are gone")
        await writers.more("their end")
        for secret in ("q-clients-ca", "q-clients", "q-ca"):
            await ledger.kube.delete(SECRETS, secret, ledger.namespace)
        await ledger.until(is_current, "its authorities are made anew")
        await writers.more("all certificates were taken back")
        await writers.compare()
    assert await ledger.stateful_sets() == ["q-server-g1", "q-storage"], "no generation has begun"

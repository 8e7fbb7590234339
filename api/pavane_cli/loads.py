"""Clients that use resources without a pause while these are killed and rolled out, and what became of their work."""

import asyncio
import base64
import contextlib
import random
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

import httpx2

from pavane.waltz.client import OutcomeUnknown, Transaction, View, Waltz, trusting
from pavane_api.kinds import RAFT_CLUSTERS, SWIM_GROUPS, WALTZ_CLUSTERS
from pavane_cli.access import raft_client
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.probe import SteadyWriter
from pavane_cli.target import Where
from pavane_operator import kube
from pavane_operator.kinds.swim.access import NotServing, group_members
from pavane_operator.kube.resources import SECRETS, Resource

ACCOUNTS = 8  # in each partition
OPENING = 100  # on each account
WRITERS = 2  # in each partition
PAUSE_S = 0.005
ASK_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load did: so much was acknowledged, of that so much lost and doubled; ``said`` is its proof in words."""

    done: int
    lost: int
    doubled: int
    said: str
    holds: bool


class Load(ABC):
    """Uses one resource from entering to ``stop``."""

    what: ClassVar[str]
    """What it does, as in "100 transfers"."""
    warm_up: ClassVar[int]
    """How much of it shows that it is under way."""

    def __init__(self, client: kube.KubeClient, document: kube.Object) -> None:
        self.kube = client
        self.document = document
        self.stopping = False
        self.tasks: list[asyncio.Task[None]] = []
        self.open = contextlib.AsyncExitStack()
        self._times: list[float] = []
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Begin."""
        try:
            await self.begin()
        except BaseException:
            await self.open.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, whatever is under way."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.open.aclose()

    @property
    def done(self) -> int:
        """How much was acknowledged so far."""
        return len(self._times)

    def acknowledged(self) -> None:
        """Count one more."""
        self._times.append(time.monotonic())
        self._moved.set()

    def longest_gap_s(self, since: float, until: float) -> float:
        """Return the longest time between two acknowledgements that touches [since, until] (monotonic seconds)."""
        pairs = zip(self._times, self._times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later >= since and earlier <= until), default=0.0)

    async def go_on(self) -> None:
        """Wait until ``warm_up`` more is done; raises the error that ended a client."""
        done = self.done + self.warm_up
        while self.done < done:
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait([moved, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
            for task in self.tasks:
                if task.done():
                    task.result()

    async def stop(self) -> Outcome:
        """Finish what is under way, and prove what became of all."""
        self.stopping = True
        await asyncio.gather(*self.tasks)
        return await self.prove()

    @abstractmethod
    async def begin(self) -> None:
        """Connect with what ``open`` closes, and start ``tasks`` that end when ``stopping`` is set."""

    @abstractmethod
    async def prove(self) -> Outcome:
        """Say what became of all that was acknowledged."""


def load_of(client: kube.KubeClient, resource: Resource, document: kube.Object, where: Where) -> Load:
    """Return the load for a resource that is Ready. Raises ``UserError``: there is none for its kind."""
    if resource == RAFT_CLUSTERS:
        return RaftLoad(client, document, where)
    if resource == SWIM_GROUPS:
        return SwimLoad(client, document)
    if resource == WALTZ_CLUSTERS:
        return WaltzLoad(client, document)
    raise UserError(f"the demo has no client for a {resource.kind}", ExitCode.USAGE)


def _label() -> str:
    """Return what marks everything that one run writes."""
    return f"demo-{time.time_ns()}"


class RaftLoad(Load):
    """Writes to a RaftCluster, and reads its log."""

    what = "writes"
    warm_up = 200

    def __init__(self, client: kube.KubeClient, document: kube.Object, where: Where) -> None:
        super().__init__(client, document)
        self._where = where

    async def begin(self) -> None:
        """Start the writer."""
        made = await raft_client(self.kube, self.document, self._where.kubeconfig)
        raft = await self.open.enter_async_context(made)
        self._writer = SteadyWriter(raft, _label(), told=self.acknowledged)
        self.open.push_async_callback(self._writer.cancel)
        self._writer.start()

    async def prove(self) -> Outcome:
        """Compare the log with what was acknowledged."""
        await self._writer.stop()
        proof = await self._writer.proof()
        said = f"{proof.unfenced} writes by a generation that might not write"
        return Outcome(proof.acknowledged, proof.lost, proof.doubled, said, proof.holds)


class SwimLoad(Load):
    """Asks a SwimGroup who is there."""

    what = "lookups"
    warm_up = 10

    async def begin(self) -> None:
        """Start to ask."""
        self._fewest = int(self.document["spec"]["replicas"])
        http = await self.open.enter_async_context(kube.pods_http())
        self.tasks.append(asyncio.create_task(self._ask(http)))

    async def _ask(self, http: httpx2.AsyncClient) -> None:
        metadata = self.document["metadata"]
        while not self.stopping:
            try:
                table = await group_members(http, self.document)
                self._fewest = min(self._fewest, len(table.members))
                self.acknowledged()
            except NotServing:  # pods of another generation may serve by now
                self.document = await self.kube.get(SWIM_GROUPS, metadata["name"], metadata["namespace"])
            await asyncio.sleep(ASK_PAUSE_S)

    async def prove(self) -> Outcome:
        """Nothing that was acknowledged can be lost: a lookup writes nothing."""
        return Outcome(self.done, 0, 0, f"never fewer than {self._fewest} members", self.done > 0)


class WaltzLoad(Load):
    """Transfers money between accounts; the log takes a transfer only if nobody changed either account meanwhile."""

    what = "transfers"
    warm_up = 200

    async def begin(self) -> None:
        """Open the accounts of every partition, and start the transfers."""
        metadata = self.document["metadata"]
        secret = await self.kube.get(SECRETS, f"{metadata['name']}-client", metadata["namespace"])
        data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        tls = trusting(data["ca.crt"]) if "ca.crt" in data else None
        self._label = _label()
        self._told: dict[tuple[int, str], int] = {}
        self._starts: dict[int, int] = {}
        self._log = await self.open.enter_async_context(Waltz(data["servers"].split(), tls=tls))
        for partition in range(self._log.partition_count):
            self._starts[partition] = await self._log.hwm(partition) + 1
            ledger = _Ledger(self._label)
            view = self._log.view(partition, ledger.apply, from_=self._starts[partition])
            await self.open.enter_async_context(view)
            for writer in range(WRITERS):
                self.tasks.append(asyncio.create_task(self._transfer(partition, writer, view, ledger)))

    async def _transfer(self, partition: int, writer: int, view: View, ledger: "_Ledger") -> None:
        number = 0
        choose = random.Random(f"{partition}/{writer}")  # noqa: S311 - a load
        while not self.stopping:
            number += 1
            payer, payee = choose.sample(range(ACCOUNTS), 2)
            amount = choose.randint(1, OPENING)
            name = f"{writer}/{number}"
            text = f"{self._label} {name} {payer} {payee} {amount}".encode()

            def build(text: bytes = text, payer: int = payer, amount: int = amount) -> bytes | None:
                return text if ledger.balances[payer] >= amount else None

            try:
                locks = [(self._label, payer), (self._label, payee)]
                done = await view.transact(build, write=locks)
            except OutcomeUnknown:
                continue  # it may stand in the log, once
            else:
                if done is not None:
                    self._told[partition, name] = done
                    self.acknowledged()
            await asyncio.sleep(PAUSE_S)

    async def prove(self) -> Outcome:
        """Read every partition, and add the accounts up."""
        ledgers = {partition: await self._ledger(partition) for partition in self._starts}
        lost = sum(ledgers[partition].found.get(name) != txid for (partition, name), txid in self._told.items())
        doubled = sum(ledger.doubled for ledger in ledgers.values())
        overdrawn = sum(ledger.overdrawn for ledger in ledgers.values())
        before = len(ledgers) * ACCOUNTS * OPENING
        after = sum(sum(ledger.balances) for ledger in ledgers.values())
        said = f"{before} in all accounts before, {after} after, none overdrawn"
        if overdrawn:
            said = f"{overdrawn} accounts overdrawn"
        holds = bool(self._told) and lost == doubled == overdrawn == 0 and before == after
        return Outcome(len(self._told), lost, doubled, said, holds)

    async def _ledger(self, partition: int) -> "_Ledger":
        """Read all that stands in the log."""
        ledger, start = _Ledger(self._label), self._starts[partition]
        async for transaction in self._log.read(partition, start, await self._log.hwm(partition) + 1):
            ledger.apply(transaction)
        return ledger


class _Ledger:
    """The accounts of one partition, and the transfers that stand in it."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.balances = [OPENING] * ACCOUNTS
        self.found: dict[str, int] = {}
        self.doubled = 0
        self.overdrawn = 0

    def apply(self, transaction: Transaction) -> None:
        """Take the next transaction; those of other runs of the demo are passed over."""
        label, *transfer = transaction.data.decode(errors="replace").split(" ")
        if label != self._label:
            return
        name, payer, payee, amount = transfer[0], int(transfer[1]), int(transfer[2]), int(transfer[3])
        self.doubled += name in self.found
        self.found[name] = transaction.id
        self.balances[payer] -= amount
        self.balances[payee] += amount
        self.overdrawn += self.balances[payer] < 0

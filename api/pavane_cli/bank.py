"""Clients of the bank of examples/platform.yaml: transfers between its accounts, readers of the view of its ledger."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx2

from pavane.dataflow.rows import Multiset
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from pavane_cli.books import BankProof, Books, Total, Transfer, ViewProof, prove_bank, prove_view
from pavane_cli.loads import Load, Outcome, new_label
from pavane_cli.plane import ApiError, RestClient
from pavane_cli.reach import ControlPlane
from pavane_cli.target import Where
from pavane_cli.waltz_reach import WaltzReach
from pavane_operator import kube

LEDGER = 0
"""The partition that the accounts write to."""
OPENING = 1000
AMOUNT_MAX = 5
CALLERS = 2
"""Of each account."""
PAUSE_S = 0.1
AGAIN_S = 0.1
PATIENCE_S = 90.0
"""For an answer, while pods are killed and rolled out."""
PASSING = frozenset({503, 504})
VIEW = "balances"
QUERY = f"SELECT account, sent, balance FROM {VIEW}"  # noqa: S608 - a constant


class BankLoad(Load):
    """Transfers money between all accounts through the REST API, and adds up what the log has of it."""

    warm_up = 10

    def __init__(
        self,
        client: kube.KubeClient,
        accounts: Sequence[kube.Object],
        log: kube.Object,
        where: Where,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(client)
        self.accounts = [each["metadata"]["name"] for each in accounts]
        self.money = 0
        """All that there is."""
        self.books = Books()
        """The ledger, once ``stop`` has read it."""
        self.proof: BankProof | None = None
        metadata = log["metadata"]
        self._namespace = metadata["namespace"]
        plane = ControlPlane(where.kubeconfig, where.context, self._namespace)
        self._reach = WaltzReach(plane, metadata["name"], partition=LEDGER, patience=patience_s)
        self._told: dict[str, Transfer] = {}
        self.log: Waltz
        self._rest: RestClient

    async def begin(self) -> None:
        """Put money in where there is none, and start the callers."""
        self._rest = await self.open.enter_async_context(self._reach.rest())
        self.log = await self.open.enter_async_context(self._reach.log())
        label = new_label()
        if not sum((await self._at_rest()).values()):
            for account in self.accounts:
                await self._call(account, "open", [OPENING], f"{label}/open/{account}")
        self.money = sum((await self._at_rest()).values())
        for account in self.accounts:
            for caller in range(CALLERS):
                self.tasks.append(asyncio.create_task(self._transfer(account, f"{label}/{account}/{caller}")))

    async def prove(self) -> Outcome:
        """Add the ledger up, and ask the accounts."""
        async for transaction in self.log.read(LEDGER, 0, await self.log.hwm(LEDGER) + 1):
            self.books.take(transaction.data)
        self.proof = proof = prove_bank(self._told, self.books, self.money, await self._at_rest())
        return Outcome(proof.acknowledged, proof.lost, proof.doubled, proof.said, proof.holds)

    async def _transfer(self, payer: str, label: str) -> None:
        choose = random.Random(label)  # noqa: S311 - a load
        others = [account for account in self.accounts if account != payer]
        number = 0
        while not self.stopping:
            number += 1
            reference = f"{label}/{number}"
            transfer = Transfer(payer, choose.choice(others), choose.randint(1, AMOUNT_MAX))
            if await self._call(payer, "transfer", [transfer.payee, transfer.amount, reference], reference):
                self._told[reference] = transfer
                self.acknowledged()
            await asyncio.sleep(PAUSE_S)

    async def _call(self, account: str, method: str, arguments: list[Any], key: str) -> Any:
        """Call until somebody answers: with the same key it happens once."""
        return await self._ask("POST", f"{account}/call/{method}", arguments, {"Idempotency-Key": key})

    async def _ask(self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        end = time.monotonic() + self._reach.patience
        while True:
            try:
                answer = await self._rest.send(
                    verb, f"/namespaces/{self._namespace}/coordinators/{path}", body, headers
                )
            except (ApiError, httpx2.TransportError) as error:
                passing = not isinstance(error, ApiError) or error.status in PASSING
                if not passing or time.monotonic() > end:
                    raise
            else:
                return answer["result"]
            await asyncio.sleep(AGAIN_S)

    async def _at_rest(self) -> dict[str, int]:
        """Return the balances as soon as no money is on its way; those of a former run may still end."""
        while True:
            asked = await asyncio.gather(*(self._ask("GET", f"{account}/query/money") for account in self.accounts))
            if not any(money["on_the_way"] for money in asked):
                return dict(zip(self.accounts, (money["balance"] for money in asked), strict=True))
            await asyncio.sleep(AGAIN_S)


class ViewLoad(Load):
    """Follows the view of the ledger: at each tick its balances must add up to the money that there is."""

    warm_up = 5

    def __init__(self, client: kube.KubeClient, document: kube.Object, bank: BankLoad) -> None:
        super().__init__(client)
        self._bank = bank
        self._partitions = document["spec"]["partitions"]
        self._sums: Counter[int] = Counter()
        self.proof: ViewProof | None = None

    async def begin(self) -> None:
        """Wait until the view has all the money, and start to read."""
        self.tasks.append(asyncio.create_task(self._follow(await self._last_tick())))

    async def stop(self) -> Outcome:
        """Compare the view with the ledger; the bank must have stopped."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled():
                task.result()  # what ended it
        return await self.prove()

    async def prove(self) -> Outcome:
        """Read the view at a tick that has the end of the log."""
        tick = await self._last_tick()
        views = Views(self._bank.log, self._partitions["views"])
        await views.read_on({VIEW: tick + 1})
        rows = views.query(QUERY, tick)[1].to_pylist()
        view = {row["account"]: Total(row["sent"], row["balance"]) for row in rows}
        self.proof = proof = prove_view(view, self._bank.books, self._sums, self._bank.money)
        words = f"the balances added up to {self._bank.money} at {proof.ticks - proof.wrong} of {proof.ticks} ticks"
        said = f"{words}; at the last one they are {'those' if proof.equal else 'NOT those'} of the log"
        return Outcome(proof.ticks, proof.lost, proof.doubled, said, proof.holds)

    async def _last_tick(self) -> int:
        """Wait for a tick that has the end of the ledger."""
        log = self._bank.log
        ticks = Ticks(log, self._partitions["ticks"], [LEDGER], lambda: 0)
        return await ticks.including(LEDGER, await log.hwm(LEDGER))

    async def _follow(self, after: int) -> None:
        held = Multiset()
        views = Views(self._bank.log, self._partitions["views"])
        async with contextlib.aclosing(views.follow(VIEW)) as steps:
            async for columns, changes in steps:
                balance = columns.index("balance")
                for tick in sorted({at for _, at, _ in changes}):
                    for row, at, diff in changes:
                        if at == tick:
                            held.add(row, diff)
                    if tick > after:
                        self._sums[sum(row[balance] * count for row, count in held.counts.items())] += 1
                        self.acknowledged()

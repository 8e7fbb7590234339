"""Accounts with a ledger: what moves stands in a log, once, whatever is killed, and adds up to the balances.

LEDGER_SERVERS, LEDGER_CA, LEDGER_CERTIFICATE and LEDGER_KEY are `servers`, `ca.crt`, `tls.crt` and `tls.key` of the
Secret NAME-client of a WaltzCluster. A pod reads them once: it has to be made anew within `tls.duration` of the log.
"""

import json
import os

from bank import Account

from pavane.ambrosia import method
from pavane.waltz.client import Conflict, OutcomeUnknown, Unavailable, Waltz, trusting

PARTITION = 0


class Booked(Account):
    """An account that books what it does."""

    @method
    async def open(self, amount: int, reference: str = "") -> int:
        """Put the first money in."""
        seen = await self.run(end_of_ledger)
        balance = self.deposit("cash", amount)
        await self.run(book, [entry(self.uuid(), self.name, amount, reference)], seen)
        return balance

    @method
    async def transfer(self, to: str, amount: int, reference: str = "") -> bool:
        """Move money to another account and book it; False if there is not enough."""
        seen = await self.run(end_of_ledger)
        if not await super().transfer(to, amount):
            return False
        number = self.uuid()
        rows = [entry(number, self.name, -amount, reference), entry(number, to, amount, reference)]
        await self.run(book, rows, seen)
        return True


def entry(number: object, account: str, amount: int, reference: str) -> dict[str, object]:
    """Return one row of the ledger; those of a transfer have the same number and add up to 0."""
    return {"transfer": str(number), "account": account, "amount": amount, "reference": reference}


async def end_of_ledger() -> int:
    """Return the last transaction that there is."""
    return await (await ledger()).hwm(PARTITION)


async def book(rows: list[dict[str, object]], seen: int) -> int:
    """Append rows that do not stand at or before the transaction `seen`; return the one in which they stand."""
    data = json.dumps(rows).encode()
    locks = [(f"account/{row['account']}", 0) for row in rows]
    while True:
        try:
            return await append_once(data, locks, seen)
        except (OutcomeUnknown, Unavailable):
            pass  # the client has waited for half a minute; the money has moved, so it has to be booked


async def append_once(data: bytes, locks: list[tuple[str, int]], seen: int) -> int:
    """Append, or find what an attempt before has appended.

    `run` repeats `book` if the process was killed before the result was logged. The attempt before may have got
    through, or be on its way still. It writes the same locks, so the second of the two conflicts, reads on, and finds
    the first.
    """
    log = await ledger()
    while True:
        try:
            return await log.append(PARTITION, data, write=locks, seen=seen)
        except Conflict as conflict:
            end = conflict.txid + 1
        async for transaction in log.read(PARTITION, seen + 1, end):
            seen = transaction.id
            if transaction.data == data:
                return seen


_ledger: list[Waltz] = []


async def ledger() -> Waltz:
    """Return the client of the log, which finds its way through fail-overs and rollouts by itself."""
    if not _ledger:
        authority, *shown = (os.environ.get(f"LEDGER_{name}", "") for name in ("CA", "CERTIFICATE", "KEY"))
        tls = trusting(authority, *shown) if authority else None
        log = await Waltz(os.environ["LEDGER_SERVERS"].split(), tls=tls).__aenter__()
        _ledger.append(log)
    return _ledger[0]

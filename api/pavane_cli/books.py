"""Arithmetic of the bank's proof: what was acknowledged, against accounts, log and view (examples/bank/ledger.py)."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Transfer(NamedTuple):
    """Money that moves from one account to another."""

    payer: str
    payee: str
    amount: int


class Total(NamedTuple):
    """An account as the log has it, and as the view has it: transfers from it, and its money."""

    sent: int = 0
    balance: int = 0


@dataclass(slots=True)
class Books:
    """The ledger, added up; ``found`` are its transfers by their references."""

    totals: dict[str, Total] = field(default_factory=dict)
    found: dict[str, list[Transfer]] = field(default_factory=dict)

    def take(self, data: bytes) -> None:
        """Add the next transaction; ignore one that is not the bank's, as the view does."""
        try:
            rows = [(row["account"], row["amount"], row["reference"]) for row in json.loads(data)]
        except (ValueError, KeyError, TypeError):
            return
        for account, amount, _ in rows:
            sent, balance = self.totals.get(account, Total())
            self.totals[account] = Total(sent + (amount < 0), balance + amount)
        if len(rows) == 2:
            (payer, _, reference), (payee, amount, _) = rows
            self.found.setdefault(reference, []).append(Transfer(payer, payee, amount))

    @property
    def transfers(self) -> int:
        """How many transfers there are."""
        return sum(total.sent for total in self.totals.values())


@dataclass(frozen=True, slots=True)
class BankProof:
    """The acknowledged transfers and the money, compared with the log and the accounts."""

    acknowledged: int
    lost: int
    """Acknowledged transfers that are missing in the log, or stand there with other values."""
    doubled: int
    """Transfers that stand in the log once more than they were asked for."""
    before: int
    after: int
    """The money in all accounts."""
    differing: Mapping[str, tuple[int, int]]
    """Accounts whose balance is not what the log adds up to: both numbers."""

    @property
    def holds(self) -> bool:
        """Whether each transfer stands there once, and the money is all there."""
        right = self.lost == self.doubled == 0 and self.before == self.after and not self.differing
        return self.acknowledged > 0 and right

    @property
    def said(self) -> str:
        """The proof as a sentence for people."""
        words = f"{self.before} in all accounts before, {self.after} after"
        if not self.differing:
            return f"{words}; the log has the same in each account"
        wrong = ", ".join(f"{name} has {has}, in the log {booked}" for name, (has, booked) in self.differing.items())
        return f"{words}; {wrong}"


def prove_bank(told: Mapping[str, Transfer], books: Books, before: int, accounts: Mapping[str, int]) -> BankProof:
    """Compare transfers that were acknowledged, by reference, and the accounts with the ledger from its beginning."""
    names = sorted(accounts.keys() | books.totals.keys())
    both = {name: (accounts.get(name, 0), books.totals.get(name, Total()).balance) for name in names}
    return BankProof(
        acknowledged=len(told),
        lost=sum(transfer not in books.found.get(reference, ()) for reference, transfer in told.items()),
        doubled=sum(len(books.found.get(reference, ())) - 1 for reference in told if reference in books.found),
        before=before,
        after=sum(accounts.values()),
        differing={name: (has, booked) for name, (has, booked) in both.items() if has != booked},
    )


@dataclass(frozen=True, slots=True)
class ViewProof:
    """Whether a view of the ledger is the ledger."""

    ticks: int
    """Ticks that were read."""
    wrong: int
    """Ticks at which the balances did not add up to the money that there is."""
    lost: int
    """Transfers of the log that the view has not, at a tick that has the log's end."""
    doubled: int
    """Transfers that it has and the log has not."""
    equal: bool
    """Whether each row is what the log adds up to."""

    @property
    def holds(self) -> bool:
        """Whether it was right at each tick, and is now."""
        return self.ticks > 0 and self.wrong == 0 and self.equal


def prove_view(rows: Mapping[str, Total], books: Books, ticks: Counter[int], money: int) -> ViewProof:
    """Compare a view with the ledger; ``ticks`` says at how many ticks its balances added up to how much."""
    missing = books.transfers - sum(total.sent for total in rows.values())
    return ViewProof(
        ticks=ticks.total(),
        wrong=ticks.total() - ticks[money],
        lost=max(0, missing),
        doubled=max(0, -missing),
        equal=dict(rows) == books.totals,
    )

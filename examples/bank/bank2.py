"""Version 2 of the bank: an account keeps a statement of what came and went. Money and open transfers are taken over.

pavane ambrosia run bank:Account --name alice --version 2 --upgrade bank2:Account
"""

import bank

from pavane.ambrosia import method, query

LINES_KEPT = 20


class Account(bank.Account):
    """An account with a statement. What was logged with version 1 is replayed by `bank.Account`."""

    statement: list[str]

    def upgrade(self, old_version: int, old: bank.Account) -> None:
        """Begin the statement, once, when version 1 ends; balances are here already."""
        self.note(f"brought forward: {old.balance}")

    def note(self, line: str) -> None:
        """Write a line; the first one stays, of the others the oldest go."""
        first, *others = [*self.statement, line]
        self.statement = [first, *others[1 - LINES_KEPT :]]

    @method
    def open(self, amount: int) -> int:
        """Put the first money in."""
        self.note(f"opened with {amount}")
        return super().open(amount)

    @method
    def deposit(self, sender: str, amount: int) -> int:
        """Take money from another account."""
        balance = super().deposit(sender, amount)
        self.note(f"{amount} from {sender}")
        return balance

    def debit(self, amount: int) -> bool:
        """Take the money out before it travels."""
        left = super().debit(amount)
        if left:
            self.note(f"{amount} left")
        return left

    def settle(self, amount: int, *, arrived: bool) -> None:
        """Forget money that has arrived, take back money that was refused."""
        super().settle(amount, arrived=arrived)
        if not arrived:
            self.note(f"{amount} came back")

    @query
    def lines(self) -> list[str]:
        """Show the statement."""
        return self.statement

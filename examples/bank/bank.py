"""Accounts that transfer money. Kill whatever you like, whenever you like: the sum over all accounts never changes.

pavane ambrosia run bank:Account --name alice
"""

from pavane.ambrosia import Immortal, RemoteError, method, query


class Account(Immortal):
    """One account is one immortal: its name is its number."""

    balance: int = 0
    on_the_way: int = 0

    @method
    def open(self, amount: int) -> int:
        """Put the first money in."""
        self.balance += amount
        return self.balance

    @method
    def deposit(self, sender: str, amount: int) -> int:
        """Take money from another account."""
        if amount <= 0:
            raise ValueError(f"{sender} sent {amount}: an amount is positive")
        self.balance += amount
        return self.balance

    @method
    async def transfer(self, to: str, amount: int) -> bool:
        """Move money to another account; False if there is not enough. It may take days, but it happens once."""
        if not self.debit(amount):
            return False
        try:
            await self.call(Account.deposit, to, self.name, amount)
        except RemoteError:
            self.settle(amount, arrived=False)
            return False
        self.settle(amount, arrived=True)
        return True

    def debit(self, amount: int) -> bool:
        """Take the money out before it travels."""
        if not 0 < amount <= self.balance:
            return False
        self.balance -= amount
        self.on_the_way += amount
        return True

    def settle(self, amount: int, *, arrived: bool) -> None:
        """Forget money that has arrived, take back money that was refused."""
        self.on_the_way -= amount
        if not arrived:
            self.balance += amount

    @query
    def money(self) -> dict[str, int]:
        """Show what is here and what has left but is not acknowledged yet."""
        return {"balance": self.balance, "on_the_way": self.on_the_way}

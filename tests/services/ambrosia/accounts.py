"""The printed example of the binding."""

from pavane.ambrosia import Immortal, method, query


class Audit(Immortal):
    seen: list[tuple[str, int]]

    @method
    def saw(self, name: str, amount: int) -> None:
        self.seen.append((name, amount))


class Account(Immortal):
    balance: int = 0
    held: dict[str, int]

    def first_start(self) -> None:
        self.held = {}

    @method
    def deposit(self, amount: int) -> int:
        self.balance += amount
        self.fork(Audit.saw, "audit", self.name, amount)
        return self.balance

    @method
    async def transfer(self, to: str, amount: int) -> bool:
        if not self.debit(amount):
            return False
        await self.call(Account.deposit, to, amount)
        return True

    def debit(self, amount: int) -> bool:
        if self.balance < amount:
            return False
        self.balance -= amount
        return True

    @query
    def total(self) -> int:
        return self.balance

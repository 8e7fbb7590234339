"""What the type checker says about the printed example: `make check` fails when a wrong call is not an error."""

from typing import assert_type

from pavane.ambrosia import Handle, Immortal, Retry, first, gather, method
from tests.services.ambrosia.accounts import Account, Audit


class Caller(Immortal):
    """Calls both kinds of methods."""

    @method
    async def right(self) -> None:
        assert_type(await self.call(Account.deposit, "bob", 5), int)
        assert_type(await self.call(Account.transfer, "bob", "alice", 5), bool)
        assert_type(await gather(self.call(Account.deposit, "bob", 5), self.now()), tuple[int, int])
        assert_type(await first(self.call(Account.deposit, "bob", 5), self.sleep(1)), int | None)
        assert_type(await self.run(len, "abc"), int)
        assert_type(await self.run(Retry(attempts=3), len, "abc"), int)
        self.fork(Audit.saw, "audit", self.name, 1)
        self.start(Caller.right)

    @method
    async def wrong(self) -> None:
        await self.call(Account.deposit, "bob", "five")  # type: ignore[call-overload]
        await self.call(Account.deposit, "bob")  # type: ignore[call-overload]
        self.fork(Audit.saw, "audit", 1, 1)  # type: ignore[arg-type]
        self.start(Account.transfer, "bob")  # type: ignore[call-arg]
        await self.run(Retry(), len, 5)  # type: ignore[call-overload]
        self.restart(Caller.again, "five")  # type: ignore[arg-type]

    @method
    async def again(self, left: int) -> int:
        if left:
            self.restart(Caller.again, left - 1)
        return left

    @method
    async def for_ever(self) -> int:
        self.restart(Caller.for_ever)  # never returns, so no result is missing


async def outside(alice: Handle[Account]) -> None:
    """Use a handle."""
    assert_type(await alice.key("request-17").call(Account.deposit, 5), int)
    assert_type(await alice.call(Account.transfer, "bob", 5), bool)
    assert_type(await alice.query(Account.total), int)
    alice.impulse(Account.transfer, "bob", 5)
    await alice.call(Account.deposit, "five")  # type: ignore[call-overload]
    alice.impulse(Audit.saw, "alice", 5)  # type: ignore[arg-type]

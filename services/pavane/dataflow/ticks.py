"""The clock of a pipeline: bindings in a partition of the log that is for nothing else (docs/specs/compute.md 13).

Every binding is whole, and carries the tick, so any tick is found by bisection. What others appended is stepped over.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import UnionType

from pavane.dataflow.entries import CHAIN_HEADER, Fence, Minted, Rank, Token, decode, encode
from pavane.dataflow.log import Log, Transaction
from pavane.dataflow.ports import Binding, Fenced
from pavane.waltz.errors import Conflict, OutcomeUnknown

CHAIN = "ticks"
POLL_S = 0.05
"""Between two looks at the end of the partition by who waits for a tick."""


class Ticks:
    """The tick log in one partition. `now_ms` is the wall clock that bindings carry.

    Who only reads calls `start` and `read_on`; who mints calls `fence` once, then `mint`.
    """

    def __init__(self, log: Log, partition: int, bound: Sequence[int], now_ms: Callable[[], int]) -> None:
        if partition in bound:
            raise ValueError(f"partition {partition} holds the ticks, so no table can read it")
        self._log = log
        self._partition = partition
        self._bound = tuple(bound)
        self._now_ms = now_ms
        self._position = 0  # everything before it was read
        self._last: Binding | None = None
        self._new: list[Binding] = []  # read, and not yet handed out
        self._rank = Rank()  # the greatest that was read
        self._own: Rank | None = None

    async def last(self) -> int:
        """Return the last tick there is now, 0 before the first."""
        end = await self._log.hwm(self._partition) + 1
        found = await self._before(end)
        return found.tick if found is not None else 0

    async def rank(self) -> Rank:
        """Return the greatest rank that has written here."""
        found = await self._last_of(Fence | Minted, await self._log.hwm(self._partition) + 1)
        return found.rank if found is not None else Rank()

    async def start(self, tick: int) -> None:
        """Begin to read at the first binding with this tick or a later one."""
        self._position, found = await self._first(tick)
        self._last = Binding(found.tick, found.next, found.wall_ms) if found is not None else None

    async def at(self, tick: int) -> Binding | None:
        """Return the binding of a tick, None where there is none."""
        _, found = await self._first(tick + 1)
        return Binding(found.tick, found.next, found.wall_ms) if found is not None and found.tick == tick else None

    async def _first(self, tick: int) -> tuple[int, Minted | None]:
        """Return the position of the first binding with this tick or a later one, and the binding before it."""
        low, high = 0, await self._log.hwm(self._partition) + 1
        while low < high:
            middle = (low + high) // 2
            found = await self._before(middle + 1)
            if found is not None and found.tick >= tick:
                high = middle
            else:
                low = middle + 1
        return low, await self._before(low)

    async def read_on(self) -> Sequence[Binding]:
        """Return the bindings that came since the last call, in order; empty when there are none."""
        await self._read(await self._log.hwm(self._partition) + 1)
        found, self._new = self._new, []
        return found

    async def including(self, partition: int, txid: int) -> int:
        """Wait for a tick that includes a transaction, and return it: who reads there reads it."""
        if partition not in self._bound:
            raise ValueError(f"no table reads partition {partition}")
        while True:
            await self._read(await self._log.hwm(self._partition) + 1)
            if self._last is not None and self._last.next.get(partition, 0) > txid:
                return self._last.tick
            await asyncio.sleep(POLL_S)

    async def fence(self, token: Token) -> None:
        """Take the right to mint for a token. Raises `Fenced` if somebody with a greater token has it."""
        own = Rank(*token)
        await self._read(await self._log.hwm(self._partition) + 1)
        while self._rank != own:
            self._check(own)
            await self._append(Fence(CHAIN, own))
        self._own = own

    async def mint(self, *, at_rest: bool = False) -> None:
        """Append the next tick if a high-water mark moved, or `at_rest`, and the first one. Raises `Fenced` as `fence`.

        Who takes over mints at rest: where its views are others than those in the chains, they show from this tick on.
        So does whose views change with time alone. Where the clock went back, the tick's wall time stays as it was.
        """
        if self._own is None:
            raise RuntimeError("mint before fence")
        last = self._last
        following = dict(last.next) if last is not None else {}
        ends = await asyncio.gather(*(self._log.hwm(partition) for partition in self._bound))
        for partition, end in zip(self._bound, ends, strict=True):
            following[partition] = max(following.get(partition, 0), end + 1)
        if last is not None and following == last.next and not at_rest:
            return
        tick = last.tick + 1 if last is not None else 1
        wall_ms = max(self._now_ms(), last.wall_ms if last is not None else 0)
        await self._append(Minted(CHAIN, self._own, tick, following, wall_ms))
        self._check(self._own)

    def check(self) -> None:
        """Raise `Fenced` if somebody with a greater token than our own has written here, as far as it was read."""
        if self._own is not None:
            self._check(self._own)

    def _check(self, own: Rank) -> None:
        if self._rank > own:
            raise Fenced(f"generation {self._rank.writer}, epoch {self._rank.epoch} mints ticks")

    async def _append(self, entry: Fence | Minted) -> None:
        """Append an entry if nobody did meanwhile; either way read on, for only what was read counts."""
        end = 0
        try:
            end = await self._log.append(
                self._partition, encode(entry), header=CHAIN_HEADER, write=[(CHAIN, 0)], seen=self._position - 1
            )
        except Conflict as conflict:
            end = conflict.txid
        except OutcomeUnknown:
            end = await self._log.hwm(self._partition)  # it comes before the next append, which fails then, or never
        await self._read(end + 1)

    async def _read(self, end: int) -> None:
        while self._position < end:
            async for transaction in self._log.read(self._partition, self._position, end):
                entry = _entry(transaction)
                self._position = transaction.id + 1
                if entry is None:
                    continue
                self._rank = max(self._rank, entry.rank)
                if isinstance(entry, Minted):
                    self._last = Binding(entry.tick, entry.next, entry.wall_ms)
                    self._new.append(self._last)
            if self._position < end:  # this server lags
                await asyncio.sleep(POLL_S)

    async def _before(self, position: int) -> Minted | None:
        """Return the last binding before a position; fences lie between them."""
        found = await self._last_of(Minted, position)
        assert found is None or isinstance(found, Minted)  # noqa: S101 - that was asked for
        return found

    async def _last_of(self, kind: type | UnionType, position: int) -> Fence | Minted | None:
        while position > 0:
            position -= 1
            entry = _entry(await self._log.get(self._partition, position))
            if isinstance(entry, kind):
                return entry
        return None


def _entry(transaction: Transaction) -> Fence | Minted | None:
    """Return the entry of a transaction, None for what somebody else appended: no reason to stop the clock."""
    entry = decode(transaction.header, transaction.data)
    return entry if isinstance(entry, Fence | Minted) and entry.chain == CHAIN else None

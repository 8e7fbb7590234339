"""Views of ComputeClusters as the control plane keeps them: read from the log once, then only what came since.

The chain in the log is what a view is, so reads are right and possible while no pod runs, and no rollout is seen.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import pyarrow as pa

from pavane.dataflow.confined import Confined
from pavane.dataflow.entries import EntryError
from pavane.dataflow.evaluating import Evaluator, Limits, QueryTooLarge
from pavane.dataflow.ports import Binding
from pavane.dataflow.querying import Query
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.views import ViewReader, Views
from pavane.waltz.client import Waltz
from pavane.waltz.errors import Unavailable as LogUnavailable
from pavane_api.lending import Pool
from pavane_api.problems import Conflict, TooLarge, TooManyRequests, Unavailable
from pavane_api.waltz_clients import WaltzClients

CLUSTERS_MAX = 16  # whose views are kept; those that were not asked for longest are read anew
BYTES_MAX = 64 * 1024 * 1024  # of all kept views: a sixteenth of what the chart grants the pod
UPDATES_KEPT = 20_000  # of each view, for reads at earlier ticks and for streams that come back
BINDINGS_KEPT = 10_000  # ticks of whose time is known
LAG_S = 1.0  # to ask the log where the partitions of tables end
LOOK_S = 20.0  # to read what came; callers wait 30 s for an answer
QUERIES_MAX = 2  # at once: they need a processor each
SHARE_MAX = 1  # of them, for one namespace, so that a tenant takes nobody else's
WAITING_MAX = 8  # of one namespace
QUERY = Limits(rows=10_000, bytes=16 * 1024 * 1024, seconds=10.0, memory_bytes=128 * 1024 * 1024)


@dataclass(slots=True)
class Kept:
    """The views of one ComputeCluster, and its ticks."""

    log: Waltz
    ticks_in: int
    views: Views
    ticks: Ticks
    bindings: deque[Binding] = field(default_factory=lambda: deque(maxlen=BINDINGS_KEPT))
    _abreast_ms: int = 0
    """When the ticks last included all of the tables' partitions."""
    _begun: bool = False
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> None:
        """Read views and ticks to what is their end now. Raises ``Unavailable`` when that takes long, ``Conflict`` for
        a partition that cannot be read."""
        try:
            async with asyncio.timeout(LOOK_S), self._reading:
                if not self._begun:
                    await self.ticks.start(await self.ticks.last())
                    self._begun = True
                await self.views.look()
                self.bindings.extend(await self.ticks.read_on())
        except TimeoutError as error:
            text = f"The views are being read from the log, {self.views.position} transactions so far: ask again."
            raise Unavailable(text, headers={"Retry-After": "1"}) from error
        except EntryError as error:
            raise Conflict(f"{error}.") from error
        except QueryTooLarge as error:
            raise TooLarge(f"{error}. `pavane sql query` reads views of any size from the log itself.") from error

    @property
    def readers(self) -> dict[str, ViewReader]:
        """The views that count this ComputeCluster's ticks and are built, by name; others may share their partition."""
        return {
            name: reader
            for name, reader in self.views.readers.items()
            if reader.created.ticks == self.ticks_in and reader.tick >= reader.since
        }

    @property
    def last(self) -> Binding | None:
        """The last tick."""
        return self.bindings[-1] if self.bindings else None

    async def stale_ms(self, tick: int, partitions: Iterable[int], now_ms: int) -> int | None:
        """Return for how long, at most, views at ``tick`` have lacked a later tick or what no tick includes of the
        partitions of their tables, as while no pod keeps them; None where the log does not say."""
        if self.last is None:
            return None
        try:
            async with asyncio.timeout(LAG_S):
                asked = sorted(partitions)
                ends = await asyncio.gather(*map(self.log.hwm, asked))
        except (TimeoutError, LogUnavailable):
            return None
        if all(self.last.next.get(partition, 0) > end for partition, end in zip(asked, ends, strict=True)):
            self._abreast_ms = now_ms
        lacked_ms = max(0, now_ms - max(self._abreast_ms, self.last.wall_ms))
        return max(lacked_ms, self.lag_ms(tick, now_ms))

    def lag_ms(self, tick: int, now_ms: int) -> int:
        """Return for how long a view that is final at ``tick`` has lacked a later one; 0 = it lacks none."""
        lacking = next((binding for binding in self.bindings if binding.tick > tick), None)
        return 0 if lacking is None else max(0, now_ms - lacking.wall_ms)


class KeptViews:
    """Views by namespace and name of the ComputeCluster, at most CLUSTERS_MAX and BYTES_MAX."""

    def __init__(self, logs: WaltzClients) -> None:
        self._logs = logs
        self._evaluator: Evaluator | None = None  # made when the first one asks: it takes memory
        self._pool = Pool[Kept](CLUSTERS_MAX, lambda kept: sum(each.views.size for each in kept) > BYTES_MAX)

    @asynccontextmanager
    async def of(self, namespace: str, name: str, log_name: str, ticks: int, views: int) -> AsyncIterator[Kept]:
        """Lend the views of a ComputeCluster with these partitions; raises as ``WaltzClients.of``."""
        async with self._logs.of(namespace, log_name) as log:

            async def make() -> AbstractAsyncContextManager[Kept]:
                self._evaluator = self._evaluator or Evaluator(QUERY)
                read = Views(log, views, self._evaluator, UPDATES_KEPT, BYTES_MAX)
                return nullcontext(Kept(log, ticks, read, Ticks(log, ticks, (), _no_clock)))

            async with self._pool.lend((namespace, name), (log, ticks, views), make) as kept:
                yield kept


Answering = Callable[[Query, Callable[[], dict[str, pa.Table]]], Awaitable[pa.Table]]


class Queries:
    """Admits so many queries at once, of each namespace its share, and runs them in processes of their own."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._confined: Confined | None = None  # made when the first one asks: it takes memory

    @asynccontextmanager
    async def admitted(self, namespace: str) -> AsyncIterator[Answering]:
        """Lend what answers a query over tables; raises ``TooManyRequests`` where too many of the namespace wait."""
        tenant = self._tenants.setdefault(namespace, _Tenant())
        if tenant.queries >= WAITING_MAX + SHARE_MAX:
            text = f"{WAITING_MAX} queries of namespace {namespace} wait already."
            raise TooManyRequests(text, headers={"Retry-After": "1"})
        self._confined = confined = self._confined or Confined(QUERY, QUERIES_MAX)
        confined.warm()

        async def answer(query: Query, tables: Callable[[], dict[str, pa.Table]]) -> pa.Table:
            async with tenant.turn:
                return await confined.answer(query, await asyncio.to_thread(tables))

        tenant.queries += 1
        try:
            yield answer
        finally:
            tenant.queries -= 1
            if not tenant.queries:
                del self._tenants[namespace]

    async def close(self) -> None:
        """End the processes."""
        if self._confined is not None:
            await self._confined.close()


@dataclass(slots=True)
class _Tenant:
    queries: int = 0
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SHARE_MAX))


def _no_clock() -> int:
    raise AssertionError("who only reads mints no tick")

"""Where the partitions are: the view that any server gives, and one shared link to each server that is used."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from pavane.runtime.forks import Process
from pavane.waltz.client.link import Address, Link, Route, parse_address
from pavane.waltz.core.client import PASSING
from pavane.waltz.errors import Closed, Rejected, Unavailable, rejected
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.wire import Stage

ANSWER_SECONDS = 2.0  # for a request that a server answers from memory
RETRY_SECONDS = 0.1  # between two tries to connect
VIEW_SECONDS, VIEW_SECONDS_MAX = 0.02, 0.2  # between two views: more from one to the next while nothing changes
LULL_SECONDS = 1.0  # without a question, after which the next two may follow each other closely again
IDLE_LINKS_MAX = 4  # readers kept open for one server


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who owns a partition. ``server`` is ``host:port``, or ``None`` while nobody does; ``stage`` is that server's."""

    partition: int
    server: str | None
    generation: int
    stage: Stage | None


@dataclass(frozen=True, slots=True)
class Owner:
    """The server to which a partition is assigned, and the generation that appends must carry."""

    address: Address
    generation: int


class Directory:
    """View and links of one client. ``patience`` is how many seconds a call may wait for a server."""

    def __init__(
        self, servers: Sequence[str], tls: ssl.SSLContext | None, patience: float, route: Route | None = None
    ) -> None:
        if not servers:
            raise ValueError("name at least one server: host:port")
        self._seeds = [parse_address(server) for server in servers]
        self.tls = tls
        """Of connections from now on."""
        self._route = route
        self.patience = patience
        self.client_id = 0
        self.process = Process()
        self.view: m.View | None = None
        self._key_partitions = 0
        self._owners: dict[int, Owner] = {}
        self._links: dict[Address, asyncio.Task[Link]] = {}
        self._all: set[Link] = set()
        self._idle: list[Link] = []
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = -1.0
        self._spacing = VIEW_SECONDS
        self._net_seqs = itertools.count(1)
        self._seqs = itertools.count()
        self._closed = False

    async def start(self, within: float) -> None:
        """Get the first view and this client's id. Raises ``Unavailable`` when no server answered in time."""
        self.process = Process()
        deadline = asyncio.get_running_loop().time() + within
        seeds = random.sample(self._seeds, len(self._seeds))
        for seed in itertools.cycle(seeds):
            try:
                link = await self._connect(seed)
                try:
                    view = await self._ask_view(link, m.FLAG_CLIENT_ID)
                finally:
                    await self._close_link(link)
                self.client_id = view.client_id
                self._take(view)
                return
            except Unavailable as error:
                hopeless = isinstance(error.__cause__, ssl.SSLCertVerificationError)
                if hopeless or asyncio.get_running_loop().time() >= deadline:
                    raise Unavailable(f"no server gave its view of the cluster: {error}") from error.__cause__
                await asyncio.sleep(RETRY_SECONDS)

    def reqid(self, partition: int, generation: int = 0) -> ReqId:
        """Return a ReqId that no append has: appends count from 1, requests from -1 downwards."""
        return ReqId(self.client_id, generation, partition, -1 - next(self._seqs) % (1 << 31))

    def owner(self, partition: int) -> Owner | None:
        """Return whom the last view names."""
        return self._owners.get(partition)

    def check(self, partition: int) -> None:
        """Raise ``ValueError`` for a partition that the cluster does not have."""
        if self._closed or self.view is None:
            raise Closed("the client is closed; use it inside `async with Waltz(…)`")
        if not self.process.is_this:
            raise Closed("the client was opened before this process was forked; open one in each process")
        if not 0 <= partition < self.view.partitions:
            raise ValueError(
                f"cluster {self.view.cluster} has partitions 0 to {self.view.partitions - 1}, not {partition}"
            )

    async def look_for(self, partition: int) -> None:
        """Ask for the view where it lacks a partition: the log may have got more."""
        if self.view is not None and partition >= self.view.partitions:
            await self.refresh()

    async def key_partitions(self) -> int:
        """Return how many partitions the log began with. Raises ``Unavailable``."""
        deadline = asyncio.get_running_loop().time() + self.patience
        while not self._key_partitions:
            self.check(0)
            servers = self.view.servers if self.view is not None else ()
            for address in [*self._seeds, *((server.host, server.port) for server in servers)]:
                with suppress(Unavailable):
                    self._key_partitions = (await self._ask_view(await self.link(address), m.FLAG_KEYS)).partitions
                    break
            else:
                if asyncio.get_running_loop().time() >= deadline:
                    raise Unavailable("no server tells over how many partitions keys are spread")
                await self.refresh()
        return self._key_partitions

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.view.cluster if self.view is not None else ""

    def partitions(self) -> Mapping[int, PartitionInfo]:
        """Return all partitions of the last view."""
        assert self.view is not None  # noqa: S101 - start() returned
        found = {p: PartitionInfo(p, None, -1, None) for p in range(self.view.partitions)}
        for server in self.view.servers:
            for owned in server.partitions:
                found[owned.partition] = PartitionInfo(
                    owned.partition, f"{server.host}:{server.port}", owned.generation, server.stage
                )
        return MappingProxyType(found)

    async def refresh(self) -> None:
        """Ask all known servers and take the newest answer; callers at the same time share one question."""
        if self._closed:
            return
        passed = asyncio.get_running_loop().time() - self._refreshed_at
        if passed > LULL_SECONDS:
            self._spacing = VIEW_SECONDS
        if passed < self._spacing:
            await asyncio.sleep(self._spacing - passed)
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="waltz-view")
        await asyncio.shield(self._refreshing)

    async def link(self, address: Address) -> Link:
        """Return the shared link to ``address``. Raises ``Unavailable``."""
        task = self._links.get(address)
        if task is None:
            task = self._links[address] = asyncio.create_task(self._connect(address), name="waltz-connect")
            task.add_done_callback(partial(self._connected, address))
        return await asyncio.shield(task)

    @asynccontextmanager
    async def reader(self, partition: int) -> AsyncIterator[Link]:
        """Lend a link to the owner that carries nothing else. It is kept for the next one if the body ends well."""
        owner = self.owner(partition)
        if owner is None:
            raise Unavailable(f"partition {partition} has no owner")
        if found := self._idle_at(owner.address):
            link = found[-1]
            self._idle.remove(link)
        else:
            link = await self._connect(owner.address)
        try:
            yield link
        except BaseException:
            await self._close_link(link)
            raise
        if link.closed or len(self._idle_at(link.address)) >= IDLE_LINKS_MAX or self._closed:
            await self._close_link(link)
        else:
            self._idle.append(link)

    async def call(self, partition: int, make: type[Any], *fields: Any) -> Any:
        """Ask the owner of ``partition``, wherever it is by then. Raises ``Unavailable`` and ``Rejected``."""
        await self.look_for(partition)
        self.check(partition)
        deadline = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                return await self._call_once(partition, make, *fields)
            except Unavailable as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise Unavailable(f"partition {partition}: {error}") from None
            except Rejected as error:
                if error.code not in PASSING or asyncio.get_running_loop().time() >= deadline:
                    raise
            await self.refresh()
            self.check(partition)

    async def probe(self, link: Link, partition: int) -> None:
        """Raise ``Unavailable`` if ``link`` is dead or leads no longer to the owner of ``partition``."""
        await self.refresh()
        owner = self.owner(partition)
        if owner is None or owner.address != link.address:
            raise Unavailable(f"partition {partition} moved away from {link.address[0]}:{link.address[1]}")
        await link.ask(m.HighWaterMarkRequest(self.reqid(partition, owner.generation)), ANSWER_SECONDS)

    async def check_link(self, link: Link) -> None:
        """Raise ``Unavailable`` and end ``link`` if its server does not answer over it."""
        await self._ask_view(link, 0)

    async def close(self) -> None:
        """Close every link."""
        self._closed = True
        tasks = [*self._links.values(), *([self._refreshing] if self._refreshing else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for link in list(self._all):
            await self._close_link(link)

    async def _call_once(self, partition: int, make: type[Any], *fields: Any) -> Any:
        owner = self.owner(partition)
        if owner is None:
            raise Unavailable("no server owns it")
        link = await self.link(owner.address)
        try:
            answer = await link.ask(make(self.reqid(partition, owner.generation), *fields), ANSWER_SECONDS)
        except Unavailable:
            # A partition that opens is awaited for longer. Others are served over this link meanwhile, if it lives.
            await self.check_link(link)
            raise
        if isinstance(answer, m.Reject):
            raise rejected(answer.code, answer.detail, answer.message)
        return answer

    async def _connect(self, address: Address) -> Link:
        if self._closed:
            raise Closed("the client is closed")
        link = await Link.connect(address, self.tls, next(self._net_seqs), self._route)
        if link.closed:
            raise Unavailable("the connection ended at once")
        self._all.add(link)
        link.on_lost.append(lambda: self._lost(link))
        return link

    def _connected(self, address: Address, task: asyncio.Task[Link]) -> None:
        if (task.cancelled() or task.exception()) and self._links.get(address) is task:
            del self._links[address]

    def _lost(self, link: Link) -> None:
        """Forget a link that has ended: each rollout of a log has servers with other addresses."""
        self._all.discard(link)
        if link in self._idle:
            self._idle.remove(link)
        task = self._links.get(link.address)
        if task is not None and task.done() and not task.cancelled() and not task.exception() and task.result() is link:
            del self._links[link.address]

    def _idle_at(self, address: Address) -> list[Link]:
        return [link for link in self._idle if link.address == address]

    async def _close_link(self, link: Link) -> None:
        self._all.discard(link)
        await link.close()

    async def _ask_view(self, link: Link, flags: int) -> m.View:
        try:
            answer = await link.ask(m.ViewRequest(self.reqid(0), flags), ANSWER_SECONDS)
        except Unavailable:
            link.abort("no answer")  # it answers this from memory: the server is stopped or the connection is dead
            raise
        if isinstance(answer, m.Reject):
            raise Unavailable(f"{link.address[0]}:{link.address[1]}: {answer.code.name}: {answer.message}")
        assert isinstance(answer, m.View)  # noqa: S101 - the only other answer
        return answer

    async def _view_of(self, address: Address) -> m.View:
        return await self._ask_view(await self.link(address), 0)

    async def _refresh(self) -> None:
        """The first answer that is not older than what is known counts; else the newest of all."""
        present = self.view
        assert present is not None  # noqa: S101 - start() returned
        addresses = {*self._seeds, *((server.host, server.port) for server in present.servers)}
        asked = [asyncio.create_task(self._view_of(address)) for address in addresses]
        older: list[m.View] = []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    view = await answer
                except (Unavailable, Closed):
                    continue
                if view.version >= present.version:
                    self._take(view)
                    return
                older.append(view)
            if older:
                self._take(max(older, key=lambda view: view.version))
        finally:
            self._refreshed_at = asyncio.get_running_loop().time()
            changed = self.view is not None and self.view.version != present.version
            self._spacing = VIEW_SECONDS if changed else min(2 * self._spacing, VIEW_SECONDS_MAX)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _take(self, view: m.View) -> None:
        self.view = view
        self._owners = {
            owned.partition: Owner((server.host, server.port), owned.generation)
            for server in view.servers
            for owned in server.partitions
        }

"""``pavane.connect``: keys, locks, elections, counters and watches of a RaftCluster, for an application."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import Self
from weakref import WeakSet

from pavane.application.finding import CannotConnect, Connection, find
from pavane.raft.client import Changes, RaftClient, Reset, guard, prefix_range
from pavane.raft.errors import RaftError, Unreachable, Unsupported
from pavane.raft.machines.commands import Compare, Delete, Op, Put, Range, Relation, Target
from pavane.raft.machines.history import Happened

CONNECT_S = 2.0  # a cluster that works answers within, and most elections end within
CERTAIN = ("Keys:", "Name:", "Secret:")  # causes that waiting does not mend
LEASE_S = 10.0  # of locks: a holder that crashed is in the way for so long

Text = str | bytes


class EventType(StrEnum):
    """What happened to a key; ``RESET``: changes were forgotten, and the keys that follow are all that there are."""

    PUT = "put"
    DELETE = "delete"
    EXPIRED = "expired"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of a key. ``value`` is None where nothing was written; ``raw_key`` is for keys that are no UTF-8."""

    type: EventType
    key: str
    value: bytes | None
    revision: int
    raw_key: bytes = field(repr=False, default=b"")


class LockLost(RaftError):
    """A fenced write did not take effect: somebody else holds the lock, or nobody does."""


class NotALock(RaftError):
    """The key holds a value that no lock put there, so it would never become free."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held. Give it to writes as ``fenced_by``: they take effect only while it is ours.

    ``token`` grows from holder to holder; ``lost`` is set when we may have lost it: stop then.
    """

    key: bytes
    token: int
    lost: asyncio.Event = field(repr=False)


_TYPES: Mapping[int, EventType] = {
    Happened.PUT: EventType.PUT,
    Happened.DELETE: EventType.DELETE,
    Happened.EXPIRED: EventType.EXPIRED,
}


async def connect(
    name: str = "",
    *,
    namespace: str | None = None,
    urls: Sequence[str] | None = None,
    connection: Connection | None = None,
    timeout_s: float = CONNECT_S,
) -> "Cluster":
    """Connect to the RaftCluster ``name``; use what it returns in ``async with``.

    Its addresses and keys are found by ``finding.find``, unless ``connection`` gives them; ``namespace`` is by default
    that of the kubeconfig's context. ``urls`` replaces the addresses, for example by those of a forwarded port. After
    ``timeout_s`` seconds raises ``CannotConnect``, which says whether the name, the address, the keys, the secret or
    the quorum is the cause; a program that starts together with its cluster gives more.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a cluster is a str, not {type(name).__name__}")
    found = await asyncio.to_thread(find, name, namespace) if connection is None else connection
    if urls is not None:
        found = replace(found, urls=tuple(urls))
    client = RaftClient(found.urls, found.secret, curve=found.curve, resolve=found.resolve)
    await client.__aenter__()
    try:
        await _reach(client, timeout_s)
    except BaseException:
        await client.__aexit__(None, None, None)
        raise
    return Cluster(client)


async def _reach(client: RaftClient, timeout_s: float) -> None:
    """Return once the keys can be read; raises ``CannotConnect``."""
    try:
        await client.kv.read(Range(b"pavane", flags=Range.COUNT_ONLY), timeout_s=timeout_s)
    except Unsupported as error:
        raise CannotConnect("Name: this is a plain log without keys; take a cluster of keys or a tree") from error
    except Unreachable as error:
        waits = "" if error.why.startswith(CERTAIN) else "; timeout_s= waits longer"
        raise CannotConnect(f"{error.why} (tried {', '.join(error.peers)} for {timeout_s:g} s{waits})") from error


class Cluster:
    """The keys of a RaftCluster. Keys and values are str or bytes; what is read is bytes.

    Reads see everything that was acknowledged before, and writes take effect exactly once. Methods raise
    ``RaftError``; ``TypeError`` for what is neither str nor bytes.
    """

    def __init__(self, client: RaftClient) -> None:
        self.client = client
        """The whole client: transactions, leases, the tree, the log."""
        self._watches: WeakSet[Watch] = WeakSet()  # who leaves one by `break` has closed it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all watches and close the connections."""
        for watch in tuple(self._watches):
            await watch.aclose()
        await self.client.__aexit__(None, None, None)

    async def get(self, key: Text) -> bytes | None:
        """Return the value of a key, None if it is not there."""
        found = await self.client.kv.get(_bytes(key, "a key"))
        return None if found is None else found.value

    async def put(self, key: Text, value: Text, *, fenced_by: Lock | None = None) -> int:
        """Write a key and return the revision. Raises ``LockLost`` if ``fenced_by`` is not held any more."""
        return await self._write(Put(_bytes(key, "a key"), _bytes(value, "a value")), fenced_by)

    async def delete(self, key: Text, *, fenced_by: Lock | None = None) -> int:
        """Delete a key if it is there and return the revision. Raises ``LockLost`` as ``put`` does."""
        return await self._write(Delete(_bytes(key, "a key")), fenced_by)

    async def list(self, prefix: Text = "") -> dict[str, bytes]:
        """Return the keys that begin with ``prefix``, and their values."""
        found = await self.client.kv.list(*prefix_range(_bytes(prefix, "a prefix")))
        return {_text(item.key): item.value for item in found.items}

    async def _write(self, op: Op, lock: Lock | None) -> int:
        if lock is not None and not isinstance(lock, Lock):
            raise TypeError(f"fenced_by takes a lock that is held, not {type(lock).__name__}")
        done = await self.client.kv.txn([] if lock is None else [guard(lock.key, lock.token)], [op])
        if not done.succeeded:
            raise LockLost(f"{_text(lock.key) if lock else ''} is not held with token {lock and lock.token} any more")
        return done.revision

    @asynccontextmanager
    async def lock(self, key: Text, *, ttl_s: float = LEASE_S, value: Text = b"") -> AsyncIterator[Lock]:
        """Wait for a lock and hold it; ``value`` tells people who does.

        A holder that crashed has it for ``ttl_s``, counted anew whenever the cluster has a new leader.

        Raises ``NotALock`` for a key with a value that no lock put there. ``asyncio.timeout`` limits the wait.
        """
        wanted, shown = _bytes(key, "a key"), _bytes(value, "a value")
        present = await self.client.kv.get(wanted)
        if present is not None and not present.lease:
            raise NotALock(f"{_text(wanted)} is a key with a value, not a lock: delete it, or lock another key")
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(self.client.kv.lease(ttl_s, shown))
            token = await self.client.kv.lock(wanted, lease.id, shown)
            yield Lock(wanted, token, lease.lost)

    def election(self, key: Text, candidate: Text, *, ttl_s: float = LEASE_S) -> AbstractAsyncContextManager[Lock]:
        """Wait to be elected, and lead to the end of the block: a lock whose value says who leads (``leader``)."""
        return self.lock(key, ttl_s=ttl_s, value=candidate)

    async def leader(self, key: Text) -> bytes | None:
        """Return who leads an election, None if nobody does."""
        return await self.get(key)

    def counter(self, key: Text) -> "Counter":
        """Return a number that many count with."""
        return Counter(self.client, _bytes(key, "a key"))

    def watch(self, key: Text, *, prefix: bool = False, from_revision: int = 0) -> "Watch":
        """Yield every change of a key, or of all that begin so, once and in order; by default from now on."""
        start = _bytes(key, "a key")
        span = prefix_range(start) if prefix else (start, b"")
        watch = Watch(self.client.kv.watch(*span, from_=from_revision), self._watches)
        self._watches.add(watch)
        return watch


class Counter:
    """A number in a key, as decimal digits; nobody's addition is lost."""

    def __init__(self, client: RaftClient, key: bytes) -> None:
        self._client = client
        self._key = key

    async def value(self) -> int:
        """Return the number; 0 while there is none."""
        found = await self._client.kv.get(self._key)
        return 0 if found is None else self._number(found.value)

    async def add(self, amount: int = 1) -> int:
        """Add to the number and return what it is then."""
        if not isinstance(amount, int):
            raise TypeError(f"a counter adds an int, not {type(amount).__name__}")
        found = await self._client.kv.get(self._key)
        while True:
            present, revision = (0, 0) if found is None else (self._number(found.value), found.mod_revision)
            unchanged = Compare(Target.MOD_REVISION, Relation.EQUAL, self._key, revision)
            written = Put(self._key, str(present + amount).encode())
            done = await self._client.kv.txn([unchanged], [written], [Range(self._key)])
            if done.succeeded:
                return present + amount
            found = await self._client.kv.get(self._key)

    def _number(self, value: bytes) -> int:
        try:
            return int(value)
        except ValueError:
            raise RaftError(f"{_text(self._key)} holds {value[:20]!r}, which is no number") from None


class Watch:
    """An asynchronous iterator of changes; it ends with its cluster, by ``aclose``, or when nothing refers to it."""

    def __init__(self, changes: AsyncGenerator[Changes | Reset, None], registry: "WeakSet[Watch]") -> None:
        self._changes = changes
        self._registry = registry
        self._waiting: list[WatchEvent] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._waiting:
            self._waiting = _events(await anext(self._changes))
        return self._waiting.pop(0)

    async def aclose(self) -> None:
        """End it."""
        self._registry.discard(self)
        await self._changes.aclose()


def _events(change: Changes | Reset) -> list[WatchEvent]:
    if isinstance(change, Reset):
        reset = WatchEvent(EventType.RESET, "", None, change.revision)
        found = [(EventType.PUT, item.key, item.value, item.mod_revision) for item in change.items]
        return [reset, *(WatchEvent(kind, _text(key), value, at, key) for kind, key, value, at in found)]
    return [
        WatchEvent(_TYPES[event.kind], _text(event.key), event.data, change.revision, event.key)
        for event in change.events
        if event.kind in _TYPES
    ]


def _bytes(value: Text, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"{what} is str or bytes, not {type(value).__name__}")


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")

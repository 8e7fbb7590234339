"""``RaftClient.kv``: keys, transactions, watches, leases and locks of a cluster with the machine KeyValue or Tree
(docs/specs/raft.md 12.7).

The building blocks are those of ``pavane.raft.machines.commands``: ``Compare``, ``Put``, ``Range`` and so on.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pavane.raft.client.held_lease import HeldLease
from pavane.raft.client.key_calls import Changes, Outcome
from pavane.raft.errors import Code, Compacted, RaftError, Refused
from pavane.raft.machines.commands import (
    END_OF_KEYS,
    Command,
    Compare,
    Delete,
    DeleteRange,
    LeaseGrant,
    LeaseRevoke,
    Op,
    Put,
    Range,
    ReadOp,
    Relation,
    Target,
    Txn,
)
from pavane.raft.machines.history import Happened, Scope, Watch

TIMEOUT_S = 30.0
REVOKE_S = 5.0  # a change of leader is over by then; who wants to go does not wait for a cluster that is away
OTHER_REQUEST = "this request id belongs to another request, which took effect, and this one did not; use a fresh id"
_GONE = frozenset((Happened.DELETE, Happened.EXPIRED))


@dataclass(frozen=True, slots=True)
class Item:
    """A key: its revisions, how often it was written since it was created, and the lease that it goes with."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True, slots=True)
class Items:
    """Keys as they were at ``revision``; ``more`` says that the range goes on."""

    revision: int
    items: tuple[Item, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Which branch was taken, at which revision, and its results, each without the number of its op (12.3)."""

    succeeded: bool
    revision: int
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """A watcher was away for so long that changes are forgotten, or the cluster was restored.

    Forget what you know and go on from this state.
    """

    revision: int
    items: tuple[Item, ...]


class KeySession(Protocol):
    """Access to a cluster's keys, by a ``RaftClient`` or by REST. All methods raise as ``Keys`` says."""

    def since(self, revision: int) -> "KeySession":
        """Return the session whose stale reads see ``revision`` or later."""
        ...

    def command(self, command: Command, reqid: bytes | None, timeout_s: float) -> Awaitable[Outcome]:
        """Apply a command exactly once."""
        ...

    def read(self, ops: Sequence[ReadOp], timeout_s: float) -> Awaitable[Outcome]:
        """Evaluate reads on one state; the value is the list of their results as 12.3 writes them."""
        ...

    def keep_alive(self, lease: int, timeout_s: float) -> Awaitable[Outcome]:
        """Renew a lease; the value is ``[[lease, milliseconds granted; 0 if it has ended]]``."""
        ...

    def changes(self, watch: Watch) -> AsyncGenerator[Changes, None]:
        """Yield what happens; raises ``Compacted`` if it begins too far back, ``WentBack`` beyond the end."""
        ...


class Keys:
    """The flat keys. Reads see everything that was acknowledged before; every write returns its revision.

    All methods raise a ``RaftError``: ``Refused`` with a code of 4.4 (``NO_LEASE``, ``NO_SPACE`` …), ``Unreachable``,
    ``Expired``, ``ResultLost``, and ``Unsupported`` where the cluster has another state machine. ``reqid`` repeats an
    earlier call whose outcome is unknown (``RaftClient.new_reqid``).
    """

    def __init__(self, session: KeySession) -> None:
        self._session = session

    def since(self, revision: int) -> "Keys":
        """Return these keys, of whose stale reads (``stale_kv``) none is older than ``revision``.

        A caller that passes on the revision that it saw last never sees older data, whichever peer it asks. A read
        raises ``Behind`` where no peer gets there within a second.
        """
        return Keys(self._session.since(revision))

    async def get(self, key: bytes) -> Item | None:
        """Return a key, ``None`` if it is not there."""
        found = await self.range(key)
        return found.items[0] if found.items else None

    async def range(
        self, start: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False, descending: bool = False
    ) -> Items:
        """Return up to ``limit`` keys (0: 1000) from ``start`` to before ``end``; for a prefix see ``prefix_range``."""
        flags = Range.KEYS_ONLY * keys_only | Range.DESCENDING * descending
        outcome = await self.read(Range(start, end, limit, flags))
        [[_, found, more]] = outcome.value
        return Items(outcome.revision, tuple(Item(*item) for item in found), more)

    async def list(self, start: bytes, end: bytes) -> Items:
        """Return all keys of a range, in as many reads as it takes.

        ``revision`` is that of the first. What changed during the later ones is in part seen already; a watch from the
        revision after it tells all of it.
        """
        first = found = await self.range(start, end)
        items = [*found.items]
        while found.more:
            start = found.items[-1].key + b"\x00" if found.items else start
            found = await self.range(start, end)
            items += found.items
        return Items(first.revision, tuple(items), more=False)

    async def count(self, start: bytes, end: bytes) -> int:
        """Return the number of keys of a range."""
        [[_, count, _]] = (await self.read(Range(start, end, 0, Range.COUNT_ONLY))).value
        return int(count)

    async def put(self, key: bytes, value: bytes, *, lease: int = 0, reqid: bytes | None = None) -> int:
        """Write a key, bound to ``lease`` if there is one, and return the revision."""
        return (await self.txn(then=[Put(key, value, lease)], reqid=reqid)).revision

    async def delete(self, key: bytes, *, reqid: bytes | None = None) -> bool:
        """Delete a key and say whether it was there."""
        [deleted] = (await self.txn(then=[Delete(key)], reqid=reqid)).results
        return bool(deleted[0])

    async def delete_range(self, start: bytes, end: bytes, *, reqid: bytes | None = None) -> int:
        """Delete all keys of a range and return how many there were."""
        [deleted] = (await self.txn(then=[DeleteRange(start, end)], reqid=reqid)).results
        return int(deleted[0])

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Op] = (),
        otherwise: Sequence[Op] = (),
        *,
        reqid: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> TxnResult:
        """Carry out ``then`` if all ``compares`` hold, else ``otherwise``, atomically.

        It takes effect once, however often it is repeated on its way, and the result is that of the one time. Raises
        ``Refused`` with BAD_COMMAND if ``reqid`` was that of a request of another form.
        """
        outcome = await self.command(Txn(tuple(compares), tuple(then), tuple(otherwise)), reqid, timeout_s)
        match outcome.value:
            case [bool() as succeeded, [*results]]:
                ops = then if succeeded else otherwise
                if [result[0] for result in results] == [op.NUMBER for op in ops]:
                    return TxnResult(succeeded, outcome.revision, tuple(result[1:] for result in results))
        raise Refused(Code.BAD_COMMAND, OTHER_REQUEST)

    async def watch(self, start: bytes, end: bytes = b"", *, from_: int = 0) -> AsyncGenerator[Changes | Reset, None]:
        """Yield every change of a range from revision ``from_`` on (0: from now on), once and in order, for ever.

        It goes on over changes of leader; ``Reset`` comes where changes were forgotten before they could be read, and
        where the cluster goes on from an older copy of its data, as long as it has not reached the revision that was
        seen last. It ends by ``aclose``, or when nothing refers to it any more, as after ``break`` out of a loop over
        it.
        """
        while True:
            try:
                async with aclosing(self._session.changes(Watch(Scope.KEYS, start, end, from_))) as changes:
                    async for change in changes:
                        from_ = change.revision + 1
                        if change.events:
                            yield change
            except Compacted:
                found = await self.list(start, end or start + END_OF_KEYS)
                yield Reset(found.revision, found.items)
                from_ = found.revision + 1

    @asynccontextmanager
    async def lease(self, ttl_s: float, holder: bytes = b"") -> AsyncIterator[HeldLease]:
        """Hold a lease of ``ttl_s`` (0.2 … 3600) and renew it in the background; it is revoked at the end.

        ``holder`` tells people who has it.
        """
        outcome = await self.command(LeaseGrant(round(ttl_s * 1000), holder))
        lease, ttl_ms = outcome.value
        held = HeldLease(lease, ttl_ms / 1000, self._session.keep_alive)
        if not await held.begin():
            raise Refused(Code.NO_LEASE, f"lease {lease} ended before it could be renewed; take a longer one")
        renewal = asyncio.create_task(held.renew_for_ever())
        try:
            yield held
        finally:
            # It goes on where who gives the lease back is cancelled meanwhile: else others wait for its whole time.
            await asyncio.shield(asyncio.create_task(self._give_back(held, renewal), name="pavane-lease-end"))

    async def _give_back(self, held: HeldLease, renewal: "asyncio.Task[None]") -> None:
        renewal.cancel()
        await asyncio.wait((renewal,))
        # Where nobody can be reached it ends by itself.
        with suppress(RaftError):
            await self.command(LeaseRevoke(held.id), timeout_s=min(REVOKE_S, held.ttl_s))

    async def lock(self, key: bytes, lease: int, value: bytes = b"") -> int:
        """Wait until ``key`` is free, take it under ``lease`` and return the fencing token.

        Tokens of later holders are greater. Add ``guard(key, token)`` to transactions that only the holder may make;
        another store keeps the greatest token seen and refuses a smaller one. Raises ``Refused`` with NO_LEASE when
        the lease has ended. ``asyncio.timeout`` limits the wait.
        """
        free = (
            Compare(Target.CREATE_REVISION, Relation.EQUAL, key, 0),
            Compare(Target.LEASE_ALIVE, Relation.EQUAL, b"", lease),
        )
        while True:
            taken = await self.txn(free, [Put(key, value, lease)], [Range(key)])
            if taken.succeeded:
                return taken.revision
            [[found, _]] = taken.results
            if not found:
                raise Refused(Code.NO_LEASE, f"lease {lease} has ended; take a new one")
            holder = Item(*found[0])
            if holder.lease == lease:
                return holder.create_revision
            await self._until_gone(key, taken.revision + 1)

    async def unlock(self, key: bytes, token: int) -> bool:
        """Give a lock back; false if it was not ours any more."""
        return (await self.txn([guard(key, token)], [Delete(key)])).succeeded

    async def advance(self, key: bytes, token: bytes) -> bool:
        """Raise the value of ``key`` to ``token`` if it is less, as bytes of one length compare; false if it is not."""
        less = Compare(Target.VALUE, Relation.LESS, key, token)
        return (await self.txn([less], [Put(key, token)])).succeeded

    async def read(self, *ops: ReadOp, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Evaluate reads on one state; the value is the list of their results as 12.3 writes them."""
        return await self._session.read(ops, timeout_s)

    async def command(self, command: Command, reqid: bytes | None = None, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Apply any command and return its payload."""
        return await self._session.command(command, reqid, timeout_s)

    async def keep_alive(self, lease: int, *, timeout_s: float = TIMEOUT_S) -> int:
        """Renew a lease that nothing renews in the background; return the milliseconds granted, 0 if it has ended."""
        [[_, granted_ms]] = (await self._session.keep_alive(lease, timeout_s)).value
        return int(granted_ms)

    def changes(self, watch: Watch) -> AsyncGenerator[Changes, None]:
        """Yield what happens as ``watch`` does, also how far nothing has; raises ``Compacted`` where that resets."""
        return self._session.changes(watch)

    async def _until_gone(self, key: bytes, revision: int) -> None:
        async with aclosing(self.watch(key, from_=revision)) as changes:
            async for change in changes:
                if isinstance(change, Reset) or any(event.kind in _GONE for event in change.events):
                    return


def guard(key: bytes, token: int) -> Compare:
    """Return the condition that a lock is held with ``token``."""
    return Compare(Target.CREATE_REVISION, Relation.EQUAL, key, token)

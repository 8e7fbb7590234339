"""What the endpoints of keys do with a Raft client."""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pavane.raft import errors
from pavane.raft.client import Keys, NodeInfo, RaftClient, TxnResult
from pavane.raft.client.keys import OTHER_REQUEST
from pavane.raft.errors import Code
from pavane.raft.machines.commands import (
    Children,
    Compare,
    Delete,
    Get,
    LeaseGrant,
    LeaseRevoke,
    Op,
    Put,
    Range,
    Relation,
    Target,
)
from pavane.raft.machines.history import Scope, Watch
from pavane_api.problems import BadRequest, LeaseEnded, NoSuchKey, PreconditionFailed, Problem
from pavane_api.raft_clients import RaftClients, Use
from pavane_api.raftkeys.schemas import (
    REVISION_HEADER,
    ChangesDocument,
    Deleted,
    Key,
    KeyList,
    Lease,
    LeaseRequest,
    Node,
    NodeRead,
    ReadRange,
    Transaction,
    TransactionResult,
    Written,
    cursor_of,
    result_of,
)
from pavane_api.request_ids import written

TIMEOUT_S = 20.0


class KeyService:
    """The keys of one RaftCluster."""

    def __init__(self, clients: RaftClients, namespace: str, name: str) -> None:
        self._clients = clients
        self._namespace = namespace
        self._name = name

    async def listing(self, wanted: ReadRange, since: int | None) -> KeyList:
        """Return the keys of a range; with ``since`` as any peer has them that has applied this revision."""
        async with self._clients.of(self._namespace, self._name, Use.KEYS) as client:
            outcome = await _keys(client, since).read(wanted.range())
        [fields] = outcome.value
        found = result_of(wanted.range(), fields[1:])
        items = found.items or []
        return KeyList(
            items=items,
            more=bool(found.more),
            continue_=cursor_of(items[-1].key) if found.more and items else None,
            count=found.count,
            revision=outcome.revision,
        )

    async def value(self, key: bytes, since: int | None) -> Key:
        """Return a key; ``since`` as for ``listing``. Raises ``NoSuchKey``."""
        async with self._clients.of(self._namespace, self._name, Use.KEYS) as client:
            found = await _keys(client, since).range(key)
        if not found.items:
            raise _missing(f"There is no key {_shown(key)}.", found.revision)
        return Key.of(found.items[0])

    async def put(
        self, key: bytes, value: bytes, lease: int, expected: Compare | None, request_id: str | None
    ) -> Written:
        """Write a key if ``expected`` holds; else raises ``PreconditionFailed``."""
        result, used = await self._write(key, Put(key, value, lease), expected, request_id)
        return Written(revision=result.revision, request_id=used)

    async def delete(self, key: bytes, expected: Compare | None, request_id: str | None) -> Deleted:
        """Delete a key if ``expected`` holds; else raises ``PreconditionFailed``."""
        result, used = await self._write(key, Delete(key), expected, request_id)
        [[deleted]] = result.results
        return Deleted(revision=result.revision, request_id=used, deleted=bool(deleted))

    async def transact(self, transaction: Transaction, request_id: str | None) -> TransactionResult:
        """Carry out a transaction."""
        try:
            txn = transaction.txn()
        except ValueError as error:
            raise BadRequest(f"{error}.") from error
        branches = (*txn.then, *txn.otherwise)
        use = Use.TREE if any(op.NUMBER >= _TREE_FIRST for op in branches) else Use.KEYS
        async with self._clients.of(self._namespace, self._name, use) as client:
            found, used = await written(
                client,
                request_id,
                lambda reqid: client.kv.txn(txn.compares, txn.then, txn.otherwise, reqid=reqid, timeout_s=TIMEOUT_S),
            )
        ops = txn.then if found.succeeded else txn.otherwise
        return TransactionResult(
            succeeded=found.succeeded,
            revision=found.revision,
            results=[result_of(op, fields) for op, fields in zip(ops, found.results, strict=True)],
            request_id=used,
        )

    async def node(self, path: bytes, since: int | None, *, children: bool) -> NodeRead:
        """Return a node or the names of its children; ``since`` as for ``listing``. Raises ``NoSuchKey``."""
        async with self._clients.of(self._namespace, self._name, Use.TREE) as client:
            outcome = await _keys(client, since).read(Children(path) if children else Get(path))
        [[_, *found]] = outcome.value
        if children:
            return NodeRead(revision=outcome.revision, children=found[0], cversion=found[1])
        if found[0] is None:
            raise _missing(f"There is no node {_shown(path)}.", outcome.revision)
        return NodeRead(revision=outcome.revision, node=Node.of(NodeInfo(*found[0])))

    async def grant(self, wanted: LeaseRequest, request_id: str | None) -> Lease:
        """Grant a lease."""
        async with self._clients.of(self._namespace, self._name, Use.KEYS) as client:
            reqid = bytes.fromhex(request_id) if request_id else None
            outcome = await client.kv.command(LeaseGrant(wanted.ttl_ms, wanted.holder.encode()), reqid, TIMEOUT_S)
        match outcome.value:
            case [int() as lease, int() as ttl_ms]:
                return Lease(lease=lease, ttl_ms=ttl_ms)
        raise BadRequest(OTHER_REQUEST)

    async def renew(self, lease: int) -> Lease:
        """Renew a lease; raises ``LeaseEnded``."""
        async with self._clients.of(self._namespace, self._name, Use.KEYS) as client:
            granted_ms = await client.kv.keep_alive(lease, timeout_s=TIMEOUT_S)
        if not granted_ms:
            raise _ended(lease)
        return Lease(lease=lease, ttl_ms=granted_ms)

    async def revoke(self, lease: int) -> None:
        """End a lease, and with it what it is bound to; raises ``LeaseEnded`` if it has ended before."""
        async with self._clients.of(self._namespace, self._name, Use.KEYS) as client:
            try:
                await client.kv.command(LeaseRevoke(lease), timeout_s=TIMEOUT_S)
            except errors.Refused as refused:
                if refused.code == Code.NO_LEASE:
                    raise _ended(lease) from refused
                raise

    async def check(self, watch: Watch) -> None:
        """Raise what would end a watch at once, before its stream begins."""
        await self._clients.check(self._namespace, self._name, _use(watch))

    async def events(self, watch: Watch) -> AsyncIterator[dict[str, Any]]:
        """Yield what happens as events of a stream, for ever.

        A position that is forgotten ends it with ``event: expired``, an error with ``event: error``.
        """
        try:
            async with (
                self._clients.of(self._namespace, self._name, _use(watch)) as client,
                aclosing(client.kv.changes(watch)) as changes,
            ):
                try:
                    async for change in changes:
                        event = "changes" if change.events else "progress"
                        data = ChangesDocument.of(change).model_dump_json(by_alias=True, exclude_none=True)
                        yield {"event": event, "id": str(change.revision), "data_str": data}
                except errors.Compacted as error:
                    yield {"event": "expired", "data_str": f"read again; changes are known from {error.first} on"}
        except Problem as problem:
            yield {"event": "error", "data_str": problem.detail}

    async def _write(
        self, key: bytes, op: Op, expected: Compare | None, request_id: str | None
    ) -> tuple[TxnResult, str]:
        """Carry out ``op`` under a condition; returns the result and the request id."""
        compares = [] if expected is None else [expected]
        present = [] if expected is None else [Range(key, flags=Range.KEYS_ONLY)]
        async with self._clients.of(self._namespace, self._name, Use.KEYS) as client:
            result, used = await written(
                client,
                request_id,
                lambda reqid: client.kv.txn(compares, [op], present, reqid=reqid, timeout_s=TIMEOUT_S),
            )
        if not result.succeeded:
            [[items, _]] = result.results
            state = f"is at {items[0][3]}" if items else "is not there"
            raise PreconditionFailed(f"The key {_shown(key)} {state}. Read it again.")
        return result, used


def _use(watch: Watch) -> Use:
    return Use.KEYS if watch.scope is Scope.KEYS else Use.TREE


_TREE_FIRST = 16
"""Number of the first op of the tree (docs/specs/raft.md 12.3)."""


def expectation(key: bytes, if_match: str | None, if_none_match: str | None) -> Compare | None:
    """Return the condition that the headers of a request set; None if they set none.

    Raises ``BadRequest`` for what is no ETag of a key.
    """
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise BadRequest("If-None-Match takes only *: create the key, and only if there is none.")
        return Compare(Target.CREATE_REVISION, Relation.EQUAL, key, 0)
    if if_match is None:
        return None
    tag = if_match.strip()
    if tag == "*":
        return Compare(Target.CREATE_REVISION, Relation.GREATER, key, 0)
    revision = _ETAG.fullmatch(tag)
    if revision is None:
        raise BadRequest(f"If-Match takes the ETag of the key, its revision, or * for any; not {if_match}.")
    return Compare(Target.MOD_REVISION, Relation.EQUAL, key, int(revision[1]))


_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,16})"?', re.ASCII)
"""A revision has at most 16 digits."""


def _keys(client: RaftClient, since: int | None) -> Keys:
    return client.kv if since is None else client.stale_kv.since(since)


def _missing(words: str, revision: int) -> NoSuchKey:
    return NoSuchKey(words, headers={REVISION_HEADER: str(revision)})


def _ended(lease: int) -> LeaseEnded:
    return LeaseEnded(f"Lease {lease} has ended; what was bound to it is gone. Grant a new one.")


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")

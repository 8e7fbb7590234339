"""A way to the keys of a RaftCluster through the control plane: what ``RaftClient`` does for its keys, by REST."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote_from_bytes

import httpx2

from pavane.raft.client import Changes
from pavane.raft.client.key_calls import Outcome
from pavane.raft.errors import Code, Compacted, RaftError, Refused
from pavane.raft.machines.commands import Children, Command, Get, LeaseGrant, LeaseRevoke, Range, ReadOp, Txn
from pavane.raft.machines.history import Scope, Watch
from pavane.raft.machines.limits import RANGE_ITEMS_MAX
from pavane_api.raftkeys.schemas import (
    REVISION_HEADER,
    ChangesDocument,
    KeyList,
    Lease,
    NodeRead,
    OpResult,
    Transaction,
    TransactionResult,
    document_of,
    fields_of,
    name_of,
)
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.plane import ApiError, RestClient, StreamLost

LEASE_ENDED = 410


class RestSession:
    """The ``Session`` of ``Keys`` and ``TreeKeys``. Refusals are ``ApiError`` with the control plane's words."""

    def __init__(self, rest: RestClient, path: str, revision: int | None = None) -> None:
        """Any peer that has applied ``revision`` may be read, if one is given."""
        self._rest = rest
        self._path = path
        self._revision = revision

    def since(self, revision: int) -> "RestSession":
        """Return the session whose stale reads see ``revision`` or later."""
        return self if self._revision is None else RestSession(self._rest, self._path, revision)

    async def command(self, command: Command, reqid: bytes | None, timeout_s: float) -> Outcome:
        """Apply a command exactly once."""
        headers = {"Idempotency-Key": reqid.hex()} if reqid is not None else {}
        match command:
            case Txn():
                return await self._transact(command, headers)
            case LeaseGrant(ttl_ms, holder):
                body = {"ttlMs": ttl_ms, "holder": holder.decode(errors="replace")}
                granted = Lease.model_validate(await self._send("POST", "/leases", body, headers))
                return Outcome(granted.lease, [granted.lease, granted.ttl_ms])
            case LeaseRevoke(lease):
                await self._of_lease("DELETE", f"/leases/{lease}", timeout_s)
                return Outcome(0, None)
        raise UserError(f"the control plane takes no {type(command).__name__}; use --peers")

    async def read(self, ops: Sequence[ReadOp], timeout_s: float) -> Outcome:
        """Evaluate one read."""
        [op] = ops
        match op:
            case Range():
                found = KeyList.model_validate(await self._read(_range_path(op)))
                result = OpResult(items=found.items, more=found.more, count=found.count)
                return Outcome(found.revision, [fields_of(op, result)])
            case Get() | Children():
                try:
                    node = NodeRead.model_validate(await self._read(_node_path(op)))
                except ApiError as error:
                    if not isinstance(op, Get) or REVISION_HEADER not in error.headers:
                        raise
                    return Outcome(int(error.headers[REVISION_HEADER]), [fields_of(op, OpResult())])
                result = OpResult(node=node.node, children=node.children, cversion=node.cversion)
                return Outcome(node.revision, [fields_of(op, result)])

    async def keep_alive(self, lease: int, timeout_s: float) -> Outcome:
        """Renew a lease; raises ``RaftError`` when the control plane cannot be asked, which may pass."""
        try:
            renewed = Lease.model_validate(await self._of_lease("POST", f"/leases/{lease}/renewals", timeout_s))
        except Refused:
            return Outcome(0, [[lease, 0]])
        return Outcome(0, [[lease, renewed.ttl_ms]])

    async def changes(self, watch: Watch) -> AsyncGenerator[Changes, None]:
        """Yield what happens; raises ``Compacted`` if it begins too far back."""
        if watch.scope is Scope.KEYS:
            path = f"{self._path}/keys?start={_quoted(watch.start)}&end={_quoted(watch.end)}&watch=true"
        else:
            path = f"{self._path}{_tree(watch.start)}?watch=true&scope={name_of(watch.scope)}"
        behind = watch.first
        try:
            async with aclosing(self._rest.follow(lambda: f"{path}&from={behind}")) as events:
                async for event, data in events:
                    if event == "expired":
                        raise Compacted(0)
                    if event != "overflow":  # what it did not read fast enough is told again
                        found = ChangesDocument.model_validate(json.loads(data)).changes()
                        behind = found.revision + 1
                        yield found
        except StreamLost as lost:
            words = f"the control plane ended the watch: {lost}; go on with --from {behind}"
            raise UserError(words, ExitCode.TIME_OUT) from lost

    async def _of_lease(self, method: str, path: str, timeout_s: float) -> Any:
        """Ask for something about a lease; ``Refused`` if it has ended, ``RaftError`` if nobody can say so."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send(method, path)
        except ApiError as error:
            if error.status == LEASE_ENDED:
                raise Refused(Code.NO_LEASE, str(error)) from error
            raise RaftError(str(error)) from error
        except (httpx2.HTTPError, TimeoutError) as error:
            raise RaftError(f"the control plane does not answer: {error}") from error

    async def _transact(self, txn: Txn, headers: dict[str, str]) -> Outcome:
        body = Transaction.of(txn).model_dump(mode="json", by_alias=True, exclude_none=True)
        found = TransactionResult.model_validate(await self._send("POST", "/txn", body, headers))
        ops = txn.then if found.succeeded else txn.otherwise
        results = [fields_of(op, result) for op, result in zip(ops, found.results, strict=True)]
        return Outcome(found.revision, [found.succeeded, results])

    async def _read(self, path: str) -> Any:
        stale = "" if self._revision is None else f"&stale=true&minRevision={self._revision}"
        return await self._rest.get(self._path + path + stale)

    async def _send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        return await self._rest.send(method, self._path + path, body, headers)


def _range_path(op: Range) -> str:
    wanted = document_of(op).model_dump(mode="json", by_alias=True, include={"keys_only", "count_only", "descending"})
    flags = "".join(f"&{name}=true" for name, value in wanted.items() if value)
    limit = min(op.limit or RANGE_ITEMS_MAX, RANGE_ITEMS_MAX)
    return f"/keys?start={_quoted(op.start)}&end={_quoted(op.end)}&limit={limit}{flags}"


def _node_path(op: Get | Children) -> str:
    return f"{_tree(op.path)}?children={'true' if isinstance(op, Children) else 'false'}"


def _tree(path: bytes) -> str:
    return "/tree/" + quote_from_bytes(path.removeprefix(b"/"))


def _quoted(part: bytes) -> str:
    return quote_from_bytes(part, safe="")

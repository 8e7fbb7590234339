"""Under which id a Raft cluster is asked to write."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pavane.raft.client import RaftClient

Result = TypeVar("Result")


async def written(
    client: RaftClient, request_id: str | None, write: Callable[[bytes], Awaitable[Result]]
) -> tuple[Result, str]:
    """Write under the caller's request id, or under one of our own; return the result and the id.

    The cluster itself tells a repetition from another request under the same id, whichever control plane it came by.
    """
    if request_id is not None:
        return await write(bytes.fromhex(request_id)), request_id

    async def told(reqid: bytes) -> tuple[Result, str]:
        return await write(reqid), reqid.hex()

    return await client.under_new_reqid(told)

"""A program that takes a fair lock again and again (docs/specs/raft.md 12.7) and does under its token what it is told.

It says ``got TOKEN`` and waits for a line; then it writes under the token in the cluster and says ``wrote TOKEN yes``
or ``wrote TOKEN no``. What it says is its write to a store outside as well.
"""

import asyncio
import sys
from contextlib import aclosing

from pavane.raft.client import RaftClient, guard, prefix_range
from pavane.raft.errors import Refused
from pavane.raft.machines.commands import Compare, Put, Relation, Target
from tests.services.raft.lock_holder import say

QUEUE = b"queue/"
TTL_S = 1.0


async def fair_lock(client: RaftClient, lease: int) -> tuple[bytes, int] | None:
    """Queue up; return the own key and its token when all before it are gone, ``None`` if the lease ended meanwhile."""
    kv = client.kv
    key = QUEUE + b"%d" % lease
    alive = Compare(Target.LEASE_ALIVE, Relation.EQUAL, b"", lease)
    entered = await kv.txn([alive], [Put(key, b"", lease)])
    while entered.succeeded:
        queue = await kv.list(*prefix_range(QUEUE))
        own = next((item for item in queue.items if item.key == key), None)
        if own is None:
            break
        before = [item for item in queue.items if item.create_revision < own.create_revision]
        if not before:
            return key, own.create_revision
        predecessor = max(before, key=lambda item: item.create_revision)
        async with aclosing(kv.watch(predecessor.key, from_=queue.revision + 1)) as changes:
            await anext(changes)
    return None


async def main(urls: str, secret: str) -> None:
    loop = asyncio.get_running_loop()
    async with RaftClient(urls.split(","), secret.encode()) as client:
        while True:
            try:
                async with client.kv.lease(TTL_S) as lease:
                    held = await fair_lock(client, lease.id)
                    if held is None:
                        continue
                    key, token = held
                    say(f"got {token}")
                    await loop.run_in_executor(None, sys.stdin.readline)
                    result = await client.kv.txn([guard(key, token)], [Put(b"data", b"%d" % token)])
                    say(f"wrote {token} {'yes' if result.succeeded else 'no'}")
            except Refused as refused:  # the lease ended before it was used
                sys.stderr.write(f"{refused}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

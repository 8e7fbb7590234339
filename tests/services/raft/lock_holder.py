"""A program that takes a lock, tells its token, and after a line of input tries to write under it."""

import asyncio
import sys

from pavane.raft.client import RaftClient, guard
from pavane.raft.machines.commands import Put


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(url: str, secret: str) -> None:
    async with RaftClient([url], secret.encode()) as client, client.kv.lease(1.0, b"holder") as lease:
        token = await client.kv.lock(b"lock", lease.id)
        say(str(token))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        result = await client.kv.txn([guard(b"lock", token)], [Put(b"data", b"stopped holder")])
        await lease.lost.wait()
        say("written" if result.succeeded else "refused")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A program that makes a client and then forks, as a web server that loads its application before its workers.

``forked.py URL SECRET puts``: each of four children opens the client, writes PUTS keys of its own one after the other
and says ``acknowledged N``. ``forked.py URL SECRET locks``: each waits WAIT_S for the lock ``lock``, says
``holds TOKEN`` or ``waits``. A child that fails says ``failed`` and why. ``forked.py URL SECRET inherited``: it forks
with open clients; each child says ``refused`` and why, the parent what it reads in the end.
"""

import asyncio
import os
import sys
from collections.abc import Callable

import pavane
from pavane.application import Connection
from pavane.raft.client import BlockingRaftClient, RaftClient
from pavane.raft.errors import Closed

CHILDREN = 4
PUTS = 50
LEASE_S = 60.0  # far longer than the test
WAIT_S = 2.0  # for the lock that somebody else has


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def puts(client: RaftClient, child: int) -> None:
    async with client:
        for number in range(PUTS):
            await client.kv.put(b"k/%d/%d" % (child, number), b"%d" % child)
    say(f"acknowledged {PUTS}")


async def locks(client: RaftClient, child: int) -> None:
    async with client, client.kv.lease(LEASE_S, b"%d" % child) as lease:
        try:
            async with asyncio.timeout(WAIT_S):
                token = await client.kv.lock(b"lock", lease.id, b"%d" % child)
        except TimeoutError:
            say("waits")
        else:
            say(f"holds {token}")
        os._exit(0)  # dies with the lock, which stays its own for as long as its lease


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except Closed as error:
        say(f"refused {error}")
    else:
        say("not refused")


def in_a_child(work: Callable[[], None]) -> None:
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(process, 0)


async def inherited(url: str, secret: bytes) -> None:
    """Fork with an open client of each kind; the child can do nothing with it, and its parent goes on."""
    async with RaftClient([url], secret) as client:
        await client.kv.put(b"key", b"1")

        def use() -> None:
            refused(lambda: asyncio.run(client.log_info()))
            asyncio.run(client.__aexit__(None, None, None))

        in_a_child(use)
        await client.kv.put(b"key", b"2")


def blocking(url: str, secret: bytes) -> None:
    with BlockingRaftClient([url], secret) as client:

        def use() -> None:
            refused(client.log_info)
            client.__exit__(None, None, None)

        in_a_child(use)
        client.log_info()
    with pavane.connect_sync(connection=Connection("q", (url,), secret, None)) as cluster:

        def use_cluster() -> None:
            refused(lambda: cluster.get("key"))
            cluster.close()

        in_a_child(use_cluster)
        say(f"parent {cluster.get('key')!r}")


def main(url: str, secret: str, what: str) -> None:
    if what == "inherited":
        asyncio.run(inherited(url, secret.encode()))
        blocking(url, secret.encode())
        return
    client = RaftClient([url], secret.encode())
    work = {"puts": puts, "locks": locks}[what]
    children = []
    for child in range(CHILDREN):
        process = os.fork()
        if not process:
            status = 1
            try:
                asyncio.run(work(client, child))
                status = 0
            except BaseException as error:
                say(f"failed {error!r}")
            finally:
                os._exit(status)
        children.append(process)
    for process in children:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

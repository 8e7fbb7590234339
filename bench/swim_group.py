"""``python -m bench.swim_group``: a group of our members on loopback, measured as bench/memberlist/main.go does theirs.

One process for all members, JSON on standard output.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pavane.swim.aio import Adapter
from pavane.swim.config import LAN, Config
from pavane.swim.core.outputs import Happened, Send
from pavane.swim.member import SwimMember

SETTLE_S = 3.0  # after each change
PATIENT_S = 60.0  # for anything to be known by all
LOOK_S = 0.005  # between looks at what is known


class Loss:
    """Loses a share of what adapters send, and counts everything that they send."""

    def __init__(self) -> None:
        self.share = 0.0
        self.datagrams = 0
        self.octets = 0
        self._send = Adapter._send

    def install(self) -> None:
        """Stand between every adapter and its socket."""

        def send(adapter: Adapter, what: Send) -> None:
            self.datagrams += 1
            self.octets += len(what.datagram)
            if random.random() >= self.share:
                self._send(adapter, what)

        Adapter._send = send  # type: ignore[assignment, method-assign]


class Node:
    """One member and what it sees, kept by its events as the library's delegate keeps it."""

    def __init__(self, member: SwimMember) -> None:
        self.member = member
        self.id = member.info.id
        self.sees = {one.id for one in member.members()}
        self.dead: set[int] = set()
        self.watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        async for event in self.member.events():
            if event.member is None:
                continue
            if event.kind is Happened.JOINED:
                self.sees.add(event.member.id)
            elif event.kind in (Happened.DEAD, Happened.LEFT):
                self.sees.discard(event.member.id)
                self.dead.add(event.member.id)

    async def stop(self) -> None:
        """End without a word, as a crash does."""
        await self.member.__aexit__(None, None, None)
        await self.watching


class Group:
    """The members that run."""

    def __init__(self, keys: tuple[bytes, ...], seal: bool) -> None:
        self._config = Config(profile=LAN, keys=keys, seal=seal)
        self.nodes: list[Node] = []

    async def start(self) -> Node:
        """Start a member; the first one is everybody's seed."""
        seeds = [str(node.member.bound) for node in self.nodes[:1]]
        member = await SwimMember(self._config, ("127.0.0.1", 0), seeds).__aenter__()
        node = Node(member)
        self.nodes.append(node)
        return node

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait for a condition; returns after how many seconds it held."""
        began = time.monotonic()
        while not condition() and time.monotonic() - began < PATIENT_S:
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began

    def all_see(self, number: int, *, seen: bool = True) -> bool:
        """Say whether everybody else sees a member, or none does."""
        return all((number in node.sees) == seen for node in self.nodes if node.id != number)

    def complete(self) -> bool:
        """Say whether all see all."""
        everybody = {node.id for node in self.nodes}
        return all(node.sees >= everybody for node in self.nodes)


async def changes(group: Group, count: int) -> dict[str, list[float]]:
    """Let members join, leave and crash, and measure how long it takes until that is known by all."""
    joins, leaves, crashes = [], [], []
    for _ in range(count):
        began = time.monotonic()
        node = await group.start()
        await group.until(partial(group.all_see, node.id))
        joins.append(time.monotonic() - began)
        await asyncio.sleep(SETTLE_S)
        leaving = asyncio.create_task(node.member.leave())
        leaves.append(await group.until(partial(group.all_see, node.id, seen=False)))
        await leaving
        group.nodes.remove(node)
        await asyncio.sleep(SETTLE_S)
        await node.stop()
    for _ in range(count):
        victim = random.choice(group.nodes[1:])
        group.nodes.remove(victim)
        await victim.stop()
        crashes.append(await group.until(partial(group.all_see, victim.id, seen=False)))
        await group.start()
        await asyncio.sleep(SETTLE_S)
    return {"join_s": joins, "leave_s": leaves, "crash_s": crashes}


async def window(group: Group, loss: Loss, seconds: float) -> dict[str, float]:
    """Count what a quiet group does in so many seconds, per member."""
    for node in group.nodes:
        node.dead.clear()
    suspicions = sum(node.member.counts["suspicions"] for node in group.nodes)
    loss.datagrams = loss.octets = 0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    per = len(group.nodes) * seconds
    there = {node.id for node in group.nodes}
    return {
        "datagrams": loss.datagrams / per,
        "bytes": loss.octets / per,
        "stream_bytes": 0.0,
        "cpu_ms": cpu_s * 1000 / per,
        "suspicions": (sum(node.member.counts["suspicions"] for node in group.nodes) - suspicions) / per * 60,
        "falsely_dead": float(len(there & {number for node in group.nodes for number in node.dead})),
    }


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Run the scenario."""
    loss = Loss()
    loss.install()
    keys = (bytes(range(32)),) if asked.keys or asked.seal else ()
    group = Group(keys, asked.seal)
    for _ in range(asked.size):
        await group.start()
    result: dict[str, Any] = {"boot_s": await group.until(group.complete)}
    await asyncio.sleep(asked.settle)
    result["idle"] = await window(group, loss, asked.idle)
    result |= await changes(group, asked.changes)
    loss.share = asked.loss / 1000
    result["lossy"] = await window(group, loss, asked.lossy)
    for node in group.nodes:
        await node.stop()
    return result


def main() -> None:
    """Read the arguments, which are those of the other program."""
    parser = argparse.ArgumentParser(prog="python -m bench.swim_group", description=__doc__)
    parser.add_argument("--size", type=int, default=50, help="members")
    parser.add_argument("--changes", type=int, default=5, help="joins, leaves and crashes, each")
    parser.add_argument(
        "--settle", type=float, default=100.0, help="seconds from boot to the window without any change"
    )
    parser.add_argument("--idle", type=float, default=20.0, help="seconds without any change")
    parser.add_argument("--lossy", type=float, default=60.0, help="seconds with loss")
    parser.add_argument("--loss", type=int, default=100, help="share that is lost, in thousandths")
    parser.add_argument("--keys", action="store_true", help="protect what is sent")
    parser.add_argument("--seal", action="store_true", help="encrypt it too")
    sys.stdout.write(json.dumps(asyncio.run(measure(parser.parse_args()))) + "\n")


if __name__ == "__main__":
    main()

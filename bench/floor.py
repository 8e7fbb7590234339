"""What a minimal program takes for the work of a consensus: the same sockets, disks and hand-overs, and nothing else.

A leader and two followers, each a process with one thread, pass updates by ØMQ and sync them; a client counts them as
done when the leader and one follower have them. There are no elections, terms, ids, machines or traces. It is what
Python with pyzmq can do here at best, beside which ``contest`` is to be read.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from bench.options import Options
from bench.report import Measure, median_of, percentile
from tests.services.ports import free_ports

BATCH = 64  # messages that are taken before what came is synced
SEQUENTIAL = 1000
WARM_UP = 200
BULK = 10_000
MESSAGES = 4  # in which what is in flight is sent: the next is made while the former ones are under way

Socket = zmq.Socket[bytes]


def follow(url: str, log: Path) -> None:
    """Write what comes, sync, answer."""
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(url)
    with log.open("wb", buffering=0) as file:
        while True:
            messages = taken(router)
            file.write(b"".join(data for _, _, data in messages))
            os.fdatasync(file.fileno())
            for route, number, _ in messages:
                router.send_multipart((route, number))


def lead(url: str, log: Path, followers: list[str]) -> None:
    """Send on what comes, write, sync, and answer when one follower has it."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(url)
    dealers = []
    for each in followers:
        dealers.append(context.socket(zmq.DEALER))
        dealers[-1].connect(each)
    poller = zmq.Poller()
    for socket in (router, *dealers):
        poller.register(socket, zmq.POLLIN)
    waiting: dict[bytes, tuple[bytes, bytes]] = {}
    count = 0
    with log.open("wb", buffering=0) as file:
        while True:
            ready = dict(poller.poll())
            if router in ready:
                messages = taken(router)
                for route, number, data in messages:
                    count += 1
                    waiting[name := count.to_bytes(8, "big")] = route, number
                    for dealer in dealers:
                        dealer.send_multipart((name, data))
                file.write(b"".join(data for _, _, data in messages))
                os.fdatasync(file.fileno())
            for dealer in dealers:
                if dealer in ready:
                    for (name,) in taken(dealer):
                        if asked := waiting.pop(name, None):
                            router.send_multipart(asked)


def taken(socket: Socket) -> list[list[bytes]]:
    """Wait for a message; return it and those behind it."""
    messages = [socket.recv_multipart()]
    try:
        while len(messages) < BATCH:
            messages.append(socket.recv_multipart(zmq.DONTWAIT))
    except zmq.Again:
        pass
    return messages


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run the three; give the leader's url."""
    urls = [f"tcp://127.0.0.1:{port}" for port in free_ports(3)]
    roles = [("follow", urls[1]), ("follow", urls[2]), ("lead", urls[0], *urls[1:])]
    processes = [
        subprocess.Popen([sys.executable, "-m", "bench.floor", str(folder / f"log-{number}"), *role])
        for number, role in enumerate(roles)
    ]
    try:
        yield urls[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def bulk(client: Socket, updates: int, in_flight: int, size: int) -> float:
    """Return the updates per second with so many in flight, as ``MESSAGES`` messages."""
    each = in_flight // MESSAGES
    data, left, began = bytes(size * each), updates // each, time.perf_counter()
    for _ in range(MESSAGES):
        client.send_multipart((b"", data))
    for number in range(left):
        client.recv_multipart()
        if number + MESSAGES < left:
            client.send_multipart((b"", data))
    return left * each / (time.perf_counter() - began)


def sequential(client: Socket, updates: int, size: int) -> list[float]:
    """Return the milliseconds of updates, one after the other."""
    times = []
    for _ in range(updates):
        began = time.perf_counter()
        client.send_multipart((b"", bytes(size)))
        client.recv_multipart()
        times.append((time.perf_counter() - began) * 1000)
    return times


async def measure(folder: Path, options: Options) -> list[Measure]:
    """All rows of Raft."""
    return await asyncio.to_thread(_measure, folder, options)


def _measure(folder: Path, options: Options) -> list[Measure]:
    rows: dict[tuple[str, str], list[float]] = {}
    for number in range(options.runs):
        (folder / str(number)).mkdir()
        with running(folder / str(number)) as url:
            client: Socket = zmq.Context.instance().socket(zmq.DEALER)
            client.connect(url)
            for size in options.sizes:
                sequential(client, WARM_UP, size)
                times = sequential(client, SEQUENTIAL, size)
                rows.setdefault((f"sequential {size} B, p50", "ms"), []).append(statistics.median(times))
                rows.setdefault((f"sequential {size} B, p99", "ms"), []).append(percentile(times, 99))
                for in_flight in options.in_flight:
                    rate = bulk(client, BULK, in_flight, size)
                    rows.setdefault((f"{in_flight} in flight, {size} B", "/s"), []).append(rate)
            client.close(0)
    return [median_of(what, unit, samples) for (what, unit), samples in rows.items()]


if __name__ == "__main__":
    _, log, role, url, *others = sys.argv
    follow(url, Path(log)) if role == "follow" else lead(url, Path(log), others)

"""One raw connection of V4 over TLS, which is all that the original's clients speak (docs/specs/waltz.md 16).

Beside it the floor: a Python program with the same processes, sockets, TLS and syncs that does nothing else.
"""

import asyncio
import os
import socket
import ssl
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from bench.cluster import STOP_TIMEOUT_S
from bench.options import Options
from bench.report import Measure, latencies, median_of
from bench.waltz import NODES, Log
from bench.waltz_floor import ANSWER_BYTES, REQUEST_BYTES
from bench.waltz_node import HOST, TLS_VARIABLE
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_CLIENT, Channel
from tests.services.ports import free_ports
from tests.services.stage.certificates import authority, certificate, publish

DATA = bytes(100)
WARM_UP = 300
SEQUENTIAL = 500
BULK = 5000  # appends of one FLUSH
BULKS = 4
FEEDS = 4
START_S = 30.0
FEED_DATA_BYTES = 36
READ_BYTES = 256 * 1024
T = TypeVar("T")


class Client:
    """Speaks V4 and waits in its own thread: it costs as little as a client can."""

    def __init__(self, port: int, tls: ssl.SSLContext, number: int) -> None:
        self.socket = tls.wrap_socket(_dial(port))
        self._channel = Channel(LOG_CLIENT, (4,))
        self._number, self._seq = number, 0
        self.socket.sendall(self._channel.hello())
        while self._channel.version is None:
            self._channel.receive(self.socket.recv(READ_BYTES))
            self._channel.message()

    def reqid(self) -> ReqId:
        """Return the next one."""
        self._seq += 1
        return ReqId(self._number, 1, 0, self._seq)

    def frame(self, message: Any) -> bytes:
        """Return what is sent."""
        return self._channel.encode(message)

    def ask(self, message: Any, kind: type[T]) -> T:
        """Send, and return the next message of ``kind``."""
        self.socket.sendall(self.frame(message))
        while not isinstance(found := self.next(), kind):
            pass
        return found

    def next(self) -> Any:
        """Return the next message."""
        while (message := self._channel.message()) is None:
            if not (data := self.socket.recv(READ_BYTES)):
                raise EOFError("the server hung up")
            self._channel.receive(data)
        return message

    def mount(self) -> int:
        """Mount at the end of the log once the partition is there, and return its HWM."""
        hwm = self.ask(m.HighWaterMarkRequest(self.reqid()), m.HighWaterMarkResponse).txid
        while self.ask(m.MountRequest(self.reqid(), hwm, 0), m.MountResponse).state is not m.MountState.READY:
            time.sleep(0.05)
        return hwm

    def append(self) -> m.AppendRequest:
        """Return the next append."""
        return m.AppendRequest(self.reqid(), -1, (), (), (), 7, DATA)

    def pipelined(self, count: int) -> float:
        """Return appends per second until FLUSH is answered."""
        frames = b"".join(self.frame(self.append()) for _ in range(count))
        began = time.perf_counter()
        self.socket.sendall(frames)
        self.ask(m.FlushRequest(self.reqid()), m.FlushResponse)
        return count / (time.perf_counter() - began)

    def one_by_one(self, count: int) -> list[float]:
        """Return milliseconds from an append to its own feed item; the feed is mounted at the end of the log."""
        hwm = self.mount()
        self.socket.sendall(self.frame(m.FeedRequest(self.reqid(), hwm)))
        times = []
        for _ in range(count):
            append, began = self.append(), time.perf_counter()
            self.socket.sendall(self.frame(append))
            while not isinstance(message := self.next(), m.FeedData) or message.reqid != append.reqid:
                if isinstance(message, m.FeedSuspended):
                    self.socket.sendall(self.frame(m.FeedRequest(self.reqid(), hwm)))
                elif isinstance(message, m.FeedData):
                    hwm = message.txid
            hwm = message.txid
            times.append((time.perf_counter() - began) * 1000)
        return times

    def feed(self) -> float:
        """Return headers per second of the whole log; they are counted, not decoded."""
        lacking = transactions = self.mount() + 1
        began = time.perf_counter()
        self.socket.sendall(self.frame(m.FeedRequest(self.reqid(), -1)))
        lacking *= FEED_DATA_BYTES
        while lacking > 0:
            lacking -= len(self.socket.recv(READ_BYTES))
        return transactions / (time.perf_counter() - began)


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Appends and feed of one connection, and the floor of one append; each run begins with an empty log."""
    signer = authority()
    (folder / "tls").mkdir(parents=True)
    publish(folder / "tls", certificate(signer), signer)
    environment = {**os.environ, TLS_VARIABLE: str(folder / "tls")}
    tls = ssl.create_default_context(cafile=str(folder / "tls" / "ca.crt"))
    tls.check_hostname = False
    bulk, times, feeds = list[float](), list[float](), list[float]()
    floor, shares = list[float](), list[float]()
    for number in range(options.runs):
        log = Log(folder / f"log-{number}", environment)
        log.start()
        try:
            run = await asyncio.to_thread(_run, int(log.address.rpartition(":")[2]), tls)
        finally:
            log.stop()
        least = await asyncio.to_thread(_floor, folder / f"floor-{number}", environment, tls)
        bulk, times, feeds, floor = bulk + run[0], times + run[1], feeds + run[2], floor + least
        shares.append(statistics.median(run[1]) / statistics.median(least))
    return [
        median_of(f"V4: appends of 100 B, {BULK} until FLUSH", "/s", bulk),
        *latencies("V4: append until its own feed item", times, None, None),
        median_of("V4: headers read by one feed", "/s", feeds),
        *latencies("the floor of an append", floor, None, None),
        median_of("an append / the floor, medians", "", shares),
    ]


def _run(port: int, tls: ssl.SSLContext) -> tuple[list[float], list[float], list[float]]:
    first = Client(port, tls, 1)
    first.mount()
    first.pipelined(WARM_UP)
    bulk = [first.pipelined(BULK) for _ in range(BULKS)]
    times = Client(port, tls, 2).one_by_one(SEQUENTIAL)
    return bulk, times, [Client(port, tls, 3 + number).feed() for number in range(FEEDS)]


def _floor(folder: Path, environment: dict[str, str], tls: ssl.SSLContext) -> list[float]:
    *nodes, port = free_ports(NODES + 1)
    roles = [("node", str(folder / str(each)), str(each)) for each in nodes]
    commands = [*roles, ("server", str(port), *map(str, nodes))]
    run = [sys.executable, "-m", "bench.waltz_floor"]
    processes = [subprocess.Popen([*run, *each], env=environment) for each in commands]
    try:
        connection, times = tls.wrap_socket(_dial(port)), []
        for _ in range(WARM_UP + SEQUENTIAL):
            began = time.perf_counter()
            connection.sendall(bytes(REQUEST_BYTES))
            lacking = ANSWER_BYTES
            while lacking:
                lacking -= len(connection.recv(lacking))
            times.append((time.perf_counter() - began) * 1000)
        return times[WARM_UP:]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(STOP_TIMEOUT_S)


def _dial(port: int) -> socket.socket:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(ConnectionRefusedError):
            found = socket.create_connection((HOST, port))
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody listens on port {port}")
        time.sleep(0.05)

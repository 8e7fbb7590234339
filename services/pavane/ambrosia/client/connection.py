"""The two streams to the coordinator, and the coordinator as a child (docs/specs/ambrosia.md 5, 18.1)."""

import asyncio
import contextlib
import os
import random
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pavane.ambrosia.client.errors import CoordinatorLost, ImmortalError
from pavane.ambrosia.intake import Connection

CONNECT_RETRY_S = 0.25  # 18.1
CONNECT_WARN_S = 10.0  # between two lines about a coordinator that is not there
CHILD_STOP_S = 10.0  # a coordinator ends within 5 s of SIGTERM
PORTS = range(12_000, 31_000)  # below those that a system gives to outgoing connections
ENVIRONMENT = "PAVANE_AMBROSIA"
COORDINATOR = "pavane.ambrosia.server"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the coordinator listens: ``rp`` takes what the application sends, ``sp`` gives what it handles."""

    rp: int
    sp: int
    host: str = "127.0.0.1"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read ``host:rp,sp`` or ``rp,sp``; raises ``ImmortalError``."""
        host, _, ports = text.rpartition(":")
        try:
            rp, sp = (int(port) for port in ports.split(","))
        except ValueError as error:
            raise ImmortalError(
                f"{ENVIRONMENT}={text}: write host:receivePort,sendPort as in 127.0.0.1:2000,2001"
            ) from error
        return cls(rp, sp, host or "127.0.0.1")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return TCP ports that nobody listens on."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free TCP ports between {PORTS[0]} and {PORTS[-1]}")


class Child:
    """The coordinator that ``serve`` starts when none is named."""

    def __init__(self, process: asyncio.subprocess.Process, address: Address, log: Path) -> None:
        self.address = address
        self._log = log
        self._process = process

    @classmethod
    async def start(cls, name: str, log: Path, options: tuple[str, ...] = ()) -> "Child":
        """Start it on free ports with its files in ``log``."""
        await asyncio.to_thread(log.mkdir, parents=True, exist_ok=True)
        port, rp, sp = free_ports(3)
        said = await asyncio.to_thread((log / f"{name}.coordinator.log").open, "ab")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            COORDINATOR,
            f"--instanceName={name}",
            f"--port={port}",
            f"--receivePort={rp}",
            f"--sendPort={sp}",
            f"--log={log}{os.sep}",
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            process_group=0,  # Ctrl-C is for the application, which then ends it in order
        )
        said.close()
        return cls(process, Address(rp, sp), log / f"{name}.coordinator.log")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.returncode

    async def said(self) -> str:
        """Return its last line."""
        lines = (await asyncio.to_thread(self._log.read_text, errors="replace")).splitlines()
        return lines[-1] if lines else f"{self._log} is empty"

    async def stop(self) -> None:
        """Have it finish its commit and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(CHILD_STOP_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@dataclass(slots=True)
class Streams:
    """Both connections to the coordinator."""

    incoming: Connection
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close both; the coordinator ends with them."""
        self.writer.close()
        self.incoming[1].close()

    async def closed(self) -> None:
        """Wait until both are closed."""
        for writer in (self.writer, self.incoming[1]):
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def connect(address: Address | None, child: Child | None, warn: Callable[[str], None]) -> Streams:
    """Connect to ``rp``, then to ``sp``, however long it takes; raises ``CoordinatorLost`` if ``child`` ended."""
    if child is not None:
        address = child.address
    if address is None:
        raise ValueError("neither an address nor a coordinator")
    _, writer = await _open(address, address.rp, child, warn)
    try:
        return Streams(await _open(address, address.sp, child, warn), writer)
    except BaseException:
        writer.close()
        raise


async def _open(address: Address, port: int, child: Child | None, warn: Callable[[str], None]) -> Connection:
    loop = asyncio.get_running_loop()
    since = warned = loop.time()
    while True:
        if child is not None and child.ended is not None:
            raise CoordinatorLost(f"the coordinator ended with exit code {child.ended}: {await child.said()}")
        try:
            # From its own address: in pods each has one, and the coordinator refuses all others.
            return await asyncio.open_connection(address.host, port, local_addr=(address.host, 0))
        except OSError as error:
            if loop.time() - warned >= CONNECT_WARN_S:
                warned = loop.time()
                warn(f"no coordinator at {address.host}:{port} for {warned - since:.0f} s: {error.strerror}")
        await asyncio.sleep(CONNECT_RETRY_S)

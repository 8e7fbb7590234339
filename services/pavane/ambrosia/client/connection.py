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
from typing import overload

from pavane.ambrosia.client.errors import CoordinatorLost, ImmortalError
from pavane.ambrosia.intake import Connection, is_closed

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
    """Both connections to the coordinator: what it sends, and what it takes."""

    incoming: Connection
    outgoing: Connection

    def close(self) -> None:
        """Close both; the coordinator ends with them."""
        self.outgoing[1].close()
        self.incoming[1].close()

    async def closed(self) -> None:
        """Wait until both are closed."""
        for _, writer in (self.outgoing, self.incoming):
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def half_closed(self) -> None:
        """Return when the coordinator has closed the stream on which it says nothing."""
        with contextlib.suppress(OSError):
            await self.outgoing[0].read(1)


async def connect(address: Address | None, child: Child | None, warn: Callable[[str], None]) -> Streams:
    """Connect to ``rp``, then to ``sp``, however long it takes; raises ``CoordinatorLost`` if ``child`` ended.

    A coordinator that closes the first stream before it opened the second has ended, or has waited long enough: both
    are dialled again, since only who came to its ``rp`` finds it at its ``sp``.
    """
    if child is not None:
        address = child.address
    if address is None:
        raise ValueError("neither an address nor a coordinator")
    dialling = _Dialling(address, child, warn)
    while True:
        outgoing = await dialling.open(address.rp)
        incoming = None
        try:
            incoming = await dialling.open(address.sp, outgoing[0])
            if incoming is not None:
                return Streams(incoming, outgoing)
        finally:
            if incoming is None:
                outgoing[1].transport.abort()
        warn(f"the coordinator at {address.host}:{address.rp} closed the connection before it took the second one")
        await asyncio.sleep(CONNECT_RETRY_S)


class _Dialling:
    """Attempts to connect, and what is said of them."""

    def __init__(self, address: Address, child: Child | None, warn: Callable[[str], None]) -> None:
        self._address = address
        self._child = child
        self._warn = warn
        self._since = self._warned = asyncio.get_running_loop().time()

    @overload
    async def open(self, port: int) -> Connection: ...
    @overload
    async def open(self, port: int, first: asyncio.StreamReader) -> Connection | None: ...
    async def open(self, port: int, first: asyncio.StreamReader | None = None) -> Connection | None:
        """Connect to ``port``; ``None`` once ``first``, the stream that was opened before, is closed."""
        host = self._address.host
        while True:
            child = self._child
            if child is not None and child.ended is not None:
                raise CoordinatorLost(f"the coordinator ended with exit code {child.ended}: {await child.said()}")
            try:
                # From its own address: in pods each has one, and the coordinator refuses all others.
                found = await asyncio.open_connection(host, port, local_addr=(host, 0))
            except OSError as error:
                self._say(f"no coordinator at {host}:{port}", error)
            else:
                ours, theirs = (found[1].get_extra_info(name) for name in ("sockname", "peername"))
                if ours != theirs and (first is None or not is_closed(first)):  # a port may meet itself
                    return found
                found[1].transport.abort()
            if first is not None and is_closed(first):
                return None
            await asyncio.sleep(CONNECT_RETRY_S)

    def _say(self, what: str, error: OSError) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned >= CONNECT_WARN_S:
            self._warned = now
            self._warn(f"{what} for {now - self._since:.0f} s: {error.strerror}")

"""A GiB of an immortal's log, a checkpoint of a GiB, a message of 64 MiB: time and memory of the coordinator.

The application beside it only reads and writes, so the figures are the coordinator's alone. Both share the machine.
"""

import asyncio
import contextlib
import re
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import BenchError
from bench.options import Options
from bench.report import Measure
from pavane.ambrosia.wire.limits import HEADER_BYTES, MESSAGE_BYTES_MAX, MIB
from pavane.ambrosia.wire.messages import OUR_INITIAL_MESSAGE, Call, RpcType, checkpoint, outgoing
from pavane.ambrosia.wire.records import CONTROL_SEQ, Header, read_header

LOG_BYTES = BLOB_BYTES = 1 << 30
CALL_BYTES = 1024
CALLS = LOG_BYTES // CALL_BYTES
AT_ONCE = 256
RECOVERY_S = 60.0
MEMORY_MIB = 300.0
PHASES_S = 500.0
RETRY_S = 0.02
PORTS = (2310, 2311, 2312)
NAME = "sink"
KIND = 1
SMALL = 2
"""Bytes of a checkpoint that is not measured."""
SPARE_BYTES = 1024
"""Of the greatest message, for all but the arguments."""


@dataclass
class Application:
    """Both streams of an application that reads everything and remembers nothing."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    silent: asyncio.StreamWriter

    async def record(self) -> Header:
        """Read a record; its body is not kept."""
        header = read_header(await self.reader.readexactly(HEADER_BYTES))
        await self.skip(header.size - HEADER_BYTES)
        return header

    async def skip(self, size: int) -> None:
        while size:
            read = len(await self.reader.read(min(size, MIB)))
            if not read:
                raise BenchError("the coordinator has ended")
            size -= read

    async def until_control(self) -> None:
        """Read up to the next message that is not from the log."""
        while (await self.record()).seq != CONTROL_SEQ:
            pass

    async def restore(self, size: int) -> None:
        """Read a checkpoint of so many bytes and the log behind it."""
        await self.record()
        await self.skip(size)
        await self.until_control()

    async def take_checkpoint(self, size: int) -> None:
        """Write one of so many bytes, and a call behind it; returns when that comes back."""
        self.writer.write(checkpoint(size))
        for at in range(0, size, MIB):
            self.writer.write(bytes(min(MIB, size - at)))
            await self.writer.drain()
        await self.call(1)

    async def call(self, size: int, count: int = 1) -> None:
        """Send calls to itself until all of them are logged and delivered."""
        one = outgoing("", Call(KIND, RpcType.IMPULSE, bytes(size)))

        async def send() -> None:
            for _ in range(0, count, AT_ONCE):
                self.writer.write(one * min(AT_ONCE, count))
                await self.writer.drain()

        sending = asyncio.ensure_future(send())
        left = size * count
        while left > 0:
            left -= (await self.record()).size
        await sending

    async def close(self) -> None:
        for writer in (self.writer, self.silent):
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Fill a log, recover from it, take a checkpoint of a GiB, handle the greatest message, recover from them."""
    del options
    async with asyncio.timeout(PHASES_S):
        async with _coordinator(folder) as (_, application):
            await application.until_control()
            application.writer.write(OUR_INITIAL_MESSAGE)
            await application.take_checkpoint(SMALL)
            began = time.perf_counter()
            await application.call(CALL_BYTES, CALLS)
            written = time.perf_counter() - began
        async with _coordinator(folder) as (process, application):
            began = time.perf_counter()
            await application.restore(SMALL)
            recovered, recovery_mib = time.perf_counter() - began, _peak_mib(process)
            began = time.perf_counter()
            await application.take_checkpoint(BLOB_BYTES)
            paused, checkpoint_mib = time.perf_counter() - began, _peak_mib(process)
            await application.call(MESSAGE_BYTES_MAX - SPARE_BYTES)
            message_mib = _peak_mib(process)
        async with _coordinator(folder) as (process, application):
            began = time.perf_counter()
            await application.restore(BLOB_BYTES)
            restored, restore_mib = time.perf_counter() - began, _peak_mib(process)
            await application.take_checkpoint(SMALL)
    return [
        Measure("1 GiB of calls of 1 KiB, logged and delivered", LOG_BYTES / MIB / written, "MiB/s"),
        Measure("recovery of 1 GiB of log", recovered, "s", RECOVERY_S),
        Measure("recovery of 1 GiB of log, memory at most", recovery_mib, "MiB", MEMORY_MIB),
        Measure("checkpoint of 1 GiB, calls paused", paused, "s"),
        Measure("checkpoint of 1 GiB, memory at most", checkpoint_mib, "MiB", MEMORY_MIB),
        Measure("call of 64 MiB, memory at most", message_mib, "MiB", MEMORY_MIB),
        Measure("recovery from the checkpoint and the call of 64 MiB", restored, "s"),
        Measure("recovery from both, memory at most", restore_mib, "MiB", MEMORY_MIB),
    ]


def _peak_mib(process: Process) -> float:
    """Greatest resident memory since the call before."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise BenchError(f"/proc/{process.pid}/status names no VmHWM")
    return int(found[1]) / 1024


async def _dial(port: int, process: Process) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while process.returncode is None:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port, limit=MIB)
        await asyncio.sleep(RETRY_S)
    raise BenchError("the coordinator did not start")


@contextlib.asynccontextmanager
async def _coordinator(folder: Path) -> AsyncIterator[tuple[Process, Application]]:
    port, receive, send = PORTS
    places = [f"--instanceName={NAME}", f"--log={folder}/logs/", "--logTriggerSize=0"]
    ports = [f"--port={port}", f"--receivePort={receive}", f"--sendPort={send}"]
    with (folder / "coordinator.out").open("ab") as out:
        command = [sys.executable, "-m", "pavane.ambrosia.server", *places, *ports]
        process = await asyncio.create_subprocess_exec(*command, stdout=out)
    try:
        _, writer = await _dial(receive, process)
        reader, silent = await _dial(send, process)
        application = Application(reader, writer, silent)
        yield process, application
        await application.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
